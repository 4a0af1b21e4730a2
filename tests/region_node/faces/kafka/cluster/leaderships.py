"""Leaderships of namespaces as a broker hears of them, in place of write leases, for tests of Kafka's face."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.configuration.leadership import Leadership
from heliograph.runtime.clock import Clock
from region_node.faces.kafka.cluster.leading_regions import LeadershipPorts


@dataclass
class HeardGate:
    record: Leadership | None
    active: bool


class Leaderships:
    """`region`: the broker's own. `say` is what the configuration says from now on."""

    def __init__(self, region: str = "us") -> None:
        self.region = region
        self.regions = ("us", "eu")
        self.records: dict[str, Leadership] = {}
        self.ended: dict[str, int] = {}
        self.gone: dict[str, None] = {}
        """Namespaces that are not there."""
        self._listeners: list[Callable[[str], None]] = []

    def gate(self, namespace: str) -> HeardGate | None:
        found = self.records.get(namespace)
        return None if found is None else HeardGate(found, found.active == self.region)

    def say(self, active: str, epoch: int, namespace: str = "public/default", *, began: int = 1) -> None:
        self.records[namespace] = Leadership(active=active, epoch=epoch, began=began)
        self._tell(namespace)

    def end(self, namespace: str = "public/default") -> None:
        self.ended[namespace] = self.records.pop(namespace).epoch
        self._tell(namespace)

    def _tell(self, namespace: str) -> None:
        for listener in self._listeners:
            listener(namespace)

    def ports(self, config: MetadataStore, meta: MetadataStore, clock: Clock) -> LeadershipPorts:
        return LeadershipPorts(
            gate=self.gate,
            names=lambda: list(self.records),
            ended=lambda namespace: self.ended.get(namespace, 0),
            on_change=self._listeners.append,
            namespace="public/default",
            regions=lambda namespace: () if namespace in self.gone else self.regions,
            config=config,
            meta=meta,
            now=clock.monotonic,
        )
