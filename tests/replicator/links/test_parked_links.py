"""Conflicts that a target names when a link opens: parked, looked at again slowly, over as soon as the target takes it.
(Schemas: `test_schema_feed`.)
"""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.client.pulsar_connection import ServerRefused
from heliograph.model.errors import LinkError, NotAllowed
from heliograph.wire.pulsar import pulsar_pb2 as pb
from replicator.health.link_causes import Cause, schema_cause_of
from replicator.links.parked_links import Choice, resolve
from tests.replicator.link_instance import Instance


@pytest.mark.parametrize(("cause", "first", "later"), [(Cause.PARTITIONS_CONFLICT, 1, 3), (Cause.ROUTE_CONFLICT, 3, 8)])
def test_a_link_that_the_target_must_not_take_is_parked(cause: Cause, first: int, later: int) -> None:
    """first, later: how often the target is asked, at most, in 5 and in 70 seconds."""
    with Simulation(2) as sim:

        async def main() -> None:
            instance = Instance(sim, ("us", "eu", "ap"))
            us, eu, ap = instance.regions.values()
            eu.refusal = LinkError(cause, "it conflicts")
            await instance.load()
            us.publish(5)
            await asyncio.sleep(4)
            assert 1 <= eu.refused <= 2 * first, "two links lead there"
            await asyncio.sleep(65)
            stats = us.link("eu")
            assert (stats.state, stats.cause, stats.cause_text, stats.restarts) == (
                "parked",
                str(cause),
                "it conflicts",
                0,
            ) and stats.remedy
            assert stats.backlog_messages == 5 and len(ap.bodies()) == 5 and eu.refused <= 2 * later, "others go on"
            link = us.outgoing("eu")
            for choice in (Choice.OURS, Choice.THEIRS):
                with pytest.raises(NotAllowed, match="nothing to take"):
                    await resolve(link, choice)
            before = eu.refused
            assert await resolve(link, Choice.RETRY, dry_run=True) == []
            await asyncio.sleep(0.5)
            assert eu.refused == before
            eu.refusal = None
            assert await us.brokers[0].machine.ask(lambda: resolve(link, Choice.RETRY)) == []
            await asyncio.sleep(1)
            assert len(eu.bodies()) == 5 and us.link("eu").state == "open" and link not in us.brokers[0].links.parked

        sim.run(main(), limit_s=200)


def test_a_topic_that_is_unloaded_is_not_counted_any_more() -> None:
    with Simulation(3) as sim:

        async def main() -> None:
            instance = Instance(sim, ("us", "eu"), brokers=2)
            instance.regions["eu"].refusal = LinkError(Cause.PARTITIONS_CONFLICT, "it conflicts")
            await instance.load()
            us = instance.regions["us"]
            assert len(us.brokers[0].links.parked) == 1
            await us.move(1)
            await asyncio.sleep(2)
            assert not us.brokers[0].links.parked and us.link("eu").state == "parked", "its new owner finds the same"

        sim.run(main(), limit_s=100)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ServerRefused(pb.IncompatibleSchema, "it does not fit"), Cause.SCHEMA_REFUSED),
        (ServerRefused(pb.TopicNotFound, "it moves"), Cause.REFUSED),
        (ServerRefused(pb.ServiceNotReady, "soon"), Cause.REFUSED),
        (ServerRefused(pb.AuthorizationError, "not you"), Cause.UNAUTHORIZED),
        (TimeoutError(), Cause.TIMEOUT),
    ],
)
def test_of_a_pulsar_cluster_only_a_schema_that_does_not_fit_is_parked(error: BaseException, cause: Cause) -> None:
    assert schema_cause_of(error) is cause and cause.parks == (cause is Cause.SCHEMA_REFUSED)
