"""LinkChannels: the links of a broker, as its auditor asks over them.

Is: which regions can be asked about a topic now, and a question's way: over the link to a region, or back over the one
that comes from it. Isn't: a question.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from heliograph.model.coordinates import Origin
from heliograph.wire.links.audit_commands import Ask
from heliograph.wire.run import Run
from replicator.log.replicated_log import ReplicatedLog

if TYPE_CHECKING:
    from replicator.manager.link_manager import LinkManager


class LinkChannels:
    """The auditor's port to the links of one LinkManager, in both directions."""

    def __init__(self, manager: LinkManager) -> None:
        self._manager, self.region = manager, manager.region

    def topics(self) -> list[str]:
        return list(self._manager.logs)

    def log(self, topic: str) -> ReplicatedLog | None:
        return self._manager.logs.get(topic)

    def regions(self, log: ReplicatedLog) -> dict[str, int]:
        there = [region for region, link in self._manager.links(log.topic).items() if link.asks]
        there += [region for region, link in log.incoming.items() if link.send_ask is not None]
        return {region: self._manager.region_number(region) for region in sorted(set(there))}

    def names(self, log: ReplicatedLog) -> dict[int, str]:
        there = sorted({*self._manager.links(log.topic), *log.incoming})
        return {number: region for region in there if (number := self._manager.region_number(region))}

    def ended(self, origin: Origin) -> str:
        if not self._manager.tails.ended(origin):
            return ""
        return self._manager.region_name(origin[0]) or self._manager.tails.used.get(origin[0], f"region {origin[0]}")

    def believed(self, log: ReplicatedLog, run: Run) -> Run:
        return self._manager.relays.believed(log, run)

    def send(self, log: ReplicatedLog, region: str, request: int, ask: Ask) -> bool:
        link = self._manager.links(log.topic).get(region)
        if link is not None and link.send_ask(request, ask):
            return True
        back = log.incoming.get(region)
        if back is None or back.send_ask is None:
            return False
        back.send_ask(request, ask)
        return True

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self._manager.spawn(work)
