"""ASK and TELL: what the other side of a link holds of a range of coordinates of one origin, for the audit.

Is: bytes to meaning and back. Isn't: a comparison, or a repair (`replicator.audit.auditor`). Framing is the link's
(`heliograph.wire.links.link_commands`):

    1009 ASK    stream, request, what (1 digest, 2 rows, 3 entries), region, epoch, incarnation,
                after ledger, entry, through ledger, entry, passing, (1: of rows, with how many positions are taken)
    1010 TELL   stream, request, refusal ("": none), low ledger, entry, upto ledger, entry, holes,
                (true: with what passes,) then by what was asked:
                digest: count, checksum
                rows: (positions that are taken,) [ledger, entry, checksum] ...
                entries: none; payload: blocks, one behind another

Both ways, between feature levels of 3 and up; a request is numbered by who asks. (after, through] is asked; (low, upto]
of it is told: below `low` the teller retains nothing, above `upto` it wants to be asked again. `holes`: entries in it
that the teller cannot read, or that contradict themselves. `passing` (0, 1, or 2; an older version sends none and
passes over it): 1: the asker wants to hear also of what it holds for regions behind it in the origin's tree; only who
is asked so, and knows of it, answers with a `true` behind the holes. 2, of entries: it wants the ends of committed
transactions and the records of trees as well; who tells them says 2 there, an older version `true`. A position is
*taken* where the teller, whose origin is asked about, reads another entry under that very coordinate: of another
origin, or not meant for the asker; an older version does not say.
A checksum is the CRC-32C of an entry as its client published it, made from the stored bytes.
Invariants: whatever arrives is accepted or raises PeerError.   Source: docs/protocols/links.md, "Audit".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import crc32c

from heliograph.model.coordinates import Origin
from heliograph.model.errors import CorruptData, PeerError
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.links.command_fields import coordinate, fields, number, position
from heliograph.wire.links.link_commands import (
    FEATURE_LEVEL,
    LEADERSHIP_LEVEL,
    LinkFrameKind,
    check_claims,
    check_spans,
    frame,
)
from heliograph.wire.run import Buffer, Run

ROWS_MAX = 4096
REFUSAL_MAX = 1024
_BLOCK_BYTES_AT = 4
_WHOLE = 2
_U32_MAX = (1 << 32) - 1

Row = tuple[Position, int]
"""(coordinate, checksum of the entry as its client published it)."""


class What(IntEnum):
    """What is asked of a range."""

    DIGEST = 1
    ROWS = 2
    ENTRIES = 3


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks for what the other side holds in (after, through] of `origin`."""

    what: What
    origin: Origin
    after: Position
    through: Position
    passing: bool = False
    """Also what the asker holds hidden, for regions behind it."""
    whole: bool = False
    """Asked of entries: also the ends of transactions that were committed, and the records of the origin's trees.
    Implies `passing`.
    """
    taken: bool = False
    """Asked of rows: also how many positions are taken."""


@dataclass(frozen=True, slots=True)
class AuditAnswer:
    """What the other side holds of (low, upto]. refusal: why it does not say now; "" where it does. runs: as a RUN on a
    link would be.

    passing: it is told of with what the asker holds for regions behind it. whole: as it was asked. taken: positions of
    the range, all of which were looked at, under which the origin's region has something else.
    """

    refusal: str = ""
    low: Position = BEFORE_ALL
    upto: Position = BEFORE_ALL
    holes: int = 0
    count: int = 0
    checksum: int = 0
    rows: tuple[Row, ...] = ()
    runs: tuple[Run, ...] = ()
    passing: bool = False
    whole: bool = False
    taken: int = 0


def digest(rows: Sequence[Row]) -> tuple[int, int]:
    """(count, checksum) of entries in the order of their coordinates."""
    flat = [n for (ledger, entry), checksum in rows for n in (ledger, entry, checksum)]
    return len(rows), crc32c.crc32c(struct.pack(f">{len(flat)}q", *flat))


def ask_frame(stream: int, request: int, ask: Ask) -> list[Buffer]:
    more = [1] if ask.taken else []
    return frame(
        LinkFrameKind.ASK,
        [
            stream,
            request,
            int(ask.what),
            *ask.origin,
            *ask.after,
            *ask.through,
            _WHOLE if ask.whole else int(ask.passing),
            *more,
        ],
    )


