"""Causes: why a link is not connected, as the status shows it.

Is: the enumerated codes, and which error means which. Isn't: a text; that stands beside the code.
"""

from __future__ import annotations

from enum import StrEnum

from heliograph.client.pulsar import ConnectionLost
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
    REFUSED = "refused"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not-found"
    MOVED = "moved"
    STORAGE = "storage"
    METADATA = "metadata"
    PROTOCOL = "protocol"
    DETACHED = "detached"

    @classmethod
    def of(cls, error: BaseException) -> Cause:
        """The code for an error that ended a connection or a stream."""
        if isinstance(error, LinkError):
            return cls.parse(error.cause)
        for kind, cause in _BY_ERROR:
            if isinstance(error, kind):
                return cause
        if isinstance(error, ConnectionLost):
            return cls.CONNECTION_LOST
        return cls.REFUSED if isinstance(error, HeliographError) else cls.UNREACHABLE

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
