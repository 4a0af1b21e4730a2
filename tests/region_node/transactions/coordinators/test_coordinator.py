"""The rules of one coordinator, and what its owner does with the store: retries, the wrong way, limits, fencing, its
own end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import CorruptData, NotAllowed, NotFound
from region_node.transactions.coordinators import coordinator
from region_node.transactions.coordinators.coordinator import (
    CoordinatorSettings,
    TransactionCoordinator,
    TransactionStatus,
    Txn,
)
from region_node.transactions.coordinators.stored_coordinator import StoredCoordinator
from region_node.transactions.participants.transaction_errors import NoCoordinator, NoSuchTransaction, TransactionState


def core(**limits: int) -> TransactionCoordinator:
    return TransactionCoordinator(CoordinatorSettings(**limits))


def test_an_end_is_final_and_the_same_again_is_no_error() -> None:
    made = core()
    made.begin(1, 1000, "a", 0)
    assert made.join(1, "a", ["t"], [("t", "s")]) is not None and made.join(1, "a", ["t"], [("t", "s")]) is None
    assert made.end(1, commit=True, owner="a") is not None and made.end(1, commit=True) is None
    for step in range(2):
        with pytest.raises(TransactionState):
            made.end(1, commit=False)
        with pytest.raises(TransactionState):
            made.join(1, "a", ["u"])
        if not step:
            assert made.done(1, 5) is not None and made.done(1, 6) is None
    assert made.end(1, commit=True) is None and made.committed == 1
    made.begin(2, 1000, "a", 0)
    made.end(2, commit=False)
    with pytest.raises(TransactionState):
        made.end(2, commit=True)


def test_no_transaction_asks_for_more_time_than_the_coordinator_gives() -> None:
    made = core(ttl_max_ms=500)
    made.begin(1, 1000, "a", 0)
    made.begin(2, 400, "a", 0)
    assert (made.find(1).ttl_ms, made.find(2).ttl_ms) == (500, 400)


def test_a_transaction_is_its_owners() -> None:
    made = core()
    made.begin(1, 1000, "a", 0)
    for owner in ("b", ""):
        with pytest.raises(NoSuchTransaction):
            made.join(1, owner, ["t"])
        with pytest.raises(NoSuchTransaction):
            made.end(1, commit=True, owner=owner)
    assert made.find(1).status is TransactionStatus.OPEN and made.find(1, None) is made.find(1, "a")


def test_limits() -> None:
    made = core(open_max=2, participants_max=2)
    made.begin(1, 1, "", 0)
    made.begin(2, 1, "", 0)
    with pytest.raises(NotAllowed):
        made.begin(3, 1, "", 0)
    made.end(1, commit=False)
    made.done(1, 0)
    made.begin(3, 1, "", 0)
    made.join(3, "", ["a"], [("a", "s")])
    with pytest.raises(NotAllowed):
        made.join(3, "", ["b"])


def test_the_low_watermark_is_the_first_that_has_not_ended() -> None:
    made = core(kept_ms=100)
    assert made.low_watermark == 1
    for number in (1, 2, 5):
        made.begin(number, 1000, "", 0)
    assert made.low_watermark == 1
    made.end(1, commit=True)
    assert made.low_watermark == 1
    made.done(1, 10)
    assert made.low_watermark == 2
    for number in (2, 5):
        made.end(number, commit=False)
        made.done(number, 20)
    assert made.low_watermark == 6
    assert made.forget(109) == [] and made.forget(115) == [1] and made.forget(1000) == [2, 5]
    with pytest.raises(NoSuchTransaction):
        made.find(5)


def test_an_owner_whose_clock_was_ahead_leaves_nothing_open_or_remembered_for_longer() -> None:
    made = core(kept_ms=100)
    left = [Txn(1, 500, 1_000_000, ""), Txn(2, 500, 1_000_000, "")]
    left[1].status, left[1].ended_ms = TransactionStatus.ABORTED, 1_000_000
    made.restore(left, 3, 1000)
    assert made.expired(1499) == [] and [t.number for t in made.expired(1500)] == [1]
    assert made.forget(1099) == [] and made.forget(1100) == [2]


def test_time_is_over() -> None:
    made = core()
    made.begin(1, 500, "", 1000)
    made.begin(2, 5000, "", 1000)
    assert made.expired(1499) == [] and [t.number for t in made.expired(1500)] == [1]
    assert [t.number for t in made.slow(3000, 2000)] == [1, 2]
    made.end(1, commit=True)
    assert made.expired(9999) == [made.find(2)]  # what is decided is not over


def test_what_is_stored_of_a_transaction() -> None:
    txn = Txn(7, 1000, 5, "me")
    txn.status, txn.ended_ms = TransactionStatus.ABORTING, 9
    txn.add(["t"], [("t", "s")])
    again = Txn.decode(7, txn.encode())
    assert all(getattr(txn, name) == getattr(again, name) for name in Txn.__slots__)
    with pytest.raises(CorruptData):
        Txn.decode(7, b"\x01\x93\x01\x02\x03")


class Nobody:
    """Participants that take whatever they are told, once they are let."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool, int]] = []
        self.named: list[tuple[str, list[str], bool]] = []
        self.without: set[str] = set()
        """Topics that are terminated, and have no part in anything."""
        self.gone: set[str] = set()
        self.let = asyncio.Event()
        self.let.set()
        self.at_once = 0

    async def end_partition(
        self,
        topic: str,
        txn: tuple[int, int],
        *,
        commit: bool,
        low: int,
        others: Sequence[str] = (),
        again: bool = False,
    ) -> bool:
        self.at_once += 1
        await self.let.wait()
        if topic in self.gone:
            raise NotFound(topic)
        self.told.append((topic, commit, low))
        self.named.append((topic, list(others), again))
        return topic not in self.without

    async def end_subscription(
        self, topic: str, subscription: str, txn: tuple[int, int], *, commit: bool, low: int
    ) -> None:
        await self.end_partition(f"{topic} {subscription}", txn, commit=commit, low=low)


