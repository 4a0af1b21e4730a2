"""The key-value machine: versions, compare-and-set, leases, sessions, snapshots, determinism."""

from __future__ import annotations

import random
from typing import Any

import pytest

from heliograph.kv.engine.table_rows import SortedKeys
from heliograph.kv.machine_commands import CommandKind, SessionUnknown, command, open_answer, txn_fields
from heliograph.kv.metadata_store import KEY_BYTES_MAX, VALUE_BYTES_MAX, Check, Delete, Put, check_ops, prefix_end
from heliograph.kv.state_machine import Change, KvMachine, MachineSettings
from heliograph.model.errors import CorruptData, LeaseLost, NotAllowed, VersionConflict
from tests.heliograph.kv.driver import Driver


def test_versions_grow_also_over_a_deletion() -> None:
    driver = Driver()
    first = driver.txn(Put("/a", b"1"))
    driver.txn(Delete("/a"))
    assert driver.machine.get("/a") is None
    second = driver.txn(Put("/a", b"2", expected=-1))
    assert second > first
    assert driver.machine.get("/a") == (b"2", second)


def test_compare_and_set() -> None:
    driver = Driver()
    version = driver.txn(Put("/a", b"1", expected=-1))
    with pytest.raises(VersionConflict) as conflict:
        driver.txn(Put("/a", b"2", expected=-1))
    assert (conflict.value.key, conflict.value.expected, conflict.value.actual) == ("/a", -1, version)
    with pytest.raises(VersionConflict):
        driver.txn(Put("/a", b"2", expected=version + 1))
    with pytest.raises(VersionConflict):
        driver.txn(Delete("/a", expected=version + 1))
    with pytest.raises(VersionConflict):
        driver.txn(Delete("/b", expected=1))
    assert driver.machine.get("/a") == (b"1", version)
    assert driver.txn(Put("/a", b"2", expected=version)) > version


def test_a_transaction_is_all_or_nothing() -> None:
    driver = Driver()
    version = driver.txn(Put("/a", b"1"), Put("/b", b"1"))
    assert driver.machine.get("/a") == (b"1", version) and driver.machine.get("/b") == (b"1", version)
    with pytest.raises(VersionConflict) as conflict:
        driver.txn(Put("/a", b"2"), Delete("/b"), Check("/c", 7))
    assert conflict.value.key == "/c"
    with pytest.raises(LeaseLost):
        driver.txn(Put("/a", b"2"), Put("/c", b"", lease=99))
    assert [row[:2] for row in driver.machine.under("/")] == [("/a", b"1"), ("/b", b"1")]


def test_every_expected_speaks_of_the_state_before() -> None:
    driver = Driver()
    driver.txn(Put("/a", b"1", expected=-1), Put("/a", b"2", expected=-1), Check("/a", -1))
    assert driver.machine.get("/a") == (b"2", 1)


def test_fresh_ids() -> None:
    driver = Driver()
    assert driver.run(CommandKind.NEXT_IDS, ["n", 3, 0]) == [0]
    assert driver.run(CommandKind.NEXT_IDS, ["n", 1, 0]) == [3]
    assert driver.run(CommandKind.NEXT_IDS, ["n", 1, 100]) == [100]
    assert driver.run(CommandKind.NEXT_IDS, ["n", 1, 50]) == [101]
    assert driver.run(CommandKind.NEXT_IDS, ["n", 0, 0]) == [102] == driver.run(CommandKind.NEXT_IDS, ["n", 0, 7])
    assert driver.machine.under("") == []


def test_a_lease_takes_its_keys_along_but_not_those_that_left_it() -> None:
    driver = Driver()
    (lease,) = driver.run(CommandKind.GRANT, [3000])
    (other,) = driver.run(CommandKind.GRANT, [3000])
    driver.txn(
        Put("/stays", b"", lease=lease),
        Put("/moves", b"", lease=lease),
        Put("/goes", b"", lease=lease),
        Put("/gone", b"", lease=lease),
    )
    driver.txn(Put("/stays", b"1"), Put("/moves", b"1", lease=other), Delete("/gone"))
    seen: list[Change] = []
    driver.machine.observe(lambda index, changes: seen.extend(changes or ()))
    assert driver.run(CommandKind.REVOKE, [lease]) == [True]
    assert seen == [("/goes", None, driver.machine.index)]
    assert driver.run(CommandKind.REVOKE, [lease]) == [False]
    with pytest.raises(LeaseLost):
        driver.txn(Put("/late", b"", lease=lease))
    driver.run(CommandKind.REVOKE, [other])
    assert [row[0] for row in driver.machine.under("/")] == ["/stays"]


