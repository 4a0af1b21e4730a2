"""BundleTable: which hash range of a namespace each of its bundles has.

Is: a value. A namespace starts with equal ranges; a split gives the upper parts of a bundle's range to new bundles,
with the next numbers.
Isn't: who owns a bundle, or where the table lies (`local_meta.keys.bundles`).
Invariants: the ranges of a table cover all hashes, once; bundles are numbered 0 to count - 1; a bundle's range only
shrinks, a split never renumbers.

Encoded as a msgpack map: `format` 1, `base` (equal ranges at the start), `starts` (first hash of each range, rising),
`ids` (their bundles).
Source: docs/protocols/ownership.md, "Bundles and keys".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import msgpack

from heliograph.model.errors import CorruptData, NotAllowed
from heliograph.model.topic_names import topic_hash

FORMAT = 1
HASHES = 1 << 32
BUNDLES_MAX = 4096
"""Bounds the bundles of one namespace in one region."""


@dataclass(frozen=True, slots=True)
class BundleTable:
    """`base`: how many equal ranges it started with. `starts`: rising, the first is 0. `ids`: the bundle of each
    range.
    """

    base: int
    starts: tuple[int, ...]
    ids: tuple[int, ...]

    @classmethod
    def equal(cls, count: int) -> BundleTable:
        return cls(count, tuple(-(-(index << 32) // count) for index in range(count)), tuple(range(count)))

    @property
    def count(self) -> int:
        return len(self.ids)

    def of(self, topic: str) -> int:
        """The bundle of a topic, by its full name."""
        return self.ids[bisect_right(self.starts, topic_hash(topic)) - 1]

    def range(self, bundle: int) -> tuple[int, int]:
        """[low, high) of its hashes. Raises NotAllowed where there is no such bundle."""
        if not 0 <= bundle < len(self.ids):
            raise NotAllowed(f"there is no bundle {bundle}: there are {len(self.ids)}")
        at = self.ids.index(bundle)
        return self.starts[at], self.starts[at + 1] if at + 1 < len(self.starts) else HASHES

    def name(self, bundle: int) -> str:
        """`0x00000000_0x40000000`, as Pulsar writes a bundle; the last one ends with 0xffffffff."""
        low, high = self.range(bundle)
        return f"0x{low:08x}_0x{min(high, HASHES - 1):08x}"

    def names(self) -> list[str]:
        """Returns the names of all bundles, in the order of their hashes."""
        return [self.name(bundle) for bundle in self.ids]

    def named(self, name: str) -> int | None:
        """The bundle of that name, in either case of letters; None: there is none."""
        wanted = name.lower()
        return next((bundle for bundle in self.ids if self.name(bundle) == wanted), None)

    def boundaries(self) -> list[str]:
        """As Pulsar lists them: one more than there are bundles."""
        return [*(f"0x{start:08x}" for start in self.starts), f"0x{HASHES - 1:08x}"]

    def split(self, bundle: int, at: Sequence[int]) -> BundleTable:
        """The table after `bundle` was cut before each of the hashes `at`. It keeps what is below the first.

        Raises NotAllowed: a cut is not inside its range, or there would be too many bundles.
        """
        low, high = self.range(bundle)
        cuts = sorted(set(at))
        if not cuts or cuts[0] <= low or cuts[-1] >= min(high, HASHES - 1):
            raise NotAllowed(
                f"bundle {self.name(bundle)} can be cut only between its ends, not at "
                f"{', '.join(f'0x{cut:08x}' for cut in cuts) or 'no hash'}"
            )
        if self.count + len(cuts) > BUNDLES_MAX:
            raise NotAllowed(f"a namespace has at most {BUNDLES_MAX} bundles; this one has {self.count}")
        here = self.starts.index(low) + 1
        new = range(self.count, self.count + len(cuts))
        return BundleTable(
            self.base, (*self.starts[:here], *cuts, *self.starts[here:]), (*self.ids[:here], *new, *self.ids[here:])
        )

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb({"format": FORMAT, "base": self.base, "starts": self.starts, "ids": self.ids})
        return packed

    @classmethod
    def decode(cls, blob: bytes) -> BundleTable:
        """Raises CorruptData; also where it does not cover all hashes once."""
        try:
            fields = msgpack.unpackb(blob)
            if fields["format"] != FORMAT:
                raise CorruptData(
                    f"table of bundles: of format {fields['format']}, which this version does not know: upgrade it"
                )
            table = cls(fields["base"], tuple(fields["starts"]), tuple(fields["ids"]))
            rising = all(a < b for a, b in zip(table.starts, table.starts[1:], strict=False))
            if type(table.base) is not int or not rising or table.starts[0] != 0 or table.starts[-1] >= HASHES:
                raise CorruptData("table of bundles: its ranges do not rise from 0")
            if len(table.starts) != table.count or sorted(table.ids) != list(range(table.count)):
                raise CorruptData("table of bundles: a bundle is missing, or has two ranges")
            return table
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            AttributeError,
            msgpack.exceptions.UnpackException,
        ) as error:
            raise CorruptData(f"table of bundles: {error!r}") from error
