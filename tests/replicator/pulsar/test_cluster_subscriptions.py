"""Markers of a cluster move subscriptions here, no further than they say; those that go to it are as asked for."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.model.errors import CorruptData
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.pulsar.geo_replication import (
    Marker,
    read_request,
    read_response,
    read_update,
    request,
    response,
    update,
)
from replicator.log.replicated_log import ReplicatedLog
from replicator.pulsar.cluster_subscriptions import ClusterSubscriptions
from storage.managed_ledger.cursors.cursor import Cursor
from tests.replicator.dedup.alias_world import Region, local


class Link:
    """Between us and the cluster `eu`, over a real log. `host`: whoever has the subscriptions of the broker."""

    target = "eu"

    def __init__(self, host: Any = None) -> None:
        self.log: ReplicatedLog = Region(1, random.Random(1)).log
        self.manager = SimpleNamespace(region="us", subscriptions=host)
        self.marks: list[tuple[int, bytes]] = []
        self.pumps = 0
        self.subscriptions = ClusterSubscriptions(self)  # type: ignore[arg-type]

    def mark(self, kind: int, payload: bytes) -> None:
        self.marks.append((kind, payload))

    def pump(self) -> None:
        self.pumps += 1

    def publish(self, count: int) -> None:
        self.log.publish(local("p", self.log.last_sequence("p") + 1, count), lambda _: None, lambda _: None)
        self.log.ledger.confirm(1)  # type: ignore[attr-defined]

    async def cursor(self, name: str = "s", at: Position = BEFORE_ALL, *, durable: bool = True) -> Cursor:
        return await self.log.ledger.open_cursor(name, at, durable=durable)  # type: ignore[return-value]

    async def told(self, name: str, **positions: Position) -> None:
        await self.subscriptions.on_marker(Marker.UPDATE, update(name, positions))

    def sent(self) -> list[tuple[int, bytes]]:
        found, self.marks = self.marks, []
        return found


def test_a_subscription_that_is_there_moves_on_and_never_back() -> None:
    async def main() -> None:
        link = Link()
        link.publish(10)
        cursor = await link.cursor()
        for said, mark in (((1, 4), (1, 4)), ((1, 2), (1, 4)), ((1, 4), (1, 4)), ((1, 9), (1, 9))):
            await link.told("s", us=said)
            assert cursor.mark_delete == mark and link.log.ledger.cursors == {"s": cursor}
        assert link.log.subscriptions.enabled("s")

    run_alone(main())


def test_what_is_said_of_another_region_or_of_what_is_not_here_yet_moves_nothing() -> None:
    async def main() -> None:
        link = Link()
        link.publish(10)
        cursor = await link.cursor()
        for positions in ({"ap": (1, 4)}, {"eu": (1, 4)}, {}, {"us": (1, 10)}, {"us": (2, 0)}):
            await link.told("s", **positions)
            await link.told("new", **positions)
        assert cursor.mark_delete == BEFORE_ALL and list(link.log.ledger.cursors) == ["s"]
        await link.told("s", us=(1, 9))
        assert cursor.mark_delete == (1, 9), "the last that is here"

    run_alone(main())


def test_a_subscription_that_is_not_there_is_made_by_who_has_the_subscriptions() -> None:
    async def main() -> None:
        made: list[tuple[str, str, Position]] = []

        async def ensure(topic: str, name: str, mark: Position) -> None:
            made.append((topic, name, mark))
            await link.cursor(name, mark)

        for host in (None, SimpleNamespace(ensure=ensure)):
            link = Link(host)
            link.publish(10)
            await link.told("s", us=(1, 4))
            assert link.log.ledger.cursors["s"].mark_delete == (1, 4) and link.log.subscriptions.enabled("s")
            await link.told("s", us=(1, 5))
            assert link.log.ledger.cursors["s"].mark_delete == (1, 5)
        assert made == [(link.log.topic, "s", (1, 4))], "once"

    run_alone(main())


def test_a_reader_is_no_subscription_and_one_that_could_not_be_made_is_left() -> None:
    async def main() -> None:
        async def ensure(topic: str, name: str, mark: Position) -> None:
            """It was not allowed."""

        link = Link(SimpleNamespace(ensure=ensure))
        link.publish(10)
        reader = await link.cursor(durable=False)
        for name in ("s", "new"):
            await link.told(name, us=(1, 4))
            assert not link.log.subscriptions.enabled(name)
        assert reader.mark_delete == BEFORE_ALL

    run_alone(main())


def test_what_the_cluster_asks_is_answered_once_everything_before_has_gone_out() -> None:
    async def main() -> None:
        link = Link()
        link.publish(10)
        await link.subscriptions.on_marker(Marker.SNAPSHOT_REQUEST, request("x-1", "eu"))
        assert link.pumps == 1
        link.publish(1)
        link.subscriptions.answer((1, 8))
        assert not link.sent()
        link.subscriptions.answer((1, 9))
        ((kind, payload),) = link.sent()
        found = read_response(payload)
        assert kind == Marker.SNAPSHOT_RESPONSE and (found.id, found.cluster, found.position) == ("x-1", "us", (1, 9))
        link.subscriptions.answer((1, 10))
        assert not link.sent(), "once"

    run_alone(main())


def test_a_snapshot_is_asked_for_while_a_subscription_is_kept_in_step_and_told_once_that_passed_it() -> None:
    async def main() -> None:
        link = Link()
        link.publish(10)
        link.subscriptions.tend(100.0, may_ask=True)
        cursor, other = await link.cursor(), await link.cursor("other")
        link.subscriptions.tend(101.0, may_ask=True)
        assert not link.log.subscriptions.active
        link.subscriptions.tend(101.5, may_ask=True)
        assert not link.sent(), "none is replicated"
        link.log.subscriptions.enable("s")
        link.subscriptions.tend(102.0, may_ask=False)
        assert not link.sent()
        link.subscriptions.tend(103.0, may_ask=True)
        ((kind, payload),) = link.sent()
        asked = read_request(payload)
        assert (kind, asked.cluster, asked.id) == (Marker.SNAPSHOT_REQUEST, "us", "us-0-1")
        for cluster, snapshot in (("ap", asked.id), ("eu", "us-0-9")):
            await link.subscriptions.on_marker(Marker.SNAPSHOT_RESPONSE, response(snapshot, cluster, (7, 7)))
        assert not link.subscriptions.core.found, "of another cluster, or of another snapshot"
        await link.subscriptions.on_marker(Marker.SNAPSHOT_RESPONSE, response(asked.id, "eu", (7, 7)))
        for passed, told in (((1, 8), False), ((1, 9), True), ((1, 9), False)):
            cursor.ack_cumulative(passed)
            other.ack_cumulative((1, 9))
            link.subscriptions.tend(104.0, may_ask=True)
            found = [read_update(payload) for kind, payload in link.sent() if kind == Marker.UPDATE]
            assert [(one.subscription, one.positions) for one in found] == ([("s", {"eu": (7, 7)})] if told else [])
        link.publish(1)
        link.subscriptions.disconnected()
        link.subscriptions.tend(109.0, may_ask=True)
        assert [read_request(payload).id for _, payload in link.sent()] == ["us-1-2"], "of another connection"

    run_alone(main())


@pytest.mark.parametrize("kind", (Marker.SNAPSHOT_REQUEST, Marker.SNAPSHOT_RESPONSE, Marker.UPDATE))
def test_a_marker_that_cannot_be_read_is_refused(kind: int) -> None:
    async def main() -> None:
        with pytest.raises(CorruptData):
            await Link().subscriptions.on_marker(kind, b"\xff\xff")

    run_alone(main())


def test_a_marker_of_another_kind_is_passed_over() -> None:
    async def main() -> None:
        link = Link()
        await link.subscriptions.on_marker(Marker.SNAPSHOT, b"\xff\xff")
        assert not link.marks and not link.pumps

    run_alone(main())
