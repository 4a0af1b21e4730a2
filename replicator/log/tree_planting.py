"""Planting: the region that publishes writes down by which way its entries go on, as a record in its own log.

Is: the comparison of what the policies want with the newest record, the append of another one, and which topics are to
be looked at again. Isn't: what follows from a record (`replicator.sending.link_sender`).
Invariants: one record at a time; at most CHANGES_MAX records that some region has not reached yet: a further change
waits until the regions have followed. And no more bytes of them than a book keeps, so that none is evicted that some
region needs; what regions would refuse is not written down.
Source: docs/protocols/links.md, "Topologies".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from heliograph.model.configuration.replication_routes import Topology, tree
from heliograph.model.errors import HeliographError
from heliograph.model.positions import AFTER_ALL
from replicator.log.routing_trees import ORIGIN_BYTES_MAX, RECORD_BYTES_MAX, REGION_BYTES_MAX, Tree

if TYPE_CHECKING:
    from replicator.log.replicated_log import ReplicatedLog
    from replicator.log.write_order import Segments

events = logging.getLogger("replicator")

CHANGES_MAX = 16


def plant(
    log: ReplicatedLog, region: str, parents: Mapping[str, str], targets: Iterable[str], again: Callable[[], None]
) -> bool:
    """Makes `parents` (target -> region that delivers to it) the tree of what is published here in `region` from now
    on.

    again: called once the record is durable, or has failed: whoever wants a tree compares anew. Returns False where a
    change has to wait. One that is too large is refused: an event says so, and everything goes on by the tree before.
    """
    book, origin = log.state.trees, log.origin
    wanted = {target: parent for target, parent in sorted(parents.items()) if parent != region}
    newest = book.newest(origin)
    if (newest.parents if newest is not None else {}) == wanted or log.closed is not None:
        return True
    slowest = min((log.known[target][0].prefix(origin) for target in targets if target in log.known), default=None)
    if log.planting:
        return False
    whole = newest is None and not log.publishes
    record = Tree(region, wanted, whole)
    if why := _too_large(log, record):
        events.error("link.tree_refused", extra={"topic": log.topic, "error": why})
        return True
    if slowest is not None and (behind := book.behind(origin, slowest)):
        size = book.behind_bytes(origin, slowest) + record.size_bytes
        if behind >= CHANGES_MAX or size > ORIGIN_BYTES_MAX:
            return False
    log.planting = True

    def stored(_: Segments) -> None:
        log.planting = False
        events.info("link.tree", extra={"topic": log.topic, "parents": wanted, "whole": whole})
        again()

    def failed(error: HeliographError) -> None:
        log.planting = False
        events.warning("link.tree_failed", extra={"topic": log.topic, "error": str(error)})
        again()

    log.append_tree(record.as_run(), stored, failed)
    return True


def _too_large(log: ReplicatedLog, record: Tree) -> str:
    if record.size_bytes > RECORD_BYTES_MAX:
        return (
            f"the tree by replicationTopology, of {len(record.parents)} regions, takes {record.size_bytes} bytes; "
            f"{RECORD_BYTES_MAX} are allowed: entries go on by the tree before; let fewer regions go by way of others"
        )
    size = log.state.trees.size_with(log.origin, AFTER_ALL, record)
    if size > REGION_BYTES_MAX:
        return (
            f"the topic's trees of all epochs of this region would take {size} bytes, and other regions take "
            f"{REGION_BYTES_MAX}: entries go on by the tree before; publish to a topic of another name to change it"
        )
    return ""


class Planter:
    """Writes the trees of one broker's topics. logs: the loaded topics by name. targets: to which regions a topic's
    entries go.
    """

    def __init__(
        self, region: str, logs: Mapping[str, ReplicatedLog], targets: Callable[[ReplicatedLog], list[str]]
    ) -> None:
        self._region, self._logs, self._targets = region, logs, targets
        self._topologies: dict[str, Topology | None] = {}
        """Topic -> its policy, of those that have one or have a tree."""
        self._unplanted: dict[str, ReplicatedLog] = {}
        """Topics whose tree is to be compared with the policy again."""

    def obey(self, log: ReplicatedLog, topology: Topology | None) -> None:
        """By which way its entries go on from now on; None: directly. What has to wait is looked at again by `tick`."""
        self._topologies[log.topic] = topology
        if topology is None and not log.state.trees:
            del self._topologies[log.topic]
            return
        regions = self._targets(log)

        def again() -> None:
            """A record is stored, or was not: the policy may have changed meanwhile. Not at once: bookies that fail do
            so again.
            """
            self._unplanted[log.topic] = log

        if plant(log, self._region, tree(topology, self._region, regions), regions, again):
            self._unplanted.pop(log.topic, None)
        else:
            self._unplanted[log.topic] = log

    def forget(self, log: ReplicatedLog) -> None:
        self._topologies.pop(log.topic, None)

    def tick(self) -> None:
        """Called about once a second: compares the trees that had to wait with the policy again."""
        waiting, self._unplanted = self._unplanted, {}
        for topic, log in waiting.items():
            if self._logs.get(topic) is log and topic in self._topologies:
                self.obey(log, self._topologies[topic])
