"""A streaming query in another region than before: what a place means in the copy of a topic that is there.

Is: pure: the entries between two places, as ranges of local entries and as coordinates to keep. Isn't: HTTP, Spark, or
how far a batch goes (`offsets`).
A region that was made anew, or restored from a backup, is another one than it was: its positions have begun again, or
gone back. A place is in its terms where it was made under an own origin that the copy has, or had through there.
How: between two places in the asked region's own terms lie the entries from one position to the other. Where a place is
in another region's terms, its vector says what it has read; the lowest local entry that no vector covers is where
reading begins, and what is covered is left out, run by run. Links keep the order of each origin, so one coordinate an
origin says which.
Invariants: a batch is a function of its two places, in whatever region it is run, or run again: the entries that the
first vector does not cover and the second does. What a region cannot tell (trimmed, not arrived) is an error, never a
gap.
Source: docs/spark.md, "To another region"; docs/protocols/links.md, "Where a coordinate lies".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from heliograph.client.block_reader import CoordinatePlace, TopicSnapshot
from heliograph.model.coordinates import Origin, format_coordinate
from heliograph.model.errors import ConfigError, MetadataUnavailable, Trimmed
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.spark.scan.offsets import EntryRange, TopicPlace, Watermarks, begin, between, covers, end, planned
from heliograph.wire.run import Run


class Copy(Protocol):
    """A region's copy of topics: `heliograph.client.block_reader.BlockReader`."""

    def vector(self, topic: str, at: Position | None = None) -> dict[Origin, Position]: ...

    def find(self, topic: str, origin: Origin, at: Position) -> CoordinatePlace: ...


@dataclass(frozen=True, slots=True)
class CoordinateRange:
    """Says which of the entries that are read are kept: those with coordinates above the one and up to the other.
    through None: all; an origin that it does not name: nothing.
    """

    above: Watermarks
    through: Watermarks | None = None

    def of(self, snapshot: TopicSnapshot, ledger: int, first: int, run: Run) -> tuple[int, Run] | None:
        """(first entry, run) of what is left of the run at (ledger, first). One look a run: a run has one origin, and
        its coordinates ascend.
        """
        origin = run.origin or snapshot.origin_at((ledger, first))
        spans = run.spans if run.origin is not None else ((ledger, first, run.count),)
        start = _covered(spans, self.above.get(origin, BEFORE_ALL))
        stop = run.count if self.through is None else _covered(spans, self.through.get(origin, BEFORE_ALL))
        return (first + start, run.cut(start, stop)) if start < stop else None


ALL = CoordinateRange({})


def _covered(spans: tuple[tuple[int, int, int], ...], mark: Position) -> int:
    """How many entries have coordinates up to `mark`."""
    return sum(
        count if (ledger, first + count - 1) <= mark else max(0, mark[1] - first + 1) if ledger == mark[0] else 0
        for ledger, first, count in spans
    )


def first_unread(copy: Copy, snapshot: TopicSnapshot, read: Watermarks, *, may_lose: bool) -> Position:
    """The lowest local position that `read` does not cover; the end where there is none. Raises Trimmed where one may
    have been deleted.

    snapshot: taken before, so that whatever is not known yet lies behind its end.
    """
    found, own = end(snapshot), _own_ends(snapshot)
    for origin, held in copy.vector(snapshot.topic).items():
        mark = read.get(origin)
        if mark is not None and held <= mark:
            continue
        after, through = own.get(origin, (BEFORE_ALL, None))
        if mark is not None and through is not None and mark >= through:
            found = min(found, _next(through))  # others brought it back: it lies somewhere behind
            continue
        next_ = max((0, 0), _next(after if mark is None else mark))
        place = copy.find(snapshot.topic, origin, next_)
        if place.status in ("trimmed", "deleted") and snapshot.trimmed and not may_lose:
            raise Trimmed(
                f"{snapshot.topic}: region {snapshot.region} may have deleted messages that the query has not read,"
                f" from {format_coordinate((origin, next_))} on; go on in the region where it was, or set "
                "fail_on_data_loss to false"
            )
        if place.following is not None:
            found = min(found, place.following)
    return found


def _own_ends(snapshot: TopicSnapshot) -> dict[Origin, tuple[Position, Position | None]]:
    """By origin of the region's own: the local position behind which what it published under it begins, and where that
    ends; None: it goes on.
    """
    ends, after = dict[Origin, tuple[Position, Position | None]](), BEFORE_ALL
    for origin, through in snapshot.past:
        ends[origin] = after, through
        after = through
    return {**ends, snapshot.own: (after, None)}


def _next(at: Position) -> Position:
    return at[0], at[1] + 1


