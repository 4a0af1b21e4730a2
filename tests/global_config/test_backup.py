"""A configuration that is restored: leaderships and operations that may have gone on since the backup was taken."""

from __future__ import annotations

import pytest

from geo_tests.sim.loop import run_alone
from global_config import keys
from global_config.backup import EPOCHS_MARGIN, WHY, restored_counters, restored_rows
from heliograph.kv.engine.table_rows import Row
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.leadership import (
    DRAINING,
    ENDED,
    FENCED,
    FLOOR,
    OPEN,
    Leadership,
    leadership,
    subscription_name,
)
from heliograph.model.errors import NotAllowed
from region_node.dr.leadership.leadership_changes import Switching, closing, flipped, reopened
from region_node.dr.leadership.write_gates import Writing
from region_node.dr.operations.automatic_policy import Automatic, automatic, operators_key
from region_node.dr.operations.operation import CANCELLED, FAILOVER, Operation, operation_key

NAME = "t/n"
SUBSCRIPTION = subscription_name("persistent://t/n/x", "s")


async def backed_up(store: EmbeddedStore) -> list[tuple[str, Row]]:
    return [(key, (value, version, 0)) for key, value, version in await store.range("/", "0")]


async def restored(rows: list[tuple[str, Row]], now_ms: int = 0) -> EmbeddedStore:
    store, keys = EmbeddedStore(), list[str]()
    for key, value in restored_rows(rows, now_ms):
        keys.append(key)
        await store.put(key, value)
    assert keys == sorted(set(keys)), "a table is filled in the order of its keys"
    return store


def test_a_leadership_of_a_backup_asks_which_region_is_the_active_one() -> None:
    """It may have moved since, and ended, and begun again: nobody publishes until somebody says where."""

    async def main() -> None:
        store = EmbeddedStore()
        await Switching(store, lambda: 5).begin(NAME, "us", {"rpo_s": 5.0})
        rows = await backed_up(store)
        epochs = [1]
        for _ in range(3):  # restored, and once more from a backup that was taken of what was restored
            store = await restored(rows)
            switching = Switching(store, lambda: 7)
            record, version = await switching.get(NAME)
            assert (record.active, record.state, record.heard) == ("us", FENCED, ()) and "backup" in record.asks
            for region in ("us", "eu"):
                core = Writing(region, ttl_s=6.0, drift=0.1, now=lambda: 0.0)
                core.on_record(NAME, record, version)
                gate = core.gate(NAME)
                assert gate is not None
                refused = gate.refusal()
                assert refused is not None and f"heliograph dr set {NAME}" in str(refused)
            rows = await backed_up(store)
            answered = await switching.begin(NAME, "eu", {})
            assert (answered.active, answered.state, answered.asks) == ("eu", OPEN, "")
            assert answered.began == answered.epoch > epochs[-1] and answered.slo == {"rpo_s": 5.0}
            epochs.append(answered.epoch)
            with pytest.raises(NotAllowed):
                await switching.begin(NAME, "us", {})

    run_alone(main())


def test_a_failover_answers_too_and_to_give_one_up_is_no_answer() -> None:
    asking = Leadership(active="us", state=FENCED, asks="it went back")
    closed = closing(asking, "eu", FENCED, 0)
    assert flipped(closed, 0).asks == "" and flipped(closed, 0).state == OPEN
    assert reopened(closed, 0).state == FENCED and reopened(closed, 0).asks
    with pytest.raises(NotAllowed):
        closing(asking, "eu", DRAINING, 0)


def test_no_epoch_comes_twice_also_of_what_was_set_after_the_backup() -> None:
    """Blocks carry the epoch in which their leadership began; of one that the backup does not know, too."""

    async def main() -> None:
        before = EmbeddedStore()
        await before.put("/aaa", b"")
        await before.put("/zzz", b"")
        ended = Switching(before, lambda: 5)
        await ended.begin("t/ended", "us", {})
        await ended.end("t/ended")
        rows = await backed_up(before)
        lost = [(await Switching(before, lambda: 5).begin(name, "us", {})).epoch for name in (NAME, "t/ended")]
        for times in (1, 2):
            store = await restored(rows)
            rows = await backed_up(store)
            for name, epoch in zip((NAME, "t/ended"), lost, strict=True):
                assert (await Switching(store, lambda: 5).begin(name, "eu", {})).epoch >= epoch + times * EPOCHS_MARGIN

    run_alone(main())


