"""NOTHING: the one empty dictionary of whoever has nothing to put into his own.

Is: what very many idle objects share, where an empty dictionary each takes 64 bytes. Isn't: ever written to: that
raises, so a forgotten `own` shows.
"""

from __future__ import annotations

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Nothing(dict[Any, Any]):
    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("this dictionary is shared by all who have nothing: ask `own` for one to write to")

    __setitem__ = __ior__ = setdefault = update = _refuse


NOTHING: dict[Any, Any] = _Nothing()


def own(held: dict[K, V]) -> dict[K, V]:
    """What is held, to be written to: an own one in the place of NOTHING, which the caller keeps."""
    return {} if held is NOTHING else held
