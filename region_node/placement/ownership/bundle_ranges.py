"""BundleBook: the hash ranges of each namespace's bundles in this region, as the metadata shows them.

Is: a watch on /bundles/, and the answer to "which bundle". Isn't: a split (`ownership_service`), or who owns what.
Rule: a namespace begins in every region with the number of equal ranges that its policies name; a split changes the
table of one region, in that region's local metadata, so each region's bundles go their own way. A table that began with
another number is of an earlier namespace of that name, and is ignored.
Invariants: a value that cannot be read (of a newer version, or damaged) leaves the last good one in place.
Source: docs/protocols/ownership.md, "Split".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.bundles import BundleTable
from heliograph.model.errors import CorruptData
from local_meta import keys

if TYPE_CHECKING:
    from heliograph.model.configuration.configuration_records import NamespacePolicies

log = logging.getLogger("region_node.ownership.bundles")


class Namespaces(Protocol):
    """The part of ConfigView that is used."""

    def namespace(self, name: str) -> NamespacePolicies | None: ...


class BundleBook:
    """Answers from the start as if nothing had been split; from `start` on as the metadata says."""

    def __init__(self, meta: MetadataStore, view: Namespaces) -> None:
        self._meta, self._view = meta, view
        self._stored: dict[str, tuple[BundleTable | None, int]] = {}
        """Namespace -> (its table; None where it cannot be read, the version of the key)."""
        self._equal: dict[int, BundleTable] = {}
        self._held_back: dict[str, list[tuple[str, bytes | None, int]]] = {}
        """Namespaces that this broker is splitting: what is told of them meanwhile."""
        self._on_change: Callable[[str], None] = lambda namespace: None
        self._stop: Callable[[], None] = lambda: None

    async def start(self, on_change: Callable[[str], None]) -> None:
        """Returns once all tables are known; on_change(namespace) after each change from then on, and for each that is
        there.
        """
        self._on_change = on_change
        self._stop = self._meta.watch(keys.BUNDLES, self._on_key)
        await self._meta.synced(keys.BUNDLES)

    def stop(self) -> None:
        self._stop()

    def of(self, namespace: str) -> BundleTable | None:
        """None: there is no such namespace, as far as is known."""
        policies = self._view.namespace(namespace)
        if policies is None:
            return None
        table, _ = self._stored.get(namespace, (None, -1))
        if table is not None and table.base == policies.bundles:
            return table
        if (equal := self._equal.get(policies.bundles)) is None:
            equal = self._equal[policies.bundles] = BundleTable.equal(policies.bundles)
        return equal

    def version(self, namespace: str) -> int:
        """Returns the version of the namespace's key; -1: no table is stored, so its ranges are equal."""
        return self._stored.get(namespace, (None, -1))[1]

    @contextmanager
    def held_back(self, namespace: str) -> Iterator[None]:
        """While this broker splits: a new table may be told of before the owner keys that were written with it, and its
        topics would seem another's.
        """
        self._held_back[namespace] = []
        try:
            yield
        finally:
            for event in self._held_back.pop(namespace):
                self._on_key(*event)

    def put(self, namespace: str, table: BundleTable, version: int) -> None:
        """What this broker has just written: it need not wait to hear of it."""
        if version > self.version(namespace):
            self._stored[namespace] = table, version
            self._on_change(namespace)

    def _on_key(self, key: str, value: bytes | None, version: int) -> None:
        namespace = keys.namespace_of(key)
        if namespace in self._held_back:
            self._held_back[namespace].append((key, value, version))
            return
        before, seen = self._stored.get(namespace, (None, -1))
        if version < seen or (version == seen and value is not None):
            return
        if value is None:
            self._stored.pop(namespace, None)
        else:
            try:
                self._stored[namespace] = BundleTable.decode(value), version
            except CorruptData as error:
                log.error("ownership.bundles_unknown", extra={"namespace": namespace, "error": str(error)})
                self._stored[namespace] = before, version
        self._on_change(namespace)