def simulated(test: Any) -> None:
    async def main(sim: Simulation) -> None:
        store, parts = EmbeddedStore(KvMachine()), Nobody()

        async def load() -> StoredCoordinator:
            return await StoredCoordinator.load(3, store, parts, sim.clock(), random.Random(1), CoordinatorSettings())

        await test(store, parts, load)

    with Simulation(1) as sim:
        sim.run(main(sim))


def test_an_owner_of_before_writes_nothing() -> None:
    async def test(store: EmbeddedStore, parts: Nobody, load: Any) -> None:
        old = await load()
        txn = await old.begin(60_000, "me")
        await old.join(txn[1], ["t"], [], "me")
        new = await load()
        assert (old.epoch, new.epoch) == (1, 2)
        for call in (
            lambda: old.end(txn[1], commit=False),
            lambda: old.begin(1000),
            lambda: old.join(txn[1], ["u"], []),
        ):
            with pytest.raises(NoCoordinator):
                await call()
        assert parts.told == []
        await new.end(txn[1], commit=True, owner="me")
        assert parts.told == [("t", True, txn[1])]
        again = await new.begin(1000)
        assert (
            again[0] == 3 and again[1] > txn[1] + 1
        )  # numbers that the old one may have given away are not given again
        for kept in (old, new):
            await kept.close()

    simulated(test)


def test_an_end_that_is_asked_for_twice_is_told_to_nobody_before_it_is_stored() -> None:
    async def test(store: EmbeddedStore, parts: Nobody, load: Any) -> None:
        old = await load()
        txn = await old.begin(60_000, "me")
        await old.join(txn[1], ["t"], [], "me")
        new = await load()
        ends = [asyncio.ensure_future(old.end(txn[1], commit=True, owner="me")) for _ in range(2)]
        assert [type(each) for each in await asyncio.gather(*ends, return_exceptions=True)] == [NoCoordinator] * 2
        await asyncio.sleep(1)
        assert parts.told == []
        await new.end(txn[1], commit=False, owner="me")
        assert parts.told == [("t", False, txn[1])]
        for kept in (old, new):
            await kept.close()

    simulated(test)


def test_what_was_decided_goes_on_with_the_next_owner() -> None:
    async def test(store: EmbeddedStore, parts: Nobody, load: Any) -> None:
        parts.let.clear()
        first = await load()
        txn = await first.begin(60_000, "me")
        await first.join(txn[1], ["t", "u"], [("t", "s")], "me")
        ending = asyncio.ensure_future(first.end(txn[1], commit=True, owner="me"))
        await asyncio.sleep(1)
        assert not ending.done()
        await first.close()
        with pytest.raises(NoCoordinator):
            await ending
        parts.let.set()
        second = await load()
        await second.end(txn[1], commit=True, owner="me")
        assert sorted(topic for topic, commit, _ in parts.told if commit) == ["t", "t s", "u"]
        third = await load()
        await third.end(txn[1], commit=True, owner="me")  # its client did not hear of it, and asks again
        with pytest.raises(TransactionState):
            await third.end(txn[1], commit=False, owner="me")
        for kept in (second, third):
            await kept.close()

    simulated(test)


