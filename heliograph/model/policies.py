"""What the global configuration holds: regions, tenants, namespaces and their policies, link trees.

Is: the values, and their encoding (JSON with a format number: people read these). Isn't: who may change them.
Keys: /regions/{name}, /tenants/{tenant}, /namespaces/{tenant}/{namespace}, /partitioned/{topic's full name}.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from heliograph.model.errors import ConfigError, CorruptData

FORMAT = 1


class _Value:
    """Encoding of a frozen dataclass of plain fields."""

    __slots__ = ()

    def encode(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True).encode()  # type: ignore[call-overload]

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        """Unknown fields are skipped, so that an older version reads a newer one's values. Raises CorruptData."""
        try:
            fields: dict[str, Any] = json.loads(blob)
            if fields.pop("format") > FORMAT:
                raise CorruptData(f"{cls.__name__}: written by a newer version; upgrade this one")
            known = cls.__dataclass_fields__  # type: ignore[attr-defined]
            return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items() if k in known})
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(f"{cls.__name__}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionInfo(_Value):
    """One region. `number` is never reused; `epoch` rises when its local metadata was restored or rebuilt."""

    name: str
    number: int
    epoch: int = 1
    service_url: str = ""
    admin_url: str = ""
    link_urls: dict[str, list[str]] = field(default_factory=dict)
    """Source region -> `pulsar+ssl://host:port` addresses where its links look topics up here (a proxy, a private network)."""
    feature_level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantInfo(_Value):
    admin_roles: tuple[str, ...] = ()
    allowed_regions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePolicies(_Value):
    """Policies of a namespace. Retention: minutes and MB, 0 none, -1 for ever."""

    regions: tuple[str, ...] = ()
    bundles: int = 4
    deduplication: bool = False
    retention_minutes: int = 0
    retention_mb: int = 0
    message_ttl_s: int = 0
    ensemble: int = 2
    write_quorum: int = 2
    ack_quorum: int = 2
    topology: str = "mesh"
    """Link trees of the namespace: `mesh` = the origin is every region's parent."""
    topology_version: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble:
            raise ConfigError(f"persistence: want 1 <= ack quorum {self.ack_quorum} <= write quorum {self.write_quorum} <= ensemble {self.ensemble}")
        if not 1 <= self.bundles <= 4096:
            raise ConfigError(f"bundles must be 1 to 4096, not {self.bundles}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedTopic(_Value):
    partitions: int