@pytest.mark.parametrize("shortly_after_another", [False, True])
def test_the_same_backup_restored_twice_gives_other_epochs_each_time(shortly_after_another: bool) -> None:
    async def main() -> None:
        before = EmbeddedStore()
        await Switching(before, lambda: 5).begin(NAME, "us", {})
        rows, seen = await backed_up(before), list[set[int]]()
        if shortly_after_another:
            rows = await backed_up(await restored(rows, 1_763_999_990_000))
        for now_ms in (1_764_000_000_000, 1_764_000_060_000, 1_764_000_120_000):
            switching = Switching(await restored(rows, now_ms), lambda: 5)
            seen.append({(await switching.begin(name, "us", {})).epoch for name in (NAME, "t/made-since")})
        assert not seen[0] & seen[1] and not seen[1] & seen[2] and min(seen[0]) > 1_764_000_000_000

    run_alone(main())


def test_a_configuration_without_any_leadership_has_a_floor_after_a_restore() -> None:
    for rows in ([], [("/a", (b"", 1, 0))], [("/z", (b"", 1, 0))]):
        assert dict(restored_rows(rows, 0))[FLOOR] == b"%d" % EPOCHS_MARGIN


def test_an_operation_that_was_under_way_is_cancelled_and_one_that_was_done_stays() -> None:
    running = Operation.new(4, FAILOVER, NAME, "us", "eu", "ops", 9)
    done = running.left(10)
    rows = [
        (operation_key("t/a"), (running.encode(), 1, 0)),
        (operation_key("t/b"), (done.encode(), 1, 0)),
        (operation_key("t/c"), (b"{}", 1, 0)),
    ]
    found = dict(restored_rows(rows, 0))
    cancelled = Operation.decode(found[operation_key("t/a")])
    assert cancelled.state == CANCELLED and "backup" in cancelled.waiting and cancelled.id == 4
    assert found[operation_key("t/b")] == done.encode() and found[operation_key("t/c")] == b"{}"


def test_what_failed_over_by_itself_asks_whether_it_still_is_to() -> None:
    rows = [
        (automatic("t/a"), (Automatic(after_s=30.0, to=("eu",)).encode(), 1, 0)),
        (automatic("t/b"), (b"no JSON", 1, 0)),
        (operators_key("t/a"), (b"", 1, 7)),
    ]
    found = dict(restored_rows(rows, 0))
    assert Automatic.decode(found[automatic("t/a")]) == Automatic(after_s=30.0, to=("eu",), asks=WHY)
    assert found[automatic("t/b")] == b"no JSON" and operators_key("t/a") not in found, "a hold ends with its lease"


def test_a_subscription_goes_on_where_the_backup_says_under_another_epoch() -> None:
    record = Leadership(active="us", epoch=3, began=1, heard=("eu", "us"))
    rows = [(ENDED + "t/x", (b"no number", 1, 0)), (leadership(SUBSCRIPTION), (record.encode(), 1, 0))]
    found = dict(restored_rows(rows, 0))
    again = Leadership.decode(found[leadership(SUBSCRIPTION)])
    assert (again.active, again.state, again.asks, again.heard) == ("us", OPEN, "", ()) and again.epoch > EPOCHS_MARGIN
    assert found[ENDED + "t/x"] == b"no number", "what cannot be read stays as it is"


def test_neither_numbers_of_regions_nor_incarnations_of_topics_come_twice() -> None:
    """An id that a client knows a topic by is told from that of an earlier topic of its name by the incarnation."""
    made = {keys.NUMBERS: 3, keys.INCARNATIONS: 7, "another": 5}
    once = dict(restored_counters(made))
    assert once[keys.NUMBERS] > 100 and once[keys.INCARNATIONS] > 100_000 and once["another"] == 5
    assert dict(restored_counters(once))[keys.INCARNATIONS] > once[keys.INCARNATIONS]
