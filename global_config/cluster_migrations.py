"""ClusterMigrations: which regions, and which namespaces in a region, send their clients on to another cluster, and
where that is (Pulsar's blue-green migration).

Is: the writes of both records. Isn't: what brokers do then (`region_node.topics.serving.publish_gates`).
Invariants: what is migrated exists when the write commits; a record goes with what it is about, so that a namespace
that is made anew is not migrated. Why in keys of their own: an earlier version that changes a region's or a namespace's
own value would drop it there.
"""

from __future__ import annotations

from global_config import keys
from global_config.write_retries import Tries, busy
from heliograph.kv.metadata_store import ABSENT, Check, Delete, MetadataStore, Op, Put
from heliograph.model.configuration.configuration_records import ClusterMigration, MigratedNamespace
from heliograph.model.errors import CorruptData, NotFound, VersionConflict
from heliograph.runtime.clock import Rng


class ClusterMigrations:
    """Over a linearizable store of the global configuration."""

    def __init__(self, store: MetadataStore, rng: Rng | None = None) -> None:
        self._store, self._rng = store, rng

    async def set(self, name: str, wanted: ClusterMigration) -> None:
        """name: of a region, or of a Pulsar cluster. Raises NotFound, MetadataUnavailable, OutcomeUnknown."""
        async for _ in Tries(self._rng):
            found = None
            for key in (keys.region(name), keys.cluster(name)):
                found = found or await self._exists(key)
            if found is None:
                raise NotFound(f"Cluster {name} does not exist")
            try:
                await self._store.txn([Put(keys.migration(name), wanted.encode()), found])
            except VersionConflict:
                continue
            return
        raise busy()

    async def set_namespace(self, namespace: str, region: str, migrated: bool) -> None:
        """namespace: `tenant/namespace`. Raises NotFound, MetadataUnavailable, OutcomeUnknown."""
        key = keys.migrated(namespace)
        async for _ in Tries(self._rng):
            exists, stored = await self._exists(keys.namespace(namespace)), await self._store.get(key)
            if exists is None:
                raise NotFound(f"namespace {namespace!r} does not exist")
            value, version = stored or (b"", ABSENT)
            regions = set(_regions(value)) - {region} | ({region} if migrated else set())
            if not regions and version == ABSENT:
                return
            write: Op = (
                Put(key, MigratedNamespace(regions=tuple(sorted(regions))).encode(), version)
                if regions
                else Delete(key, version)
            )
            try:
                await self._store.txn([write, exists])
            except VersionConflict:
                continue
            return
        raise busy()

    async def _exists(self, key: str) -> Check | None:
        found = await self._store.get(key)
        return None if found is None else Check(key, found[1])


def _regions(value: bytes) -> tuple[str, ...]:
    try:
        return MigratedNamespace.decode(value).regions if value else ()
    except CorruptData:  # nobody can read it: written anew
        return ()
