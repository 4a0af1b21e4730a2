"""Promises: what namespaces promise (`slo`), what is true, and an event whenever that changes.

Is: the age of the oldest message at risk, by namespace, as this broker knows it of the topics that it has loaded; the newest events; metrics. Isn't: a
measurement of its own (links know how far they are), or an alarm's delivery: events are in the log, at the REST interface, and a metric.
Invariants: an event when a promise is broken, and one when it is kept again, not one a second; a region that hears nothing is not one without risk.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from heliograph.runtime.clock import Clock
from region_node.dr.writing import Gate
from region_node.metrics import Sample

if TYPE_CHECKING:
    from region_node.topics.topic import Topic
    from replicator.manager import LinkManager

log = logging.getLogger("region_node.dr")

KEPT = 200
_EVERY_S = 1.0


class Promises:
    """One broker's. `call_later`: the event loop's."""

    def __init__(
        self,
        *,
        gates: Callable[[], Iterable[Gate]],
        topics: Callable[[], Iterable[Topic]],
        links: LinkManager,
        region: str,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self.events: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.risk_s: dict[str, float] = {}
        """Active-passive namespace -> age of the oldest message that one of its regions lacks."""
        self.broken: dict[str, None] = {}
        self._gates, self._topics, self._links, self._region, self._clock, self._call_later = gates, topics, links, region, clock, call_later
        self._timer: Any = None

    def start(self) -> None:
        self._timer = self._call_later(_EVERY_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        gates = list(self._gates())
        if gates or self.risk_s:
            self.judge(gates, self._risks({gate.namespace: gate for gate in gates}))
        self.start()

    def _risks(self, gates: Mapping[str, Gate]) -> dict[str, float]:
        """The active region asks its links, the others what the active one told them."""
        found = dict.fromkeys(gates, 0.0)
        now_ms = self._clock.wall_ms()
        for topic in self._topics():
            gate = gates.get(topic.name.namespace)
            if gate is None or topic.volatile or gate.record is None:
                continue
            if gate.active:
                ages = [link.age_s for link in self._links.stats(topic.text)]
            else:
                link = getattr(topic.log, "incoming", {}).get(gate.record.active)
                ages = [] if link is None else [float(link.status(now_ms)["age_s_max"] or 0.0)]
            found[gate.namespace] = max([found[gate.namespace], *ages])
        return found

    def judge(self, gates: Iterable[Gate], risks: Mapping[str, float]) -> None:
        """Takes new numbers, and notes what has changed."""
        self.risk_s = dict(risks)
        known = dict[str, None]()
        for gate in gates:
            known[gate.namespace] = None
            promised = gate.record.slo.get("rpo_s") if gate.record is not None else None
            risk = risks.get(gate.namespace, 0.0)
            if promised is not None and risk > promised and gate.namespace not in self.broken:
                self.broken[gate.namespace] = None
                self._note("slo.broken", gate.namespace, risk, promised)
            elif gate.namespace in self.broken and (promised is None or risk <= promised):
                del self.broken[gate.namespace]
                self._note("slo.kept", gate.namespace, risk, promised or 0.0)
        for gone in [namespace for namespace in self.broken if namespace not in known]:
            del self.broken[gone]

    def _note(self, event: str, namespace: str, risk_s: float, promised_s: float) -> None:
        found = {"event": event, "namespace": namespace, "what": "rpo_s", "value": risk_s, "promised": promised_s, "time_ms": self._clock.wall_ms()}
        self.events.append(found)
        log.warning(event, extra=found)

    def samples(self) -> Iterator[Sample]:
        for gate in self._gates():
            if gate.record is None:
                continue
            labels = {"cluster": self._region, "namespace": gate.namespace}
            yield "heliograph_dr_active", "gauge", labels, float(gate.active)
            yield "heliograph_dr_epoch", "gauge", labels, gate.record.epoch
            yield "heliograph_dr_takes_messages", "gauge", labels, float(gate.open)
            yield "heliograph_dr_at_risk_seconds", "gauge", labels, self.risk_s.get(gate.namespace, 0.0)
            yield "heliograph_dr_slo_broken", "gauge", labels, float(gate.namespace in self.broken)
