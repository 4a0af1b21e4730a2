"""LedgerResealing: one closed ledger, written anew under the tenant's newest data key.

Is: the copy under another number, its proof, the change of place, and the end of what lay there before. Isn't: which
ledgers, or when (`reseal_jobs`), or a reader's way (`storage.ledger.located_ledgers`).
Invariants: at every moment the place that readers find is a whole, closed, verified ledger with the same entries. A
copy is named, as `next`, by the transaction that makes its record, and what it takes the place of goes by the one that
moves the place: so a crash between leaves nothing that nobody names. Each change is made by compare-and-set on the
place: of two that write one ledger anew the later begins again, and the earlier fails. A ledger that its topic trims,
deletes, or leaves to an object store meanwhile loses its record, which each change looks at; what is left then is the
orphan collector's.
The topic is not opened, and its own metadata is not touched.
Source: docs/protocols/ledger.md, "Ledgers that were sealed anew"; docs/decisions/0239-a-ledger-moves-to-another-key.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from enum import Enum
from hashlib import sha256

from heliograph.kv.metadata_store import ABSENT, Check, Delete, Op, Put
from heliograph.model.errors import CorruptData, KeyMissing, NotEnoughBookies
from heliograph.model.ledger_metadata import LedgerInfo, LedgerMetadata, LedgerState
from heliograph.runtime.clock import CautiousClock
from heliograph.wire.block import encode_block
from heliograph.wire.run import Run
from local_meta import keys
from local_meta.located_ledger import NOWHERE, LocatedLedger
from storage.ledger.bookies.added_copies import add_copies
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.ledger_deletion import delete_on_bookies
from storage.ledger.located_ledgers import record_of
from storage.ledger.reading.ledger_reader import read_entries, read_open
from storage.ledger.repair.replica_holdings import look
from storage.ledger.underreplicated_marks import Mark, mark_lacking
from storage.sealing.cipher import RunSealer, promised

_READ_BYTES = 1 << 20

Paced = Callable[[int], Awaitable[None]]
"""Waits until so many bytes more may be read, or written; raises where the work is to end."""


class Stage(Enum):
    """How far one ledger is."""

    DONE = "nothing of it is sealed with an older key"
    KEPT = "it is written anew, and the older copy is kept for a while"
    DUE = "it is written anew, and the older copy may go"
    LEFT = "it is to be written anew"


class LedgerResealing:
    """newer: numbers of the data keys that may stay, the oldest first. keep_ms: so long a copy is there beside the
    older one. job: what has to hold where a copy is begun, so that none is by a job that has ended meanwhile.
    """

    def __init__(
        self,
        context: LedgerContext,
        clock: CautiousClock,
        paced: Paced,
        newer: Collection[int],
        keep_ms: int = 0,
        job: Callable[[], Op] | None = None,
    ) -> None:
        self._job = job
        self._context, self._clock, self._paced, self._newer, self._keep_ms = context, clock, paced, newer, keep_ms

    async def stage(self, ledger: int) -> Stage:
        """Reads one key of the metadata."""
        return self._stage((await self._place("", ledger))[0])

    def _stage(self, place: LocatedLedger) -> Stage:
        if place.data_key in self._newer:
            return Stage.DONE
        if not place.copied_ms or place.next_key not in self._newer:
            return Stage.LEFT
        if not self._keep_ms:
            return Stage.DUE
        return Stage.KEPT if self._clock.wall_ms() - place.copied_ms < self._keep_ms else Stage.DUE

    async def write_anew(self, topic: str, info: LedgerInfo, sealed: bool) -> Stage:
        """Copies a closed ledger that an object store has not alone. sealed: what lies in it in the clear is to be
        sealed, too.

        Raises what bookies, keys, and the metadata raise: then the next try begins again. VersionConflict, or
        NoSuchLedger, where others have changed it, or it was trimmed.
        """
        context = self._context
        place, version = await self._place(topic, info.ledger)
        if (stage := self._stage(place)) is not Stage.LEFT:
            return stage
        source, source_version = await record_of(context.meta, info.ledger)
        if source.state != LedgerState.CLOSED or source.last_entry + 1 != info.entries:
            raise CorruptData(
                f"ledger {info.ledger} of {topic} is to hold {info.entries} entries, but its metadata says "
                f"{source.state.name} at {source.last_entry}"
            )
        same = Check(keys.ledger(source.ledger), source_version)
        if not await self._older_in(source, sealed):
            oldest = next(iter(self._newer))
            await context.meta.txn(
                [Put(keys.located(info.ledger), replace(place, data_key=oldest).encode(), version), same]
            )
            return Stage.DONE
        mark = await context.meta.get(keys.underreplicated(source.ledger))
        if mark is not None and Mark.read(source.ledger, mark[0]).nowhere:
            raise NotEnoughBookies(
                f"ledger {info.ledger} has entries that no bookie has: `heliograph topics repair {topic}` comes first"
            )
        copy, place, version, sealer = await self._begin(source, place, version, same)
        digest = await self._copied(source, copy, sealer)
        closed = replace(copy, state=LedgerState.CLOSED, last_entry=source.last_entry, size_bytes=source.size_bytes)
        if await self._digest(closed) != digest:
            raise CorruptData(f"ledger {closed.ledger} is not what was copied of ledger {source.ledger} of {topic}")
        whole = replace(place, copied_ms=max(1, self._clock.latest_ms()))
        await context.meta.txn(
            [
                Put(keys.ledger(closed.ledger), closed.encode(), version),
                Put(keys.located(info.ledger), whole.encode(), version),
            ]
        )
        return self._stage(whole)

    async def move(self, ledger: int) -> Stage:
        """Lets readers go to the copy that is due, and deletes what they read before, where the copy has all its
        bookies.
        """
        meta, pool = self._context.meta, self._context.pool
        place, version = await self._place("", ledger)
        if (stage := self._stage(place)) is not Stage.DUE:
            return stage
        stored = await meta.get(keys.ledger(place.next))
        if stored is None:  # it was lost with an older state of the metadata
            await self.give_up(ledger)
            return Stage.LEFT
        copy = LedgerMetadata.decode(stored[0])
        bookies = {bookie for _, ensemble in copy.fragments for bookie in ensemble}
        marked = await meta.get(keys.underreplicated(copy.ledger)) is not None
        if marked or any(not pool.registered(bookie) or pool.lacks(bookie, copy.ledger) for bookie in bookies):
            return stage
        held = await look(self._context, copy)  # one that began a new life since is registered, and has nothing
        if held.nowhere:
            await self.give_up(ledger)
            return Stage.LEFT
        if held.lacking:
            lacking = {bookie: copy.last_entry for one in held.lacking for bookie in one.lost}
            await mark_lacking(meta, copy.ledger, lacking)
        if held.lacking or held.unknown or held.silent or held.mute:
            return stage
        former, former_version = await record_of(meta, ledger)
        await meta.txn(
            [
                Delete(keys.ledger(former.ledger), former_version),
                Put(keys.located(ledger), place.moved.encode(), version),
                Check(keys.ledger(copy.ledger), stored[1]),
                Check(keys.underreplicated(copy.ledger), ABSENT),
            ]
        )
        await delete_on_bookies(self._context, former)
        return Stage.DONE

    async def give_up(self, ledger: int) -> None:
        """What was written anew, and is no reader's yet, goes."""
        place, version = await self._place("", ledger)
        if place.next == NOWHERE:
            return
        meta = self._context.meta
        stored = await meta.get(keys.ledger(place.next))
        left = replace(place, next=NOWHERE, next_key=0, copied_ms=0)
        ops: list[Op] = [Put(keys.located(ledger), left.encode(), version)]
        if stored is not None:
            ops.append(Delete(keys.ledger(place.next), stored[1]))
        await meta.txn(ops)
        if stored is not None:
            await delete_on_bookies(self._context, LedgerMetadata.decode(stored[0]))

    # -- steps --------------------------------------------------------------------------------------------------------

    async def _place(self, topic: str, ledger: int) -> tuple[LocatedLedger, int]:
        found = await self._context.meta.get(keys.located(ledger))
        if found is None:
            return LocatedLedger(ledger, topic), ABSENT
        return LocatedLedger.decode(found[0]), found[1]

    async def _older_in(self, source: LedgerMetadata, sealed: bool) -> bool:
        """Looks at what is stored, up to the first run that an older key sealed."""
        at = 0
        while at <= source.last_entry:
            runs = await read_entries(self._context, source, at, source.last_entry, _READ_BYTES)
            for first, run in runs:
                if (sealed and run.seal is None) or (run.seal is not None and run.seal.key not in self._newer):
                    return True
                at = first + run.count
            await self._paced(sum(run.size_bytes for _, run in runs))
        return False

    async def _begin(
        self, source: LedgerMetadata, place: LocatedLedger, version: int, same: Op
    ) -> tuple[LedgerMetadata, LocatedLedger, int, RunSealer]:
        """(the copy's first record, its place, the version of both, what seals it)."""
        context, meta = self._context, self._context.meta
        if context.sealing is None:
            raise KeyMissing("no master key is set here")
        number = await meta.next_ids(keys.LEDGER_IDS)
        data_key, sealer = await context.sealing.anew(source.topic, number)
        bookies = context.pool.pick(source.write_quorum, source.write_quorum, source.affinity)
        copy = LedgerMetadata(
            number,
            source.write_quorum,
            source.ack_quorum,
            ((0, bookies),),
            topic=source.topic,
            affinity=source.affinity,
            seal_form=promised(context.sealing.form()),
        )
        begun = replace(place, next=number, next_key=data_key, copied_ms=0)
        ops: list[Op] = [Put(keys.ledger(number), copy.encode(), ABSENT), same]
        ops.append(Put(keys.located(place.ledger), begun.encode(), version))
        if self._job is not None:
            ops.append(self._job())
        given_up = None if place.next == NOWHERE else await meta.get(keys.ledger(place.next))
        if given_up is not None:
            ops.append(Delete(keys.ledger(place.next), given_up[1]))
        version = await meta.txn(ops)
        if given_up is not None:
            await delete_on_bookies(context, LedgerMetadata.decode(given_up[0]))
        return copy, begun, version, sealer

    async def _copied(self, source: LedgerMetadata, copy: LedgerMetadata, sealer: RunSealer) -> bytes:
        """Writes every entry to each bookie of the copy; returns the digest of what was read."""
        # no last entry is told to bookies before the whole is there
        digest, at, pool = sha256(), 0, self._context.pool
        _, bookies = copy.fragments[0]
        while at <= source.last_entry:
            runs = await read_open(self._context, source, at, source.last_entry, _READ_BYTES)
            blocks = []
            for first, run in runs:
                _add(digest.update, run)
                await self._paced(run.size_bytes)
                blocks.append((first, run.count, encode_block(sealer(run, first), copy.ledger, first)))
                at = first + run.count
            for bookie in bookies:
                await add_copies(pool.client(bookie), copy.ledger, blocks, -1)
        return digest.digest()

    async def _digest(self, metadata: LedgerMetadata) -> bytes:
        """Digests what can be read of it now."""
        digest, at = sha256(), 0
        while at <= metadata.last_entry:
            runs = await read_open(self._context, metadata, at, metadata.last_entry, _READ_BYTES)
            for first, run in runs:
                _add(digest.update, run)
                at = first + run.count
            await self._paced(sum(run.size_bytes for _, run in runs))
        return digest.digest()


def _add(update: Callable[[bytes], None], run: Run) -> None:
    """However its runs are cut, a ledger's entries give one digest; what is said of them is the seal's to keep."""
    for part in run.buffers():
        update(bytes(part))
