"""A broker's lease in the global configuration: when there is one, from when it counts, and what is told under it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

from geo_tests.sim.leadership import DriftingClock
from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.kafka_brokers import KAFKA_BROKERS, KafkaBrokerInfo
from heliograph.model.configuration.leadership import (
    FENCED,
    Leadership,
    Writer,
    leadership,
    subscription_name,
    writers,
)
from heliograph.model.errors import MetadataUnavailable, RegionPassive
from region_node.dr.leadership.write_gates import Passage
from region_node.dr.leadership.write_leases import LeaseSettings, WriteLeases

T = TypeVar("T")
NAME, SUBSCRIPTION = "t/n", subscription_name("persistent://t/n/x", "s")


class Slow(EmbeddedStore):
    """What a lease does takes `seconds`, is noted, and fails while `away`."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds, self.away = 0.0, False
        self.asked: list[str] = []

    async def _slow(self, what: str, act: Callable[[], Awaitable[T]]) -> T:
        self.asked.append(what)
        await asyncio.sleep(self.seconds)
        if self.away:
            raise MetadataUnavailable("away")
        return await act()

    async def grant(self, ttl_ms: int) -> int:
        return await self._slow(f"grant {ttl_ms}", lambda: EmbeddedStore.grant(self, ttl_ms))

    async def renew(self, lease: int) -> None:
        await self._slow("renew", lambda: EmbeddedStore.renew(self, lease))

    async def revoke(self, lease: int) -> None:
        await self._slow("revoke", lambda: EmbeddedStore.revoke(self, lease))

    def count_of(self, what: str) -> int:
        return sum(asked.startswith(what) for asked in self.asked)

    def told(self) -> list[tuple[str, Writer]]:
        return [(key, Writer.decode(value)) for key, value, _ in self.under(writers("us"))]

    def under(self, prefix: str) -> list[tuple[str, bytes, int]]:
        return self.machine.range(prefix, prefix[:-1] + "0")[0]


def made(
    store: EmbeddedStore, changed: list[str] | None = None, beside: Callable[[], Sequence[str] | None] = lambda: None
) -> WriteLeases:
    leases = WriteLeases(
        store,
        region="us",
        broker="b",
        clock=DriftingClock(1.0),
        url_of=lambda region: f"pulsar://{region}",
        beside=beside,
    )
    if changed is not None:
        leases.on_change(changed.append)
    return leases


async def lead(store: EmbeddedStore, name: str = NAME, active: str = "us", epoch: int = 1, state: str = "open") -> None:
    await store.put(leadership(name), Leadership(active=active, epoch=epoch, state=state).encode())


def test_settings_that_cannot_hold_are_refused() -> None:
    LeaseSettings(ttl_ms=1500, renew_s=1.3, drift=0.1)
    LeaseSettings(ttl_ms=1500, renew_s=1.3, drift=0.0)
    for ttl_ms, renew_s, drift in ((1500, 1.35, 0.1), (1500, 1.5, 0.0), (1500, 0.0, 0.1), (1500, 0.1, -0.1), (9, 1, 1)):
        with pytest.raises(AssertionError):
            LeaseSettings(ttl_ms=ttl_ms, renew_s=renew_s, drift=drift)


def test_there_is_no_lease_until_there_is_a_leadership_and_one_from_then_on() -> None:
    async def main() -> None:
        store, changed = Slow(), list[str]()
        leases = made(store, changed)
        await leases.start()
        await asyncio.sleep(30)
        assert store.asked == [] and leases.gate(NAME) is None and changed == []
        await lead(store)
        await asyncio.sleep(0.5)
        gate = leases.gate(NAME)
        assert gate is not None and gate.open and changed == [NAME], "it does not wait for the next renewal"
        assert store.asked == ["grant 6000"]
        await asyncio.sleep(15)
        assert store.count_of("renew") == 10 and gate.open
        await store.delete(leadership(NAME))
        await asyncio.sleep(3)
        assert leases.gate(NAME) is None and changed == [NAME, NAME]
        await leases.stop()

    run_alone(main())


def test_start_returns_once_every_leadership_is_known() -> None:
    async def main() -> None:
        store = Slow()
        await lead(store)
        await lead(store, SUBSCRIPTION, "eu")
        leases = made(store)
        await leases.start()
        assert leases.gate(NAME) is not None and leases.gate("t/other") is None
        found = leases.subscription_gate(SUBSCRIPTION)
        assert found is not None and found.record is not None and found.record.active == "eu"
        await leases.stop()

    run_alone(main())


def test_a_lease_counts_from_before_it_was_asked_for() -> None:
    """6 s less a tenth: where each answer takes 2 s, 3.4 s are left of it when it comes."""

    async def main() -> None:
        store, loop = Slow(), asyncio.get_running_loop()
        store.seconds = 2.0
        await lead(store)
        leases = made(store)
        began = loop.time()
        await leases.start()
        await asyncio.sleep(2.1)
        assert leases.core.until == pytest.approx(began + 5.4)
        await asyncio.sleep(3.5)
        assert leases.core.until == pytest.approx(began + 2.0 + 5.4), "a renewal, too, which came at once"
        await leases.stop()

    run_alone(main())


