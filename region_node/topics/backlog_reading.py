"""A topic's entries read from a position on, for who looks at them: the n-th of a backlog, or all of it counted.

Is: reading beside the dispatchers. Isn't: consuming; nothing is acknowledged or counted.
Invariants: others go on between two reads, also where all is in the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from heliograph.model.errors import NotAllowed, NotFound
from heliograph.model.positions import BEFORE_ALL, Position, position_text
from heliograph.runtime.throttle import pause
from region_node.runtime.cursor_ports import Piece, visible
from region_node.subscriptions.filters import ACCEPT, REJECT, RESCHEDULE, Filtering
from region_node.subscriptions.subscription import Subscription

if TYPE_CHECKING:
    from region_node.runtime.topic_ports import ReadablePort
    from region_node.topics.topic import Topic

_LOOK_ENTRIES = 512
_LOOK_BYTES = 4 << 20
_NTH_MAX = 1_000_000
_ANALYSED_MAX = 100_000


async def read_from(
    ledger: ReadablePort, at: Position, last: Position, entries_max: int, bytes_max: int
) -> AsyncIterator[list[Piece]]:
    """What lies from `at` to `last`, some pieces at a time, of which the last one may go on behind it; no pieces where
    no more is there. Others go on between two reads: what is in the cache would be read without a pause.
    """
    while at <= last:
        yield (pieces := await ledger.read(at, entries_max, bytes_max))
        if not pieces:
            return
        at = behind(pieces)
        await pause()


def behind(pieces: Sequence[Piece]) -> Position:
    ledger, first, run = pieces[-1]
    return ledger, first + run.count


async def nth_unacked(topic: Topic, found: Subscription | None, name: str, count: int) -> Position:
    """Position of the count-th entry (from 1) that clients see and the subscription has not acknowledged. Raises
    NotFound, NotAllowed.

    found: None where there is no subscription of that name: of everything then; Pulsar makes one at the earliest
    message to look at it, here nothing is made.
    """
    if not 1 <= count <= _NTH_MAX:
        raise NotAllowed(f"a position in the backlog is 1 to {_NTH_MAX}, not {count}")
    start = BEFORE_ALL if found is None else found.cursor.mark_delete
    at, left = (start[0], start[1] + 1), count
    async for pieces in read_from(topic.readable, at, topic.readable.last_confirmed, _LOOK_ENTRIES, _LOOK_BYTES):
        for piece in pieces:
            shown = visible(piece)[0]
            for ledger, first, run in shown if found is None else found.cursor.unacked_runs(shown):
                if left <= run.count:
                    return ledger, first + left - 1
                left -= run.count
    raise NotFound(f"Message not found: subscription {name} waits for {count - left} message(s) only")


async def analysed(topic: Topic, found: Subscription, name: str) -> dict[str, Any]:
    """Counts a subscription's backlog by reading it, at most _ANALYSED_MAX entries, in the fields of Pulsar's
    AnalyzeSubscriptionBacklogResult.
    """
    entries = messages = markers = 0
    by_verdict: Counter[int] = Counter()
    filtering = Filtering(
        topic.text, name, found.properties
    )  # of its own: what the subscription counts is what consumers were given
    filtering.filters = found.rules.filters
    first: Position | None = None
    end, last = found.cursor.mark_delete, topic.readable.last_confirmed
    at = (end[0], end[1] + 1)
    async for pieces in read_from(topic.readable, at, last, _LOOK_ENTRIES, _LOOK_BYTES):
        for piece in pieces:
            shown, hidden = visible(piece)
            markers += sum(stop - start + 1 for _, start, stop in hidden)
            for ledger, start, run in found.cursor.unacked_runs(shown):
                first = first or (ledger, start)
                entries, messages, end = entries + run.count, messages + run.messages, (ledger, start + run.count - 1)
                verdicts = filtering.verdicts(ledger, start, run) or [ACCEPT] * run.count
                by_verdict.update(verdicts)
        at = behind(pieces) if pieces else at
        if entries + markers >= _ANALYSED_MAX:
            break
    return {
        "entries": entries,
        "messages": messages,
        "markerMessages": markers,
        "filterAcceptedEntries": by_verdict[ACCEPT],
        "filterAcceptedMessages": filtering.accepted,
        "filterRejectedEntries": by_verdict[REJECT],
        "filterRejectedMessages": filtering.rejected,
        "filterRescheduledEntries": by_verdict[RESCHEDULE],
        "filterRescheduledMessages": filtering.rescheduled,
        "aborted": at <= last,
        "firstMessageId": position_text(first) if first else None,
        "lastMessageId": position_text(end) if first else None,
    }
