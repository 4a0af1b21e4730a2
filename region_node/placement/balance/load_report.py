"""What a broker writes about its load, and how balancing is stopped for a while.

Is: the values of /load/{broker} (under the broker's lease) and /balance/paused, msgpack maps with a format number.
Isn't: who decides by them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgpack

from heliograph.model.errors import CorruptData
from region_node.placement.balance.load_shedding import BrokerLoad, Bundle

FORMAT = 1
MEMORY, CONNECTIONS = "memory", "connections"
HELD_MAX = 0.85
"""Nothing is shed to a broker that has a larger share of its memory in use."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """`carried`: its work, and that of its bundles; `at_ms`: wall clock of the broker; `used`: the shares that it
    measured, by their names.
    """

    carried: BrokerLoad
    at_ms: int = 0
    bundles: int = 0
    used: dict[str, float] = field(default_factory=dict)

    @property
    def held(self) -> float:
        """The share that no move takes away."""
        return self.used.get(MEMORY, 0.0)

    @property
    def load(self) -> float:
        """How full it is, of whatever."""
        return max(self.carried.load, self.held)

    def encode(self) -> bytes:
        named = [[*bundle, round(load, 4)] for bundle, load in self.carried.bundles]
        fields = {
            "format": FORMAT,
            "load": round(self.carried.load, 4),
            "bundles": named,
            "count": self.bundles,
            "at": self.at_ms,
            "used": self.used,
        }
        packed: bytes = msgpack.packb(fields)
        return packed

    @classmethod
    def decode(cls, blob: bytes) -> LoadReport:
        """Reads a value of /load/{broker}. Raises CorruptData, also of a format that this version does not know."""
        try:
            fields = msgpack.unpackb(blob)
            if fields["format"] != FORMAT:
                raise CorruptData(f"load report: of format {fields['format']}, which this version does not know")
            named: list[tuple[Bundle, float]] = [
                ((namespace, index), load) for namespace, index, load in fields["bundles"]
            ]
            return cls(BrokerLoad(fields["load"], named), fields["at"], fields["count"], fields["used"])
        except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"load report: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is shed while this stands. `until_ms`: wall clock; it ends by itself, so that whoever paused and died
    does no harm.
    """

    by: str
    until_ms: int

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb({"format": FORMAT, "by": self.by, "until": self.until_ms})
        return packed

    @classmethod
    def decode(cls, blob: bytes) -> Pause:
        """Reads the value of /balance/paused. Raises CorruptData."""
        try:
            fields = msgpack.unpackb(blob)
            return cls(fields["by"], fields["until"])
        except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"pause of balancing: {error!r}") from error
