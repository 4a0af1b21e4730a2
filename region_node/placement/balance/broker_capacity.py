"""What a broker carries, and what an operator says a bundle takes of it.

Is: two values, Pulsar's ResourceQuota and a broker's capacity, and the share that one is of the other. Isn't: where
they are kept (`bundle_quotas`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgpack

from heliograph.model.errors import CorruptData, NotAllowed

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceQuota:
    """Rates: messages/s; bandwidths: bytes/s; memory: MB. Pulsar's defaults."""

    msgRateIn: float = 40.0
    msgRateOut: float = 120.0
    bandwidthIn: float = 100_000.0
    bandwidthOut: float = 300_000.0
    memory: float = 80.0
    dynamic: bool = True

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name == "dynamic":
                if not isinstance(value, bool):
                    raise NotAllowed(f"dynamic must be true or false, not {value!r}")
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
                raise NotAllowed(f"{name} must be a number from 0 up, not {value!r}")

    @classmethod
    def of(cls, fields: Any) -> ResourceQuota:
        """From JSON; what is not named has its default. Raises NotAllowed."""
        if not isinstance(fields, dict) or not set(fields) <= set(cls.__slots__):
            raise NotAllowed(f"expected a ResourceQuota: {', '.join(cls.__slots__)}")
        return cls(**fields)

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb({"format": FORMAT, **asdict(self)})
        return packed

    @classmethod
    def decode(cls, blob: bytes) -> ResourceQuota:
        """Reads what `encode` wrote. Raises CorruptData, also of another format and of values out of bounds."""
        try:
            fields = msgpack.unpackb(blob)
            if fields.pop("format") != FORMAT:
                raise CorruptData("resource quota: of a format that this version does not know")
            return cls(**fields)
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            NotAllowed,
            msgpack.exceptions.UnpackException,
        ) as error:
            raise CorruptData(f"resource quota: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a broker carries; memory in MB, 0: nobody knows."""

    messages_s: float
    bytes_s: float
    memory_mb: float = 0.0

    def share(self, quota: ResourceQuota) -> float:
        """The largest part of a broker that the quota takes."""
        memory = quota.memory / self.memory_mb if self.memory_mb else 0.0
        return max(
            (quota.msgRateIn + quota.msgRateOut) / self.messages_s,
            quota.bandwidthIn / self.bytes_s,
            quota.bandwidthOut / self.bytes_s,
            memory,
        )