def _end_of(
    copy: Copy, snapshot: TopicSnapshot, read: Watermarks, through: Watermarks, held: Watermarks, *, may_lose: bool
) -> Position:
    """A local position above all entries that `through` covers and `read` does not. Raises MetadataUnavailable where
    one of them cannot be read yet.
    """
    found = begin(snapshot)
    for origin, mark in through.items():
        if mark <= read.get(origin, BEFORE_ALL):
            continue
        if held.get(origin, BEFORE_ALL) >= mark:
            place = copy.find(snapshot.topic, origin, mark)
            if place.position is None:
                found = max(found, end(snapshot) if place.following is None else place.following)
                continue
            found = max(found, (place.position[0], place.position[1] + 1))
            if place.position <= snapshot.last:
                continue
        if may_lose:
            return end(snapshot)
        what = (
            "which has not arrived"
            if held.get(origin, BEFORE_ALL) < mark
            else "which lies behind a transaction that is open"
        )
        raise MetadataUnavailable(
            f"{snapshot.topic}: the query was in the middle of a batch up to {format_coordinate((origin, mark))}, "
            f"{what} in region"
            f" {snapshot.region}: start it again when it has, or in the region where it was; or set fail_on_data_loss "
            "to false"
        )
    return found


def plan(
    copy: Copy,
    snapshot: TopicSnapshot,
    start: TopicPlace | None,
    stop: TopicPlace,
    held: Watermarks,
    *,
    may_lose: bool,
    moved_may_lose: bool,
) -> tuple[list[EntryRange], CoordinateRange]:
    """What a batch from `start` to `stop` reads in the asked region. start None: the topic was not known before.

    held: where `stop` is another region's, the copy's vector, asked for before the snapshot: so all that it names lies
    within that.
    may_lose: as of `between`; moved_may_lose: the same where a place is another region's, whose subscription held
    nothing here, or where the copy ends sooner. Raises MetadataUnavailable where it does: a topic that was just loaded
    may show less than before, until it knows again which transactions are over.
    """
    if _went(stop, snapshot, held):
        return [], CoordinateRange({})
    here = stop.here(snapshot)
    if here and stop.at > end(snapshot) and not moved_may_lose:
        raise MetadataUnavailable(
            f"{snapshot.topic}: the query was in the middle of a batch up to {stop.at[0]}:{stop.at[1]}, and region "
            f"{snapshot.region} shows no more than what is"
            f" before {end(snapshot)[0]}:{end(snapshot)[1]} at this moment: start it again when it does; or set "
            "fail_on_data_loss to false"
        )
    if here and (start is None or start.here(snapshot)):
        first = begin(snapshot) if start is None else start.at
        found = between(snapshot, first, stop.at, may_lose=may_lose)
        # from a topic that was made anew under that name nothing was deleted yet: the batch has nothing of it
        if snapshot.trimmed and not moved_may_lose:
            _check_whole(snapshot.topic, found, planned(snapshot.topic, start, stop))
        return found, CoordinateRange(stop.above if start is None else start.above)
    read = stop.above if start is None else start.vector
    if read is None or stop.vector is None:
        raise ConfigError(
            f"{snapshot.topic}: the checkpoint is of a version that knows no other regions; run the query where it "
            "was once more, until it has written a batch"
        )
    first = first_unread(copy, snapshot, read, may_lose=moved_may_lose)
    if here:
        return between(snapshot, first, stop.at, may_lose=True), CoordinateRange(read)
    last = _end_of(copy, snapshot, read, stop.vector, held, may_lose=moved_may_lose)
    return between(snapshot, first, last, may_lose=True), CoordinateRange(read, stop.vector)


def _check_whole(topic: str, found: list[EntryRange], wanted: list[EntryRange]) -> None:
    """Raises Trimmed where some of what the batch read when it was planned is gone."""
    if not covers(found, wanted):
        raise Trimmed(
            f"{topic}: the query was in the middle of a batch from {wanted[0].ledger}:{wanted[0].first} to "
            f"{wanted[-1].ledger}:{wanted[-1].last}, and entries of it were deleted meanwhile; see the topic's "
            "retention, time to live, and quotas, or set fail_on_data_loss to false"
        )


def _went(stop: TopicPlace, snapshot: TopicSnapshot, held: Watermarks) -> bool:
    """Whether what the batch was to read went with a topic of that name that was deleted, and made again since, and
    that no other region published to: nobody brings it again. A region that was made anew, or restored, has risen by an
    epoch.
    """
    others = {origin[0] for origin in (*(stop.vector or {}), *held)} - {snapshot.own[0]}
    own, known = stop.own, {snapshot.own, *(origin for origin, _ in snapshot.past)}
    return own is not None and own[:2] == snapshot.own[:2] and own not in known and not others


def advanced(start: TopicPlace, snapshot: TopicSnapshot, at: Position, seen: Watermarks) -> TopicPlace:
    """The place behind a batch from `start` to `at` in that copy. seen: the vector of what lies before `at` there."""
    read = start.vector or {}
    above = start.above if start.here(snapshot) else read
    vector = {origin: max(read.get(origin, BEFORE_ALL), seen.get(origin, BEFORE_ALL)) for origin in {*read, *seen}}
    left = {origin: mark for origin, mark in above.items() if mark > seen.get(origin, BEFORE_ALL)}
    return TopicPlace(snapshot.region, at, vector, left, own=snapshot.own)
