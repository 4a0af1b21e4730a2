"""Redelivery counts of replicated subscriptions: told by coordinate, never more than was counted somewhere, gone with
the acknowledgement.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import PeerError
from heliograph.model.positions import BEFORE_ALL, Position
from replicator.manager.link_manager import LinkSettings
from replicator.subscriptions.ack_claims import COUNTS_MAX, Claims, read_claims
from tests.replicator.link_instance import Instance, TestRegion

SUBSCRIPTION = "orders"
NAMES = ("us", "eu", "ap")


class Host:
    """A broker's subscriptions, as far as counts go: `local` is what its own dispatcher counted, by body."""

    def __init__(self, region: TestRegion) -> None:
        self.region, self.total = region, 0
        self.local: dict[int, int] = {}
        self.elsewhere: dict[Position, int] = {}

    def positions(self) -> dict[int, Position]:
        return {
            int.from_bytes(bytes(part)[-8:], "big"): (ledger, first + i)
            for ledger, first, run in self.region.store.runs()
            if not run.flags
            for i, part in enumerate(run.parts)
        }

    @property
    def cursor(self) -> Any:
        return self.region.log.ledger.cursors.get(SUBSCRIPTION)

    def counted(self) -> dict[int, int]:
        """By body, what a consumer here would be told: of what is not acknowledged."""
        out = {}
        for body, position in self.positions().items():
            count = max(self.local.get(body, 0), self.elsewhere.get(position, 0))
            if count and self.cursor is not None and not self.cursor.is_acked(position):
                out[body] = count
        return out

    async def ensure(self, topic: str, name: str, mark_delete: Position) -> None:
        await self.region.log.ledger.open_cursor(name, mark_delete)

    def reset(self, topic: str, name: str, mark_delete: Position) -> bool:
        return False

    def redelivered(self, topic: str, name: str) -> int:
        return self.total

    def redeliveries(self, topic: str, name: str, most: int) -> Mapping[Position, int]:
        at = self.positions() if self.local else {}
        return dict(
            sorted((at[body], count) for body, count in self.local.items() if not self.cursor.is_acked(at[body]))[:most]
        )

    def count(self, topic: str, name: str, counts: Mapping[Position, int]) -> None:
        self.elsewhere = dict(counts)

    def redeliver(self, body: int) -> None:
        """It goes out again, with one more than it had."""
        self.local[body] = self.counted().get(body, 0) + 1
        self.total += 1


async def begun(sim: Simulation, settings: LinkSettings | None = None) -> tuple[Instance, dict[str, Host]]:
    instance = Instance(sim, NAMES, 1, settings)
    for a, b in (("us", "eu"), ("us", "ap"), ("eu", "ap")):
        sim.network.latency(a, b, 0.03, 0.08)
    await instance.load()
    hosts = {name: Host(region) for name, region in instance.regions.items()}
    for name, region in instance.regions.items():
        region.log.subscriptions.host = hosts[name]
    await instance.regions["us"].log.ledger.open_cursor(SUBSCRIPTION, BEFORE_ALL)
    instance.regions["us"].log.subscriptions.enable(SUBSCRIPTION)
    return instance, hosts


@pytest.mark.parametrize("seed", range(8))
def test_counts_are_the_same_everywhere_and_never_too_high(seed: int) -> None:
    with Simulation(seed) as sim:

        async def main() -> None:
            instance, hosts = await begun(sim)
            rng = random.Random(seed)
            highest: dict[int, int] = {}
            for name in NAMES:
                instance.regions[name].publish(12)
            await asyncio.sleep(3)
            for _ in range(40):
                host = hosts[rng.choice(NAMES)]
                match rng.randrange(7):
                    case 0:
                        sim.network.cut(*rng.sample(NAMES, 2))
                    case 1:
                        for a, b in (("us", "eu"), ("us", "ap"), ("eu", "ap")):
                            sim.network.heal(a, b)
                    case 2:
                        host.region.publish(rng.randrange(1, 3))
                    case 3 if host.cursor is not None:
                        body, position = rng.choice(sorted(host.positions().items()))
                        host.cursor.ack([position])
                    case _ if host.cursor is not None:
                        body, position = rng.choice(sorted(host.positions().items()))
                        if not host.cursor.is_acked(position):
                            host.redeliver(body)
                            highest[body] = max(highest.get(body, 0), host.local[body])
                await asyncio.sleep(rng.choice((0.0, 0.1, 0.6)))
                for each in hosts.values():
                    assert all(count <= highest.get(body, 0) for body, count in each.counted().items()), (
                        "more than anybody counted"
                    )
            for a, b in (("us", "eu"), ("us", "ap"), ("eu", "ap")):
                sim.network.heal(a, b)
            await asyncio.sleep(12)
            assert hosts["us"].counted() == hosts["eu"].counted() == hosts["ap"].counted() != {}
            left = hosts["us"].counted()
            assert all(left[body] == highest[body] for body in left), "and no less than the most that somebody counted"
            assert not any(region.faults for region in instance.regions.values())

        sim.run(main(), limit_s=200)


