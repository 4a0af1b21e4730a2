"""Directories: the journal and ledger directories of one bookie together.

Is: their start and end, which ledger lies where, and the state they are in: full, failed, dropped and written down as
such, or not whole. Isn't: what a frame does (`bookie`), one directory (`ledger_dir`, `journal_dir`), or the start after
a crash (`startup`).
Invariants: a ledger has one ledger directory for ever (`home_of`), and that one journal: number d of the ledger
directories goes with journal d modulo their number; a directory that failed is used no more, and the journal keeps what
it lacks until another one has written that down.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from heliograph.model.errors import ConfigError
from heliograph.model.ledger_homes import home_of
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.disk import is_transient
from heliograph.wire.bookie_frames import BookieCode
from storage.bookie.bookie_counters import BookieCounts
from storage.bookie.bookie_settings import BookieSettings
from storage.bookie.directories.cookie import JOURNAL, LEDGER, DirectoryPlace, DiskIdentity, Where, save_dropped
from storage.bookie.directories.journal_dir import JournalDir
from storage.bookie.directories.ledger_dir import LedgerDir
from storage.bookie.directories.startup import Opening
from storage.bookie.entry_log.deleted_ledgers import DeadLedgers
from storage.bookie.journal.checkpoint import KnownMetadata, save_known_metadata


class Directories(ABC):
    """Holds all directories of one bookie. Its attributes are for reading only."""

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
        if not 1 <= len(journals) <= len(ledgers):
            raise ConfigError(
                f"bookie {bookie_id}: {len(journals)} journal and {len(ledgers)} ledger directories; at least one of "
                "each is needed, and a ledger "
                "directory writes to one journal, so further journals would lie idle: give fewer of those, or more "
                "ledger directories"
            )
        self.bookie_id, self.settings = bookie_id, settings
        self._instance, self._rng, self._now = instance, rng, clock.monotonic
        self.counts = BookieCounts()
        self.limbo = ""
        """Why this bookie cannot say what it does not hold; "" where it can."""
        self.in_doubt = False
        """Whether it is in limbo only because the region has not said yet that this is the life it knows."""
        self.floor = 0
        """Ledgers below were made before this life of the bookie: what it has not of them it may have lost."""
        self.identity = DiskIdentity(0, 0, fresh=True)
        """What its directories said at the start."""
        self.opening: Opening | None = None
        """Its start, until that is judged."""
        self.known_metadata = KnownMetadata()
        """The metadata that garbage is judged by."""
        self.mark_kept = 0
        """The version of the mark in the metadata that every directory has."""
        self.on_state: Callable[[], None] | None = None
        """Called when limbo, `failure`, `read_only`, or `writable` changed, or a directory was dropped."""
        who = f"bookie {bookie_id}"
        self.journals = [
            JournalDir(place, settings, who, self.counts, self._now, changed=self._on_state, room=self._unblock)
            for place in journals
        ]
        self.dirs = [
            LedgerDir(
                place,
                self.journals[at % len(journals)],
                settings,
                len(ledgers),
                changed=self._on_state,
                room=self._on_room,
            )
            for at, place in enumerate(ledgers)
        ]
        self._dead = DeadLedgers()
        self._said: tuple[str, ...] = ()
        self._dropped: dict[Where, str] = {}
        self._closed = False

    @abstractmethod
    def _unblock(self) -> None:
        """There may be room again for connections that are not read."""

    @abstractmethod
    def _on_room(self) -> None:
        """A change of the entry logs is done: what waited for it goes on."""

    # -- start and end ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Blocking: checks the cookies, loads footers, replays the journals; stores nothing. Raises ConfigError,
        OSError. To be called on the event loop.

        From here on it serves what it has, and is in limbo until `opening.begin` and `judge`.
        """
        opening = Opening(self.journals, self.dirs, bookie_id=self.bookie_id, instance=self._instance, rng=self._rng)
        self.known_metadata, self.identity = opening.known_metadata, opening.identity
        self.mark_kept = opening.identity.mark
        self._dead, self._dropped = opening.dead, opening.dropped
        self.limbo, self.in_doubt = opening.limbo, not opening.limbo
        if self.in_doubt:
            self.limbo, self.opening = "the region has not said yet whether it knows this life of it", opening
            self._look_at_space()
        self._said = self._state()

    def judge(self, doubt: str, floor: int = 0) -> None:
        """Says whether the region knows this life of it: "", and it does, and in this life it holds all that it
        acknowledged of the ledgers from `floor` on; or why that is in doubt, and it is in limbo.
        """
        self.limbo, self.in_doubt = doubt, bool(doubt)
        if not doubt:
            self.floor, self.opening = max(self.floor, floor), None
        self._on_state()

    def start(self) -> None:
        """As `open`, `opening.begin`, and `judge`, where no metadata knows of lives. Raises as they do."""
        self.open()
        if self.opening is not None:
            self.opening.begin()
            self.judge("")

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
        """(ledger directories, those of them that were dropped): what `home_of` puts there is not whole here any
        more.
        """
        return len(self.dirs), [at for at, one in enumerate(self.dirs) if one.failure]

    @property
    def writable(self) -> bool:
        return not (self.limbo or self.failure or self.read_only)

    @property
    def cached_bytes(self) -> int:
        return sum(one.cached_bytes for one in self.dirs)

    def ledgers(self) -> list[int]:
        """All that are held where changes can still be stored, ascending."""
        return sorted(ledger for one in self.dirs if not one.gone for ledger in one.table.last)

    def highest_ledger(self) -> int:
        """The highest id of a ledger that is here, or was deleted here; -1: none ever."""
        return max([self._dead.highest(), *(max(one.table.last, default=-1) for one in self.dirs)])

    @property
    def ledger_count(self) -> int:
        return sum(len(one.table.last) for one in self.dirs)

    def free_bytes(self) -> int:
        """That new ledgers may fill: they spread evenly, so the fullest ledger directory says when it ends. Raises
        OSError.
        """
        left = [one.place.disk.free_bytes() for one in self.dirs if not one.gone]
        return min(left, default=0) * len(left)

    def watch(self, ledgers: Iterable[int]) -> None:
        """From now on, of these alone: has something come of one?"""
        for one in self.dirs:
            one.watched = {}
        for ledger in ledgers:
            self.home(ledger).watched[ledger] = None

    def forget(self, ledger: int) -> bool:
        """Gives up what is held of a watched ledger; False, and nothing is done, where something of it has come
        since.
        """
        home = self.home(ledger)
        if ledger not in home.watched or home.gone:
            return False
        del home.watched[ledger]
        home.forget(ledger)
        return True

    def know_metadata(self, known: KnownMetadata, done: Callable[[BaseException | None], None]) -> None:
        """Writes down by which metadata garbage is judged from now on, in every directory, so that each shows whether
        it is an older copy; `done` once that is durable.
        """
        dirs = [one for one in self.all_dirs() if not one.failure]
        left, refused = len(dirs), None

        def saved(one: JournalDir | LedgerDir, _result: None, error: BaseException | None) -> None:
            nonlocal left, refused
            left -= 1
            if error is not None and not is_transient(error):
                one.fail(error)
            if error is not None and (is_transient(error) or all(other.failure for other in self.dirs)):
                refused = error
            if not left:
                if refused is None:
                    self.known_metadata, self.mark_kept = known, known.seen
                done(refused)

        for one in dirs:
            disk = one.place.disk if isinstance(one, LedgerDir) else one.place.background  # no record waits for it
            disk.submit(partial(save_known_metadata, disk, known), partial(saved, one))

    def tick(self, elapsed_s: float = 1.0) -> None:
        """About once a second: looks at the free space, tries again what a full disk stopped, and goes on with work in
        the background.
        """
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
        return (self.limbo, self.read_only, self.failure, *self.dropped)

    def _on_state(self) -> None:
        if self._said == (state := self._state()):
            return
        self._said = state
        self._write_down_dropped()
        if self.on_state is not None:
            self.on_state()
        self._unblock()

    def _write_down_dropped(self) -> None:
        """So that the next start does without it as well. Not the last one of its kind: without it there is nothing to
        protect from it.
        """
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
                    one.place.disk.submit(
                        partial(save_dropped, one.place.disk, dropped), partial(self._written_down, one, dropped)
                    )

    def _written_down(
        self, one: JournalDir | LedgerDir, dropped: Iterable[Where], _result: None, error: BaseException | None
    ) -> None:
        if error is None:
            for kind, at in dropped:
                if kind == LEDGER and not self.dirs[at].let_go:
                    self.dirs[at].let_go = True
                    self.dirs[at].journal.recycle()
        elif is_transient(error):
            self._said = ()  # again at the next tick
        else:
            one.fail(error)

    def _refusal(self, home: LedgerDir) -> tuple[BookieCode, str] | None:
        """Why nothing of a ledger of this directory is stored at all, or said to be absent."""
        if home.gone:
            return (
                BookieCode.DISK_FAILED,
                f"bookie {self.bookie_id} stores nothing of this ledger any more: {home.gone}",
            )
        if self.limbo:
            return BookieCode.UNKNOWN, f"bookie {self.bookie_id} is in limbo: {self.limbo}"
        return None

    def home(self, ledger: int) -> LedgerDir:
        """Returns the directory that a ledger lies in. The answer never changes: it follows from the id and the number
        of directories.
        """
        dirs = self.dirs
        return dirs[0] if len(dirs) == 1 else dirs[home_of(ledger, len(dirs))]