def test_a_repeated_command_returns_its_first_answer() -> None:
    driver = Driver()
    (session,) = driver.run(CommandKind.SESSION, [])
    first = driver.txn(Put("/a", b"1", expected=-1), session=session, sequence=1, low=1)
    driver.txn(Put("/a", b"2", expected=first))
    assert driver.txn(Put("/a", b"1", expected=-1), session=session, sequence=1, low=1) == first
    assert driver.machine.get("/a") == (b"2", first + 1)
    with pytest.raises(VersionConflict):
        driver.txn(Put("/a", b"3", expected=-1), session=session, sequence=2, low=1)
    driver.txn(Delete("/a"))
    with pytest.raises(VersionConflict):  # also a refusal is repeated as it was
        driver.txn(Put("/a", b"3", expected=-1), session=session, sequence=2, low=1)


def test_what_the_client_gave_up_is_never_applied_later() -> None:
    driver = Driver()
    (session,) = driver.run(CommandKind.SESSION, [])
    driver.txn(Put("/a", b"new"), session=session, sequence=2, low=2)
    with pytest.raises(SessionUnknown):
        driver.txn(Put("/a", b"old"), session=session, sequence=1, low=1)
    assert driver.machine.get("/a") == (b"new", 2)


def test_a_forgotten_session_says_so() -> None:
    driver = Driver()
    with pytest.raises(SessionUnknown):
        driver.txn(Put("/a", b""), session=77, sequence=1, low=1)
    assert len(driver.machine) == 0


def test_sessions_are_bounded_and_the_least_recently_used_goes_first() -> None:
    settings = MachineSettings(sessions_max=3)
    driver = Driver(KvMachine(settings=settings))
    sessions = [driver.run(CommandKind.SESSION, [])[0] for _ in range(3)]
    driver.txn(Put("/a", b""), session=sessions[0], sequence=1, low=1)
    restored = Driver(KvMachine(settings=settings))
    restored.machine.restore(driver.machine.snapshot())
    for each in (driver, restored):
        each.run(CommandKind.SESSION, [])
        with pytest.raises(SessionUnknown):
            each.txn(Put("/a", b""), session=sessions[1], sequence=1, low=1)
        assert each.txn(Put("/a", b""), session=sessions[0], sequence=1, low=1) == 4


def test_answers_of_a_session_are_bounded() -> None:
    driver = Driver(KvMachine(settings=MachineSettings(answers_max=4)))
    (session,) = driver.run(CommandKind.SESSION, [])
    for sequence in range(4):
        driver.txn(Put("/a", b""), session=session, sequence=sequence, low=0)
    with pytest.raises(NotAllowed):
        driver.txn(Put("/b", b""), session=session, sequence=4, low=0)
    assert driver.machine.get("/b") is None
    driver.txn(Put("/b", b""), session=session, sequence=4, low=4)


@pytest.mark.parametrize(
    "blob", [b"\x02", b"\x01", b"\x01\xff", b"\x01\x01", b"\x01\x90", b"\x01\x91\x01", b"\x01\x94\x01\x90\x00\x00"]
)
def test_bytes_that_are_no_command_are_refused(blob: bytes) -> None:
    with pytest.raises(NotAllowed):
        open_answer(KvMachine().apply(1, blob))


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (0, []),
        (99, [1]),
        (CommandKind.TXN, []),
        (CommandKind.TXN, [5]),
        (CommandKind.TXN, [[]]),
        (CommandKind.TXN, [[[0, "/a"]]]),
        (CommandKind.TXN, [[[0, 5, b"", None, 0]]]),
        (CommandKind.TXN, [[[0, "/a", "text", None, 0]]]),
        (CommandKind.TXN, [[[0, "/a", b"", 0.5, 0]]]),
        (CommandKind.TXN, [[[0, "/a", b"", None, []]]]),
        (CommandKind.TXN, [[[3, "/a", None]]]),
        (CommandKind.TXN, [[[2, "/a", None]]]),
        (CommandKind.TXN, [[[0, "", b"", None, 0]]]),
        (CommandKind.GRANT, []),
        (CommandKind.GRANT, [0]),
        (CommandKind.GRANT, ["x"]),
        (CommandKind.GRANT, [500.5]),
        (CommandKind.REVOKE, [[]]),
        (CommandKind.NEXT_IDS, ["n", "x", 0]),
        (CommandKind.NEXT_IDS, ["n", 1.5, 0]),
        (CommandKind.NEXT_IDS, [5, 1, 0]),
        (CommandKind.NEXT_IDS, ["n", -1, 0]),
        (CommandKind.NEXT_IDS, ["n", (1 << 63) - 1, 1]),
    ],
)
def test_a_malformed_command_is_refused_and_changes_nothing(kind: Any, fields: list[Any], in_session: bool) -> None:
    driver = Driver()
    (session,) = driver.run(CommandKind.SESSION, [])
    with pytest.raises(NotAllowed):
        driver.run(kind, fields, session=session if in_session else 0, sequence=1, low=1)
    assert len(driver.machine) == 0 and driver.machine.leases() == {}
    assert driver.run(CommandKind.NEXT_IDS, ["n", 1, 0]) == [0]


