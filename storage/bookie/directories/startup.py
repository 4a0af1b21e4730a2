"""Opening: the start of a bookie on its directories, after a stop, a crash, or a failure.

Is: cookies, checkpoints, footers, the replay of the journals, and the new life that is written down before anything is
stored. Isn't: what a frame does later (`storage.bookie.serving.bookie`).
Invariants: nothing is written where a cookie is wrong or something is lost (limbo); a record is applied to the
directory of its ledger, and only where that directory's checkpoint is below it; the number of a life and what it voids
are durable in every ledger directory before its journal is written to.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.model.errors import ConfigError, CorruptData
from heliograph.model.ledger_homes import home_of
from heliograph.runtime.clock import Rng
from heliograph.runtime.disk import is_transient
from heliograph.wire.bookie_frames import HEAD, Kind
from storage.bookie.directories.cookie import JOURNAL, DiskIdentity, Where, claim, save_dropped
from storage.bookie.directories.journal_dir import JournalDir
from storage.bookie.directories.ledger_dir import LedgerDir
from storage.bookie.entry_log.deleted_ledgers import DeadLedgers
from storage.bookie.journal.checkpoint import KnownMetadata, load_known_metadata
from storage.bookie.journal.journal import JournalReplay, replay


class Opening:
    """One start. Attributes are its results. All of it is blocking, and raises OSError and ConfigError."""

    def __init__(
        self, journals: Sequence[JournalDir], dirs: Sequence[LedgerDir], *, bookie_id: str, instance: str, rng: Rng
    ) -> None:
        self._journals, self._dirs, self._bookie_id = journals, dirs, bookie_id
        self._start = self._mark = 0
        self.limbo = ""
        """Why something is lost, of the directories that are not dropped."""
        self.known_metadata = KnownMetadata()
        claimed = claim([j.place for j in journals], [d.place for d in dirs], instance, bookie_id, rng)
        self._claim = claimed
        self.dropped: dict[Where, str] = dict(claimed.dropped)
        self._drop()
        self._alive = [one for one in dirs if not one.failure]
        for one in self._alive:
            self._lost(one.logs.load_point())
        self.dead = DeadLedgers.union(pair for one in self._alive for pair in one.logs.point.dead)
        for one in self._alive:
            self._lost(one.logs.load_logs(self.dead))
        self._load_known_metadata()
        self._found = [self._replay(journal) for journal in journals]
        starts = [one.logs.point.start for one in self._alive if not one.journal.failure]
        starts = starts or [one.logs.point.start for one in self._alive]
        self.identity = DiskIdentity(claimed.salt, min(starts), claimed.fresh, self._mark)

    def begin(self, above: int = 0) -> int:
        """A new life of every journal that is left, and of its ledger directories. Returns its number, the same in all
        of them. Where it has failed it is called again, and goes on: the number is higher than the first `above`.
        """
        assert not self.limbo
        self._claim.complete()
        self._start = self._start or max(above, *(one.logs.point.start for one in self._alive)) + 1
        for journal, found in zip(self._journals, self._found, strict=True):
            if not journal.failure and found is not None and journal.journal is None:
                self._begin(journal, found, self._start)
        return self._start

    def _lost(self, text: str) -> None:
        self.limbo = self.limbo or text

    def _drop(self) -> None:
        """Those that failed in an earlier life, or cannot be read now."""
        for (kind, at), reason in self.dropped.items():
            one: JournalDir | LedgerDir = self._journals[at] if kind == JOURNAL else self._dirs[at]
            one.failure = reason
            if isinstance(one, LedgerDir):
                one.let_go = True
        if all(one.failure for one in self._dirs):
            raise ConfigError(
                f"bookie {self._bookie_id}: every ledger directory was dropped after failures; start another bookie, "
                "and decommission this one"
            )
        if self.dropped:
            for place in [j.place for j in self._journals if not j.failure] + [
                d.place for d in self._dirs if not d.failure
            ]:
                save_dropped(place.disk, self.dropped)

    def _load_known_metadata(self) -> None:
        """A power cut may have let only some directories know what came last."""
        try:
            found = [load_known_metadata(one.place.disk) for one in self._alive]
            journals = [load_known_metadata(one.place.disk) for one in self._journals if not one.failure]
        except (CorruptData, OSError) as error:
            if is_transient(error):
                raise
            self._lost(str(error))
            return
        self._mark = min(one.seen for one in (*found, *journals))
        known = [one for one in found if one.instance]
        self.known_metadata = max(known, key=lambda one: (bool(one.doubt), one.seen), default=KnownMetadata())

    def _left_of(self, journal: JournalDir) -> list[LedgerDir]:
        """The ledger directories of a journal, without those that were dropped."""
        return [one for one in self._dirs if one.journal is journal and not one.failure]

    def _replay(self, journal: JournalDir) -> JournalReplay | None:
        """Applies a journal's records behind each directory's checkpoint. A dropped journal gives what can still be
        read of it; None where that is nothing, or one that is not dropped cannot be read.
        """
        points = {one: one.logs.point for one in self._left_of(journal)}
        if not points:
            return None
        forks = tuple(dict.fromkeys(fork for point in points.values() for fork in point.forks))
        try:
            found = replay(
                journal.place.disk,
                salt=self._claim.salt,
                flushed_through=min(p.flushed_through for p in points.values()),
                forks=forks,
            )
        except OSError as error:
            if not journal.failure:
                if is_transient(error):
                    raise
                self._lost(f"the journal cannot be read: {error}")
            return None
        if not journal.failure:
            self._lost(found.corrupt)
        for record in found.records:
            at = 0
            while at < len(record.frames):
                size, _, kind, count, ledger, entry, value, _ = HEAD.unpack_from(record.frames, at)
                home = self._dirs[home_of(ledger, len(self._dirs))]
                if home in points and record.sequence > points[home].flushed_through:
                    if kind in (Kind.FENCE, Kind.DELETE):
                        home.change(kind, ledger)
                    elif ledger not in self.dead:
                        home.store(ledger, entry, count, value, record.frames[at + HEAD.size : at + size])
                at += size
        return found

    def _begin(self, journal: JournalDir, found: JournalReplay, start: int) -> None:
        dirs = self._left_of(journal)
        forks = dict.fromkeys(fork for one in dirs for fork in one.logs.point.forks)
        if found.stray_through >= found.next_sequence:
            forks[start, found.next_sequence, found.stray_through] = None
        for one in dirs:
            # A flush may have been faster than the journal's sync: what it was ahead is not in the journal, whose
            # numbers begin there anew.
            through = min(one.flushed_through, found.next_sequence - 1)
            one.logs.begin(start, through, tuple(fork for fork in forks if fork[2] > through))
        journal.open(found, start=start, salt=self._claim.salt)
        for one in dirs if found.records else ():
            one.flush()
