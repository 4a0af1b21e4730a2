"""JournalDir: one journal directory, and the record that the frames of this loop pass become.

Is: what waits for the record, who is told once it is durable or failed, and what a failure means. Isn't: the record
(`storage.bookie.journal.journal`), or what a frame does.
Invariants: nobody is told before the record is durable; after a failed write or sync nothing goes to this directory any
more; a writer of whose adds one was refused is acknowledged nothing any more.
Several ledger directories may share a journal; each has one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from heliograph.runtime.disk import Buffer, is_transient, none_now
from heliograph.wire.bookie_frames import BookieCode
from storage.bookie.bookie_counters import BookieCounts
from storage.bookie.bookie_peer import Peer
from storage.bookie.bookie_settings import BookieSettings
from storage.bookie.directories.cookie import DirectoryPlace
from storage.bookie.directories.disk_space import on, why_full
from storage.bookie.journal.journal import Journal, JournalReplay

Answer = Callable[[BaseException | None], None]
_Writer = tuple[Peer, int, int]
"""(connection, ledger, number of the writer)."""


class JournalUser(Protocol):
    """Whose adds a journal holds until they are in its logs, too: a ledger directory."""

    @property
    def let_go(self) -> bool:
        """Whether it was dropped, and the next start knows that."""
        ...

    @property
    def flushed_through(self) -> int:
        """Records up to this one are in its logs."""
        ...

    def flush(self) -> None:
        """Starts to write what it has in memory to its logs, where that is possible."""
        ...

    def on_durable(self) -> None:
        """A record became durable, or failed."""
        ...


class JournalDir:
    """Attributes are for reading. who: names the bookie. now: seconds. changed: full or failed; room: something is
    durable.
    """

    def __init__(
        self,
        place: DirectoryPlace,
        settings: BookieSettings,
        who: str,
        counts: BookieCounts,
        now: Callable[[], float],
        *,
        changed: Callable[[], None],
        room: Callable[[], None],
    ) -> None:
        self.place, self._settings, self._who, self._counts, self._now = place, settings, who, counts, now
        self._changed, self._room = changed, room
        self._users: list[JournalUser] = []
        self.failure = ""
        """Why nothing is stored here any more, for good."""
        self.full = ""
        """Why nothing is stored here at the moment."""
        self.journal: Journal | None = None
        """None before the start, and where this directory was dropped before it."""
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._acks: dict[_Writer, int] = {}
        self._answers: list[Answer] = []

    def serve(self, user: JournalUser) -> None:
        """From now on its adds are held here, until it has flushed them."""
        self._users.append(user)

    def open(self, found: JournalReplay, *, start: int, salt: int) -> None:
        """Opens the journal for writing behind what the replay found. Called once, by the start. Blocking; raises
        OSError.
        """
        settings = self._settings
        self.journal = Journal(
            self.place.disk,
            self.place.background,
            segment_bytes=settings.segment_bytes,
            spare=settings.spare_segments,
            start=start,
            salt=salt,
            replay=found,
        )

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def open_bytes(self) -> int:
        """Kept for this pass's record."""
        return self._pending_bytes

    @property
    def waiting_bytes(self) -> int:
        """Received, and not durable yet."""
        return self._pending_bytes + (self.journal.pending_bytes if self.journal is not None else 0)

    @property
    def syncing(self) -> bool:
        """Whether a record is on its way to the disk."""
        return self.journal is not None and self.journal.pending_bytes > 0 and not self.failure

    @property
    def wants_flush(self) -> bool:
        return self.journal is not None and self.journal.used_segments >= self._settings.used_segments_max

    @property
    def last_sequence(self) -> int:
        assert self.journal is not None
        return self.journal.next_sequence - 1

    def look_at_space(self) -> None:
        if not self.failure:
            try:
                self.full = why_full(self.place, self._settings, self.full)
            except OSError as error:
                if not is_transient(error):
                    self.fail(error)

    def fail(self, error: BaseException) -> None:
        """For good. What is in memory goes to the ledger directories, which may be whole."""
        if self.failure:
            return
        self.failure = f"the journal failed{on(self.place)}: {error}"
        for user in self._users:
            user.flush()
        self._changed()

    def recycle(self) -> None:
        """Segments that every ledger directory has written to its logs may be taken again. One that was let go writes
        no more.
        """
        through = [user.flushed_through for user in self._users if not user.let_go]
        if self.journal is not None and not self.failure:
            self.journal.recycle(min(through, default=self.journal.next_sequence - 1))

    # -- records ------------------------------------------------------------------------------------------------------

    def keep(self, piece: memoryview) -> None:
        """Puts whole frames into the record of this loop pass."""
        if piece:
            self._pending.append(piece)
            self._pending_bytes += len(piece)

    def expect_ack(self, peer: Peer, ledger: int, writer: int, through: int) -> None:
        self._acks[peer, ledger, writer] = through

    def expect_answer(self, answer: Answer) -> None:
        self._answers.append(answer)

    def commit(self) -> None:
        """What was kept becomes one record."""
        if not self._pending:
            return
        frames, size, acks, answers = self._pending, self._pending_bytes, self._acks, self._answers
        self._pending, self._pending_bytes, self._acks, self._answers = [], 0, {}, []
        assert self.journal is not None
        self.journal.append(frames, size, partial(self._durable, acks, answers, self._now()))

    def _durable(
        self, acks: dict[_Writer, int], answers: list[Answer], begun: float, error: BaseException | None
    ) -> None:
        journal, counts = self.journal, self._counts
        assert journal is not None
        if error is None:
            counts.records += 1
            counts.adds_ms.add(1000 * (self._now() - begun))
            for (peer, ledger, writer), through in acks.items():
                # acks are cumulative: behind a refusal one would speak for what was refused
                if not peer.refused or writer > peer.refused.get(ledger, -1):
                    peer.acked(ledger, writer, through)
            if not journal.pending_bytes:
                for peer in dict.fromkeys(peer for peer, _, _ in acks):
                    peer.flush()
        else:
            counts.failed_records += 1
            self._on_error(error)
            code = BookieCode.DISK_FAILED if self.failure else BookieCode.READ_ONLY
            for peer, ledger, writer in acks:
                if writer > peer.refused.get(ledger, -1):
                    peer.refused[ledger] = writer
                    peer.lost(ledger, writer, code, f"{self._who}: {self.failure or self.full}")
        for answer in answers:
            answer(error)
        for user in self._users:
            user.on_durable()
        self._room()

    def _on_error(self, error: BaseException) -> None:
        assert self.journal is not None
        if self.journal.failure is None and is_transient(error):
            self.full = none_now(error, "another journal segment", on(self.place))
            self._changed()
        else:
            self.fail(error)