def test_limits() -> None:
    check_ops([Put("k" * KEY_BYTES_MAX, bytes(VALUE_BYTES_MAX))])
    for ops in (
        [Put("k" * (KEY_BYTES_MAX + 1), b"")],
        [Put("ä" * (KEY_BYTES_MAX // 2 + 1), b"")],
        [Put("k", bytes(VALUE_BYTES_MAX + 1))],
        [Put("\ud800", b"")],
        [Put(f"{n}", bytes(VALUE_BYTES_MAX)) for n in range(5)],
        [Check("k", 1)] * 1025,
        [],
    ):
        with pytest.raises(NotAllowed):
            check_ops(ops)


def test_prefix_end() -> None:
    assert prefix_end("/a/") == "/a0"
    assert prefix_end("\ud7ff") == "\ue000"
    assert prefix_end("a\U0010ffff") == "b"
    assert prefix_end("") > "\U0010ffff"


def test_a_range_is_cut_by_count_and_by_bytes() -> None:
    driver = Driver()
    for number in range(10):
        driver.txn(Put(f"/{number}", bytes(100)))
    rows, more = driver.machine.range("/2", "/8", 3)
    assert [row[0] for row in rows] == ["/2", "/3", "/4"] and more
    rows, more = driver.machine.range("/2", "/8", 100, 150)
    assert len(rows) == 2 and more
    rows, more = driver.machine.range("/2", "/8")
    assert len(rows) == 6 and not more
    assert driver.machine.range("/8", "/2") == ([], False)


class SmallBlocks(SortedKeys):
    BLOCK = 4


@pytest.mark.parametrize("seed", range(20))
def test_sorted_keys_are_a_sorted_set(seed: int) -> None:
    rng = random.Random(seed)
    keys, model = SmallBlocks(), set[str]()
    for _ in range(600):
        key = f"{rng.randrange(200):03d}"
        if key in model and rng.random() < 0.5:
            model.remove(key)
            keys.remove(key)
        elif key not in model:
            model.add(key)
            keys.add(key)
        low, high = sorted(f"{rng.randrange(200):03d}" for _ in range(2))
        assert list(keys.between(low, high)) == sorted(k for k in model if low <= k < high)


def random_command(rng: random.Random, driver: Driver) -> bytes:
    session = rng.randrange(driver.machine.index + 2) if rng.random() < 0.5 else 0
    key = f"/{rng.randrange(8)}"
    lease = rng.choice([0, 0, *driver.machine.leases(), 5])
    expected = rng.choice([None, None, -1, driver.machine.index])
    low = rng.randrange(6)
    about = {"session": session, "sequence": rng.randrange(12), "low": low}
    match rng.randrange(7):
        case 0:
            return command(CommandKind.SESSION, [])
        case 1:
            return command(CommandKind.GRANT, [rng.randrange(100, 5000)], **about)
        case 2:
            return command(CommandKind.REVOKE, [lease], **about)
        case 3:
            return command(CommandKind.NEXT_IDS, ["n", rng.randrange(3), 0], **about)
        case 4:
            return command(CommandKind.TXN, txn_fields([Delete(key, expected), Put("/x", b"x", None, lease)]), **about)
        case _:
            return command(
                CommandKind.TXN, txn_fields([Put(key, bytes([rng.randrange(256)]), expected, lease)]), **about
            )


@pytest.mark.parametrize("seed", range(60))
def test_a_restored_machine_goes_on_as_the_first_one(seed: int) -> None:
    """Every answer and every snapshot byte is the same, whether a machine applied all or began with a snapshot; an
    observer ends with the same table.
    """
    rng = random.Random(seed)
    first = Driver()
    copies: list[KvMachine] = []
    mirror: dict[str, bytes] = {}
    follower = KvMachine()

    def on_changes(_index: int, changes: list[Change] | None) -> None:
        if changes is None:
            mirror.clear()
            changes = follower.under("")
        for key, value, _ in changes:
            if value is None:
                del mirror[key]
            else:
                mirror[key] = value

    follower.observe(on_changes)
    for _ in range(120):
        blob = random_command(rng, first)
        index = first.machine.index + 1
        answer = first.machine.apply(index, blob)
        for copy in copies:
            assert copy.apply(index, blob) == answer
        if rng.random() < 0.05:
            copies.append(KvMachine())
            copies[-1].restore(first.machine.snapshot())
        if rng.random() < 0.1:
            follower.restore(first.machine.snapshot())
        elif follower.index == index - 1:
            follower.apply(index, blob)
        if follower.index == index:
            assert mirror == {key: value for key, value, _ in first.machine.under("/")}
    for copy in copies:
        assert copy.snapshot() == first.machine.snapshot()


def test_a_snapshot_of_another_version_is_refused() -> None:
    driver = Driver()
    driver.txn(Put("/a", b"1"))
    blob = driver.machine.snapshot()
    for wrong in (
        b"",
        b"\x03" + blob[1:],
        blob[:-1],
        blob[:-6],
        blob + b"\x00\x00\x00\x01\xc0",
        b"\x01\x91\x01",
        b"\x02\x00\x00\x00\x02\x91\x01",
    ):
        with pytest.raises(CorruptData):
            driver.machine.restore(wrong)
    assert driver.machine.get("/a") == (b"1", 1)
