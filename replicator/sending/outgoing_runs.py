"""Outgoing runs: what a link's core lets go, and how neighbours become one.

Is: the two things that go out (a run with the coordinate before it, a SKIP that is passed on), and the joining and
cutting of such runs. Isn't: a decision whether they go (`replicator.sending.link_sender`).
Source: docs/protocols/links.md, "The rule".
"""

from __future__ import annotations

from typing import NamedTuple

from heliograph.model.positions import Position
from heliograph.wire.links.link_commands import SkipRecord
from heliograph.wire.run import BYTES_MAX, COUNT_MAX, Run, join
from replicator.log.routing_trees import is_tree
from replicator.log.transaction_buffer import is_marker

_JOIN_MS = 5


class OutgoingRun(NamedTuple):
    """Send `run`; `previous` is the coordinate of its origin before it on this route."""

    previous: Position
    run: Run


Send = OutgoingRun | SkipRecord
"""A SkipRecord among them is one that this region got itself, and passes on."""


def joined(sends: list[Send]) -> list[Send]:
    """Neighbours of about the same time as one run: small runs cost the target as much as large ones."""
    out: list[Send] = []
    group: list[Run] = []
    count = size = 0
    for send in sends:
        if isinstance(send, SkipRecord):
            _close(out, group)
            out.append(send)
            group, count, size = [], 0, 0
            continue
        run = send.run
        fits = group and count + run.count <= COUNT_MAX and size + run.size_bytes <= BYTES_MAX
        alike = (
            fits
            and run.origin == group[0].origin
            and run.transaction == group[0].transaction
            and run.leadership == group[0].leadership
            and not _control(run)
        )
        if (
            alike
            and not _control(group[0])
            and run.time_ms - group[0].time_ms <= _JOIN_MS
            and send.previous == last_of(group[-1])
        ):
            group.append(run)
            count, size = count + run.count, size + run.size_bytes
            continue
        _close(out, group)
        out.append(send)
        group, count, size = [run], run.count, run.size_bytes
    _close(out, group)
    return out


def _close(out: list[Send], group: list[Run]) -> None:
    if len(group) > 1:
        first = out[-1]
        assert isinstance(first, OutgoingRun)
        out[-1] = OutgoingRun(first.previous, join(group))


def _control(run: Run) -> bool:
    """Runs of their own: ends of transactions, trees."""
    return is_marker(run) or is_tree(run)


def last_of(run: Run) -> Position:
    ledger, first, count = run.spans[-1]
    return (ledger, first + count - 1)


def just_before(position: Position) -> Position:
    return (position[0], position[1] - 1) if position[1] > 0 else (position[0] - 1, 1 << 62)


def above(run: Run, previous: Position) -> Run:
    """The part of it whose coordinates are above `previous`."""
    known = 0
    for ledger, first, count in run.spans:
        if (ledger, first) > previous:
            break
        known += count if (ledger, first + count - 1) <= previous else previous[1] - first + 1
    return run.cut(known, run.count) if known else run
