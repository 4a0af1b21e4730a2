"""PeerClusters: which clusters an operator calls the peers of a region, or of a real Pulsar cluster. A record: nothing
here follows from it.

Invariants: what is named exists when the write commits, and is not deleted while it is named
(`ConfigAdmin.delete_region`, `delete_cluster`); nobody is a peer of itself.
Why in a key of its own: an earlier version that changes the cluster's own value would drop it there.
"""

from __future__ import annotations

from collections.abc import Sequence

from global_config import keys
from global_config.write_retries import Tries, busy
from heliograph.kv.metadata_store import Check, Delete, MetadataStore, Op, Put
from heliograph.model.configuration.configuration_records import ClusterPeers
from heliograph.model.errors import NotAllowed, NotFound, VersionConflict
from heliograph.runtime.clock import Rng


class PeerClusters:
    """Over a linearizable store of the global configuration."""

    def __init__(self, store: MetadataStore, rng: Rng | None = None) -> None:
        self._store, self._rng = store, rng

    async def set(self, name: str, peers: Sequence[str]) -> ClusterPeers:
        """In place of what was there; []: none. Raises NotFound, NotAllowed (a peer that is not there, or itself),
        MetadataUnavailable, OutcomeUnknown.
        """
        if name in peers:
            raise NotAllowed(f"Cluster {name} cannot be a peer of itself: leave it out")
        wanted = ClusterPeers(names=tuple(sorted(set(peers))))
        async for _ in Tries(self._rng):
            found = {one: await self._check(one) for one in (name, *wanted.names)}
            if found[name] is None:
                raise NotFound(f"Cluster {name} does not exist")
            checks = [check for check in found.values() if check is not None]
            if len(checks) < len(found):
                absent = next(one for one, check in found.items() if check is None)
                raise NotAllowed(f"Peer cluster {absent} does not exist: create it first, or leave it out")
            write: Op = Put(keys.peers(name), wanted.encode()) if wanted.names else Delete(keys.peers(name))
            try:
                await self._store.txn([write, *checks, Put(keys.GUARD, b"")])
            except VersionConflict:
                continue
            return wanted
        raise busy()

    async def _check(self, name: str) -> Check | None:
        """That it is still there when the write commits; None: it isn't."""
        for key in (keys.region(name), keys.cluster(name)):
            found = await self._store.get(key)
            if found is not None:
                return Check(key, found[1])
        return None
