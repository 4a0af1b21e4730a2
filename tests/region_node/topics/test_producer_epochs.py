"""A topic's epoch is read once, is durable before anybody hears of it, and is never told by two brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import CorruptData, MetadataUnavailable, OutcomeUnknown, TopicClosed
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.model.topic_names import TopicName
from region_node.topics.producer_epochs import TopicEpoch, topic_epoch_key
from region_node.topics.producers import EPOCH_GIVEN_MAX, AccessMode, ProducerRegistry
from tests.region_node.topics.made_producers import made

TOPIC = TopicName.parse("persistent://public/default/t")
KEY = topic_epoch_key(TOPIC)


class Slow(EmbeddedStore):
    """Reads and writes take a moment and are counted; `troubles` come in place of the answers of the next writes, which
    happen where `written`.
    """

    def __init__(self, machine: KvMachine | None = None) -> None:
        super().__init__(KvMachine() if machine is None else machine)
        self.reads = self.writes = 0
        self.troubles: list[Exception] = []
        self.written = self.readable = True
        self.on_put: Callable[[], None] = lambda: None

    async def get(self, key: str) -> tuple[bytes, int] | None:
        self.reads += 1
        await asyncio.sleep(0.1)
        if not self.readable:
            raise MetadataUnavailable("no majority")
        return await super().get(key)

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        self.writes += 1
        self.on_put()
        await asyncio.sleep(0.1)
        trouble = self.troubles.pop(0) if self.troubles else None
        version = -1 if trouble and not self.written else await super().put(key, value, expected=expected, lease=lease)
        if trouble is not None:
            raise trouble
        return version


def stored(store: EmbeddedStore) -> int:
    found = store.machine.get(KEY)
    return -1 if found is None else int(unpack("topic epoch", found[0])[0])


async def loaded(store: EmbeddedStore) -> tuple[TopicEpoch, ProducerRegistry]:
    registry = ProducerRegistry()
    epoch = TopicEpoch(store, TOPIC, registry)
    await epoch.load()
    return epoch, registry


def test_keys_are_of_one_topic() -> None:
    assert KEY == "/topic-epochs/public/default/persistent://public/default/t"
    assert topic_epoch_key(TOPIC.with_partition(1)) != KEY


def test_it_is_read_once_whoever_asks_and_kept_by_the_next_owner() -> None:
    async def main() -> None:
        store = Slow()
        registry = ProducerRegistry()
        epoch = TopicEpoch(store, TOPIC, registry)
        await asyncio.gather(*(epoch.load() for _ in range(3)))
        await epoch.load()
        assert store.reads == 1 and registry.topic_epoch == ProducerRegistry().topic_epoch, "there is none yet"
        registry.topic_epoch = 4
        await epoch.save()
        await epoch.load()
        assert (stored(store), store.reads, store.writes) == (4, 1, 1)
        again, other = await loaded(store)
        assert other.topic_epoch == 4
        await again.save()
        assert store.writes == 1, "it stands there"
        other.topic_epoch = 5
        await again.save()
        assert (stored(store), store.writes) == (5, 2)

    run_alone(main())


def test_what_grew_before_it_was_read_is_not_forgotten() -> None:
    async def main() -> None:
        store = Slow()
        await store.put(KEY, pack([3]))
        registry = ProducerRegistry()
        registry.topic_epoch = 6
        await TopicEpoch(store, TOPIC, registry).load()
        assert registry.topic_epoch == 6

    run_alone(main())


def test_many_that_save_at_once_write_until_the_newest_is_durable() -> None:
    """It grows while a write is under way: that write does not make it durable."""

    async def main() -> None:
        store = Slow()
        epoch, registry = await loaded(store)
        registry.topic_epoch = 1

        def grows() -> None:
            registry.topic_epoch = min(3, registry.topic_epoch + 1)

        store.on_put = grows
        await asyncio.gather(*(epoch.save() for _ in range(4)))
        assert stored(store) == registry.topic_epoch == 3 and store.writes == 3

    run_alone(main())


def test_a_write_that_did_not_happen_is_written_again() -> None:
    async def main() -> None:
        store = Slow()
        epoch, registry = await loaded(store)
        registry.topic_epoch = 1
        await epoch.save()
        store.troubles, store.written, registry.topic_epoch = [OutcomeUnknown("lost")] * 2, False, 2
        await epoch.save()
        assert stored(store) == 2 and store.writes == 4
        registry.topic_epoch = 3
        await epoch.save()
        assert stored(store) == 3

    run_alone(main())


@pytest.mark.parametrize("trouble", (OutcomeUnknown("lost"), MetadataUnavailable("no majority")))
@pytest.mark.parametrize("readable", (True, False))
def test_an_epoch_that_may_be_another_brokers_is_not_told_and_the_next_one_is(
    trouble: Exception, readable: bool
) -> None:
    """The write happened, or another broker wrote the same: here nobody knows which."""

    async def main() -> None:
        store = Slow()
        epoch, registry = await loaded(store)
        for value in (2, 4, 6):
            store.troubles, store.readable, registry.topic_epoch = [trouble], readable, value
            with pytest.raises((TopicClosed, MetadataUnavailable)):
                await epoch.save()
            assert stored(store) == value
            store.readable = True
            with pytest.raises(TopicClosed):
                await epoch.save()
            await epoch.load()
            assert registry.topic_epoch == value
            registry.topic_epoch += 1
            await epoch.save()
            assert stored(store) == value + 1, "the next one is free"

    run_alone(main())


@pytest.mark.parametrize("theirs", (1, 2, 5))
def test_two_brokers_never_tell_the_same_epoch(theirs: int) -> None:
    """One writes an epoch, which does not arrive; nobody answers. Meanwhile the topic has gone to another broker."""

    async def main() -> None:
        store = Slow()
        (one, former), (other, later) = await loaded(store), await loaded(store)

        class Away(Slow):
            async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
                for told in range(1, theirs + 1):
                    later.topic_epoch = told
                    await other.save()
                raise OutcomeUnknown("lost")

        one._meta, former.topic_epoch = Away(store.machine), 1
        with pytest.raises(TopicClosed):
            await one.save()
        former.topic_epoch = 2  # the next producer there did not load it
        if theirs > 1:
            with pytest.raises(TopicClosed):
                await one.save()
        assert stored(store) == theirs
        one._meta = store
        await one.load()
        assert former.topic_epoch == max(2, theirs)
        former.topic_epoch += 1
        await one.save()
        assert stored(store) == former.topic_epoch > theirs

    run_alone(main())


def test_the_owner_that_was_replaced_tells_no_epoch_that_was_told() -> None:
    async def main() -> None:
        store = Slow()
        (one, former), (other, later) = await loaded(store), await loaded(store)
        later.topic_epoch = 3
        await other.save()
        for value in (1, 2, 3):
            former.topic_epoch = value
            with pytest.raises(TopicClosed, match="moved"):
                await one.save()
            assert stored(store) == 3
        await one.load()
        former.topic_epoch += 1
        await one.save()
        assert stored(store) == 4
        later.topic_epoch = 4
        with pytest.raises(TopicClosed):
            await other.save()

    run_alone(main())


def test_an_epoch_that_was_given_out_while_it_was_read_is_checked_before_it_is_told() -> None:
    async def main() -> None:
        store = Slow()
        (one, former), (other, later) = await loaded(store), await loaded(store)
        later.topic_epoch = 5
        await other.save()
        former.topic_epoch = 1
        with pytest.raises(TopicClosed):
            await one.save()
        reading = asyncio.ensure_future(one.load())
        await asyncio.sleep(0.05)
        former.topic_epoch = 2
        with pytest.raises(TopicClosed):
            await one.save()
        await reading
        await one.load()
        assert former.topic_epoch == 5

    run_alone(main())


def test_damage_is_no_epoch() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        await store.put(KEY, b"damage")
        with pytest.raises(CorruptData):
            await loaded(store)

    run_alone(main())


@pytest.mark.parametrize("before", [2**62, 2**63, 2**64 - 1])
def test_an_epoch_that_a_version_before_took_from_a_client_leaves_room_for_the_next(before: int) -> None:
    async def test() -> None:
        store = Slow()
        await store.put(KEY, pack([before]))
        epoch, registry = await loaded(store)
        registry.add(made("a", mode=AccessMode.EXCLUSIVE))
        await epoch.save()
        assert stored(store) == registry.topic_epoch == EPOCH_GIVEN_MAX + 1
        _, again = await loaded(store)
        assert again.topic_epoch == EPOCH_GIVEN_MAX + 1

    run_alone(test())
