"""ClusterSubscriptions: the replicated subscriptions of one topic, kept in step with a Pulsar cluster by Pulsar's own
markers: the shell around `subscription_snapshots`.

Is: reading markers that came, sending those that the core asks for, moving and making subscriptions here. Isn't: a rule
(`replicator.pulsar.subscription_snapshots`), or the way of acknowledgements between regions
(`replicator.subscriptions.subscription_sync`), which takes up what is moved here.
Source: docs/protocols/interop.md, "Replicated subscriptions".
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from heliograph.model.positions import Position
from heliograph.wire.pulsar.geo_replication import (
    Marker,
    read_request,
    read_response,
    read_update,
    request,
    response,
    update,
)
from heliograph.wire.run import Buffer
from replicator.pulsar.subscription_snapshots import Snapshots

if TYPE_CHECKING:
    from replicator.pulsar.pulsar_link import PulsarLink

events = logging.getLogger("replicator")


class ClusterSubscriptions:
    """Keeps the replicated subscriptions of one link in step with its cluster."""

    def __init__(self, link: PulsarLink) -> None:
        self._link = link
        self.core = Snapshots()
        self._connections = 0

    def disconnected(self) -> None:
        self._connections += 1
        self.core.disconnected()

    async def on_marker(self, kind: int, payload: Buffer) -> None:
        """A marker of the cluster; everything that it sent before is durable here. Raises CorruptData, and what storage
        raises.
        """
        link = self._link
        here = link.log.ledger.last_confirmed
        if kind == Marker.SNAPSHOT_REQUEST:
            self.core.asked(read_request(payload).id, here)
            link.pump()
        elif kind == Marker.SNAPSHOT_RESPONSE:
            found = read_response(payload)
            if found.cluster == link.target and found.position is not None:
                self.core.answered(found.id, here, found.position)
        elif kind == Marker.UPDATE:
            told = read_update(payload)
            if (position := told.positions.get(link.manager.region)) is not None and position <= here:
                await self._advance(told.subscription, position)

    async def _advance(self, name: str, mark: Position) -> None:
        """The cluster's consumers have everything up to here."""
        log, host = self._link.log, self._link.manager.subscriptions
        if name not in log.ledger.cursors:
            events.info(
                "subscription.made",
                extra={"topic": log.topic, "subscription": name, "cluster": self._link.target, "mark": mark},
            )
            if host is not None:
                await host.ensure(log.topic, name, mark)
            else:
                await log.ledger.open_cursor(name, mark)
        cursor = log.ledger.cursors.get(name)
        if cursor is not None and cursor.durable:
            log.subscriptions.enable(name)
            if mark > cursor.mark_delete:
                cursor.ack_cumulative(mark)

    def answer(self, sent_through: Position) -> None:
        """Everything at or before this went out: what the cluster asked for may be answered."""
        for snapshot, here in self.core.answers(sent_through):
            self._link.mark(Marker.SNAPSHOT_RESPONSE, response(snapshot, self._link.manager.region, here))

    def tend(self, now: float, *, may_ask: bool) -> None:
        """Once a second, while connected: tells what passed a snapshot, and asks for a new one."""
        link, syncing = self._link, self._link.log.syncing
        if syncing is None or not syncing.active:
            return
        marks = {name: cursor.mark_delete for name, cursor in link.log.ledger.cursors.items() if syncing.enabled(name)}
        for name, there in self.core.updates(marks):
            link.mark(Marker.UPDATE, update(name, {link.target: there}))
        region = link.manager.region
        if may_ask and (
            snapshot := self.core.ask(now, link.log.ledger.last_confirmed, f"{region}-{self._connections}")
        ):
            link.mark(Marker.SNAPSHOT_REQUEST, request(snapshot, region))
