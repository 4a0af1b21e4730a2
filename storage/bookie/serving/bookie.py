"""Bookie: stores blocks of ledgers, and says so once they are durable.

Is: what a frame does (add, fence, read, delete), and when a connection is read no further. Isn't: sockets, timers,
threads (`storage.bookie.serving.bookie_server`, and the `Disk`s given), or the directories and what state they are in
(`directories`).
Invariants: nothing is acknowledged before the journal has it; a fenced ledger takes adds of a recovery only; a segment
of a journal is recycled only after entry log, footer, and checkpoint are synced; "no such entry" is said only where
nothing was lost, elsewhere "unknown", and of a ledger that is older than this life of the bookie "earlier life"; after
a failed write or sync nothing is acknowledged any more by way of that directory.
Nothing here is done an entry: a frame is a run, and stays a view of the bytes that came from the socket until an entry
log has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from heliograph.model.errors import CorruptData, PeerError
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.disk import Buffer, is_transient
from heliograph.wire.block import peek_block, verify_block
from heliograph.wire.bookie_frames import HEAD, RANGE, BookieCode, Kind, encode_ranges
from storage.bookie.bookie_peer import Peer
from storage.bookie.bookie_settings import BookieSettings
from storage.bookie.directories.cookie import DirectoryPlace
from storage.bookie.directories.directories import Directories
from storage.bookie.directories.journal_dir import JournalDir
from storage.bookie.directories.ledger_dir import LedgerDir
from storage.bookie.entry_log.block_reads import Piece, Steps, bytes_of, choose, choose_ranges, held
from storage.bookie.serving.bookie_calls import CALLS
from storage.bookie.serving.lac_waits import LacWaits

__all__ = ["Bookie", "BookieSettings", "DirectoryPlace", "Peer"]

_LEDGERS_A_PAGE = 100_000
_LAC_WAITS_MAX = 4096
"""Readers that wait for a ledger to be confirmed further; one more, and the oldest is answered at once."""
_READING = (Kind.READ, Kind.READ_LAC, Kind.LEDGERS)


class Bookie(Directories):
    """One bookie. Attributes are for reading."""

    def __init__(
        self,
        journals: Sequence[DirectoryPlace],
        ledgers: Sequence[DirectoryPlace],
        settings: BookieSettings,
        *,
        bookie_id: str,
        instance: str,
        rng: Rng,
        clock: Clock,
    ) -> None:
        super().__init__(journals, ledgers, settings, bookie_id=bookie_id, instance=instance, rng=rng, clock=clock)
        self._lac_waits = LacWaits(_LAC_WAITS_MAX)
        self._blocked: list[Peer] = []
        self._reading = 0
        self.keeps = ""
        """Why nothing is deleted, whoever asks, as its garbage collection says; "" where it is."""

    def tick(self, elapsed_s: float = 1.0) -> None:
        self._lac_waits.tick(elapsed_s)
        super().tick(elapsed_s)

    @property
    def full(self) -> bool:
        """Both generations of a directory, the journals' queues, or reads from disk have their bound: stop reading from
        connections.

        Directories that refuse adds hold nobody up.
        """
        settings = self.settings
        if self.reads_enough:
            return True
        return any(one.behind for one in self.dirs) or (
            sum(one.waiting_bytes for one in self.journals if not (one.failure or one.full))
            >= settings.journal_pending_bytes
        )

    @property
    def reads_enough(self) -> bool:
        """As many reads and look-ups are under way as may be."""
        return self._reading >= self.settings.reads_max

    def wait_for_room(self, peer: Peer) -> None:
        """`peer.resume()` is called once there is room."""
        self.counts.throttled += 1
        self._blocked.append(peer)

    # -- frames -------------------------------------------------------------------------------------------------------

    def on_frames(
        self,
        view: memoryview,
        ends: Sequence[int],
        peer: Peer,
        calls: Collection[int] = CALLS.every,
        behind: Callable[[], bool] | None = None,
    ) -> int:
        """Whole frames one behind another. calls: those that this peer may make. behind: asked after each frame that is
        answered with what is read, whether the rest is to wait. Returns the bytes of those that were done. Raises
        PeerError, which is the end of that connection. `commit` must follow in this loop pass.
        """
        start = kept = 0  # [kept, start) goes to one journal as one piece
        into = self.journals[0]
        try:
            for end in ends:
                _, _, kind, number, ledger, entry, value, request = HEAD.unpack_from(view, start)
                if kind not in calls:
                    raise PeerError(
                        f"a frame of kind {kind} is no request to a bookie, or not for the role of this certificate"
                    )
                home = self.home(ledger)
                if home.journal is not into:
                    into.keep(view[kept:start])
                    kept, into = start, home.journal
                if into.open_bytes + end - kept > self.settings.frame_bytes_max:
                    into.keep(view[kept:start])
                    kept = start
                    into.commit()  # before this frame asks for an ack, which must not ride with an earlier record
                body = view[start + HEAD.size : end]
                if kind == Kind.ADD or kind == Kind.ADD_RECOVERY:
                    stored = self._on_add(
                        home, kind == Kind.ADD_RECOVERY, number, ledger, entry, value, request, body, peer
                    )
                else:
                    stored = self._on_control(home, kind, number, ledger, entry, value, request, body, peer)
                if not stored:
                    into.keep(view[kept:start])
                    kept = end
                start = end
                if behind is not None and kind in _READING and (kind == Kind.LEDGERS or behind()):
                    break
        finally:
            into.keep(view[kept:start])  # also where a later frame was bad: these wait for their acks
        return start

    def _on_add(
        self,
        home: LedgerDir,
        recovery: bool,
        count: int,
        ledger: int,
        first: int,
        lac: int,
        request: int,
        block: memoryview,
        peer: Peer,
    ) -> bool:
        """True where the frame is to be journalled. request: the writer, or what a recovery asked."""
        try:
            verify_block(block)
        except CorruptData as error:
            raise PeerError(f"add to ledger {ledger}: {error}") from error
        if peek_block(block) != (ledger, first, count) or not count or first < 0:
            raise PeerError(
                f"add to ledger {ledger}: the head says entry {first}, count {count}, the block something else"
            )
        if peer.refused and not recovery and request <= peer.refused.get(ledger, -1):
            return False
        refusal = self._refusal(home)
        if refusal is None:
            full = home.full or home.journal.full
            if ledger in self._dead:
                refusal = BookieCode.NO_SUCH_LEDGER, f"ledger {ledger} was deleted"
            elif not recovery and ledger in home.table.fenced:
                refusal = BookieCode.FENCED, f"ledger {ledger} is fenced: another writer took it over"
            elif not recovery and ledger < self.floor:
                refusal = self._of_earlier_life(ledger)
            elif full:
                refusal = BookieCode.READ_ONLY, f"bookie {self.bookie_id} is read-only: {full}"
        if refusal is not None:
            self.counts.refused += count
            if recovery:
                peer.answer(request, refusal[0], 0, 0, [refusal[1].encode()])
            else:
                peer.refused[ledger] = request
                peer.lost(ledger, request, *refusal)
            return False
        home.store(ledger, first, count, lac, block)
        self.counts.added += count
        self.counts.added_bytes += len(block)
        if ledger in self._lac_waits:
            self._lac_waits.moved(ledger, lac)
        if recovery:
            home.journal.expect_answer(partial(_answer_stored, home.journal, peer, request, 0, 0))
        else:
            home.journal.expect_ack(peer, ledger, request, first + count - 1)
        return True

    def _on_control(
        self,
        home: LedgerDir,
        kind: int,
        number: int,
        ledger: int,
        entry: int,
        value: int,
        request: int,
        body: memoryview,
        peer: Peer,
    ) -> bool:
        """Everything but adds. True where the frame is to be journalled."""
        if kind == Kind.READ:
            if len(body) != 4 or entry < 0:
                raise PeerError("read: wrong shape")
            self._read(home, ledger, entry, value, int.from_bytes(body, "big"), bool(number), request, peer)
        elif kind == Kind.WRITE_LAC:
            home.know_lac(ledger, value)
            if ledger in self._lac_waits:
                self._lac_waits.moved(ledger, value)
        elif kind == Kind.READ_LAC and body:
            self._tell_held(home, ledger, body, request, peer)
        elif kind == Kind.READ_LAC:
            if (
                number
                and home.table.lac.get(ledger, -1) <= entry
                and ledger not in home.table.fenced
                and ledger not in self._dead
            ):
                self._lac_waits.wait(ledger, entry, number / 1000, partial(self._tell_lac, home, ledger, request, peer))
            else:
                self._tell_lac(home, ledger, request, peer)
        elif kind == Kind.LEDGERS:
            found = sorted(known for one in self.dirs for known in one.table.last if known > entry)
            page = [known.to_bytes(8, "big") for known in found[:_LEDGERS_A_PAGE]]
            peer.answer(request, BookieCode.OK, 0, int(len(found) > len(page)), [b"".join(page)])
        elif kind in (Kind.FENCE, Kind.DELETE):
            refusal = self._refusal(home)
            if refusal is None and kind == Kind.DELETE and self.keeps:
                refusal = BookieCode.UNKNOWN, f"bookie {self.bookie_id} deletes nothing now: {self.keeps}"
            if refusal is None:
                self.counts.deleted += kind == Kind.DELETE
                home.journal.expect_answer(
                    partial(_answer_stored, home.journal, peer, request, *home.change(kind, ledger))
                )
                self._lac_waits.ended(ledger)
                return True
            peer.answer(request, refusal[0], 0, 0, [refusal[1].encode()])
        else:
            raise PeerError(f"a frame of kind {kind} is no request to a bookie")
        return False

    def _tell_lac(self, home: LedgerDir, ledger: int, request: int, peer: Peer) -> None:
        if ledger in home.table.last:
            peer.answer(request, BookieCode.OK, 0, home.table.lac.get(ledger, -1), ())
        else:
            peer.answer(request, *self._absent(home, ledger))

    def _tell_held(self, home: LedgerDir, ledger: int, body: memoryview, request: int, peer: Peer) -> None:
        """Which of some entries are held. A directory that failed, or is not whole, says nothing."""
        first, last = RANGE.unpack(body) if len(body) == RANGE.size else (-1, -1)
        if not 0 <= first <= last:
            raise PeerError("what is held: wrong shape")
        refusal = self._refusal(home)
        if refusal is not None:
            peer.answer(request, BookieCode.UNKNOWN, 0, 0, [refusal[1].encode()])
        elif ledger not in home.table.last and ledger >= self.floor:
            peer.answer(request, *self._absent(home, ledger))
        else:
            steps = held(home.generations(), home.table, ledger, first, last, self.settings.held_looks_max)
            self._reading += 1
            home.look_up(steps, partial(self._held_told, home, ledger, request, peer))

    def _held_told(
        self,
        home: LedgerDir,
        ledger: int,
        request: int,
        peer: Peer,
        found: tuple[list[tuple[int, int]], int] | None,
        error: BaseException | None,
    ) -> None:
        self._reading -= 1
        refusal = self._refusal(home)
        if found is None or refusal is not None:
            text = refusal[1] if refusal is not None else f"ledger {ledger} on bookie {self.bookie_id}: {error}"
            peer.answer(request, BookieCode.UNKNOWN, 0, 0, [text.encode()])
        elif ledger not in home.table.last and ledger >= self.floor:  # it went while its index was read
            peer.answer(request, *self._absent(home, ledger))
        else:
            ranges, behind = found
            peer.answer(request, BookieCode.OK, behind, home.table.lac.get(ledger, -1), [encode_ranges(ranges)])
        self._unblock()

    def _absent(
        self, home: LedgerDir, ledger: int, entry: int | None = None
    ) -> tuple[BookieCode, int, int, list[Buffer]]:
        """The answer about what is not here: explicit only from a directory that lost nothing."""
        refusal = self._refusal(home)
        if refusal is not None:
            return BookieCode.UNKNOWN, 0, 0, [refusal[1].encode()]
        if ledger < self.floor and ledger not in self._dead:
            code, text = self._of_earlier_life(ledger)
            return code, 0, 0, [text.encode()]
        if entry is not None and ledger in home.table.last:
            return BookieCode.NO_SUCH_ENTRY, 0, 0, [f"no entry {ledger}:{entry} here".encode()]
        return BookieCode.NO_SUCH_LEDGER, 0, 0, [f"no ledger {ledger} here".encode()]

    def _of_earlier_life(self, ledger: int) -> tuple[BookieCode, str]:
        return (
            BookieCode.EARLIER_LIFE,
            f"ledger {ledger} is older than this life of bookie {self.bookie_id}: what it had of it may be lost",
        )

    def commit(self) -> None:
        """The end of a loop pass: what was received becomes one record a journal; a full generation is flushed."""
        for journal in self.journals:
            journal.commit()
        for one in self.dirs:
            if one.wants_flush or one.journal.wants_flush:
                one.flush()

    def _unblock(self) -> None:
        if self._blocked and not self.full:
            blocked, self._blocked = self._blocked, []
            for peer in blocked:
                peer.resume()

    # -- reading ------------------------------------------------------------------------------------------------------

    def read_ranges(self, ledger: int, ranges: Iterable[tuple[int, int]], max_bytes: int, peer: Peer) -> None:
        """As a read in parts of these [first, last], ascending and apart, of which `peer` gets the blocks without what
        lies between them; up to a hole.
        """
        home, wanted = self.home(ledger), list(ranges)
        steps = choose_ranges(home.generations(), home.table, ledger, wanted, max_bytes)
        self._look_up(home, ledger, steps, max(wanted[0][0], 0) if wanted else 0, True, 0, peer)

    def _read(
        self, home: LedgerDir, ledger: int, first: int, last: int, max_bytes: int, parts: bool, request: int, peer: Peer
    ) -> None:
        max_bytes = min(max_bytes, self.settings.read_bytes_max)
        steps = choose(home.generations(), home.table, ledger, first, last, max_bytes)
        self._look_up(home, ledger, steps, first, parts, request, peer)

    def _look_up(
        self,
        home: LedgerDir,
        ledger: int,
        steps: Steps[tuple[list[Piece], int]],
        first: int,
        parts: bool,
        request: int,
        peer: Peer,
    ) -> None:
        if ledger in home.table.last:
            self._reading += 1
            home.look_up(steps, partial(self._deliver, home, ledger, first, self._now(), parts, request, peer))
        else:
            peer.answer(request, *self._absent(home, ledger, first))

    def _deliver(
        self,
        home: LedgerDir,
        ledger: int,
        first: int,
        begun: float,
        parts: bool,
        request: int,
        peer: Peer,
        found: tuple[list[Piece], int] | None,
        error: BaseException | None,
    ) -> None:
        self._reading -= 1
        pieces, behind = found if found is not None else ([], first)
        held = [piece for piece in pieces if isinstance(piece, memoryview)]
        if found is None:
            self._read_failed(ledger, begun, request, peer, error)
        elif not pieces:
            peer.answer(request, *self._absent(home, ledger, first))
        elif len(held) == len(pieces):
            peer.answer(request, BookieCode.OK, 0, 0, held)
            self._note_read(pieces, begun)
        else:
            self._reading += 1
            part = partial(peer.answer, request, BookieCode.OK, behind, 1) if parts else None
            home.catch_up.start(pieces, partial(self._fetched, home, ledger, pieces, begun, request, peer), part)
        self._unblock()

    def _fetched(
        self,
        home: LedgerDir,
        ledger: int,
        pieces: Sequence[Piece],
        begun: float,
        request: int,
        peer: Peer,
        read: int,
        blocks: list[Buffer],
        error: BaseException | None,
    ) -> None:
        self._reading -= 1
        if read < len(pieces) and not (error is not None and is_transient(error)):
            bad = pieces[read]
            if isinstance(bad, tuple):
                home.met_bad(bad[0], ledger, bad[1])
        if read:
            peer.answer(request, BookieCode.OK, 0, 0, blocks)
            self._note_read(pieces[:read], begun)
        else:
            self._read_failed(ledger, begun, request, peer, error)
        self._unblock()

    def _read_failed(self, ledger: int, begun: float, request: int, peer: Peer, error: BaseException | None) -> None:
        self.counts.failed_reads += 1
        self.counts.failed_reads_ms.add(1000 * (self._now() - begun))
        peer.answer(
            request, BookieCode.UNKNOWN, 0, 0, [f"ledger {ledger} on bookie {self.bookie_id}: {error}".encode()]
        )

    def _note_read(self, pieces: Sequence[Piece], begun: float) -> None:
        self.counts.reads += 1
        self.counts.reads_ms.add(1000 * (self._now() - begun))
        self.counts.read_bytes += bytes_of(pieces)

    # -- entry logs ---------------------------------------------------------------------------------------------------

    @property
    def flushing(self) -> bool:
        return any(one.flushing is not None for one in self.dirs)

    def flush(self) -> None:
        """Starts to write what is cached to entry logs, where that is possible and not under way."""
        for one in self.dirs:
            one.flush()

    def _on_room(self) -> None:
        """A change of the entry logs is done: what waited for it goes on."""
        if not self._closed:
            self.commit()
            self._unblock()


def _answer_stored(
    journal: JournalDir, peer: Peer, request: int, entry: int, value: int, error: BaseException | None
) -> None:
    if error is None:
        peer.answer(request, BookieCode.OK, entry, value, ())
    else:
        peer.answer(
            request,
            BookieCode.DISK_FAILED if journal.failure else BookieCode.READ_ONLY,
            0,
            0,
            [(journal.failure or journal.full).encode()],
        )
