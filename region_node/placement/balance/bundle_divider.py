"""BundleDivider: cuts a bundle that this broker owns, in one of the ways of `bundle_splitting`.

Is: the listing of the bundle's topics and what each works on; then one `Ownership.split`. Isn't: the choice of a cut,
or of a bundle.
Invariants: nothing is unloaded; where anything fails the bundle is as it was.
Source: docs/protocols/balancing.md, "Splitting".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from heliograph.model.bundles import BundleTable
from heliograph.model.errors import NotAllowed
from heliograph.model.topic_names import topic_hash
from region_node.placement.balance.bundle_splitting import FLOW, TOPIC_COUNT, Weighed, cuts
from region_node.placement.balance.load_score import MESSAGE_BYTES
from region_node.placement.balance.load_shedding import Bundle

_SLICE = 1000
"""Topics that are looked at between two passes of the loop."""


class Splits(Protocol):
    """The part of Ownership that is used."""

    def bundles(self, namespace: str) -> BundleTable | None: ...

    async def split(self, namespace: str, bundle: int, at: Sequence[int]) -> list[int]: ...


class Names(Protocol):
    """The part of ManagedLedgerFactory that is used."""

    def names_between(self, namespace: str, low: int, high: int) -> AsyncIterator[list[str]]: ...


class WorkingTopic(Protocol):
    """The part of a loaded topic that is used."""

    @property
    def text(self) -> str: ...

    def traffic(self) -> tuple[float, float]:
        """Messages/s and bytes/s, in and out."""
        ...


class LoadedTopics(Protocol):
    """The part of the broker's loaded topics that is used."""

    def between(self, namespace: str, low: int, high: int) -> Sequence[WorkingTopic]:
        """Those of a namespace whose hashes are in [low, high)."""
        ...


class BundleDivider:
    """loaded: the topics of this broker."""

    def __init__(
        self,
        ownership: Splits,
        loaded: LoadedTopics,
        names: Names,
        allowed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """allowed: returns where bundles may be split in this region; raises NotAllowed where an older broker would not
        understand it.
        """
        self.splits = 0
        """Bundles that were cut here."""
        self._allowed = allowed
        self._ownership, self._loaded, self._names = ownership, loaded, names

    async def split(self, bundle: Bundle, way: str, positions: Sequence[int] = ()) -> dict[Bundle, float]:
        """Cuts it. Returns the bundles that there are in its place, the old number among them, with the share of its
        traffic (sum 1) that each has now.

        Raises NotAllowed (no such way, nothing to cut, not served here), and what `Ownership.split` raises.
        """
        namespace, index = bundle
        table = self._ownership.bundles(namespace)
        if table is None:
            raise NotAllowed(f"namespace {namespace} is not served in this region")
        bounds = table.range(index)
        if self._allowed is not None:
            await self._allowed()
        topics = await self._topics(table, bundle, stored=way == TOPIC_COUNT) if way in (TOPIC_COUNT, FLOW) else []
        at = cuts(way, bounds, topics, positions)
        new = await self._ownership.split(namespace, index, at)
        self.splits += 1
        divided = table.split(index, at)
        shares = {(namespace, one): 0.0 for one in (index, *new)}
        for topic in topics or await self._topics(table, bundle, stored=False):
            part = next(one for one in (index, *new) if (r := divided.range(one))[0] <= topic.hash < r[1])
            shares[namespace, part] += topic.weight
        total = sum(shares.values())
        return {one: share / total if total else 1 / len(shares) for one, share in shares.items()}

    async def _topics(self, table: BundleTable, bundle: Bundle, *, stored: bool) -> list[Weighed]:
        """Those that are loaded, with what they work on; `stored`: and all others, which work on nothing."""
        namespace, index = bundle
        found: dict[str, Weighed] = {}
        for at, topic in enumerate(self._loaded.between(namespace, *table.range(index))):
            if at % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            found[topic.text] = Weighed(topic_hash(topic.text), _weight(topic))
        if stored:
            async for page in self._names.names_between(namespace, *table.range(index)):
                for text in page:
                    found.setdefault(text, Weighed(topic_hash(text), 0.0))
        return list(found.values())


def _weight(topic: WorkingTopic) -> float:
    """Messages/s, in and out; a kibibyte counts as much as a message."""
    messages, size_bytes = topic.traffic()
    return messages + size_bytes / MESSAGE_BYTES