class Paused(DriftingClock):
    """The machine's clocks when its hypervisor pauses it: the monotonic one does not count the pause, and the wall
    clock is set right behind it.
    """

    def __init__(self) -> None:
        super().__init__(1.0)
        self.paused_s = 0.0

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self.paused_s * 1000)


def test_a_machine_that_was_paused_confirms_nothing_before_its_lease_is_renewed() -> None:
    async def main() -> None:
        store, clock = Slow(), Paused()
        await lead(store)
        leases = WriteLeases(store, region="us", broker="b", clock=clock, url_of=lambda region: f"pulsar://{region}")
        await leases.start()
        await asyncio.sleep(1)
        gate = leases.gate(NAME)
        assert gate is not None and gate.open
        clock.paused_s = 5.0
        assert not gate.open, "others may have failed over meanwhile"
        await asyncio.sleep(2)
        assert gate.open, "the lease stands in the configuration, and was renewed"
        store.away, clock.paused_s = True, clock.paused_s + 5.0
        await asyncio.sleep(4)
        assert not gate.open
        await leases.stop()

    run_alone(main())


def test_a_region_that_is_cut_off_confirms_until_its_lease_may_have_ended_and_no_longer() -> None:
    async def main() -> None:
        store = Slow()
        await lead(store)
        leases = made(store)
        await leases.start()
        await asyncio.sleep(1)
        gate = leases.gate(NAME)
        assert gate is not None and gate.open
        until = leases.core.until
        store.away = True
        await asyncio.sleep(until - asyncio.get_running_loop().time() - 0.01)
        assert gate.open
        await asyncio.sleep(0.02)
        assert not gate.open and store.count_of("renew") > 2, "it asks on"
        store.away = False
        await asyncio.sleep(2)
        assert gate.open
        await leases.stop()

    run_alone(main())


def test_a_lease_that_was_lost_is_a_new_beginning() -> None:
    """What was taken before is confirmed by nobody, and what was heard is told anew."""

    async def main() -> None:
        store, changed = Slow(), list[str]()
        await lead(store)
        await lead(store, SUBSCRIPTION)
        leases = made(store, changed)
        await leases.start()
        await asyncio.sleep(1)
        gate = leases.gate(NAME)
        assert gate is not None
        answers: list[str] = []
        entered = gate.enter(lambda _: answers.append("done"), lambda error: answers.append(type(error).__name__))
        assert isinstance(entered, Passage)
        ((key, _),) = store.told()
        changed.clear()
        await EmbeddedStore.revoke(store, int(key.rpartition(".")[2]))
        await asyncio.sleep(3)
        assert changed == [SUBSCRIPTION, SUBSCRIPTION], "consumers' messages are taken back, and go out again"
        assert store.count_of("grant") == 2 and gate.open
        ((again, told),) = store.told()
        assert again != key and told.obeys(NAME, gate.version)
        entered.done([(1, 1, 1)])
        assert answers == [RegionPassive.__name__]
        await leases.stop()

    run_alone(main())


def test_what_was_changed_while_it_registered_is_read_before_anything_is_confirmed() -> None:
    """The watch is late: what it has not brought stands in the configuration."""

    async def main() -> None:
        class Deaf(Slow):
            deaf = False

            def watch(self, prefix: str, callback: Callable[[str, bytes | None, int], None]) -> Callable[[], None]:
                def heard(*change: object) -> None:
                    if not self.deaf:
                        callback(*change)  # type: ignore[arg-type]

                return super().watch(prefix, heard)

        store, changed = Deaf(), list[str]()
        await lead(store)
        await lead(store, "t/gone")
        leases = made(store, changed)
        await leases.start()
        store.deaf = True
        await lead(store, NAME, "eu", 2)
        await lead(store, SUBSCRIPTION)
        await store.delete(leadership("t/gone"))
        await asyncio.sleep(1)
        assert leases.core.registered
        gate = leases.gate(NAME)
        assert gate is not None and not gate.active and not gate.open
        assert leases.subscription_gate(SUBSCRIPTION) is not None and leases.gate("t/gone") is None
        assert changed.count(NAME) == 2 and SUBSCRIPTION in changed
        await leases.stop()

    run_alone(main())


