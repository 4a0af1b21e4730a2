"""A table behind an embedded store is the table in memory: any history, with saves, crashes, full disks, and snapshots
taken over; and LMDB's own cases.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path

import lmdb
import pytest

from heliograph.kv.engine import lmdb_store as lmdb_module
from heliograph.kv.engine.table_image import Image
from heliograph.kv.machine_commands import CommandKind, command, txn_fields
from heliograph.kv.metadata_store import Delete, Put
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.model.errors import CorruptData, NotAllowed
from tests.heliograph.kv.kept_table import Node

LONG = "/long/" + "x" * 490
KEYS = [
    *(f"/k/ns/{number % 3}/{number:02d}" for number in range(12)),
    LONG + "xxxxxa",
    LONG + "xxxxxb",
    LONG + "é" * 9,
    LONG + "xxxx",
]


def random_entry(rng: random.Random, machine: KvMachine) -> bytes:
    key = rng.choice(KEYS)
    lease = rng.choice([0, 0, *machine.leases(), 5])
    expected = rng.choice([None, None, None, -1, machine.index])
    about = {
        "session": rng.randrange(machine.index + 2) if rng.random() < 0.5 else 0,
        "sequence": rng.randrange(12),
        "low": rng.randrange(6),
    }
    match rng.randrange(8):
        case 0:
            return command(CommandKind.SESSION, [])
        case 1:
            return command(CommandKind.GRANT, [rng.randrange(100, 5000)], **about)
        case 2:
            return command(CommandKind.REVOKE, [lease], **about)
        case 3:
            return command(CommandKind.NEXT_IDS, ["n", rng.randrange(3), 0], **about)
        case 4 | 5:
            return command(CommandKind.TXN, txn_fields([Delete(key, expected), Put("/x", b"x", None, lease)]), **about)
        case _:
            return command(
                CommandKind.TXN, txn_fields([Put(key, rng.randbytes(rng.choice((1, 60))), expected, lease)]), **about
            )


@pytest.mark.parametrize("seed", range(60))
def test_any_history_is_that_of_the_table_in_memory(seed: int, tmp_path: Path) -> None:
    rng, settings = random.Random(seed), MachineSettings(part_rows=3)
    model, node = KvMachine(settings=settings), Node(tmp_path, settings=settings, rows_at_once=3)
    images: list[tuple[Image, list[tuple[str, bytes, int]], list[tuple[str, bytes, int]]]] = []
    for _ in range(150):
        entry = random_entry(rng, model)
        assert node.apply(entry) == model.apply(len(node.log), entry)
        match rng.randrange(14):
            case 0 | 1 if not node.machine.saving:
                node.save()
            case 2 | 3 | 4:
                node.steps.run()
            case 5 if node.machine.saving:
                node.steps.fail = OSError(errno.ENOSPC, "full")
                node.steps.run()
                assert isinstance(node.errors[-1], OSError)
            case 6:
                node.crash()
                images = []
            case 7 if not node.machine.saving:
                node.take_over(model.snapshot(), rng)
                assert all(image.broken for image, _, _ in images)
                images = []
            case 8:
                images.append((node.machine.image(), [], model.under("")))
            case 9 if images:
                image, taken, expected = images[0]
                rows = image.rows()
                taken += [(key, value, version) for key, (value, version, _) in rows]
                if not rows:
                    assert taken == expected
                    node.machine.release(image)
                    del images[0]
        low, high = sorted((rng.choice(KEYS), rng.choice(KEYS)))
        assert node.machine.range(low, high) == model.range(low, high)
        assert [node.machine.get(key) for key in KEYS[-4:]] == [model.get(key) for key in KEYS[-4:]]
    node.steps.run_all()
    assert node.machine.snapshot() == model.snapshot() and len(node.machine) == len(model)
    for number in range(3):
        prefix = f"/k/ns/{number}/"
        assert node.machine.count(prefix) == model.count(prefix) == len(model.under(prefix))
    node.crash()
    assert node.machine.snapshot() == model.snapshot() and node.machine.count("/k/ns/1/") == model.count("/k/ns/1/")
    node.store.close()


def test_only_counted_prefixes_are_counted() -> None:
    machine = KvMachine()
    for wrong in ("/ml/", "/ml/public/default", "ml/public/default/x/", "/ml/public/default/x/", ""):
        with pytest.raises(NotAllowed, match="first 3 parts"):
            machine.count(wrong)


def test_a_map_that_is_full_grows_and_nothing_is_lost(tmp_path: Path) -> None:
    node = Node(tmp_path, map_bytes=1 << 20)
    for number in range(40):
        node.put(Put(f"/k/{number}", bytes(100_000)))
    node.save()
    node.steps.run_all()
    assert node.errors == [None] and node.store._map_bytes >= 4 << 20
    assert len(node.machine.under("/k/")) == 40
    node.crash()
    assert len(node.machine.under("/k/")) == 40 and node.machine.unsaved_bytes == 0
    node.store.close()


@pytest.mark.parametrize(("free", "kind"), [(0, errno.ENOSPC), (1 << 30, errno.EIO)])
def test_an_error_of_the_disk_is_final_unless_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, kind: int
) -> None:
    """LMDB reports a write that a full disk cut short as it does a broken disk."""
    node = Node(tmp_path)

    def cut_short(*_: object) -> None:
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    node.put(Put("/a", b"1"))
    node.steps.free = free
    with monkeypatch.context() as patched:
        patched.setattr(lmdb_module, "_put_rows", cut_short)
        node.save()
        node.steps.run_all()
    error = node.errors[-1]
    assert isinstance(error, OSError) and error.errno == kind and node.machine.get("/a") == (b"1", 1)
    node.save()
    node.steps.run_all()
    assert node.errors[-1] is None and node.machine.unsaved_bytes == 0
    node.store.close()


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_in_a_commit_leaves_the_state_before_it(seed: int, tmp_path: Path) -> None:
    """Every page of the commit but those with the root may or may not have reached the disk: LMDB syncs them before it
    writes the root.
    """
    rng, node = random.Random(seed), Node(tmp_path / "table")
    assert node.store._env.flags()["sync"] and node.store._env.flags()["metasync"]
    data = tmp_path / "table" / "data.mdb"
    for number in range(rng.randrange(1, 200)):
        node.put(Put(f"/k/a/b/{number}", rng.randbytes(80)))
    node.save()
    node.steps.run_all()
    before, held = data.read_bytes(), node.machine.snapshot()
    for number in range(0, 200, 3):
        node.put(Put(f"/k/a/b/{number}", rng.randbytes(80)), Delete(f"/k/a/b/{number + 1}"))
    node.save()
    node.steps.run_all()
    after, page = data.read_bytes(), 4096
    torn = bytearray(before.ljust(len(after), b"\0"))
    for at in range(2 * page, len(after), page):
        if rng.random() < 0.5:
            torn[at : at + page] = after[at : at + page]
    node.store.close()
    data.write_bytes(torn)
    log, node.log = node.log, []
    node.start()
    assert node.machine.snapshot() == held
    node.log = log
    for index, entry in enumerate(log[node.machine.index :], node.machine.index + 1):
        node.machine.apply(index, entry)
    node.store.close()
    data.write_bytes(after)
    again = Node(tmp_path / "table")
    assert again.machine.index == len(log)
    again.store.close()


def test_a_damaged_row_is_reported_and_never_taken_for_a_value(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.put(Put("/a", b"the value that is damaged"), Put("/b", b"another"))
    node.save()
    node.steps.run_all()
    node.store.close()
    data = tmp_path / "data.mdb"
    raw = bytearray(data.read_bytes())
    at = raw.find(b"the value that is damaged")
    while at >= 0:
        raw[at + 5] ^= 1
        at = raw.find(b"the value that is damaged", at)
    data.write_bytes(raw)
    node.start()
    assert node.machine.get("/b") == (b"another", 1)
    with pytest.raises(CorruptData, match="restore a backup"):
        node.machine.get("/a")
    node.store.close()


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.95])
def test_a_table_that_is_cut_off_is_refused_with_the_command_to_run(tmp_path: Path, share: float) -> None:
    node = Node(tmp_path)
    for number in range(40):
        node.put(Put(f"/{number}", bytes(2000)))
    node.save()
    node.steps.run_all()
    node.store.close()
    data = tmp_path / "data.mdb"
    data.write_bytes(data.read_bytes()[: int(data.stat().st_size * share) // 4096 * 4096 or 4096])
    with pytest.raises(CorruptData, match="heliograph meta replace"):
        node.start()
    node.store.close()


@pytest.mark.parametrize("wrong", [b"\x02", b"\x01\x00\x00\x00\x00\x00\x00\x00rest"])
def test_a_mark_of_another_version_or_with_damage_is_refused(tmp_path: Path, wrong: bytes) -> None:
    node = Node(tmp_path)
    with node.store._env.begin(write=True) as txn:
        txn.put(b"about", wrong, db=node.store._about)
    with pytest.raises(CorruptData):
        node.crash()
    node.store.close()


def test_a_snapshot_that_ends_too_early_changes_nothing(tmp_path: Path) -> None:
    node, other = Node(tmp_path), KvMachine()
    node.put(Put("/mine", b"1"))
    for number in range(20):
        other.apply(number + 1, command(CommandKind.TXN, txn_fields([Put(f"/{number}", b"x")])))
    ends: list[BaseException | None] = []
    taking = node.machine.begin_restore(ends.append)
    taking.add(other.snapshot()[:-3], ends.append)
    node.steps.run_all()
    taking.finish(b"20", ends.append)
    node.steps.run_all()
    assert isinstance(ends[-1], CorruptData) and node.machine.get("/mine") == (b"1", 1) and not node.machine.saving
    node.take_over(other.snapshot(), random.Random(1))
    assert node.machine.get("/mine") is None and len(node.machine) == 20
    node.store.close()