@pytest.mark.parametrize("commit", [True, False])
def test_topics_that_had_no_part_in_a_commit_are_not_named_in_the_end(commit: bool) -> None:
    async def test(store: EmbeddedStore, parts: Nobody, load: Any) -> None:
        parts.without, parts.gone = {"terminated"}, {"deleted"}
        kept = await load()
        txn = await kept.begin(60_000, "me")
        await kept.join(txn[1], ["t", "terminated", "u", "deleted"], [], "me")
        await kept.end(txn[1], commit=commit, owner="me")
        first = [
            ("t", ["terminated", "u", "deleted"], False),
            ("terminated", ["t", "u", "deleted"], False),
            ("u", ["t", "terminated", "deleted"], False),
        ]
        assert (
            parts.named == [*first, ("t", ["u"], True), ("u", ["t"], True)]
            if commit
            else [(topic, [], False) for topic, _, _ in first]
        )
        await kept.close()

    simulated(test)


def test_an_end_in_very_many_topics_is_told_to_a_few_at_a_time_and_names_none() -> None:
    async def test(store: EmbeddedStore, parts: Nobody, load: Any) -> None:
        kept = await load()
        for count, named in ((201, 200), (202, 0)):
            parts.let.clear()
            parts.at_once, parts.named, parts.without = 0, [], {"t7"}
            txn = await kept.begin(60_000, "me")
            await kept.join(txn[1], [f"t{number}" for number in range(count)], [], "me")
            ending = asyncio.ensure_future(kept.end(txn[1], commit=True, owner="me"))
            await asyncio.sleep(1)
            assert parts.at_once == 32
            parts.let.set()
            await ending
            first = [len(others) for _, others, again in parts.named if not again]
            assert first == [named] * count, "a marker names 200 others at most"
            again = [len(others) for _, others, again in parts.named if again]
            assert again == ([named - 1] * (count - 1) if named else []), "where none was named, none is taken back"
        await kept.close()

    simulated(test)


def test_many_requests_are_few_writes() -> None:
    async def test(store: EmbeddedStore, parts: Nobody, load: Any) -> None:
        kept = await load()
        count = 0
        plain = store.txn

        async def counted(ops: Any) -> int:
            nonlocal count
            count += 1
            return await plain(ops)

        store.txn = counted  # type: ignore[method-assign]
        begun = await asyncio.gather(*(kept.begin(1000, "") for _ in range(300)))
        assert len(set(begun)) == 300 and count < 20
        await kept.close()

    simulated(test)


