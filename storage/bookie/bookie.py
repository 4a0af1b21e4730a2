"""Bookie: stores blocks of ledgers, and says so once they are durable.

Is: what a frame does (add, fence, read, delete), the way of a block from the journal over the write cache to an entry log, and the start after a
crash. Isn't: sockets, timers, threads (`storage.bookie.server`, and the `Disk`s given).
Invariants: nothing is acknowledged before the journal has it; a fenced ledger takes adds of a recovery only; a segment of the journal is recycled only
after entry log, footer, and checkpoint are synced; "no such entry" is said only by a bookie that lost nothing, any other says "unknown"; after a
failed write or sync nothing is acknowledged any more.
Nothing here is done an entry: a frame is a run, and stays a view of the bytes that came from the socket until an entry log has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from heliograph.model.errors import CorruptData, PeerError
from heliograph.runtime.clock import Rng
from heliograph.runtime.disk import Buffer, Disk
from heliograph.wire.bookie import HEAD, Code, Kind
from heliograph.wire.run import peek_block, verify_block
from storage.bookie.checkpoint import claim, load_metadata_instance, save_metadata_instance
from storage.bookie.compaction import Compactor
from storage.bookie.entry_log import LedgerMark
from storage.bookie.entry_logs import EntryLogs
from storage.bookie.journal import Journal, Replay, is_full
from storage.bookie.journal import replay as replay_journal
from storage.bookie.reading import choose, fetch
from storage.bookie.scrub import Scrubber
from storage.bookie.settings import BookieSettings
from storage.bookie.write_cache import Generation

__all__ = ["Bookie", "BookieSettings", "Peer"]

_LEDGERS_A_PAGE = 100_000
_CONTROL_BYTES = 64
"""What a fence or a deletion counts in the write cache, so that they too are flushed in the end."""


class Peer(Protocol):
    """One connection, as the bookie sees it. The bookie calls it back on the event loop."""

    refused: set[int]
    """Ledgers whose adds are dropped until a writer is opened again."""

    def acked(self, ledger: int, through: int) -> None:
        """Coalesced by the connection until the sync batch is done."""
        ...

    def flush(self) -> None:
        """Nothing else is on its way to the journal: what was coalesced need not wait for more."""
        ...

    def lost(self, ledger: int, code: Code, text: str) -> None: ...

    def answer(self, request: int, code: Code, entry: int, value: int, body: Sequence[Buffer]) -> None: ...

    def resume(self) -> None:
        """There is room again; was told to wait by `Bookie.full`."""
        ...


class Bookie:
    """One bookie. `zeroing` and `reads`: Disks over the journal's and the ledgers' directory with threads of their own, where there are such."""

    def __init__(
        self,
        journal: Disk,
        ledgers: Disk,
        settings: BookieSettings,
        *,
        bookie_id: str,
        instance: str,
        rng: Rng,
        zeroing: Disk | None = None,
        reads: Disk | None = None,
    ) -> None:
        self.bookie_id, self.settings = bookie_id, settings
        self._journal_disk, self._ledger_disk = journal, ledgers
        self._zeroing, self._reads = zeroing or journal, reads or ledgers
        self._instance, self._rng = instance, rng
        self.limbo = ""
        """Why this bookie cannot say what it does not hold; "" where it can."""
        self.failure = ""
        """Why nothing is stored any more, for good; "" where it is."""
        self.read_only = ""
        """Why no adds are taken at the moment (full disk); "" where they are."""
        self.metadata_instance = ""
        """The id of the metadata that garbage is judged by; "" before the first contact."""
        self.on_state: Callable[[], None] | None = None
        """Called when one of these three, or `writable`, changed."""
        self._journal: Journal | None = None
        self._logs = EntryLogs(ledgers, self._reads)
        self._table = self._logs.table
        self.compactor = Compactor(self._logs, settings, failed=self._on_ledgers_failed, changed=self._on_room)
        self.scrubber = Scrubber(self._logs, settings)
        self.bad_reads = 0
        """Reads from disk that met a bad block or a failing disk."""
        self._active = Generation()
        self._flushing: Generation | None = None
        self._flush_failed = False
        self._write_log: Callable[[], None] = _nothing
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._pending_acks: dict[tuple[Peer, int], int] = {}
        self._pending_answers: list[Callable[[BaseException | None], None]] = []
        self._blocked: list[Peer] = []
        self._reading = 0
        self._closed = False

    # -- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Blocking: checks the cookies, loads footers, replays the journal. Raises ConfigError, OSError. To be called on the event loop."""
        salt = claim([("journal", self._journal_disk), ("ledger", self._ledger_disk)], self._instance, self.bookie_id, self._rng)
        self.limbo = self._logs.load()
        try:
            self.metadata_instance = load_metadata_instance(self._ledger_disk)
        except CorruptData as error:
            self.limbo = self.limbo or str(error)
        self._table = self._logs.table
        point = self._logs.point
        found = replay_journal(self._journal_disk, salt=salt, flushed_through=point.flushed_through, forks=point.forks)
        self.limbo = self.limbo or found.corrupt
        for record in found.records:
            self._replay(record.frames)
        if self.limbo:
            return
        self._open_journal(found, salt)
        if found.records:
            self.flush()

    def _open_journal(self, found: Replay, salt: int) -> None:
        start = self._logs.begin(found)
        self._check_space()
        self._journal = Journal(
            self._journal_disk,
            self._zeroing,
            segment_bytes=self.settings.segment_bytes,
            spare=self.settings.spare_segments,
            start=start,
            salt=salt,
            replay=found,
        )

    def close(self) -> None:
        """Blocking: ends after what was submitted. What is in the write cache is in the journal too."""
        self._commit_frames()
        self._closed = True
        self._logs.close()
        for disk in (self._zeroing, self._journal_disk, self._reads, self._ledger_disk):
            disk.close()
        self._logs.close_files()
        if self._journal is not None:
            self._journal.close()

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        return not (self.limbo or self.failure or self.read_only)

    @property
    def full(self) -> bool:
        """Both generations, the journal's queue, or reads from disk have their bound: stop reading from connections.

        A bookie that refuses adds is not held up by them.
        """
        settings = self.settings
        if self._reading >= settings.reads_max:
            return True
        if self._journal is None or not self.writable:
            return False
        return (
            (self._flushing is not None or self._logs.busy) and self._active.size_bytes >= settings.write_cache_bytes
        ) or self._journal.pending_bytes + self._pending_bytes >= settings.journal_pending_bytes

    def wait_for_room(self, peer: Peer) -> None:
        """`peer.resume()` is called once there is room."""
        self._blocked.append(peer)

    @property
    def cached_bytes(self) -> int:
        return self._active.size_bytes + (self._flushing.size_bytes if self._flushing else 0)

    def ledgers(self) -> list[int]:
        """All that are held, ascending."""
        return self._table.ids()

    @property
    def ledger_count(self) -> int:
        return len(self._table.last)

    @property
    def log_count(self) -> int:
        return len(self._table.logs)

    @property
    def log_bytes(self) -> int:
        """Of all blocks in entry logs."""
        return sum(log.block_bytes for log in self._table.logs.values())

    @property
    def live_bytes(self) -> int:
        """Of those that are still wanted."""
        return sum(map(self._table.live_bytes, self._table.logs))

    @property
    def journal_segments(self) -> int:
        return self._journal.segments if self._journal is not None else 0

    def know_metadata(self, instance: str, done: Callable[[BaseException | None], None]) -> None:
        """Writes down by which metadata garbage is judged from now on; `done` once that is durable."""

        def saved(_result: None, error: BaseException | None) -> None:
            if error is None:
                self.metadata_instance = instance
            elif not is_full(error):
                self._on_ledgers_failed(error)
            done(error)

        self._ledger_disk.submit(partial(save_metadata_instance, self._ledger_disk, instance), saved)

    def tick(self, elapsed_s: float = 1.0) -> None:
        """About once a second: looks at the free space, tries again what a full disk stopped, and goes on with work in the background."""
        if self.failure or self.limbo:
            return
        self._check_space()
        if self._journal is not None:
            self.compactor.tick(elapsed_s)
            self.scrubber.tick(elapsed_s)
        if self.read_only or self._journal is None:
            return
        if self._flush_failed and not self._logs.busy:
            self._write_log()
        elif self._table.empty_logs():
            self.flush()
        self._journal.prepare()

    def _check_space(self) -> None:
        low = [d for d in (self._journal_disk, self._ledger_disk) if d.free_bytes() < self.settings.free_bytes_min]
        self._set(read_only=f"less than {self.settings.free_bytes_min >> 20} MiB free: make room on its disk" if low else "")

    def _set(self, *, read_only: str | None = None, failure: str | None = None) -> None:
        before = (self.read_only, self.failure)
        if read_only is not None:
            self.read_only = read_only
        if failure is not None:
            self.failure = self.failure or failure
        if before != (self.read_only, self.failure):
            if self.on_state is not None:
                self.on_state()
            self._unblock()

    def _refusal(self) -> tuple[Code, str] | None:
        """Why nothing is stored at all."""
        if self.failure:
            return Code.DISK_FAILED, f"bookie {self.bookie_id} stores nothing any more: {self.failure}"
        if self.limbo:
            return Code.UNKNOWN, f"bookie {self.bookie_id} is in limbo: {self.limbo}"
        return None

    # -- frames -------------------------------------------------------------------------------------------------------

    def on_frames(self, view: memoryview, ends: Sequence[int], peer: Peer) -> None:
        """Whole frames one behind another. Raises PeerError, which is the end of that connection. `commit` must follow in this loop turn."""
        start = kept = 0  # [kept, start) goes to the journal as one piece
        try:
            for end in ends:
                if self._pending_bytes + end - kept > self.settings.frame_bytes_max:
                    self._keep(view[kept:start])
                    kept = start
                    self._commit_frames()  # before this frame asks for an ack, which must not ride with an earlier record
                _, _, kind, number, ledger, entry, value, request = HEAD.unpack_from(view, start)
                if kind == Kind.ADD or kind == Kind.ADD_RECOVERY:
                    stored = self._on_add(kind == Kind.ADD_RECOVERY, number, ledger, entry, value, request, view[start + HEAD.size : end], peer)
                else:
                    stored = self._on_control(kind, ledger, entry, value, request, view[start + HEAD.size : end], peer)
                if not stored:
                    self._keep(view[kept:start])
                    kept = end
                start = end
        finally:
            self._keep(view[kept:start])  # also where a later frame was bad: these wait for their acks

    def _keep(self, piece: memoryview) -> None:
        """Puts whole frames into the record of this loop turn."""
        if piece:
            self._pending.append(piece)
            self._pending_bytes += len(piece)

    def _on_add(self, recovery: bool, count: int, ledger: int, first: int, lac: int, request: int, block: memoryview, peer: Peer) -> bool:
        """True where the frame is to be journalled."""
        try:
            verify_block(block)
        except CorruptData as error:
            raise PeerError(f"add to ledger {ledger}: {error}") from error
        if peek_block(block) != (ledger, first, count) or not count or first < 0:
            raise PeerError(f"add to ledger {ledger}: the head says entry {first}, count {count}, the block something else")
        if not recovery and ledger in peer.refused:
            return False
        refusal = self._refusal()
        if refusal is None:
            if ledger in self._table.dead:
                refusal = Code.NO_SUCH_LEDGER, f"ledger {ledger} was deleted"
            elif not recovery and ledger in self._table.fenced:
                refusal = Code.FENCED, f"ledger {ledger} is fenced: another writer took it over"
            elif self.read_only:
                refusal = Code.READ_ONLY, f"bookie {self.bookie_id} is read-only: {self.read_only}"
        if refusal is not None:
            if recovery:
                peer.answer(request, refusal[0], 0, 0, [refusal[1].encode()])
            else:
                self._refuse(peer, ledger, *refusal)
            return False
        self._store(ledger, first, count, lac, block)
        if recovery:
            self._pending_answers.append(partial(self._stored_answer, peer, request, 0, 0))
        else:
            self._pending_acks[peer, ledger] = first + count - 1
        return True

    def _store(self, ledger: int, first: int, count: int, lac: int, block: memoryview) -> None:
        self._active.insert(ledger, first, count, block)
        self._table.stored(ledger, first + count - 1, lac)

    def _refuse(self, peer: Peer, ledger: int, code: Code, text: str) -> None:
        peer.refused.add(ledger)
        peer.lost(ledger, code, text)

    def _on_control(self, kind: int, ledger: int, entry: int, value: int, request: int, body: memoryview, peer: Peer) -> bool:
        """Everything but adds. True where the frame is to be journalled."""
        if kind == Kind.READ:
            if len(body) != 4 or entry < 0:
                raise PeerError("read: wrong shape")
            self._read(ledger, entry, value, int.from_bytes(body, "big"), request, peer)
        elif kind == Kind.OPEN_WRITER:
            peer.refused.discard(ledger)
        elif kind == Kind.WRITE_LAC:
            if ledger in self._table.last and value > self._table.lac.get(ledger, -1):
                self._table.lac[ledger] = value
                self._active.touched[ledger] = None
        elif kind == Kind.READ_LAC:
            if ledger in self._table.last:
                peer.answer(request, Code.OK, 0, self._table.lac.get(ledger, -1), ())
            else:
                peer.answer(request, *self._absent(ledger))
        elif kind == Kind.LEDGERS:
            found = self._table.ids(entry)
            page = [known.to_bytes(8, "big") for known in found[:_LEDGERS_A_PAGE]]
            peer.answer(request, Code.OK, 0, int(len(found) > len(page)), [b"".join(page)])
        elif kind in (Kind.FENCE, Kind.DELETE):
            refusal = self._refusal()
            if refusal is None:
                self._pending_answers.append(partial(self._stored_answer, peer, request, *self._change(kind, ledger)))
                return True
            peer.answer(request, refusal[0], 0, 0, [refusal[1].encode()])
        else:
            raise PeerError(f"a frame of kind {kind} is no request to a bookie")
        return False

    def _change(self, kind: int, ledger: int) -> tuple[int, int]:
        """Carries out a fence or a deletion in memory; returns (last entry, LAC) as they are now."""
        self._active.size_bytes += _CONTROL_BYTES
        if kind == Kind.FENCE:
            if self._table.fence(ledger):
                self._active.touched[ledger] = None
            return self._table.last.get(ledger, -1), self._table.lac.get(ledger, -1)
        if self._table.delete(ledger):
            self._active.drop(ledger)
        return -1, -1

    def _absent(self, ledger: int, entry: int | None = None) -> tuple[Code, int, int, list[Buffer]]:
        """The answer about what is not here: explicit only from a bookie that lost nothing."""
        refusal = self._refusal()
        if refusal is not None:
            return Code.UNKNOWN, 0, 0, [refusal[1].encode()]
        if entry is not None and ledger in self._table.last:
            return Code.NO_SUCH_ENTRY, 0, 0, [f"no entry {ledger}:{entry} here".encode()]
        return Code.NO_SUCH_LEDGER, 0, 0, [f"no ledger {ledger} here".encode()]

    # -- the journal --------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """The end of a loop turn: what was received becomes one record; a full generation is flushed."""
        self._commit_frames()
        if self._active.size_bytes >= self.settings.write_cache_bytes or (
            self._journal is not None and self._journal.used_segments >= self.settings.used_segments_max
        ):
            self.flush()

    def _commit_frames(self) -> None:
        if not self._pending:
            return
        frames, size = self._pending, self._pending_bytes
        acks, answers = self._pending_acks, self._pending_answers
        self._pending, self._pending_bytes, self._pending_acks, self._pending_answers = [], 0, {}, []
        assert self._journal is not None
        self._journal.append(frames, size, partial(self._durable, acks, answers))

    def _durable(
        self, acks: dict[tuple[Peer, int], int], answers: list[Callable[[BaseException | None], None]], error: BaseException | None
    ) -> None:
        if error is None:
            for (peer, ledger), through in acks.items():
                peer.acked(ledger, through)
            if self._journal is not None and not self._journal.pending_bytes:
                for peer in dict.fromkeys(peer for peer, _ in acks):
                    peer.flush()
        else:
            self._on_journal_error(error)
            code, text = self._refusal() or (Code.READ_ONLY, f"bookie {self.bookie_id} is read-only: {self.read_only}")
            for peer, ledger in acks:
                if ledger not in peer.refused:
                    self._refuse(peer, ledger, code, text)
        for answer in answers:
            answer(error)
        self._unblock()

    def _on_journal_error(self, error: BaseException) -> None:
        if self._journal is not None and self._journal.failure is None and is_full(error):
            self._set(read_only="no space for another journal segment: make room on its disk")
        else:
            self._set(failure=f"the journal failed: {error}")

    def _stored_answer(self, peer: Peer, request: int, entry: int, value: int, error: BaseException | None) -> None:
        if error is None:
            peer.answer(request, Code.OK, entry, value, ())
        else:
            peer.answer(request, Code.DISK_FAILED if self.failure else Code.READ_ONLY, 0, 0, [(self.failure or self.read_only).encode()])

    def _unblock(self) -> None:
        if self._blocked and not self.full:
            blocked, self._blocked = self._blocked, []
            for peer in blocked:
                peer.resume()

    def _replay(self, frames: memoryview) -> None:
        """One record, as `on_frames` took it."""
        at = 0
        while at < len(frames):
            size, _, kind, count, ledger, entry, value, _ = HEAD.unpack_from(frames, at)
            if kind in (Kind.FENCE, Kind.DELETE):
                self._change(kind, ledger)
            elif ledger not in self._table.dead:
                self._store(ledger, entry, count, value, frames[at + HEAD.size : at + size])
            at += size

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self, ledger: int, first: int, last: int, max_bytes: int, request: int, peer: Peer) -> None:
        if ledger not in self._table.last:
            peer.answer(request, *self._absent(ledger))
            return
        generations = [self._active] if self._flushing is None else [self._active, self._flushing]
        pieces = choose(generations, self._table, ledger, first, last, min(max_bytes, self.settings.read_bytes_max))
        held = [piece for piece in pieces if isinstance(piece, memoryview)]
        if not pieces:
            peer.answer(request, *self._absent(ledger, first))
        elif len(held) == len(pieces):
            peer.answer(request, Code.OK, 0, 0, held)
        else:
            self._reading += 1
            self._reads.submit(partial(fetch, self._reads, pieces), partial(self._fetched, ledger, request, peer))

    def _fetched(self, ledger: int, request: int, peer: Peer, blocks: list[Buffer] | None, error: BaseException | None) -> None:
        self._reading -= 1
        if blocks:
            peer.answer(request, Code.OK, 0, 0, blocks)
        else:
            self.bad_reads += 1
            peer.answer(request, Code.UNKNOWN, 0, 0, [f"ledger {ledger} on bookie {self.bookie_id}: {error}".encode()])
        self._unblock()

    # -- entry logs ---------------------------------------------------------------------------------------------------

    @property
    def flushing(self) -> bool:
        return self._flushing is not None

    def flush(self) -> None:
        """Starts to write what is cached to an entry log, where that is possible and not under way."""
        self._commit_frames()
        if self._journal is None or self._flushing is not None or self._logs.busy or self.failure or self._closed:
            return
        generation, self._flushing = self._active, self._active
        self._active = Generation()
        through = self._journal.next_sequence - 1
        table = self._table
        marks = [LedgerMark(one, table.lac.get(one, -1), one in table.fenced) for one in sorted(generation.touched) if one in table.last]
        self._write_log = partial(self._start_flush, self._logs.take_number(), generation, through, marks)
        self._write_log()

    def _start_flush(self, number: int, generation: Generation, through: int, marks: Sequence[LedgerMark]) -> None:
        self._flush_failed = False
        self._logs.flush(number, generation, through, marks, partial(self._flushed, through))

    def _flushed(self, through: int, error: BaseException | None) -> None:
        if error is not None:
            if is_full(error):
                self._flush_failed = True  # the generation stays in memory and in the journal; `tick` tries again
                self._set(read_only="no space for another entry log: make room on its disk")
            else:
                self._on_ledgers_failed(error)
            return
        self._flushing, self._write_log = None, _nothing
        assert self._journal is not None
        self._journal.recycle(through)
        self._on_room()

    def _on_ledgers_failed(self, error: BaseException) -> None:
        self._set(failure=f"the ledger directory failed: {error}")

    def _on_room(self) -> None:
        """A change of the entry logs is done: what waited for it goes on."""
        if not self._closed:
            self.commit()
            self._unblock()


def _nothing() -> None:
    pass
