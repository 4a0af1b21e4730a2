"""TransactionOffsets: offsets that transactions hold, as they are stored until those end.

Is: how much of them one transaction may have, which partitions of a group they are about, and their way to the group.
Isn't: whether a transaction is open, or how it has ended (`kafka_transactions`).
Bounds: HELD_BYTES_MAX of one transaction at a broker that coordinates groups of it, as far as it remembers the last
TRANSACTIONS_MAX; they are read page by page. Whoever asks for a group's waits for one look that serves all who ask
meanwhile.
Source: docs/protocols/kafka.md, "Transactions".
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import msgpack

from heliograph.kv.metadata_store import MetadataStore, pages_under
from heliograph.model.errors import HeliographError, NotAllowed
from heliograph.runtime.throttle import RowPace
from heliograph.wire.run import TxnId
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.groups.committed_offsets import Committed, Key, decode
from region_node.faces.kafka.transactions.transactional_id_expiration import TXN_OFFSETS

if TYPE_CHECKING:
    from heliograph.runtime.task_set import TaskSet

log = logging.getLogger("region_node.kafka")

FORMAT = 1
HELD_BYTES_MAX = 16 << 20
"""Offsets of one transaction, with their keys: room for 50,000 topics of some partitions each."""
TRANSACTIONS_MAX = 10_000


class TransactionOffsets:
    """Those of one region, as one broker knows them. held_bytes_max: of one transaction."""

    def __init__(self, meta: MetadataStore, tasks: TaskSet, *, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._meta, self._tasks, self._held_bytes_max = meta, tasks, held_bytes_max
        self._held: dict[TxnId, int] = {}
        """Transaction -> bytes that were written for it here; whose were written last are last."""
        self._asking: list[tuple[str, asyncio.Future[set[Key]]]] = []
        self._looking = False

    def check(self, txn: TxnId, more_bytes: int) -> None:
        """It is to hold so much more. Raises Refused: that is too much."""
        held = self._held.get(txn, 0) + more_bytes
        if more_bytes > 0 and held > self._held_bytes_max:
            raise Refused(
                Code.POLICY_VIOLATION,  # a code that clients do not try again by
                f"a transaction with {held} bytes of offsets; at most {self._held_bytes_max} are taken: commit it more "
                "often, or attach less text to offsets",
            )

    def grow(self, txn: TxnId, more_bytes: int) -> None:
        """It holds so much more."""
        self._held[txn] = self._held.pop(txn, 0) + more_bytes
        if len(self._held) > TRANSACTIONS_MAX:
            del self._held[next(iter(self._held))]

    async def of_group(self, group: str) -> set[Key]:
        """Partitions of which some transaction that is open holds offsets of this group. Raises what the metadata
        raises.
        """
        waiter = asyncio.get_running_loop().create_future()
        self._asking.append((quote(group, safe=""), waiter))
        if not self._looking:
            self._looking = True
            self._tasks.spawn(self._look())
        found: set[Key] = await waiter
        return found

    async def _look(self) -> None:
        """Who asks while it looks is answered by the next look: what was written before they asked is in it."""
        asking = self._asking
        try:
            while asking := self._asking:
                self._asking = []
                try:
                    found = await self._found({group for group, _ in asking})
                except HeliographError as error:
                    for _, waiter in asking:
                        if not waiter.done():
                            waiter.set_exception(error)
                    continue
                for group, waiter in asking:
                    if not waiter.done():
                        waiter.set_result(found[group])
        finally:
            self._looking = False
            for _, waiter in (*asking, *self._asking):  # nobody waits for a look that was broken off
                if not waiter.done():
                    waiter.set_exception(HeliographError("offsets of transactions could not be read"))

    async def _found(self, groups: set[str]) -> dict[str, set[Key]]:
        found, pace = {group: set[Key]() for group in groups}, RowPace()
        async for rows in pages_under(self._meta, TXN_OFFSETS):
            for key, blob, _ in rows:
                await pace.row()
                parts = key.removeprefix(TXN_OFFSETS).split("/")
                if parts[1] in found:
                    held = decode(msgpack.unpackb(blob)[3])
                    await pace.rows(len(held))
                    found[parts[1]] |= {(unquote(parts[2]), partition) for partition in held}
        return found

    async def move(self, transactional_id: str, producer: int, now_ms: int, *, commit: bool) -> None:
        """The transaction has ended: its offsets are the groups' from now on, or go."""
        prefix, pace = f"{TXN_OFFSETS}{quote(transactional_id, safe='')}/", RowPace()
        async for page in pages_under(self._meta, prefix):
            for key, blob, _ in page:
                group, topic = (unquote(part) for part in key.removeprefix(prefix).split("/"))
                number, of, _, rows = msgpack.unpackb(blob)
                if commit and number == FORMAT and of == producer:
                    moved = {(topic, at): row._replace(at_ms=now_ms) for at, row in decode(rows).items()}
                    await pace.rows(len(moved))
                    committed = Committed(self._meta, group)
                    await committed.read(moved)
                    try:
                        await committed.put(moved)
                    except NotAllowed as error:  # with what others have committed; it would never be otherwise
                        log.error("kafka.txn_offsets_too_large", extra={"id": transactional_id, "error": str(error)})
                await self._meta.delete(key)
