"""Planting: the region that publishes writes down by which way its entries go on, as a record in its own log.

Is: the comparison of what the policies want with the newest record, and the append of another one. Isn't: what follows from it (`replicator.sender`).
Invariants: one record at a time; at most CHANGES_MAX records that some region has not reached yet: a further change waits until the regions have followed.
Source: docs/protocols/links.md, "Topologies".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from heliograph.model.errors import HeliographError
from replicator.trees import Tree

if TYPE_CHECKING:
    from replicator.log import ReplicatedLog
    from replicator.order import Segments

events = logging.getLogger("replicator")

CHANGES_MAX = 16


def plant(log: ReplicatedLog, region: str, parents: Mapping[str, str], targets: Iterable[str], again: Callable[[], None]) -> bool:
    """Makes `parents` (target -> region that delivers to it) the tree of what is published here in `region` from now on.

    again: called once the record is durable, or has failed: whoever wants a tree compares anew. Returns False where a change has to wait.
    """
    book, origin = log.state.trees, log.origin
    wanted = {target: parent for target, parent in sorted(parents.items()) if parent != region}
    newest = book.newest(origin)
    if (newest.parents if newest is not None else {}) == wanted or log.closed is not None:
        return True
    slowest = min((log.known[target][0].prefix(origin) for target in targets if target in log.known), default=None)
    if log.planting or (slowest is not None and book.behind(origin, slowest) >= CHANGES_MAX):
        return False
    whole = newest is None and not log.publishes
    log.planting = True

    def stored(_: Segments) -> None:
        log.planting = False
        events.info("link.tree topic=%s parents=%s whole=%s", log.topic, wanted, whole)
        again()

    def failed(error: HeliographError) -> None:
        log.planting = False
        events.warning("link.tree_failed topic=%s error=%r", log.topic, error)
        again()

    log.append_tree(Tree(region, wanted, whole).as_run(), stored, failed)
    return True
