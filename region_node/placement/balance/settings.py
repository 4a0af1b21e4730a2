"""Settings of load balancing: when bundles are moved between a region's brokers, when one is split, and how often loads
are reported.

Is: frozen values, checked when they are made. Isn't: a decision by them (`load_shedding`, `bundle_splitting`).
Source: docs/protocols/balancing.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.model.configuration.setting import check_bounds, setting
from region_node.placement.balance.broker_capacity import Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class SheddingSettings:
    """Loads are shares of what a broker can carry: 1.0 is all of it."""

    threshold: float = setting(
        0.10, "share", least=0.01, most=1.0, theirs="loadBalancerBrokerThresholdShedderPercentage (%)"
    )
    """How far above the average a broker may be, or below."""
    floor: float = setting(0.15, "share", least=0.0, most=1.0)
    """A broker below this is not relieved: its bundles stay where they are, however empty the others."""
    gain: float = setting(0.02, "share", least=0.0, most=0.5)
    """What a move that makes its receiver the fuller one of the two must gain, at least."""
    least: float = setting(0.002, "share", least=0.0, most=0.5)
    """A bundle of less load is not worth a move."""
    patience_s: float = setting(110.0, "s", least=0, most=3600)
    """How long a broker may be above the average by the threshold before it is relieved; by twice of it half as long;
    longer where much moved of late.
    """
    cool_down_s: float = setting(
        300.0, "s", least=0, most=86_400, theirs="loadBalancerSheddingGracePeriodMinutes (min)"
    )
    """A bundle that was moved stays where it is for so long."""
    moves_per_minute: int = setting(10, "moves", least=0, most=10_000, means="nothing moves")
    """On the average of a quarter of an hour; 0: nothing is shed. A region of more than twice as many brokers may begin
    half their number in a minute.
    """

    def __post_init__(self) -> None:
        check_bounds(self, "broker.balance.shedding")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings:
    """A bundle above one of these is cut in two by its owner, without anybody being disconnected; Pulsar's limits, and
    one of load.
    """

    enabled: bool = setting(True, theirs="loadBalancerAutoBundleSplitEnabled")
    """Bundles are split by themselves."""
    topics: int = setting(1000, "topics", least=2, most=1_000_000, theirs="loadBalancerNamespaceBundleMaxTopics")
    """Counts the topics that are loaded, not those that are only stored."""
    sessions: int = setting(1000, "sessions", least=2, most=1_000_000, theirs="loadBalancerNamespaceBundleMaxSessions")
    """Counts producers and consumers of the bundle's topics together."""
    messages_s: float = setting(
        30_000.0, "messages/s", least=1, most=1_000_000_000, theirs="loadBalancerNamespaceBundleMaxMsgRate"
    )
    """Counts what is published and what is delivered together."""
    bandwidth_mb_s: float = setting(
        100.0, "MB/s", least=0.001, most=1_000_000, theirs="loadBalancerNamespaceBundleMaxBandwidthMbytes (MiB/s)"
    )
    """What is published and what is delivered together."""
    load: float = setting(0.25, "share", least=0.001, most=10)
    """A share of what a broker can carry: a heavier bundle can hardly be placed well."""
    bundles_max: int = setting(128, "bundles", least=1, most=4096, theirs="loadBalancerNamespaceMaximumBundles")
    """No namespace gets more by itself; by command there may be more."""
    reports: int = setting(3, "reports", least=1, most=100)
    """So many in a row have to say so."""
    rest_s: float = setting(120.0, "s", least=0, most=86_400)
    """A bundle that was split, or could not be, is left alone for so long."""
    per_report: int = setting(4, "bundles", least=1, most=100)
    """So many bundles are split at one report."""

    def __post_init__(self) -> None:
        check_bounds(self, "broker.balance.split")


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings:
    enabled: bool = setting(True, theirs="loadBalancerEnabled")
    """False: this broker never leads, so nothing is shed where all say so; it reports and places as ever."""
    report_s: float = setting(10.0, "s", least=0.1, most=600, theirs="loadBalancerReportUpdateMaxIntervalMinutes (min)")
    """How often a broker reports its load."""
    cycle_s: float = setting(10.0, "s", least=0.1, most=600, theirs="loadBalancerSheddingIntervalMinutes (min)")
    """How often the leader looks at the loads of all."""
    misplaced_per_cycle: int = setting(20, "bundles", least=1, most=10_000)
    """Bundles that are moved in one cycle since their broker may not serve them (any more), beside what is shed."""
    messages_s: float = setting(100_000.0, "messages/s", least=1, most=1_000_000_000)
    """What a broker carries: by it a resource quota's rates are counted."""
    network_mb_s: float = setting(
        1000.0, "MB/s", least=1, most=1_000_000, theirs="loadBalancerOverrideBrokerNicSpeedGbps (Gbit/s)"
    )
    """What the network of a broker carries, in and out each, in MB/s: its share counts as load."""
    shedding: SheddingSettings = field(default_factory=SheddingSettings)
    split: SplitSettings = field(default_factory=SplitSettings)

    def __post_init__(self) -> None:
        check_bounds(self, "broker.balance")

    def capacity(self, memory_bytes: int) -> Capacity:
        """What a broker carries. memory_bytes: 0 where nobody knows."""
        return Capacity(messages_s=self.messages_s, bytes_s=self.network_mb_s * 1e6, memory_mb=memory_bytes / 1e6)
