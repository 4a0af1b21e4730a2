"""What a Raft member needs of the outside, and what it says of itself: the state machine, the transport, settings, and
a row for each member.

Is: protocols and values. Isn't: the member (`raft_node`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from heliograph.raft.actions import CoreSettings

Done = Callable[[BaseException | None], None]


class Restore(Protocol):
    """A snapshot on its way into a machine, which stays what it was until `finish` is done. One call at a time."""

    def add(self, data: bytes, done: Done) -> None:
        """The next bytes of it, cut anywhere. done: OSError, CorruptData."""
        ...

    def finish(self, description: bytes, done: Done) -> None:
        """description: to be kept with it (see Kept)."""
        ...

    def abandon(self) -> None: ...


class DurableTable(Protocol):
    """What a machine offers that keeps its state itself, durably: it needs the log only from there on."""

    @property
    def unsaved_bytes(self) -> int: ...

    def open_soon(self, done: Callable[[bytes, BaseException | None], None]) -> None:
        """First of all. done(description, error): as of the last save or restore, empty where there was none."""
        ...

    def discard_soon(self, done: Done) -> None:
        """Instead of a table that could not be opened, an empty one; the other is set aside."""
        ...

    def save(self, description: bytes, done: Done) -> None:
        """Everything that is applied now, off the loop, whole or not at all. done(OSError with ENOSPC): not yet;
        another OSError: never again.
        """
        ...

    def close(self) -> None: ...


class StateMachine(Protocol):
    """What the group agrees on. Deterministic: only the commands and their indexes decide."""

    def apply(self, index: int, command: bytes) -> bytes:
        """Applies one command; the answer goes to the proposer. May not raise."""
        ...

    def parts(self) -> Iterator[bytes]:
        """Everything that was applied at this call, so that `restore` makes it again in another process, in pieces that
        are quickly made.

        Entries are applied between the pieces. Once taken, it is read to its end or closed; a `restore` in between ends
        it early.
        """
        ...

    def begin_restore(self, done: Done) -> Restore:
        """done: before the first `add`, perhaps before this returns."""
        ...

    @property
    def kept(self) -> DurableTable | None:
        """None: it is in memory, and made again from snapshots and the log."""
        ...


class RaftTransport(Protocol):
    """Carries messages between members; may lose, repeat, delay, and reorder them."""

    def send(self, to: str, message: bytes) -> None:
        """Sends or drops the message; never blocks, never raises."""
        ...

    def on_receive(self, callback: Callable[[str, bytes], None]) -> None:
        """callback(sender, message) from the event loop. The transport vouches for the sender's name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """core: times and bounds of the protocol.

    A snapshot is made (or a table saved) after `snapshot_entries` or `snapshot_bytes` of log, and leaves `keep_entries`
    in memory for members that lag.
    """

    core: CoreSettings = field(default_factory=CoreSettings)
    command_bytes_max: int = 1 << 20
    waiting_max: int = 10_000
    waiting_bytes_max: int = 16 << 20
    segment_bytes: int = 1 << 20
    segments_max: int = 16
    snapshot_entries: int = 10_000
    snapshot_bytes: int = 8 << 20
    unsaved_bytes_max: int = 16 << 20
    """How much a machine that keeps its table may hold in memory unsaved: with more it saves at once. Commands are
    refused above four times that, or above it while the disk is full.
    """
    keep_entries: int = 1_000
    later: tuple[str, ...] = ()
    """Those of `peers` that were none of the first voters, but came to one that was alone."""
    full_retry_s: float = 1.0

    def __post_init__(self) -> None:
        if self.segment_bytes < 64 << 10:
            raise ValueError("a segment of the Raft log needs at least 64 KiB")
        if (
            min(
                self.command_bytes_max,
                self.waiting_max,
                self.waiting_bytes_max,
                self.snapshot_entries,
                self.snapshot_bytes,
            )
            < 1
        ):
            raise ValueError("bounds of a Raft member must be at least 1")


@dataclass(frozen=True, slots=True)
class MemberState:
    """behind: entries that it lacks; silent_s: since it was heard; both None where this member does not lead, and
    cannot know.
    """

    member: str
    voter: bool
    address: str
    leads: bool
    behind: int | None
    silent_s: float | None
