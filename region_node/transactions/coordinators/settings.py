"""TransactionSettings: how a broker's coordinators are set. `CoordinatorSettings` are beside the rules that they
limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.model.errors import ConfigError
from region_node.transactions.coordinators.coordinator import CoordinatorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    coordinators: int = 16
    """Partitions of the topic that clients look coordinators up by, the same on all brokers of a region. Must never
    become less.
    """
    tick_s: float = 1.0
    topics_wait_s: float = 60.0
    """How long a topic holds back what another region committed, until the other topics of that transaction have it
    too; then it shows its part alone.
    """
    limits: CoordinatorSettings = field(default_factory=CoordinatorSettings)

    def __post_init__(self) -> None:
        if not 1 <= self.coordinators <= 1024:
            raise ConfigError(f"broker.transactions.coordinators must be 1 to 1024, not {self.coordinators}")
        if self.topics_wait_s < 0:
            raise ConfigError("broker.transactions.topics_wait_s must be 0 or more")
        if self.tick_s <= 0:
            raise ConfigError("broker.transactions.tick_s must be above 0")
