"""Causes: why a link is not connected, or was made anew, as the status, the metrics, and the log show it.

Is: the enumerated codes, which error means which, and what an operator does about each. Isn't: the sentence of one
case; that stands beside the code.
"""

from __future__ import annotations

import ssl
from enum import StrEnum

from heliograph.client.pulsar_connection import ConnectionLost, ServerRefused
from heliograph.model.errors import (
    HeliographError,
    LinkError,
    MetadataError,
    NotAllowed,
    NotFound,
    NotOwner,
    PeerError,
    StorageError,
    TopicClosed,
    Unauthorized,
)


class Cause(StrEnum):
    """Why the last connection of a link ended, or none could be made. NONE: it is connected, or was never tried."""

    NONE = "none"
    NO_ADDRESS = "no-address"
    UNREACHABLE = "unreachable"
    TLS = "tls"
    TIMEOUT = "timeout"
    LOOKUP_FAILED = "lookup-failed"
    CONNECTION_LOST = "connection-lost"
    HEARTBEAT_LOST = "heartbeat-lost"
    STALLED = "stalled"
    GAPS = "gaps"
    SKIP_STALLED = "skip-stalled"
    WRITE_BLOCKED = "write-blocked"
    READ_STALLED = "read-stalled"
    IDLE = "idle"
    REFUSED = "refused"
    UNAUTHORIZED = "unauthorized"
    ORIGIN_REFUSED = "origin-refused"
    """This side claimed what only another region, or the configuration, may say, as far as the target knows."""
    NOT_FOUND = "not-found"
    MOVED = "moved"
    STORAGE = "storage"
    METADATA = "metadata"
    PROTOCOL = "protocol"
    TRANSACTION_OPEN = "transaction-open"
    """The link stands, and waits for the end of a transaction; it is no end of a connection."""
    SCHEMA_CONFLICT = "schema-conflict"
    SCHEMA_REFUSED = "schema-refused"
    PARTITIONS_CONFLICT = "partitions-conflict"
    ROUTE_CONFLICT = "route-conflict"
    DETACHED = "detached"

    @property
    def remedy(self) -> str:
        """What to do. Every link tries again by itself, and loses nothing meanwhile."""
        return _REMEDIES[self]

    @property
    def parks(self) -> bool:
        """Whether trying again changes nothing before somebody has decided: the link is parked
        (`replicator.links.parked_links`).
        """
        return self in (Cause.SCHEMA_CONFLICT, Cause.SCHEMA_REFUSED, Cause.PARTITIONS_CONFLICT, Cause.ROUTE_CONFLICT)

    @classmethod
    def of(cls, error: BaseException, unexpected: str = "unreachable") -> Cause:
        """The code for an error that ended a connection or a stream. unexpected: of one that is none of
        ours."""
        if isinstance(error, LinkError):
            return cls.parse(error.cause)
        for kind, cause in _BY_ERROR:
            if isinstance(error, kind):
                return cause
        if isinstance(error, ConnectionLost):
            return cls.CONNECTION_LOST
        return cls.REFUSED if isinstance(error, HeliographError) else cls(unexpected)

    @classmethod
    def parse(cls, text: str) -> Cause:
        """A code from the other side; one that this version does not know is REFUSED."""
        return cls(text) if text in cls._value2member_map_ else cls.REFUSED


_BY_ERROR: tuple[tuple[type[HeliographError], Cause], ...] = (
    (TopicClosed, Cause.MOVED),
    (NotOwner, Cause.MOVED),
    (NotFound, Cause.NOT_FOUND),
    (Unauthorized, Cause.UNAUTHORIZED),
    (NotAllowed, Cause.REFUSED),
    (PeerError, Cause.PROTOCOL),
    (MetadataError, Cause.METADATA),
    (StorageError, Cause.STORAGE),
)

