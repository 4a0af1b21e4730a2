"""LeaseHolders: which brokers have a write lease in the global configuration, by region, as it is known here.

Is: what one watch tells. Isn't: for how long a region has had none, or whether it is lost: who asks counts that, and
reads it again from whoever leads the configuration where it decides something.
Invariants: what is said may be late; a lease that has ended and come back in between is told as one that came.
Bounds: a name for each lease that the configuration has; nothing is kept of a region without any.
"""

from __future__ import annotations

from collections.abc import Callable

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.configuration.leadership import WRITERS


class LeaseHolders:
    """As one broker hears of them, from `start` until `stop`."""

    def __init__(self, store: MetadataStore, came: Callable[[str], None]) -> None:
        """came: hears of a region each time that one of its brokers has a lease, or tells something anew under it."""
        self._store, self._came = store, came
        self._of: dict[str, dict[str, None]] = {}
        """Region -> its leases; none without any."""
        self._stop_watch: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Returns once all are known, as the copy of the configuration has them."""
        self._stop_watch = self._store.watch(WRITERS, self._heard)
        await self._store.synced(WRITERS)

    def stop(self) -> None:
        self._stop_watch()

    def there(self, region: str) -> bool:
        """Whether any broker of the region has a lease."""
        return region in self._of

    def _heard(self, key: str, value: bytes | None, _version: int) -> None:
        region, _, lease = key.removeprefix(WRITERS).partition("/")
        if value is not None:
            self._of.setdefault(region, {})[lease] = None
            self._came(region)
        elif (leases := self._of.get(region)) is not None:
            leases.pop(lease, None)
            if not leases:
                del self._of[region]
