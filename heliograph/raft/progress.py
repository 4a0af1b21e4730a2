"""Progress: what a leader knows of one other member, and how it feeds it.

Is: the bookkeeping of probes, streams, and snapshots. Isn't: sending (`leader`).
Invariants: `match` only grows within a term, but where a member says that it has lost its log; what is streamed and not
acknowledged is in `inflight`, in order; `counted` <= `match`.
Source: after etcd's progress tracking.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from heliograph.raft.messages import SnapshotMeta


class Mode(IntEnum):
    """How a leader feeds one member: one append at a time, a stream, or a snapshot."""

    PROBE = 0
    STREAM = 1
    SNAPSHOT = 2


class Progress:
    """What a leader knows of one other member."""

    __slots__ = (
        "counted",
        "heard",
        "inflight",
        "inflight_bytes",
        "life",
        "match",
        "mode",
        "next",
        "offset",
        "proof",
        "round",
        "snapshot",
        "stalled",
        "waiting",
    )

    def __init__(self, following: int, now: float) -> None:
        self.match, self.next = 0, following
        self.counted = 0  # what it holds of that, as a member that counts
        self.life = self.proof = 0  # of one that is unproven; proof: the entry that makes it count once it is committed
        self.mode = Mode.PROBE
        self.waiting = False  # a probe is on its way
        self.inflight: deque[tuple[int, int]] = deque()  # (last index, bytes) of streamed appends
        self.inflight_bytes = 0
        self.heard = now
        self.round = 0
        self.snapshot: SnapshotMeta | None = None
        self.offset = 0
        self.stalled = False  # no snapshot reply since the last heartbeat reply

    def to_probe(self) -> None:
        self.mode, self.waiting = Mode.PROBE, False
        self.next = max(self.match + 1, 1)
        self._clear()

    def to_stream(self) -> None:
        self.mode, self.waiting = Mode.STREAM, False
        self.next = self.match + 1
        self._clear()

    def to_snapshot(self, meta: SnapshotMeta) -> None:
        self.mode, self.snapshot, self.offset, self.stalled = Mode.SNAPSHOT, meta, 0, False
        self._clear()

    def _clear(self) -> None:
        self.inflight.clear()
        self.inflight_bytes = 0

    def free(self, through: int) -> None:
        while self.inflight and self.inflight[0][0] <= through:
            self.inflight_bytes -= self.inflight.popleft()[1]
