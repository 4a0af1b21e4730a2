"""TransactionSettings: how a broker's coordinators are set. `CoordinatorSettings` are beside the rules that they
limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.model.configuration.setting import check_bounds, setting
from region_node.transactions.coordinators.coordinator import CoordinatorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    coordinators: int = setting(16, "coordinators", least=1, most=1024)
    """Partitions of the topic that clients look coordinators up by, the same on all brokers of a region. Must never
    become less.
    """
    tick_s: float = setting(1.0, "s", above=0)
    """How often time-outs of transactions are looked at."""
    topics_wait_s: float = setting(60.0, "s", least=0)
    """How long a topic holds back what another region committed, until the other topics of that transaction have it
    too; then it shows its part alone.
    """
    limits: CoordinatorSettings = field(default_factory=CoordinatorSettings)

    def __post_init__(self) -> None:
        check_bounds(self, "broker.transactions")