def test_what_joins_looks_at_nothing_that_has_joined_before(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, plain = list[str](), coordinator.tenants_of

    def counted(topics: Iterable[str]) -> set[str]:
        topics = list(topics)
        looked.extend(topics)
        return plain(topics)

    monkeypatch.setattr(coordinator, "tenants_of", counted)
    made = core(open_max_of_tenant=1)
    made.begin(1, 1000, "", 0)
    for number in range(200):
        made.join(1, "", [f"a/n/t{number}"], [(f"b/n/t{number}", "s")])
    assert len(looked) <= 800
    made.begin(2, 1000, "", 0)
    for topic in ("a/n/t", "b/n/t"):
        with pytest.raises(NotAllowed, match="open_max_of_tenant"):
            made.join(2, "", [topic])
    made.end(1, commit=True)
    made.done(1, 0)
    assert made.join(2, "", ["a/n/t", "b/n/t"]) is not None


def test_what_joins_while_a_write_is_under_way_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, plain = list[int](), Txn.encode

    def counted(txn: Txn) -> bytes:
        encoded.append(txn.participants)
        return plain(txn)

    async def test(store: EmbeddedStore, parts: Nobody, load: Any) -> None:
        kept = await load()
        txn = await kept.begin(60_000, "me")
        monkeypatch.setattr(Txn, "encode", counted)
        await asyncio.gather(*(kept.join(txn[1], [f"t{number}"], [], "me") for number in range(300)))
        assert len(encoded) < 20 and encoded[-1] == 300
        again = await load()
        assert again.core.find(txn[1]).participants == 300
        await kept.close()
        await again.close()

    simulated(test)


def test_a_store_that_is_away_ends_it_and_loses_nothing() -> None:
    async def test(store: EmbeddedStore, parts: Nobody, load: Any) -> None:
        kept = await load()
        txn = await kept.begin(60_000, "me")
        store.unavailable = "away"
        with pytest.raises(NoCoordinator):
            await kept.join(txn[1], ["t"], [], "me")
        store.unavailable = None
        with pytest.raises(NoCoordinator):
            await kept.begin(1000)
        again = await load()
        await again.join(txn[1], ["t"], [], "me")
        await again.end(txn[1], commit=True, owner="me")
        assert parts.told == [("t", True, txn[1])]
        await kept.close()
        await again.close()

    simulated(test)


def test_the_open_transactions_of_a_role_are_bounded_and_nobodys_are_not() -> None:
    made = core(open_max_of_role=2)
    for number in (1, 2):
        made.begin(number, 1000, "ann", 0)
    with pytest.raises(NotAllowed, match="open_max_of_role"):
        made.begin(3, 1000, "ann", 0)
    for number in (3, 4, 5):
        made.begin(number, 1000, "", 0)
    made.begin(6, 1000, "bob", 0)
    made.end(1, commit=False)
    with pytest.raises(NotAllowed, match="open_max_of_role"):
        made.begin(7, 1000, "ann", 0)
    made.done(1, 0)
    made.begin(7, 1000, "ann", 0)
    again = core(open_max_of_role=2)
    again.restore([*made.open.values(), *made.final.values()], 8, 0)
    with pytest.raises(NotAllowed, match="open_max_of_role"):
        again.begin(8, 1000, "ann", 0)


def test_the_open_transactions_with_topics_of_a_tenant_are_bounded() -> None:
    made = core(open_max_of_tenant=1)
    for number in (1, 2):
        made.begin(number, 1000, "", 0)
    made.join(1, None, ["persistent://t/n/a", "persistent://t/n/b"], [("persistent://t/n/c", "s")])
    with pytest.raises(NotAllowed, match="open_max_of_tenant"):
        made.join(2, None, [], [("persistent://t/n/c", "s")])
    made.join(2, None, ["persistent://u/n/a", "of-public"])
    made.join(1, None, ["persistent://t/n/d"])
    again = core(open_max_of_tenant=1)
    again.restore(made.open.values(), 3, 0)
    again.begin(3, 1000, "", 0)
    with pytest.raises(NotAllowed, match="open_max_of_tenant"):
        again.join(3, None, ["persistent://t/n/a"])
    again.end(1, commit=True)
    again.done(1, 0)
    again.join(3, None, ["persistent://t/n/a"])


def test_the_names_in_open_transactions_are_bounded_by_role_and_altogether() -> None:
    def names(count: int) -> list[str]:
        return [f"persistent://t/n/{'x' * 75}{number:02}" for number in range(count)]  # 100 bytes each, as stored

    limits = {"bytes_max": 5000, "bytes_max_of_role": 3000}
    made = core(**limits)
    for number, owner in enumerate(("ann", "ann", "bob", ""), 1):
        made.begin(number, 1000, owner, 0)
    made.join(1, "ann", [*names(20), *names(20)])  # each counts once
    with pytest.raises(NotAllowed, match="bytes_max_of_role"):
        made.join(2, "ann", names(11))
    made.join(2, "ann", names(10))
    assert made.join(2, "ann", names(10)) is None, "what takes part already takes no more room"
    with pytest.raises(NotAllowed, match=r"limits\.bytes_max$"):
        made.join(3, "bob", names(21))
    again = core(**limits)
    again.restore([Txn.decode(txn.number, txn.encode()) for txn in made.open.values()], 5, 0)
    for kept in (made, again):
        with pytest.raises(NotAllowed, match="bytes_max_of_role"):
            kept.join(2, "ann", [], [("persistent://t/n/a", "s")])
        kept.join(4, "", names(20))
        with pytest.raises(NotAllowed, match=r"limits\.bytes_max$"):
            kept.join(3, "bob", names(1))
        kept.end(1, commit=True)
        ended = kept.done(1, 0)
        assert ended is not None and not ended.participants
        kept.join(2, "ann", [], [("persistent://t/n/a", "s")])
        kept.join(3, "bob", names(1))


def test_what_is_stored_of_a_transaction_is_no_more_than_is_counted() -> None:
    made, rng = core(), random.Random(1)
    txn = made.begin(1, (1 << 31) - 1, "o" * 300, 1 << 50)
    for size in (0, 1, 31, 32, 200, 255, 256, 4000, 65_536):
        made.join(1, None, [f"persistent://t/n/é{'x' * size}"], [("persistent://t/n/a", f"{rng.random()}{'y' * size}")])
        assert len(txn.encode()) <= 64 + 300 + txn.names_bytes


def test_names_that_are_too_long_together_are_refused_and_the_coordinator_goes_on() -> None:
    long = [f"persistent://public/default/{number:04}{'x' * 4000}" for number in range(300)]

    async def test(store: EmbeddedStore, parts: Nobody, load: Any) -> None:
        made = await load()
        txn = await made.begin(60_000, "one")
        with pytest.raises(NotAllowed):
            await made.join(txn[1], long, [])
        with pytest.raises(NotAllowed):
            await made.join(txn[1], [], [("persistent://public/default/a", name) for name in long])
        assert made.failed is None and not made.core.find(txn[1]).participants
        await made.join(txn[1], long[:100], [])
        with pytest.raises(NotAllowed):  # what has joined before counts
            await made.join(txn[1], long[100:200], [])
        await made.begin(60_000, "two")
        await made.end(txn[1], commit=False)

    simulated(test)
