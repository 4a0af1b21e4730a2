"""TopicCompaction: one topic's compaction, how its last run went, and the topic as a compaction sees it.

Is: the view that is read compacted, counts and times, the narrow port to a topic. Isn't: a run (`compactor`), or where
its entries go (`compacted_writer`).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Protocol

from heliograph.model.configuration.policy_table import Applied
from region_node.compaction.compacted_view import CompactedView
from region_node.runtime.topic_ports import ManagedLedgerPort, ReadablePort
from storage.managed_ledger.append_counts import LATENCIES_S


class WriteLatencies:
    """How long entries of one topic's compacted ledgers took to be confirmed, since the topic was loaded."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCIES_S) + 1)
        self._sum_s = 0.0

    def add(self, took_s: float, entries: int) -> None:
        self._counts[bisect_left(LATENCIES_S, took_s)] += entries
        self._sum_s += took_s * entries

    def numbers(self) -> list[float]:
        """Entries within each bound, and above them; all of them; milliseconds."""
        return [*self._counts, sum(self._counts), self._sum_s * 1000]


class TopicCompaction:
    """Keeps what one topic reads compacted, and how its last compaction went. It is made only for topics that are
    compacted, or read so.

    `status`: NOT_RUN, RUNNING, SUCCESS, ERROR; `error`: why, of the last. Counts are since the topic was loaded,
    `removed` of the last one.
    """

    __slots__ = (
        "bytes_read",
        "duration_ms",
        "error",
        "failed",
        "failed_ms",
        "removed",
        "status",
        "succeeded",
        "succeeded_ms",
        "truncating",
        "view",
        "writes",
    )

    def __init__(self, view: CompactedView) -> None:
        self.view = view
        self.status, self.error = "NOT_RUN", ""
        self.truncating = 0
        """How often it is being truncated now, log and all: what a compaction had read by then would come back with
        it.
        """
        self.writes = WriteLatencies()
        self.removed = self.succeeded = self.failed = self.succeeded_ms = self.failed_ms = self.duration_ms = (
            self.bytes_read
        ) = 0

    def numbers(self) -> list[float]:
        """In the order of the metrics."""
        found, seconds = self.view.compacted, self.duration_ms / 1000
        entries, size_bytes = (0, 0) if found is None else (found.entries, found.size_bytes)
        rates = (
            (self.bytes_read / seconds, size_bytes / seconds) if seconds and self.status == "SUCCESS" else (0.0, 0.0)
        )
        return [
            self.removed,
            self.succeeded,
            self.failed,
            self.duration_ms,
            *rates,
            entries,
            size_bytes,
            *self.writes.numbers(),
        ]

    def stats(self) -> dict[str, int]:
        """Returns Pulsar's CompactionStats: wall milliseconds, 0 where there was none; events are messages."""
        return {
            "lastCompactionRemovedEventCount": self.removed,
            "lastCompactionSucceedTimestamp": self.succeeded_ms,
            "lastCompactionFailedTimestamp": self.failed_ms,
            "lastCompactionDurationTimeInMills": self.duration_ms,
        }

    def ledger_stats(self) -> dict[str, Any]:
        """Returns Pulsar's CompactedLedger; every number is -1 where the topic was never compacted."""
        found = self.view.compacted
        numbers = (-1, -1, -1) if found is None else (found.ledger, found.entries, found.size_bytes)
        offloaded = found is not None and found.offloaded
        return {
            **dict(zip(("ledgerId", "entries", "size"), numbers, strict=True)),
            "offloaded": offloaded,
            "underReplicated": False,
        }


class CompactedTopic(Protocol):
    """A loaded topic as its compaction sees it."""

    @property
    def text(self) -> str:
        """Its full name, as clients and logs say it."""
        ...

    @property
    def ledger(self) -> ManagedLedgerPort: ...

    @property
    def policies(self) -> Applied: ...

    @property
    def volatile(self) -> bool:
        """Whether nothing of it is stored, so that there is nothing to compact."""
        ...

    @property
    def closed(self) -> bool:
        """It is being unloaded: nothing is done any more."""
        ...

    @property
    def readable(self) -> ReadablePort:
        """What clients read: the log without what transactions hold or have aborted."""
        ...

    def compaction(self) -> TopicCompaction:
        """The state of its compaction, made when it is first asked for. Raises NotAllowed."""
        ...
