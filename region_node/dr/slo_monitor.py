"""Promises: what namespaces promise (`slo`: of the policy of that name, or of `dr set`), what is true, and an event
whenever that changes.

Is: the age of the oldest message at risk, by namespace, as this broker knows it of the topics that it has loaded; for
how long it knows nothing newer; the newest events; metrics. Isn't: a measurement of its own (links know how far they
are), or an alarm's delivery: events are in the log, in the audit log, at the REST interface, and a metric.
Invariants: an event when a promise is broken, and one when it is kept again, not one a second; a region that hears
nothing is not one without risk; once a second hardly more is done for a topic that nothing is outstanding of than to
pass it by.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from heliograph.model.configuration.replication_routes import delivers
from heliograph.runtime.clock import Clock
from region_node.dr.leadership.write_gates import Gate
from region_node.runtime.prometheus_text import Sample
from replicator.health.incoming_stats import SILENT_S

if TYPE_CHECKING:
    from global_config.view import ConfigView
    from region_node.topics.topic import Topic
    from replicator.health.incoming_stats import IncomingLink
    from replicator.log.replicated_log import ReplicatedLog
    from replicator.manager.link_manager import LinkManager

log = logging.getLogger("region_node.dr")

KEPT = 200
POLICY = "slo"
_EVERY_S = 1.0
_NONE: Mapping[str, IncomingLink] = {}


class Promises:
    """One broker's. `call_later`: the event loop's."""

    def __init__(
        self,
        *,
        gates: Callable[[], Iterable[Gate]],
        view: ConfigView,
        topics: Callable[[], Iterable[Topic]],
        links: LinkManager,
        region: str,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Any],
        told: Callable[[dict[str, Any]], object] = lambda _: None,
    ) -> None:
        """told: hears of every event."""
        self._told = told
        self.events: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.risk_s: dict[str, float] = {}
        """Namespace that is active-passive, or promises something -> age of the oldest message that one of its regions
        lacks.
        """
        self.silent_s: dict[str, float] = {}
        """Namespace -> for how long nothing was heard of a region that its risk depends on; of those that are silent
        for more than SILENT_S.
        """
        self.broken: dict[str, None] = {}
        self._gates, self._topics, self._links, self._region, self._clock, self._call_later = (
            gates,
            topics,
            links,
            region,
            clock,
            call_later,
        )
        self._view = view
        self._promised: dict[str, float] | None = None
        self._timer: Any = None
        self._stop_watch = view.on_change(self._forget)

    def start(self) -> None:
        self._timer = self._call_later(_EVERY_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._stop_watch()

    def _forget(self, key: str) -> None:
        if key.startswith("/namespaces/"):
            self._promised = None

    def promised(self) -> dict[str, float]:
        """Namespace -> how many seconds its policy promises at most."""
        if self._promised is None:
            view = self._view
            every = {name: view.namespace(name) for tenant in view.tenants() for name in view.namespaces(tenant)}
            slos = {name: found.policies.get(POLICY) or {} for name, found in every.items() if found is not None}
            self._promised = {name: slo["rpo_s"] for name, slo in slos.items() if "rpo_s" in slo}
        return self._promised

    def _tick(self) -> None:
        gates, promised = list(self._gates()), self.promised()
        if gates or promised or self.risk_s:
            self.judge(gates, self._risks({gate.namespace: gate for gate in gates}))
        self.start()

    def _risks(self, gates: Mapping[str, Gate]) -> dict[str, float]:
        """Where one region is active, it asks its links, the others what it told them; where all are, each asks
        both.
        """
        found = {**dict.fromkeys(self.promised(), 0.0), **dict.fromkeys(gates, 0.0)}
        silent: dict[str, float] = {}
        now_ms, now = self._clock.wall_ms(), self._clock.monotonic()
        behind = self._links.at_risk()
        others = {name: self._others(name) for name in self.promised() if name not in gates}
        every = {region for regions in others.values() for region in regions}
        for topic in self._topics():
            there = behind.get(topic.text, 0.0)
            incoming: Mapping[str, IncomingLink] = getattr(topic.log, "incoming", _NONE)
            here = {region: age for region, link in incoming.items() if (age := link.at_risk_s(now_ms, now))}
            if (
                (not (there or here) and every <= incoming.keys() and (incoming or not gates))
                or topic.volatile
                or (namespace := topic.name.namespace) not in found
            ):
                continue
            gate = gates.get(namespace)
            if gate is None:
                unheard_s = [
                    self._unheard_s(topic, region, now_ms) for region in others[namespace] if region not in incoming
                ]
                age_s = max([there, *here.values(), *unheard_s])
                untold_s = max([*(incoming[region].untold_s(now) for region in here), *unheard_s], default=0.0)
            elif gate.record is None:
                continue
            elif gate.active:
                age_s, untold_s = there, 0.0
            elif (link := incoming.get(gate.record.active)) is not None:
                age_s, untold_s = here.get(gate.record.active, 0.0), link.untold_s(now)
            else:
                age_s = untold_s = self._unheard_s(topic, gate.record.active, now_ms)
            found[namespace] = max(found[namespace], age_s)
            if untold_s:
                silent[namespace] = max(silent.get(namespace, 0.0), untold_s)
        self.silent_s = silent
        return found

    def _others(self, namespace: str) -> list[str]:
        found = self._view.namespace(namespace)
        return [] if found is None else [region for region in found.regions if region != self._region]

    def _unheard_s(self, topic: Topic, region: str, now_ms: int) -> float:
        """Says for how long the region has told nothing of the topic: since it was loaded here. 0.0: it has nothing to
        tell, because a policy keeps the topic from it, its messages lie in another topic, or they come by way of a
        third region.
        """
        values, log = topic.policies.values, cast("ReplicatedLog", topic.log)
        only, routes = values.get("replication"), values.get("replicationRoutes")
        if topic.shadow_of or (only and region not in only) or not delivers(routes, region, self._region):
            return 0.0
        loaded_s = (now_ms - topic.loaded_ms) / 1000
        return loaded_s if loaded_s > SILENT_S and not log.state.trees else 0.0

    def judge(self, gates: Iterable[Gate], risks: Mapping[str, float]) -> None:
        """Takes new numbers, and notes what has changed."""
        self.risk_s = dict(risks)
        known: dict[str, float | None] = dict(self.promised())
        for gate in gates:
            slo = gate.record.slo if gate.record is not None else {}
            known[gate.namespace] = slo.get("rpo_s", known.get(gate.namespace))
        for namespace, promised in known.items():
            risk = risks.get(namespace, 0.0)
            if promised is not None and risk > promised and namespace not in self.broken:
                self.broken[namespace] = None
                self._note("slo.broken", namespace, risk, promised)
            elif namespace in self.broken and (promised is None or risk <= promised):
                del self.broken[namespace]
                self._note("slo.kept", namespace, risk, promised or 0.0)
        for gone in [namespace for namespace in self.broken if namespace not in known]:
            del self.broken[gone]

    def _note(self, event: str, namespace: str, risk_s: float, promised_s: float) -> None:
        found = {
            "event": event,
            "namespace": namespace,
            "what": "rpo_s",
            "value": risk_s,
            "promised": promised_s,
            "silent_s": self.silent_s.get(namespace, 0.0),
            "time_ms": self._clock.wall_ms(),
        }
        self.tell(found)
        log.warning(event, extra=found)

    def tell(self, event: dict[str, Any]) -> None:
        """Something has happened that operators are to find among the events of this broker, and in its audit log."""
        self.events.append(event)
        self._told(event)

    def status(self) -> list[dict[str, Any]]:
        """Returns a row for each namespace whose policy promises something, as this broker knows it of the topics that
        it has loaded.
        """
        return [
            {
                "namespace": namespace,
                "rpo_s": promised,
                "at_risk_s": self.risk_s.get(namespace, 0.0),
                "silent_s": self.silent_s.get(namespace, 0.0),
                "slo_broken": namespace in self.broken,
            }
            for namespace, promised in sorted(self.promised().items())
        ]

    def samples(self) -> Iterator[Sample]:
        gates = [gate for gate in self._gates() if gate.record is not None]
        led = {gate.namespace for gate in gates}
        for namespace in self.promised():
            if namespace not in led:
                labels = {"cluster": self._region, "namespace": namespace}
                yield "heliograph_dr_at_risk_seconds", "gauge", labels, self.risk_s.get(namespace, 0.0)
                yield "heliograph_dr_silent_seconds", "gauge", labels, self.silent_s.get(namespace, 0.0)
                yield "heliograph_dr_slo_broken", "gauge", labels, float(namespace in self.broken)
        for gate in gates:
            if gate.record is None:
                continue
            labels = {"cluster": self._region, "namespace": gate.namespace}
            yield "heliograph_dr_active", "gauge", labels, float(gate.active)
            yield "heliograph_dr_epoch", "gauge", labels, gate.record.epoch
            yield "heliograph_dr_takes_messages", "gauge", labels, float(gate.open)
            yield "heliograph_dr_at_risk_seconds", "gauge", labels, self.risk_s.get(gate.namespace, 0.0)
            yield "heliograph_dr_silent_seconds", "gauge", labels, self.silent_s.get(gate.namespace, 0.0)
            yield "heliograph_dr_slo_broken", "gauge", labels, float(gate.namespace in self.broken)
