"""What a topic's reader is told of entries that cannot be read: gone for good, or away."""

from __future__ import annotations

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import BookieUnavailable, EntriesLost
from heliograph.model.ledger_metadata import LedgerMetadata
from local_meta import keys
from tests.storage.managed_ledger.log.mended import evict, topic_with_ledgers
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, read_all, scenario, small


def test_a_topic_names_what_is_lost_and_waits_for_who_is_away() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=small())
        ledger, _ = await topic_with_ledgers(region, broker)
        evict(broker)
        info = ledger.ledgers()[1]
        ledger.forget_cached(info.ledger)
        found = await EmbeddedStore(region.machine).get(keys.ledger(info.ledger))
        assert found is not None
        one, other = (region.bookies[name] for name in LedgerMetadata.decode(found[0]).fragments[0][1])
        one.ledgers.pop(info.ledger)
        kept = other.ledgers.pop(info.ledger)
        one.floor = other.floor = info.ledger + 1
        other.limbo = True
        with pytest.raises(BookieUnavailable):
            await ledger.read((info.ledger, 0), 1, 1)
        assert not len(broker.factory.context.losses)
        other.limbo = False
        for position in ((info.ledger, 4), (info.ledger, 0)):
            with pytest.raises(EntriesLost) as told:
                await ledger.read(position, 1, 1)
            assert (told.value.ledger, told.value.first, told.value.last) == (info.ledger, 0, info.entries - 1)
        assert [loss.ledger for loss in broker.factory.context.losses.of(TOPIC)] == [info.ledger]
        other.ledgers[info.ledger] = kept
        ledger.forget_cached(info.ledger)
        assert await read_all(ledger) == broker.done
        assert not len(broker.factory.context.losses)
        other.ledgers.pop(info.ledger)
        evict(broker)
        ledger.forget_cached(info.ledger)
        with pytest.raises(EntriesLost):
            await ledger.read((info.ledger, 0), 1, 1)
        assert len(broker.factory.context.losses) == 1
        await ledger.close()
        assert not len(broker.factory.context.losses)

    scenario(work)
