"""Memory that is used again once no view of it is left: how that is known.

Is: what `sys.getrefcount` says of an object that nobody but its pool refers to. Isn't: a pool.
Invariants: a pool asks as `_of_nobody` does: of an object in one container and in one local variable. How many
references that is differs between versions of Python (an argument may be borrowed), and one too many would give out
memory that somebody still reads; so it is measured.
"""

from __future__ import annotations

from sys import getrefcount


def _of_nobody() -> int:
    for kept in [bytearray(1)]:
        return getrefcount(kept)
    raise AssertionError("a list of one is not empty")


UNSHARED = _of_nobody()
