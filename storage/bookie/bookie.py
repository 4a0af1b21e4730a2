"""Bookie: stores blocks of ledgers, and says so once they are durable.

Is: what a frame does (add, fence, read, delete), which directories it goes to, and their state together. Isn't: sockets, timers, threads
(`storage.bookie.server`, and the `Disk`s given), a directory (`ledger_dir`, `journal_dir`), or the start after a crash (`opening`).
Invariants: nothing is acknowledged before the journal has it; a fenced ledger takes adds of a recovery only; a segment of a journal is recycled only
after entry log, footer, and checkpoint are synced; "no such entry" is said only where nothing was lost, elsewhere "unknown"; after a failed write or
sync nothing is acknowledged any more by way of that directory.
A ledger has one ledger directory for ever (`cookie.home_of`), and that one journal: number d of the ledger directories goes with journal d modulo
their number. Nothing here is done an entry: a frame is a run, and stays a view of the bytes that came from the socket until an entry log has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from heliograph.model.errors import ConfigError, CorruptData, PeerError
from heliograph.runtime.clock import Rng
from heliograph.runtime.disk import Buffer
from heliograph.wire.bookie import HEAD, Code, Kind
from heliograph.wire.run import peek_block, verify_block
from storage.bookie.checkpoint import save_metadata_instance
from storage.bookie.cookie import JOURNAL, LEDGER, Place, Where, home_of, save_dropped
from storage.bookie.counts import Counts
from storage.bookie.dead import DeadLedgers
from storage.bookie.journal import is_full
from storage.bookie.journal_dir import JournalDir
from storage.bookie.lac_waits import LacWaits
from storage.bookie.ledger_dir import LedgerDir
from storage.bookie.opening import Opening
from storage.bookie.peer import Peer
from storage.bookie.reading import Piece, choose
from storage.bookie.settings import BookieSettings

__all__ = ["Bookie", "BookieSettings", "Peer", "Place"]

_LEDGERS_A_PAGE = 100_000


class Bookie:
    """One bookie. Attributes are for reading."""

    def __init__(
        self, journals: Sequence[Place], ledgers: Sequence[Place], settings: BookieSettings, *, bookie_id: str, instance: str, rng: Rng
    ) -> None:
        if not 1 <= len(journals) <= len(ledgers):
            raise ConfigError(
                f"bookie {bookie_id}: {len(journals)} journal and {len(ledgers)} ledger directories; at least one of each is needed, and a ledger "
                "directory writes to one journal, so further journals would lie idle: give fewer of those, or more ledger directories"
            )
        self.bookie_id, self.settings = bookie_id, settings
        self._instance, self._rng = instance, rng
        self.limbo = ""
        """Why this bookie cannot say what it does not hold; "" where it can."""
        self.metadata_instance = ""
        """The id of the metadata that garbage is judged by; "" before the first contact."""
        self.on_state: Callable[[], None] | None = None
        """Called when limbo, `failure`, `read_only`, or `writable` changed, or a directory was dropped."""
        who = f"bookie {bookie_id}"
        self.journals = [JournalDir(place, settings, who, changed=self._on_state, room=self._unblock) for place in journals]
        share = max(1, settings.write_cache_bytes // len(ledgers))
        self.dirs = [
            LedgerDir(place, self.journals[at % len(journals)], settings, share, changed=self._on_state, room=self._on_room)
            for at, place in enumerate(ledgers)
        ]
        self.counts = Counts()
        self._dead = DeadLedgers()
        self._lac_waits = LacWaits()
        self._said: tuple[str, ...] = ()
        self._dropped: dict[Where, str] = {}
        self._blocked: list[Peer] = []
        self._reading = 0
        self._closed = False

    # -- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Blocking: checks the cookies, loads footers, replays the journals. Raises ConfigError, OSError. To be called on the event loop."""
        opening = Opening(self.journals, self.dirs, bookie_id=self.bookie_id, instance=self._instance, rng=self._rng)
        self.limbo, self.metadata_instance = opening.limbo, opening.metadata_instance
        self._dead, self._dropped = opening.dead, opening.dropped
        if self.limbo:
            return
        self._look_at_space()
        opening.begin()
        self._said = self._state()

    def close(self) -> None:
        """Blocking: ends after what was submitted. What is in the write cache is in the journal too."""
        for journal in self.journals:
            journal.commit()
        self._closed = True
        for one in self.dirs:
            one.close()
        for journal in self.journals:
            journal.place.background.close()
            journal.place.disk.close()
        for one in self.dirs:
            one.place.background.close()
            one.place.disk.close()
            one.logs.close_files()
        for journal in self.journals:
            journal.close()

    def all_dirs(self) -> list[JournalDir | LedgerDir]:
        return [*self.journals, *self.dirs]

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def failure(self) -> str:
        """Why nothing is stored any more, for good; "" where some ledgers still are."""
        return self.dirs[0].gone if all(one.gone for one in self.dirs) else ""

    @property
    def read_only(self) -> str:
        """Why some ledgers get no adds at the moment (full disk), and no new ledger is wanted; "" where they do."""
        return next((full for one in self.dirs if not one.gone and (full := one.full or one.journal.full)), "")

    @property
    def lost(self) -> str:
        """Why nothing can be read any more either: there is no ledger directory left."""
        return self.failure if all(one.failure for one in self.dirs) else ""

    @property
    def dropped(self) -> list[str]:
        """Why each directory that has failed is not used any more."""
        return [one.failure for one in self.all_dirs() if one.failure]

    @property
    def lost_dirs(self) -> tuple[int, list[int]]:
        """(ledger directories, those of them that were dropped): what `cookie.home_of` puts there is not whole here any more."""
        return len(self.dirs), [at for at, one in enumerate(self.dirs) if one.failure]

    @property
    def writable(self) -> bool:
        return not (self.limbo or self.failure or self.read_only)

    @property
    def full(self) -> bool:
        """Both generations of a directory, the journals' queues, or reads from disk have their bound: stop reading from connections.

        Directories that refuse adds hold nobody up.
        """
        settings = self.settings
        if self._reading >= settings.reads_max:
            return True
        return any(one.behind for one in self.dirs) or (
            sum(one.waiting_bytes for one in self.journals if not (one.failure or one.full)) >= settings.journal_pending_bytes
        )

    def wait_for_room(self, peer: Peer) -> None:
        """`peer.resume()` is called once there is room."""
        self._blocked.append(peer)

    @property
    def cached_bytes(self) -> int:
        return sum(one.cached_bytes for one in self.dirs)

    def ledgers(self) -> list[int]:
        """All that are held where changes can still be stored, ascending."""
        return sorted(ledger for one in self.dirs if not one.gone for ledger in one.table.last)

    @property
    def ledger_count(self) -> int:
        return sum(len(one.table.last) for one in self.dirs)

    def free_bytes(self) -> int:
        """That new ledgers may fill: they spread evenly, so the fullest ledger directory says when it ends. Raises OSError."""
        left = [one.place.disk.free_bytes() for one in self.dirs if not one.gone]
        return min(left, default=0) * len(left)

    def watch(self, ledgers: Iterable[int]) -> None:
        """From now on, of these alone: has something come of one?"""
        for one in self.dirs:
            one.watched = {}
        for ledger in ledgers:
            self._home(ledger).watched[ledger] = None

    def forget(self, ledger: int) -> bool:
        """Gives up what is held of a watched ledger; False, and nothing is done, where something of it has come since."""
        home = self._home(ledger)
        if ledger not in home.watched or home.gone:
            return False
        del home.watched[ledger]
        home.forget(ledger)
        return True

    def know_metadata(self, instance: str, done: Callable[[BaseException | None], None]) -> None:
        """Writes down by which metadata garbage is judged from now on; `done` once that is durable."""
        dirs = [one for one in self.dirs if not one.failure]
        left, refused = len(dirs), None

        def saved(one: LedgerDir, _result: None, error: BaseException | None) -> None:
            nonlocal left, refused
            left -= 1
            if error is not None and not is_full(error):
                one.fail(error)
            if error is not None and (is_full(error) or all(other.failure for other in self.dirs)):
                refused = error
            if not left:
                if refused is None:
                    self.metadata_instance = instance
                done(refused)

        for one in dirs:
            one.place.disk.submit(partial(save_metadata_instance, one.place.disk, instance), partial(saved, one))

    def tick(self, elapsed_s: float = 1.0) -> None:
        """About once a second: looks at the free space, tries again what a full disk stopped, and goes on with work in the background."""
        self._lac_waits.tick(elapsed_s)
        if self.limbo:
            return
        self._look_at_space()
        self._on_state()
        for one in self.dirs:
            one.tick(elapsed_s)
        for journal in self.journals:
            if journal.journal is not None and not journal.failure and not journal.full:
                journal.journal.prepare()

    def _look_at_space(self) -> None:
        for one in self.all_dirs():
            one.look_at_space()

    def _state(self) -> tuple[str, ...]:
        return (self.read_only, self.failure, *self.dropped)

    def _on_state(self) -> None:
        if self._said == (state := self._state()):
            return
        self._said = state
        self._write_down_dropped()
        if self.on_state is not None:
            self.on_state()
        self._unblock()

    def _write_down_dropped(self) -> None:
        """So that the next start does without it as well. Not the last one of its kind: without it there is nothing to protect from it."""
        failed = {(JOURNAL, at): journal.failure for at, journal in enumerate(self.journals)}
        failed |= {(LEDGER, at): one.failure for at, one in enumerate(self.dirs)}
        for kind in (JOURNAL, LEDGER):
            reasons = {where: reason for where, reason in failed.items() if where[0] == kind}
            if not all(reasons.values()):
                self._dropped |= {where: reason for where, reason in reasons.items() if reason}
        if self._dropped and not self._closed:
            for one in self.all_dirs():
                if not one.failure:
                    dropped = dict(self._dropped)
                    one.place.disk.submit(partial(save_dropped, one.place.disk, dropped), partial(self._written_down, one, dropped))

    def _written_down(self, one: JournalDir | LedgerDir, dropped: Iterable[Where], _result: None, error: BaseException | None) -> None:
        if error is None:
            for kind, at in dropped:
                if kind == LEDGER and not self.dirs[at].let_go:
                    self.dirs[at].let_go = True
                    self.dirs[at].journal.recycle()
        elif is_full(error):
            self._said = ()  # again at the next tick
        else:
            one.fail(error)

    def _refusal(self, home: LedgerDir) -> tuple[Code, str] | None:
        """Why nothing of a ledger of this directory is stored at all, or said to be absent."""
        if home.gone:
            return Code.DISK_FAILED, f"bookie {self.bookie_id} stores nothing of this ledger any more: {home.gone}"
        if self.limbo:
            return Code.UNKNOWN, f"bookie {self.bookie_id} is in limbo: {self.limbo}"
        return None

    def home(self, ledger: int) -> LedgerDir:
        """Its directory, for ever."""
        return self._home(ledger)

    def _home(self, ledger: int) -> LedgerDir:
        dirs = self.dirs
        return dirs[0] if len(dirs) == 1 else dirs[home_of(ledger, len(dirs))]

    # -- frames -------------------------------------------------------------------------------------------------------

    def on_frames(self, view: memoryview, ends: Sequence[int], peer: Peer) -> None:
        """Whole frames one behind another. Raises PeerError, which is the end of that connection. `commit` must follow in this loop turn."""
        start = kept = 0  # [kept, start) goes to one journal as one piece
        into = self.journals[0]
        try:
            for end in ends:
                _, _, kind, number, ledger, entry, value, request = HEAD.unpack_from(view, start)
                home = self._home(ledger)
                if home.journal is not into:
                    into.keep(view[kept:start])
                    kept, into = start, home.journal
                if into.open_bytes + end - kept > self.settings.frame_bytes_max:
                    into.keep(view[kept:start])
                    kept = start
                    into.commit()  # before this frame asks for an ack, which must not ride with an earlier record
                body = view[start + HEAD.size : end]
                if kind == Kind.ADD or kind == Kind.ADD_RECOVERY:
                    stored = self._on_add(home, kind == Kind.ADD_RECOVERY, number, ledger, entry, value, request, body, peer)
                else:
                    stored = self._on_control(home, kind, number, ledger, entry, value, request, body, peer)
                if not stored:
                    into.keep(view[kept:start])
                    kept = end
                start = end
        finally:
            into.keep(view[kept:start])  # also where a later frame was bad: these wait for their acks

    def _on_add(
        self, home: LedgerDir, recovery: bool, count: int, ledger: int, first: int, lac: int, request: int, block: memoryview, peer: Peer
    ) -> bool:
        """True where the frame is to be journalled."""
        try:
            verify_block(block)
        except CorruptData as error:
            raise PeerError(f"add to ledger {ledger}: {error}") from error
        if peek_block(block) != (ledger, first, count) or not count or first < 0:
            raise PeerError(f"add to ledger {ledger}: the head says entry {first}, count {count}, the block something else")
        if not recovery and ledger in peer.refused:
            return False
        refusal = self._refusal(home)
        if refusal is None:
            full = home.full or home.journal.full
            if ledger in self._dead:
                refusal = Code.NO_SUCH_LEDGER, f"ledger {ledger} was deleted"
            elif not recovery and ledger in home.table.fenced:
                refusal = Code.FENCED, f"ledger {ledger} is fenced: another writer took it over"
            elif full:
                refusal = Code.READ_ONLY, f"bookie {self.bookie_id} is read-only: {full}"
        if refusal is not None:
            self.counts.refused += count
            if recovery:
                peer.answer(request, refusal[0], 0, 0, [refusal[1].encode()])
            else:
                peer.refused.add(ledger)
                peer.lost(ledger, *refusal)
            return False
        home.store(ledger, first, count, lac, block)
        self.counts.added += count
        self.counts.added_bytes += len(block)
        if ledger in self._lac_waits:
            self._lac_waits.moved(ledger, lac)
        if recovery:
            home.journal.expect_answer(partial(_answer_stored, home.journal, peer, request, 0, 0))
        else:
            home.journal.expect_ack(peer, ledger, first + count - 1)
        return True

    def _on_control(self, home: LedgerDir, kind: int, number: int, ledger: int, entry: int, value: int, request: int, body: memoryview, peer: Peer) -> bool:
        """Everything but adds. True where the frame is to be journalled."""
        if kind == Kind.READ:
            if len(body) != 4 or entry < 0:
                raise PeerError("read: wrong shape")
            self._read(home, ledger, entry, value, int.from_bytes(body, "big"), bool(number), request, peer)
        elif kind == Kind.OPEN_WRITER:
            peer.refused.discard(ledger)
        elif kind == Kind.WRITE_LAC:
            home.know_lac(ledger, value)
            if ledger in self._lac_waits:
                self._lac_waits.moved(ledger, value)
        elif kind == Kind.READ_LAC:
            if number and home.table.lac.get(ledger, -1) <= entry and ledger not in home.table.fenced and ledger not in self._dead:
                self._lac_waits.wait(ledger, entry, number / 1000, partial(self._tell_lac, home, ledger, request, peer))
            else:
                self._tell_lac(home, ledger, request, peer)
        elif kind == Kind.LEDGERS:
            found = sorted(known for one in self.dirs for known in one.table.last if known > entry)
            page = [known.to_bytes(8, "big") for known in found[:_LEDGERS_A_PAGE]]
            peer.answer(request, Code.OK, 0, int(len(found) > len(page)), [b"".join(page)])
        elif kind in (Kind.FENCE, Kind.DELETE):
            refusal = self._refusal(home)
            if refusal is None:
                self.counts.deleted += kind == Kind.DELETE
                home.journal.expect_answer(partial(_answer_stored, home.journal, peer, request, *home.change(kind, ledger)))
                self._lac_waits.ended(ledger)
                return True
            peer.answer(request, refusal[0], 0, 0, [refusal[1].encode()])
        else:
            raise PeerError(f"a frame of kind {kind} is no request to a bookie")
        return False

    def _tell_lac(self, home: LedgerDir, ledger: int, request: int, peer: Peer) -> None:
        if ledger in home.table.last:
            peer.answer(request, Code.OK, 0, home.table.lac.get(ledger, -1), ())
        else:
            peer.answer(request, *self._absent(home, ledger))

    def _absent(self, home: LedgerDir, ledger: int, entry: int | None = None) -> tuple[Code, int, int, list[Buffer]]:
        """The answer about what is not here: explicit only from a directory that lost nothing."""
        refusal = self._refusal(home)
        if refusal is not None:
            return Code.UNKNOWN, 0, 0, [refusal[1].encode()]
        if entry is not None and ledger in home.table.last:
            return Code.NO_SUCH_ENTRY, 0, 0, [f"no entry {ledger}:{entry} here".encode()]
        return Code.NO_SUCH_LEDGER, 0, 0, [f"no ledger {ledger} here".encode()]

    def commit(self) -> None:
        """The end of a loop turn: what was received becomes one record a journal; a full generation is flushed."""
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

    def _read(self, home: LedgerDir, ledger: int, first: int, last: int, max_bytes: int, parts: bool, request: int, peer: Peer) -> None:
        if ledger not in home.table.last:
            peer.answer(request, *self._absent(home, ledger))
            return
        pieces = choose(home.generations(), home.table, ledger, first, last, min(max_bytes, self.settings.read_bytes_max))
        held = [piece for piece in pieces if isinstance(piece, memoryview)]
        if not pieces:
            peer.answer(request, *self._absent(home, ledger, first))
        elif len(held) == len(pieces):
            self._note_read(pieces)
            peer.answer(request, Code.OK, 0, 0, held)
        else:
            self._reading += 1
            part = partial(peer.answer, request, Code.OK, 0, 1) if parts else None
            home.catch_up.start(pieces, partial(self._fetched, home, ledger, pieces, request, peer), part)

    def _fetched(
        self, home: LedgerDir, ledger: int, pieces: Sequence[Piece], request: int, peer: Peer, read: int, blocks: list[Buffer], error: BaseException | None
    ) -> None:
        self._reading -= 1
        if read < len(pieces):
            bad = pieces[read]
            if isinstance(bad, tuple):
                home.met_bad(bad[0], ledger, bad[1])
        if read:
            self._note_read(pieces[:read])
            peer.answer(request, Code.OK, 0, 0, blocks)
        else:
            self.counts.failed_reads += 1
            peer.answer(request, Code.UNKNOWN, 0, 0, [f"ledger {ledger} on bookie {self.bookie_id}: {error}".encode()])
        self._unblock()

    def _note_read(self, pieces: Sequence[Piece]) -> None:
        self.counts.reads += 1
        self.counts.read_bytes += sum(len(piece) if isinstance(piece, memoryview) else piece[2] for piece in pieces)

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


def _answer_stored(journal: JournalDir, peer: Peer, request: int, entry: int, value: int, error: BaseException | None) -> None:
    if error is None:
        peer.answer(request, Code.OK, entry, value, ())
    else:
        peer.answer(request, Code.DISK_FAILED if journal.failure else Code.READ_ONLY, 0, 0, [(journal.failure or journal.full).encode()])
