"""Labels: where an operator says a bookie stands, above what it says of itself: its rack, and its group.

Is: the value at `/bookie-labels/{id}` in the region's metadata. Isn't: obeying it (`bookie_pool`). It outlives the
bookie's registration, and may come before it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import msgpack

from heliograph.model.errors import CorruptData

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """group: "" is of no group. hostname: kept as it was given; nothing follows from it."""

    rack: str
    group: str = ""
    hostname: str = ""

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb({"format": FORMAT, **asdict(self)})
        return packed

    @classmethod
    def decode(cls, blob: bytes) -> Labels:
        """Reads the stored value. Raises CorruptData where it is damaged or of a format that is not known."""
        try:
            fields = msgpack.unpackb(blob)
            if fields["format"] != FORMAT:
                raise CorruptData(f"labels of a bookie: of format {fields['format']}, which this version does not know")
            return cls(rack=str(fields["rack"]), group=str(fields["group"]), hostname=str(fields["hostname"]))
        except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
            raise CorruptData(f"labels of a bookie: {error}") from error
