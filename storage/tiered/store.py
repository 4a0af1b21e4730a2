"""ObjectStore: the port to a place that keeps objects; what an offloader plugs in.

Is: the few calls that tiering makes, and how a URL finds its implementation. Isn't: an implementation
(`storage.tiered.objects.builtin_stores` has the built-in ones). Rules that every implementation keeps:
- An object appears whole or not at all; once `put` has returned it is there for every later call, also after a power
  cut.
- "Not there" is said only where that is known; anything else that fails raises StoreUnavailable or StoreRefused.
- Ranges are exact, or an error.
A store of another kind: an entry point of the group `heliograph.object_stores`, named as the URL's scheme, that is a
StoreMaker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from heliograph.model.errors import StoreRefused

ENTRY_POINTS = "heliograph.object_stores"


class ObjectStore(Protocol):
    """`url`: as people know it; it holds no credentials."""

    url: str

    async def put(self, key: str, body: AsyncIterator[bytes]) -> None:
        """Uploads in parts. An error of `body` ends the upload, and nothing appears. Raises StoreRefused,
        StoreUnavailable.
        """
        ...

    async def read(self, key: str, start: int, stop: int) -> memoryview:
        """The bytes [start, stop). Raises NoSuchObject; CorruptData where the object is shorter; StoreRefused,
        StoreUnavailable.
        """
        ...

    async def size_bytes(self, key: str) -> int:
        """The size of an object. Raises NoSuchObject where it is not there; StoreRefused, StoreUnavailable."""
        ...

    def list(self, prefix: str) -> AsyncIterator[Sequence[tuple[str, int]]]:
        """Pages of (key, bytes) of every object below `prefix`, in no order. Raises StoreRefused, StoreUnavailable."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """One that is not there is no error. Raises StoreRefused, StoreUnavailable."""
        ...


StoreMaker = Callable[[str, Mapping[str, str], float], ObjectStore]
"""(URL, options, time-out of one request in seconds) -> the store; raises ConfigError. Nothing is sent before it is
used.
"""


class Stores:
    """The stores that records name, each made when it is first used. `own`: the one that this broker is set to."""

    def __init__(self, url: str, options: Mapping[str, str], timeout_s: float, make: StoreMaker) -> None:
        self.own_url = url
        self._options, self._timeout_s, self._make = options, timeout_s, make
        self._made: dict[str, ObjectStore] = {}

    def get(self, url: str = "") -> ObjectStore:
        """url: of another store than the own one, with the same options. Raises StoreRefused where there is none;
        ConfigError.
        """
        url = url or self.own_url
        if not url:
            raise StoreRefused(
                "what is asked for lies in an object store, and this broker is set to none: set broker.tiered.store "
                "as on the others"
            )
        found = self._made.get(url)
        if found is None:
            found = self._made[url] = self._make(url, self._options, self._timeout_s)
        return found
