"""Where coordinators are found: the topic that clients look them up by, and the namespace that is there only for it.

Is: Pulsar's names, and a view of the configuration in which they exist. Isn't: a topic with entries: nothing is ever
published to it.
Invariants: the namespace is each region's own, never replicated; where somebody has made it in the configuration, its
bundles are what is set there.
"""

from __future__ import annotations

from dataclasses import replace

from global_config import keys
from global_config.view import ConfigView
from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.configuration.configuration_records import NamespacePolicies

NAMESPACE = "pulsar/system"
ASSIGN = f"persistent://{NAMESPACE}/transaction_coordinator_assign"


def is_assign(topic: str) -> bool:
    """Whether a topic's full name names coordinators: whoever has a grant somewhere may look it up."""
    return topic == ASSIGN or topic.startswith(f"{ASSIGN}-partition-")


class RegionView(ConfigView):
    """The configuration, with the namespace of coordinators. coordinators 0: transactions are off, and there is
    none.
    """

    def __init__(self, store: MetadataStore, region: str, coordinators: int) -> None:
        super().__init__(store)
        self._region, self._coordinators = region, coordinators

    def announce(self) -> None:
        """Tells whoever listens that the namespace is there: no write of the configuration ever does."""
        if self._coordinators:
            for listener in tuple(self._listeners):
                listener(keys.NAMESPACES + NAMESPACE)

    def namespace(self, name: str) -> NamespacePolicies | None:
        found = super().namespace(name)
        if name != NAMESPACE or not self._coordinators:
            return found
        return replace(found or NamespacePolicies(), regions=(self._region,))

    def partitions(self, topic: str) -> int:
        return self._coordinators if topic == ASSIGN and self._coordinators else super().partitions(topic)
