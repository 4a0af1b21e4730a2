"""KnownLeaderships: up to which number the leaderships of a namespace are registered.

Is: the number that a run of another region may name at most, as the global configuration has it: of a namespace that
has a leadership that one's, else its last one's, or the one below which a restore lets nothing begin. Isn't: who
publishes (`region_node.dr.leadership.write_gates`), or what follows (`replicator.receiving.receiver_stream`).
Invariants: what is read of the store's watches may be late, and so too low, never too high; `newest` is never late.
Bounds: a number for each namespace whose leadership has ended, as the configuration has them.
Source: docs/protocols/links.md, "Whose word counts".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.configuration.leadership import BEFORE, ENDED, FLOOR, Leadership, leadership
from region_node.dr.leadership.write_gates import Gate


class KnownLeaderships:
    """gate: namespace -> its gate, None where every region takes messages."""

    def __init__(self, store: MetadataStore, gate: Callable[[str], Gate | None]) -> None:
        self._store, self._gate = store, gate
        self._floor = 0
        self._ended: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        """The leadership that a namespace had when it was asked about last: that it has ended is heard before how."""
        self._stop: Callable[[], None] = lambda: None

    async def start(self) -> None:
        self._stop = self._store.watch(BEFORE, self._heard)
        await self._store.synced(BEFORE)

    async def stop(self) -> None:
        self._stop()

    def known(self, namespace: str) -> int:
        """0: it never had one."""
        if (gate := self._gate(namespace)) is not None:
            self._asked[namespace] = gate.leadership
            return gate.leadership
        return max(self._floor, self._ended.get(namespace, 0), self._asked.get(namespace, 0))

    async def newest(self, namespace: str) -> int:
        """The same, asked of whoever decides about the configuration. Raises MetadataUnavailable, CorruptData."""
        if (found := await self._store.get(leadership(namespace))) is not None:
            return Leadership.decode(found[0]).began
        told = [await self._store.get(key) for key in (ENDED + namespace, FLOOR)]
        return max(_number(row[0]) if row is not None else 0 for row in told)

    def _heard(self, key: str, value: bytes | None, version: int) -> None:
        number = 0 if value is None else _number(value)
        if key == FLOOR:
            self._floor = number
        elif key.startswith(ENDED):
            name = key.removeprefix(ENDED)
            self._ended.pop(name, None)
            if value is None:
                self._asked.pop(name, None)
            else:
                self._ended[name] = number


def _number(value: bytes) -> int:
    with contextlib.suppress(ValueError):
        return int(value)
    return 0