def read_ask(given: list[Any]) -> tuple[int, int, Ask]:
    """(stream, request, what is asked)."""
    stream, request, what, *rest = fields(given, 10)
    try:
        wanted = What(number(what))
    except ValueError as error:
        raise PeerError(f"link: nothing is known to be asked as {what}") from error
    origin, after = coordinate(rest[:5])
    through = position(*rest[5:7])
    if after >= through:
        raise PeerError("link: an empty range is asked for")
    passing = number(given[10]) if len(given) > 10 else 0
    taken = len(given) > 11 and number(given[11]) == 1 and wanted is What.ROWS
    return (
        number(stream),
        number(request),
        Ask(wanted, origin, after, through, passing > 0, passing == _WHOLE and wanted is What.ENTRIES, taken),
    )


def tell_frame(stream: int, request: int, what: What, told: AuditAnswer, level: int = FEATURE_LEVEL) -> list[Buffer]:
    """level: of the link, as its handshake said: an older version reads no block that names a leadership."""
    head = [stream, request, told.refusal[:REFUSAL_MAX], *told.low, *told.upto, told.holes]
    payload: list[Buffer] = []
    if told.whole:
        head.append(_WHOLE)
    elif told.passing:
        head.append(True)
    if what is What.DIGEST:
        head += [told.count, told.checksum]
    elif what is What.ROWS:
        head += [told.taken] if told.taken else []  # who did not ask does not expect it
        head += [[*at, checksum] for at, checksum in told.rows]
    else:
        for run in told.runs:
            kept = run if level >= LEADERSHIP_LEVEL else run.led_by_none()
            payload += encode_block(kept, *run.spans[0][:2])
    return frame(LinkFrameKind.TELL, head, payload)


def read_tell(given: list[Any], payload: Buffer) -> tuple[int, int, list[Any], Buffer]:
    """(stream, request, fields and payload for `told`, once it is known what was asked)."""
    stream, request, *_ = fields(given, 8)
    return number(stream), number(request), given[2:], payload


def told(ask: Ask, given: list[Any], payload: Buffer) -> AuditAnswer:
    """given, payload: of `read_tell`. Raises PeerError, also where something is told that was not asked."""
    refusal, low_ledger, low_entry, upto_ledger, upto_entry, holes = fields(given, 6)
    if not isinstance(refusal, str):
        raise PeerError("link: expected a text")
    low, upto = position(low_ledger, low_entry), position(upto_ledger, upto_entry)
    if refusal:
        return AuditAnswer(refusal)
    passing = len(given) > 6 and given[6] is True
    rest = given[7 if passing else 6 :]
    common = AuditAnswer("", low, upto, number(holes), passing=passing)
    if ask.what is What.DIGEST:
        count, checksum = fields(rest, 2)
        return replace(common, count=number(count), checksum=number(checksum, 0, _U32_MAX))
    if ask.what is What.ROWS:
        taken = number(rest[0]) if rest and not isinstance(rest[0], list) else 0
        rows = _rows(rest[1:] if taken else rest)
        if rows and not (ask.after < rows[0][0] and rows[-1][0] <= min(upto, ask.through)):
            raise PeerError("link: rows of a range that was not asked for, or is not told of")
        return replace(common, rows=tuple(rows), taken=taken)
    whole = len(rest) > 0 and rest[0] == _WHOLE
    runs = _runs(memoryview(payload))
    for run in runs:
        if run.origin != ask.origin or check_spans(run, ask.after) > ask.through:
            raise PeerError("link: entries of a range that was not asked for")
    return replace(common, runs=tuple(runs), passing=passing or whole, whole=whole)


def _rows(given: list[Any]) -> list[Row]:
    if len(given) > ROWS_MAX:
        raise PeerError(f"link: more than {ROWS_MAX} rows in one answer")
    rows: list[Row] = []
    for item in given:
        if not isinstance(item, list) or len(item) != 3:
            raise PeerError("link: a row has three numbers")
        at = position(item[0], item[1])
        if rows and at <= rows[-1][0]:
            raise PeerError("link: rows ascend")
        rows.append((at, number(item[2], 0, _U32_MAX)))
    return rows


def _runs(payload: memoryview) -> list[Run]:
    runs: list[Run] = []
    at = 0
    while at < len(payload):
        size = int.from_bytes(payload[at + _BLOCK_BYTES_AT : at + _BLOCK_BYTES_AT + 4], "big")
        if size < 1 or at + size > len(payload):
            raise PeerError("link: a block runs past the end of its frame")
        try:
            _, _, run = decode_block(payload[at : at + size])
        except CorruptData as error:
            raise PeerError(f"link: {error}") from error
        if run.origin is None or run.checksums is None or run.seal is not None:
            raise PeerError("link: a run on a link names its origin and checksums, and is open")
        check_claims(run)
        runs.append(run)
        at += size
    return runs
