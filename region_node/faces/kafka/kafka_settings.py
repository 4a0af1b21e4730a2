"""Settings of the Kafka listener.

Is: values and their bounds. Isn't: where they are read (`region_node.process.settings`).
Source: docs/protocols/kafka.md, "Settings".
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Bounds and defaults of one broker's listener. Ports: -1 none, 0 any free one. Kafka's own name for a setting
    stands in parentheses.
    """

    port: int = -1
    """The plain port; 9092 is usual."""
    tls_port: int = -1
    """The TLS port; 9093 is usual. It wants the broker's TLS."""
    advertised_host: str = ""
    """The host that clients are told (advertised.listeners); empty: the broker's own."""
    namespace: str = "public/default"
    """The tenant and namespace of topics whose names give none."""
    num_partitions: int = 1
    """How many partitions a topic gets that comes into being because a client asks for it (num.partitions)."""
    message_bytes_max: int = 1_048_588
    """The largest record batch, where its topic says no other (message.max.bytes)."""
    request_bytes_max: int = 100 << 20
    """The largest frame of a client that is known; a larger one closes the connection (socket.request.max.bytes)."""
    connections_max: int = 10_000
    connections_per_address: int = 0
    """Bounds the connections of one address (max.connections.per.ip); 0: as security.connections_per_address says."""
    inflight_bytes_max: int = 64 << 20
    """Bounds produce requests whose batches wait to be durable, in the whole broker; above it reading stops."""
    requests_max: int = 1000
    """Bounds requests of one connection that wait for their turn; above it reading stops."""
    waiting_bytes_max: int = 16 << 20
    """Bounds their bytes; above it reading stops as well, behind at most one more request."""
    idle_s: float = 600.0
    """A connection that has been silent for longer is closed (connections.max.idle.ms)."""
    handshake_timeout_s: float = 10.0
    """A client that has not authenticated by then is closed."""
    retention_ms: int = 604_800_000
    """How long topics that Kafka's clients use keep records (log.retention.ms); -1: no limit."""
    retention_bytes: int = -1
    """How many bytes one partition of these keeps (log.retention.bytes); -1: no limit."""
    compaction_bytes: int = 64 << 20
    """A topic with cleanup.policy=compact and no segment.bytes is compacted once so much is new."""
    retention_check_s: float = 60.0
    """How often retention is applied (log.retention.check.interval.ms)."""
    session_timeout_min_ms: int = 6_000
    """The shortest session time-out that a member may ask for (group.min.session.timeout.ms)."""
    session_timeout_max_ms: int = 1_800_000
    """The longest session time-out that a member may ask for (group.max.session.timeout.ms)."""
    rebalance_delay_ms: int = 3_000
    """How long the first rebalance of an empty group waits for more members (group.initial.rebalance.delay.ms)."""
    group_members_max: int = 10_000
    """A group that has so many members takes no more (group.max.size)."""
    offsets_retention_s: float = 604_800.0
    """How long offsets of a group without members are kept (offsets.retention.minutes); below 0: for ever."""
    offset_metadata_bytes_max: int = 4096
    """How many bytes of text a commit may attach to an offset (offset.metadata.max.bytes)."""
    fetch_sessions_max: int = 1000
    """Beyond so many incremental fetch sessions the longest unused ends (max.incremental.fetch.session.cache.slots)."""
    transaction_timeout_max_ms: int = 900_000
    """The longest time-out that a transactional producer may ask for (transaction.max.timeout.ms)."""
    transactional_id_expiration_s: float = 604_800.0
    """An id without a transaction for so long is forgotten (transactional.id.expiration.ms); -1: none is."""

    def __post_init__(self) -> None:
        for name in ("port", "tls_port"):
            if not -1 <= getattr(self, name) <= 65535:
                raise ConfigError(
                    f"broker.kafka.{name} must be -1 (none), 0 (any free port), or up to 65535, not "
                    f"{getattr(self, name)}"
                )
        if self.namespace.count("/") != 1 or not all(self.namespace.split("/")):
            raise ConfigError(f"broker.kafka.namespace must be tenant/namespace, not {self.namespace!r}")
        if not 1 <= self.num_partitions <= 100_000:
            raise ConfigError(f"broker.kafka.num_partitions must be 1 to 100000, not {self.num_partitions}")
        if not 1024 <= self.message_bytes_max <= 5 << 20:
            raise ConfigError(f"broker.kafka.message_bytes_max must be 1024 to {5 << 20}, not {self.message_bytes_max}")
        if not self.message_bytes_max <= self.request_bytes_max <= 1 << 30:
            raise ConfigError("broker.kafka.request_bytes_max must be at least message_bytes_max, and at most 1 GiB")
        if self.inflight_bytes_max < self.message_bytes_max:
            raise ConfigError("broker.kafka.inflight_bytes_max is less than one message of message_bytes_max")
        if self.waiting_bytes_max < self.message_bytes_max:
            raise ConfigError("broker.kafka.waiting_bytes_max is less than one message of message_bytes_max")
        if (
            min(self.idle_s, self.handshake_timeout_s, self.retention_check_s) <= 0
            or min(self.connections_max, self.requests_max) < 1
        ):
            raise ConfigError(
                "broker.kafka: idle_s, handshake_timeout_s, retention_check_s, connections_max, and requests_max must "
                "be above 0"
            )
        if self.connections_per_address < 0:
            raise ConfigError(
                "broker.kafka.connections_per_address must be 0 (as security.connections_per_address says) or more"
            )
        if self.compaction_bytes < 1:
            raise ConfigError(f"broker.kafka.compaction_bytes must be above 0, not {self.compaction_bytes}")
        if not 0 < self.session_timeout_min_ms <= self.session_timeout_max_ms:
            raise ConfigError("broker.kafka: want 0 < session_timeout_min_ms <= session_timeout_max_ms")
        if not 0 <= self.rebalance_delay_ms <= 600_000:
            raise ConfigError(f"broker.kafka.rebalance_delay_ms must be 0 to 600000, not {self.rebalance_delay_ms}")
