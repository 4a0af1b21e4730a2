"""What brokers write about themselves and their bundles in the region's local metadata.

Is: the two values and their encoding (msgpack maps with a format number). Isn't: who writes them, and when.
Keys: /brokers/{broker} -> BrokerRecord, /owners/{namespace}/{bundle} -> OwnerRecord; both hang on the broker's lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgpack

from heliograph.model.errors import CorruptData
from heliograph.model.feature_levels import LEVEL

FORMAT = 1
LINK_LISTENER = "link"
"""Listener name of links in general; `link-<source region>` falls back to it."""
HTTPS = "https"
"""Under this name stands where the admin interface answers by TLS; no client looks it up."""
INSIDE = "inside"
"""The same for the region's other brokers alone, by mutual TLS where brokers ask each other by it, and else plainly."""


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A live broker. `listeners`: name -> URL, "" is the plain one; `pulsar+ssl://` marks TLS."""

    broker: str
    listeners: dict[str, str] = field(default_factory=dict)
    admin_url: str = ""
    pid: int = 0
    lease: int = 0
    """What it holds its bundles under; 0 from a version that did not say."""
    level: int = LEVEL
    """Feature level that it speaks; 1 from a version that did not say."""

    @property
    def admin_url_tls(self) -> str:
        """Empty where the admin interface does not answer by TLS."""
        return self.listeners.get(HTTPS, "")

    def admin_url_by(self, tls: bool) -> str:
        """The URL for who is to go by TLS, or for whom it need not be; empty where there is none."""
        return self.admin_url_tls if tls else self.admin_url

    def admin_urls(self) -> tuple[str, ...]:
        """All URLs of the admin interface, for clients and for brokers; some may be empty."""
        return self.admin_url, self.admin_url_tls, self.listeners.get(INSIDE, "")

    @property
    def admin_address(self) -> str:
        """host:port of the admin interface without TLS, as which Pulsar's clients name a broker."""
        return urlsplit(self.admin_url).netloc

    def inside_url_by(self, tls: bool) -> str:
        """Where the region's other brokers ask it, by mutual TLS or plainly; empty where it does not answer so."""
        found = self.listeners.get(INSIDE, "")
        if tls:
            return found if found.startswith("https:") else ""
        return found if found.startswith("http:") else self.admin_url

    def url(self, listener: str) -> str | None:
        """The address under that listener name, or None where this broker has no such listener."""
        if listener in self.listeners and listener not in (HTTPS, INSIDE):
            return self.listeners[listener]
        return self.listeners.get(LINK_LISTENER) if listener.startswith(f"{LINK_LISTENER}-") else None

    def encode(self) -> bytes:
        fields: dict[str, Any] = {
            "format": FORMAT,
            "listeners": self.listeners,
            "admin_url": self.admin_url,
            "pid": self.pid,
            "lease": self.lease,
        }
        fields["level"] = self.level
        packed: bytes = msgpack.packb(fields)
        return packed

    @classmethod
    def decode(cls, broker: str, blob: bytes) -> BrokerRecord:
        fields = _unpack("broker record", blob)
        address = dict(fields.get("listeners", {})), fields.get("admin_url", ""), fields.get("pid", 0)
        return cls(broker, *address, fields.get("lease", 0), fields.get("level", 1))


class LiveBrokers:
    """The live brokers of the region as one of them has heard of them; its `OwnershipCore` keeps it."""

    def __init__(self) -> None:
        self.by_name: dict[str, BrokerRecord] = {}

    def all(self) -> list[BrokerRecord]:
        """The brokers in order of their ids; none before this one's ownership has started."""
        return [record for _, record in sorted(self.by_name.items())]


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The owner of a bundle. `lease` tells this life of the broker from its earlier ones."""

    broker: str
    lease: int
    to: str = ""
    """Releasing: the broker that the owner shall hand the bundle to."""

    def encode(self) -> bytes:
        fields = {"format": FORMAT, "broker": self.broker, "lease": self.lease}
        packed: bytes = msgpack.packb({**fields, "to": self.to} if self.to else fields)
        return packed

    @classmethod
    def decode(cls, blob: bytes) -> OwnerRecord:
        fields = _unpack("owner record", blob)
        return cls(fields["broker"], fields["lease"], fields.get("to", ""))


def _unpack(kind: str, blob: bytes) -> dict[str, Any]:
    try:
        fields = msgpack.unpackb(blob)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise CorruptData(f"{kind}: {error}") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise CorruptData(f"{kind}: of a format that this version does not know")
    return fields