def test_what_it_obeys_is_told_when_that_changes_and_not_again() -> None:
    async def main() -> None:
        store, beside = Slow(), ["b"]
        puts = 0

        async def put(key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
            nonlocal puts
            puts += key.startswith("/writers/")
            assert not key.startswith("/writers/") or lease
            return await EmbeddedStore.put(store, key, value, expected=expected, lease=lease)

        store.put = put  # type: ignore[method-assign]
        await lead(store)
        leases = made(store, beside=lambda: beside)
        await leases.start()
        await asyncio.sleep(10)
        ((key, told),) = store.told()
        gate = leases.gate(NAME)
        assert gate is not None and key.startswith("/writers/us/b.") and told.obeys(NAME, gate.version)
        assert told.beside == ("b",) and puts == 2, "to stand there, and behind what it has read"
        beside[:] = ["c", "b"]
        await asyncio.sleep(3)
        ((_, told),) = store.told()
        assert told.beside == ("b", "c") and puts == 3
        await lead(store, NAME, "us", 1, FENCED)
        await asyncio.sleep(0.5)
        ((_, told),) = store.told()
        assert told.obeys(NAME, gate.version) and puts == 4, "at once"
        await asyncio.sleep(20)
        assert puts == 4
        await leases.stop()

    run_alone(main())


def test_what_other_regions_are_told_of_kafkas_listeners_goes_with_the_lease() -> None:
    async def main() -> None:
        store, told = Slow(), [KafkaBrokerInfo(listeners={"kafka": "kafka://1@a:1"})]
        await lead(store)
        leases = made(store)
        leases.tell_of_kafka(lambda: told[-1])
        await leases.start()
        await asyncio.sleep(3)
        ((key, value, version),) = store.under(KAFKA_BROKERS)
        assert key.startswith("/kafka-brokers/us/b.") and KafkaBrokerInfo.decode(value) == told[0]
        await asyncio.sleep(5)
        assert store.under(KAFKA_BROKERS)[0][2] == version, "nothing new: nothing is written"
        told.append(KafkaBrokerInfo(listeners={"kafka": "kafka://1@a:2"}))
        await asyncio.sleep(3)
        assert KafkaBrokerInfo.decode(store.under(KAFKA_BROKERS)[0][1]) == told[1]
        await leases.stop()
        assert not store.under(KAFKA_BROKERS)

    run_alone(main())


def test_a_drain_is_told_as_soon_as_the_last_run_is_answered() -> None:
    async def main() -> None:
        store = Slow()
        await lead(store)
        leases = made(store)
        await leases.start()
        await asyncio.sleep(1)
        gate = leases.gate(NAME)
        assert gate is not None
        entered = gate.enter(lambda _: None, lambda _: None)
        assert isinstance(entered, Passage)
        await lead(store, NAME, "us", 1, "draining")
        await asyncio.sleep(5)
        assert not store.told()[0][1].obeys(NAME, gate.version)
        await asyncio.sleep(0.2)
        entered.done([(1, 1, 1)])
        await asyncio.sleep(0.1)
        assert store.told()[0][1].obeys(NAME, gate.version)
        await leases.stop()

    run_alone(main())


def test_who_says_that_something_was_done_is_heard_before_the_next_renewal() -> None:
    async def main() -> None:
        store, beside = Slow(), ["b"]
        await lead(store)
        leases = made(store, beside=lambda: beside)
        await leases.start()
        await asyncio.sleep(1)
        beside.append("c")
        leases.tell()
        await asyncio.sleep(0.1)
        assert store.told()[0][1].beside == ("b", "c")
        await leases.stop()

    run_alone(main())


@pytest.mark.parametrize("away", (False, True))
def test_a_broker_that_stops_gives_up_first_and_lets_nobody_wait_for_its_lease(away: bool) -> None:
    async def main() -> None:
        store = Slow()
        await lead(store)
        leases = made(store)
        await leases.start()
        await asyncio.sleep(1)
        gate = leases.gate(NAME)
        assert gate is not None and gate.open and len(store.told()) == 1
        store.seconds, store.away = (30.0 if away else 0.5), away
        began = asyncio.get_running_loop().time()
        stopping = asyncio.ensure_future(leases.stop())
        await asyncio.sleep(0.1)
        assert not gate.open, "before the lease has ended"
        await stopping
        assert store.asked[-1] == "revoke" and len(store.told()) == away
        assert asyncio.get_running_loop().time() - began < 1.5, "then it ends by itself"
        asked = len(store.asked)
        await lead(store, NAME, "us", 9)
        await asyncio.sleep(10)
        assert len(store.asked) == asked and not gate.open

    run_alone(main())


def test_a_broker_that_never_had_a_lease_revokes_none() -> None:
    async def main() -> None:
        store = Slow()
        leases = made(store)
        await leases.start()
        await asyncio.sleep(3)
        await leases.stop()
        assert store.asked == []

    run_alone(main())


def test_what_cannot_be_read_is_nobodys_to_confirm() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        leases = made(store)
        await store.put(leadership("t/n"), Leadership(active="us").encode())
        await leases.start()
        await asyncio.sleep(5)
        gate = leases.gate("t/n")
        assert gate is not None and gate.open
        for blob in (b"", b"{}", b'{"format": 1, "active": ["us"]', b'{"format": 99, "active": "us", "epoch": 1}'):
            await store.put(leadership("t/n"), blob)
            await asyncio.sleep(1)
            assert not gate.open
        await store.put(leadership("t/n"), Leadership(active="us", epoch=7).encode())
        await asyncio.sleep(1)
        assert gate.open
        await leases.stop()
        assert not gate.open

    run_alone(main())
