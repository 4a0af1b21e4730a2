"""Generations: how the members of a group that was forced are told from those that were left behind.

Is: the number of a generation, and which one a member's folder is of. Isn't: the file in which that lies
(`disk/generation_file`), who says what when (`core`), or when a group may be forced (`heliograph.kv.server`).
An operator forces a group where most voters are lost: one that is left goes on alone, in another generation. Each
configuration from then on names it, and each message. What comes from another generation is never heard: a member that
holds nothing goes over to a later one, whoever holds something is superseded, takes part in nothing any more, and says
so. What it holds may be more than the forced one knows, so nothing of it is ever overwritten: it is set aside.
Invariant: no vote, entry, or acknowledgement goes from one generation to another.
Source: docs/decisions/0244-a-forced-quorum-is-another-generation.md.
"""

from __future__ import annotations

from dataclasses import dataclass

_CHANCE_BITS = 32
FORCED_TERMS = 1 << 32
"""The terms of a generation begin so far above those before it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Which generation a folder is of, as it lies on the disk beside the log.

    adopted: the later one to which it went over while it held nothing; 0: it is of the one that its log names.
    superseded: the later one that left it behind; 0: none has. set_aside: what is in the folder is to be set aside at
    the next start.
    """

    adopted: int = 0
    superseded: int = 0
    set_aside: bool = False


def following(generation: int, chance: int, *, lossy: bool) -> int:
    """The generation after `generation`: a number of 32 bits that goes up by one, and 32 bits by chance (`chance`: at
    least so many), so that two that are forced beside each other differ. lossy: the lost voters may have decided
    something that the one that is left knows nothing of; the lowest bit says so.
    """
    tail = chance & ((1 << _CHANCE_BITS) - 2) | lossy
    return (number_of(generation) + 1) << _CHANCE_BITS | tail


def number_of(generation: int) -> int:
    """How often the group was forced."""
    return generation >> _CHANCE_BITS


def is_lossy(generation: int) -> bool:
    """Whether something that was decided before it may be missing in it."""
    return bool(generation & 1)
