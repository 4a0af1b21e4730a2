"""Shares: how the brokers of a region divide the rates of a resource group among them.

Is: the share of one broker by what each of them last said it uses, and the value that says so (/group-use/{broker},
msgpack with a format number). Isn't: the buckets (`topic_rates`), or who writes and hears (`resource_group_usage`).
Invariants: for one and the same set of reports the shares of all brokers add up to the rate, never to more; a broker
that asks for little keeps a floor, so that it can begin at once; a broker alone has the whole rate.

Max-min fair: who needs less than an equal part gets what it needs, and those that were held up divide what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from heliograph.model.errors import CorruptData

FORMAT = 1
_FLOOR = 0.1
"""A broker that asks for nothing keeps this part of an equal share."""
_HEADROOM = 1.1
"""Who was not held up may have so much more than it used."""

Use = tuple[float, bool]
"""(so many a second, whether more was wanted than was to be had)."""
Uses = tuple[Use, Use, Use, Use]
"""Messages in, bytes in, messages out, bytes out."""


def share(rate: float, mine: Use, others: Sequence[Use]) -> float:
    """What this broker may have of `rate`; others: the uses of all the others that serve the group. `rate` is above
    0.
    """
    count = len(others) + 1
    floor = rate / count * _FLOOR
    needs = [_need(use, floor) for use in (mine, *others)]
    got, left = [floor] * count, rate - floor * count
    hungry = [at for at in range(count) if needs[at] > floor]
    while hungry and left > 1e-9 * rate:  # everybody rises alike; who has enough stands still
        step = min(left / len(hungry), *(needs[at] - got[at] for at in hungry))
        for at in hungry:
            got[at] += step
        left -= step * len(hungry)
        hungry = [at for at in hungry if needs[at] - got[at] > 1e-9 * rate]
    return got[0] + max(0.0, left) / count


def _need(use: Use, floor: float) -> float:
    used, held = use
    return float("inf") if held else max(floor, used * _HEADROOM)


@dataclass(frozen=True, slots=True)
class UseReport:
    """What one broker uses of each resource group that its topics are in."""

    groups: Mapping[str, Uses] = field(default_factory=dict)

    def encode(self) -> bytes:
        named = {name: [[round(used, 1), held] for used, held in uses] for name, uses in self.groups.items()}
        packed: bytes = msgpack.packb({"format": FORMAT, "groups": named})
        return packed

    @classmethod
    def decode(cls, blob: bytes) -> UseReport:
        """Reads a value of /group-use/{broker}. Raises CorruptData, also of an unknown format."""
        try:
            fields: Any = msgpack.unpackb(blob)
            if fields["format"] != FORMAT:
                raise CorruptData(
                    f"use of resource groups: of format {fields['format']}, which this version does not know"
                )
            return cls({str(name): _uses(uses) for name, uses in fields["groups"].items()})
        except (ValueError, TypeError, KeyError, AttributeError, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"use of resource groups: {error!r}") from error


def _uses(given: Any) -> Uses:
    a, b, c, d = ((float(used), bool(held)) for used, held in given)
    return a, b, c, d


def is_news(before: Mapping[str, Uses], after: Mapping[str, Uses]) -> bool:
    """Whether the others should hear of it: a group came or went, somebody is held up or not any more, or a use changed
    by a tenth.
    """
    if before.keys() != after.keys():
        return True
    pairs = ((old, new) for name in after for old, new in zip(before[name], after[name], strict=True))
    return any(old[1] != new[1] or abs(old[0] - new[0]) > max(1.0, 0.1 * old[0]) for old, new in pairs)
