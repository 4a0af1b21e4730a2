"""Settings of the Kafka listener.

Is: values and their bounds. Isn't: where they are read (`region_node.process.settings`).
Source: docs/protocols/kafka.md, "Settings".
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.configuration.setting import check_bounds, setting
from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Bounds and defaults of one broker's listener."""

    port: int = setting(-1, least=-1, most=65535, means="none", theirs="listeners (a text)")
    """The plain port; 9092 is usual, 0 is any free one."""
    tls_port: int = setting(-1, least=-1, most=65535, means="none", theirs="listeners (a text)")
    """The TLS port; 9093 is usual, 0 is any free one. It wants the broker's TLS."""
    advertised_host: str = setting("", theirs="advertised.listeners (a text)")
    """The host that clients are told; empty: the broker's own."""
    namespace: str = setting("public/default")
    """The tenant and namespace of topics whose names give none."""
    num_partitions: int = setting(1, "partitions", least=1, most=100_000, theirs="num.partitions")
    """How many partitions a topic gets that comes into being because a client asks for it."""
    message_bytes_max: int = setting(1_048_588, "bytes", least=1024, most=5 << 20, theirs="message.max.bytes")
    """The largest record batch, where its topic says no other."""
    request_bytes_max: int = setting(100 << 20, "bytes", least=1024, most=1 << 30, theirs="socket.request.max.bytes")
    """The largest frame of a client that is known, not below `message_bytes_max`; a larger one closes the connection.
    """
    connections_max: int = setting(10_000, "connections", least=1, theirs="max.connections")
    """So many clients are served at a time; the next one is refused."""
    connections_per_address: int = setting(
        0, "connections", least=0, means="as security.connections_per_address says", theirs="max.connections.per.ip"
    )
    """Bounds the connections of one address."""
    inflight_bytes_max: int = setting(64 << 20, "bytes", least=1024, theirs="queued.max.request.bytes")
    """Bounds produce requests whose batches wait to be durable, in the whole broker; above it reading stops. Not below
    `message_bytes_max`.
    """
    requests_max: int = setting(1000, "requests", least=1)
    """Bounds requests of one connection that wait for their turn; above it reading stops."""
    waiting_bytes_max: int = setting(16 << 20, "bytes", least=1024)
    """Bounds the bytes of requests of one connection that wait; above it reading stops as well, behind at most one more
    request. Not below `message_bytes_max`.
    """
    idle_s: float = setting(600.0, "s", above=0, theirs="connections.max.idle.ms (ms)")
    """A connection that has been silent for longer is closed."""
    handshake_timeout_s: float = setting(10.0, "s", above=0)
    """A client that has not authenticated by then is closed."""
    retention_ms: int = setting(604_800_000, "ms", least=-1, means="no limit", theirs="log.retention.ms")
    """How long topics that Kafka's clients use keep records."""
    retention_bytes: int = setting(-1, "bytes", least=-1, means="no limit", theirs="log.retention.bytes")
    """How many bytes one partition of these keeps."""
    compaction_bytes: int = setting(64 << 20, "bytes", least=1, theirs="log.segment.bytes")
    """A topic with cleanup.policy=compact and no segment.bytes is compacted once so much is new."""
    retention_check_s: float = setting(60.0, "s", above=0, theirs="log.retention.check.interval.ms (ms)")
    """How often retention is applied."""
    session_timeout_min_ms: int = setting(6_000, "ms", least=1, theirs="group.min.session.timeout.ms")
    """The shortest session time-out that a member may ask for, not above `session_timeout_max_ms`."""
    session_timeout_max_ms: int = setting(1_800_000, "ms", least=1, theirs="group.max.session.timeout.ms")
    """The longest session time-out that a member may ask for."""
    rebalance_delay_ms: int = setting(3_000, "ms", least=0, most=600_000, theirs="group.initial.rebalance.delay.ms")
    """How long the first rebalance of an empty group waits for more members."""
    group_members_max: int = setting(10_000, "members", least=1, theirs="group.max.size")
    """A group that has so many members takes no more."""
    groups_max: int = setting(100_000, "groups", least=1)
    """So many groups a broker coordinates that have members or offsets, or had some lately, and of one role no more
    than it leaves free; one more is refused.
    """
    group_offsets_bytes_max: int = setting(1 << 30, "bytes", least=1)
    """So much memory the offsets of all groups of a broker take, and those of one role's groups no more than is free
    then; a commit that needs more is refused. An offset takes 300 bytes and its text.
    """
    offsets_retention_s: float = setting(604_800.0, "s", theirs="offsets.retention.minutes (min)")
    """How long offsets of a group without members are kept; below 0: for ever."""
    offset_metadata_bytes_max: int = setting(4096, "bytes", least=0, theirs="offset.metadata.max.bytes")
    """How many bytes of text a commit may attach to an offset."""
    fetch_sessions_max: int = setting(1000, "sessions", least=1, theirs="max.incremental.fetch.session.cache.slots")
    """Beyond so many incremental fetch sessions the longest unused ends."""
    transaction_timeout_max_ms: int = setting(900_000, "ms", least=1, theirs="transaction.max.timeout.ms")
    """The longest time-out that a transactional producer may ask for."""
    transactional_id_expiration_s: float = setting(
        604_800.0, "s", least=-1, theirs="transactional.id.expiration.ms (ms)"
    )
    """An id without a transaction for so long is forgotten; -1: none is."""
    transactional_ids_max: int = setting(100_000, "ids", least=1)
    """So many ids a broker coordinates; for one more, unused ones are forgotten. It is refused where there are none."""

    def __post_init__(self) -> None:
        check_bounds(self, "broker.kafka")
        if self.namespace.count("/") != 1 or not all(self.namespace.split("/")):
            raise ConfigError(f"broker.kafka.namespace must be tenant/namespace, not {self.namespace!r}")
        for name in ("request_bytes_max", "inflight_bytes_max", "waiting_bytes_max"):
            if getattr(self, name) < self.message_bytes_max:
                raise ConfigError(f"broker.kafka.{name} is less than one message of message_bytes_max")
        if self.session_timeout_min_ms > self.session_timeout_max_ms:
            raise ConfigError("broker.kafka: want session_timeout_min_ms <= session_timeout_max_ms")
