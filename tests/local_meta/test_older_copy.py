"""The only voter's disk is put back to an older copy, the region works with it, and the newer disk comes back."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.premises import Owner, Premises, on_premises
from tests.storage.managed_ledger.world import until

TOPIC = "persistent://public/default/topic"

Image = dict[str, dict[str, bytes]]


def _image(premises: Premises) -> Image:
    return {path: platter.image() for path, platter in premises.region.metadata.machine.platters().items()}


async def _put_back(premises: Premises, image: Image) -> Image:
    """What lay there until now."""
    node = premises.region.metadata
    node.power_cut()
    there = _image(premises)
    for path, platter in node.machine.platters().items():
        platter.put_back(image.get(path, {}))
    node.start()
    await until(lambda: all(each.is_ready() for each in premises.region.nodes))
    await asyncio.sleep(10.0)  # leases of before have ended, and the bookies are registered again
    return there


class _Told:
    """What lives of a broker, one behind the other, did with the topic."""

    def __init__(self, premises: Premises) -> None:
        self._premises, self._lives = premises, 0
        self.ledgers: dict[int, str] = {}
        """Ledger -> the entry that was confirmed in it."""
        self.twice: list[str] = []

    async def publish(self, what: str, ledgers: int) -> list[str]:
        """An entry in each of some ledgers, each of a life of its own."""
        names = []
        for number in range(ledgers):
            owner = await self._owner()
            topic = await owner.open(TOPIC)
            names.append(f"{what}-{number}")
            await owner.append(topic, names[-1])
            made = topic._catalog.ids[-1]
            if made in self.ledgers:
                self.twice.append(f"{names[-1]} went to ledger {made}, of {self.ledgers[made]}")
            self.ledgers[made] = names[-1]
            await owner.do(topic.close)  # by its writer: no fence ends one that is given the ledger again
            owner.machine.kill()
        return names

    async def read(self) -> list[str]:
        owner = await self._owner()
        found = await owner.read(await owner.open(TOPIC))
        owner.machine.kill()
        return found

    async def _owner(self) -> Owner:
        self._lives += 1
        return await self._premises.owner(f"life-{self._lives}")


@pytest.mark.slow
def test_no_ledger_is_made_twice_and_what_was_acknowledged_stays() -> None:
    async def work(premises: Premises) -> None:
        told = _Told(premises)
        before = await told.publish("before", 16)  # what a fifth of is more than what comes beside
        for bookie in premises.region.bookies:
            await premises.collector(bookie.name).look()
        older = _image(premises)
        since = await told.publish("since", 3)
        newer = await _put_back(premises, older)
        assert await told.read() == before
        beside = await told.publish("beside", 2)
        assert await told.read() == before + beside
        await _put_back(premises, newer)
        assert await told.read() == before + since and not told.twice
        behind = await told.publish("behind", 1)
        for _ in range(4):  # two passes find garbage
            for bookie in premises.region.bookies:
                await premises.collector(bookie.name).once()
            await asyncio.sleep(60.0)
        assert await told.read() == before + since + behind
        kept = {
            ledger for bookie in premises.region.bookies for ledger in premises.collector(bookie.name)._bookie.ledgers()
        }
        lost = {entry for ledger, entry in told.ledgers.items() if ledger not in kept}
        assert not lost, "confirmed by the older metadata, known to the newer one by nothing: it is for people to see"

    on_premises(work)