def test_after_the_acknowledgement_nothing_is_kept_and_many_are_bounded() -> None:
    with Simulation(3) as sim:

        async def main() -> None:
            instance, hosts = await begun(sim)
            for _ in range(4):
                instance.regions["us"].publish(300)
            await asyncio.sleep(4)
            us, eu = hosts["us"], hosts["eu"]
            at = us.positions()
            us.local, us.total = dict.fromkeys(at, 2), len(at)
            await asyncio.sleep(8)
            order = sorted(at, key=at.__getitem__)
            assert sorted(eu.counted()) == sorted(order[:COUNTS_MAX]), "those of the oldest"
            us.cursor.ack_cumulative(at[order[-1]])
            await asyncio.sleep(5)
            found = instance.regions["eu"].log.subscriptions._subscriptions[SUBSCRIPTION]
            assert (
                eu.elsewhere == {}
                and found.state.mine.counts == {}
                and all(c.counts == {} for c in found.state.others.values())
            )
            rounds = instance.regions["us"].log.subscriptions
            assert not rounds.due(), "and then nothing is left to do"

        sim.run(main(), limit_s=100)


def test_counts_on_the_wire() -> None:
    origin = (1, 1, 5)
    claims = Claims((0, 0), {origin: (1, 2)})
    claims.add_count((origin, (3, 4)), 7)
    claims.add_count((origin, (3, 4)), 5)
    claims.add_count((origin, (3, 9)), 1 << 40)
    again = read_claims(claims.fields())
    assert again.counts == {(origin, (3, 4)): 7, (origin, (3, 9)): (1 << 31) - 1}
    assert len(claims.fields(3)) == 3 and read_claims(claims.fields(3)).counts == {}, (
        "an older version would refuse what it does not know"
    )
    for wrong in (
        [[1, 1, 5, 3, 4, 0]],
        [[1, 1, 5, 3, 4]],
        [[1, 1, 5, 3, 4, "x"]],
        7,
        [[1, 1, 5, 3, i, 1] for i in range(COUNTS_MAX + 1)],
    ):
        with pytest.raises(PeerError):
            read_claims([*claims.fields(3), wrong])
    many = Claims((0, 0), {})
    for i in range(COUNTS_MAX + 50):
        many.add_count((origin, (3, 2000 - i)), 1)
    many.bound()
    assert len(many.counts) == COUNTS_MAX and max(many.counts)[1] == (3, 950 + COUNTS_MAX), (
        "what lies highest is left out"
    )
    claims.add(origin, (3, 0), (3, 4))
    claims.forget_whole()
    assert claims.counts == {(origin, (3, 9)): (1 << 31) - 1}


def test_regions_of_an_older_version_are_told_no_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    whole = Claims.fields

    def fields(claims: Claims, level: int = 4) -> list[Any]:
        sent.append(len(whole(claims, level)))
        return whole(claims, level)

    monkeypatch.setattr(Claims, "fields", fields)
    with Simulation(3) as sim:

        async def main() -> None:
            instance, hosts = await begun(sim, LinkSettings(feature_level=3))
            instance.regions["us"].publish(5)
            await asyncio.sleep(2)
            hosts["us"].redeliver(min(hosts["us"].positions()))
            hosts["us"].cursor.ack([max(hosts["us"].positions().values())])
            await asyncio.sleep(4)
            assert sent and set(sent) == {3} and hosts["eu"].counted() == {}
            assert not any(region.faults for region in instance.regions.values())

        sim.run(main(), limit_s=100)