_REMEDIES: dict[Cause, str] = {
    Cause.NONE: "",
    Cause.NO_ADDRESS: "give the target region a service URL or link addresses for this source",
    Cause.UNREACHABLE: "heal the network to the target, or start its brokers",
    Cause.TLS: "give both sides certificates of the same authority that have not expired",
    Cause.TIMEOUT: "heal the network to the target; if it stays, look at the target's metadata and bookies",
    Cause.LOOKUP_FAILED: "the sentence says what the target refused: its certificate, namespace, or brokers",
    Cause.CONNECTION_LOST: "nothing; if it repeats, look for connection.refused in the target's log",
    Cause.HEARTBEAT_LOST: "heal the path, which drops packets, or look at the target broker, which hangs",
    Cause.STALLED: "look at the target's bookies: it takes runs and does not store them",
    Cause.GAPS: "look at the target's bookies: its appends fail again and again; then its version and the log of both "
    "sides",
    Cause.SKIP_STALLED: "look at the bookies of this region: a hidden entry cannot be stored",
    Cause.WRITE_BLOCKED: "heal or widen the path to the target; or the target's brokers hold back, then look at its "
    "bookies",
    Cause.READ_STALLED: "look at the bookies of this region: entries cannot be read",
    Cause.IDLE: "nothing; if it repeats, keep the logs of this broker: it is a fault of ours",
    Cause.REFUSED: "compare the global configuration of both sides: is the target's stale, or does a policy forbid it?",
    Cause.UNAUTHORIZED: "give this region's replicator the certificate that the target expects, and the namespace both "
    "regions; of a Pulsar cluster: a token whose role may produce there",
    Cause.ORIGIN_REFUSED: "the sentence says what the target does not believe: give the topic the same "
    "replicationTopology in both regions (of the namespace, or with isGlobal=true), or connect the target with the "
    "origin's region; of a leadership, connect the target's region with the configuration; if the configuration names "
    "no such way, or leadership, look who has this region's replicator key",
    Cause.NOT_FOUND: "create the namespace or partition in the target, or wait until it has arrived there; correct the "
    "address",
    Cause.MOVED: "nothing: the topic moves between brokers there",
    Cause.STORAGE: "start bookies in the region that the sentence names; where a ledger is lost: `heliograph audit "
    "TOPIC --now`, and if no region has it, `heliograph topics give-up`",
    Cause.METADATA: "start the metadata processes of the region that the sentence names",
    Cause.PROTOCOL: "compare the versions of both sides; if they are equal, it is a fault of ours: keep the logs",
    Cause.TRANSACTION_OPEN: "end the transaction, or abort it: `heliograph transactions abort`; its time-out does so "
    "in the end",
    Cause.SCHEMA_CONFLICT: "look at both with `heliograph topics links`, and decide: `heliograph topics unpark --take "
    "theirs` or `ours`",
    Cause.SCHEMA_REFUSED: "bring the target to the version of this region, or repair this region's metadata; "
    "of a Pulsar cluster: change its compatibility strategy, or delete the schema there; then `heliograph topics "
    "unpark --take retry`",
    Cause.PARTITIONS_CONFLICT: "one name has two kinds of topic: move what the plain one holds to the partitioned "
    "one, and delete it; or delete the other (`heliograph topics delete --only-here`)",
    Cause.ROUTE_CONFLICT: "give the topic, or its namespace, the same replicationRoutes in both regions",
    Cause.DETACHED: "",
}


_NOT_ALLOWED = (3, 4)
"""Pulsar's AuthenticationError and AuthorizationError."""
_INCOMPATIBLE = 18
"""Pulsar's error code IncompatibleSchema: the cluster refuses the schema itself."""


def cause_of(error: BaseException) -> Cause:
    """The code for an error that came of looking an owner up, or of connecting to it."""
    if isinstance(error, TimeoutError):
        return Cause.TIMEOUT
    if isinstance(error, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError):
        return Cause.TLS
    if isinstance(error, ConnectionLost):
        return Cause.UNREACHABLE
    if isinstance(error, ServerRefused):
        return Cause.UNAUTHORIZED if error.code in _NOT_ALLOWED else Cause.LOOKUP_FAILED
    return Cause.of(error)


def schema_cause_of(error: BaseException) -> Cause:
    """The same of asking a Pulsar cluster to take a schema: only what it says of the schema itself waits for a
    decision; a topic that moves there does not.
    """
    if isinstance(error, ServerRefused) and error.code == _INCOMPATIBLE:
        return Cause.SCHEMA_REFUSED
    cause = cause_of(error)
    return Cause.REFUSED if cause is Cause.LOOKUP_FAILED else cause
