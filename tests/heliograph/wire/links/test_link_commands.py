"""Private commands and SKIP records: round trips, and whatever else arrives is a PeerError."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest

from heliograph.model.coordinates import Vector
from heliograph.model.errors import CorruptData, PeerError
from heliograph.wire.block import SEAL_TAG_BYTES, decode_block, encode_block
from heliograph.wire.links import audit_commands as audit
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.audit_commands import Ask, AuditAnswer, What
from heliograph.wire.links.link_commands import LinkFrameKind, LinkHeartbeat, SkipReason, SkipRecord, StreamBeat
from heliograph.wire.links.schema_commands import close_rows, read_schemas
from heliograph.wire.run import FLAG_HIDDEN, Run, Seal
from replicator.subscriptions.ack_claims import Claims, read_claims
from tests.replicator.link_world import entry, parsed

ORIGIN = (1, 1, 7)


def vector() -> Vector:
    v = Vector()
    v.advance(ORIGIN, (3, 4))
    v.skip(ORIGIN, (3, 4), (3, 9))
    return v


def sent_run(count: int = 3, **changes: Any) -> Run:
    parts = [entry(i, "p", i) for i in range(count)]
    columns: dict[str, Any] = {
        "origin": ORIGIN,
        "spans": ((3, 5, count),),
        "checksums": [int.from_bytes(p[2:6], "big") for p in parts],
        "producers": (("p", count, 0, None),),
        **changes,
    }
    return Run(parts, [len(p) for p in parts], **columns)


def claimed() -> Claims:
    claims = Claims((2, 1), {ORIGIN: (3, 4)})
    for after, through in (((3, 4), (3, 9)), ((3, 11), (4, 2)), ((7, -1), (7, 0))):
        claims.add(ORIGIN, after, through)
    claims.add((9, 1, 5), (-1, -1), (0, 3))
    claims.add_partly((ORIGIN, (8, 1)), 0b1011)
    return claims


def read_claims_frame(fields: list[Any]) -> tuple[int, str, Claims]:
    stream, subscription, content = wire.read_claims(fields)
    return stream, subscription, read_claims(content)


RECORD = SkipRecord(ORIGIN, (-1, -1), (3, 4), SkipReason.TRIMMED, "eu")
ASKED = Ask(What.ROWS, ORIGIN, (3, -1), (3, 9))
TOLD = {
    What.DIGEST: AuditAnswer("", (2, 1), (3, 9), 1, 7, 99),
    What.ROWS: AuditAnswer("", (2, 1), (3, 9), 0, rows=(((3, 4), 5), ((3, 6), 0xFFFFFFFF))),
    What.ENTRIES: AuditAnswer("", (2, 1), (3, 9), 0, runs=(sent_run(), sent_run(1))),
}
BEAT = LinkHeartbeat(5, 4, 3, (StreamBeat(1, (ORIGIN, (3, 4)), {"us": vector()}), StreamBeat(2, None, {})))
FRAMES = [
    wire.open_frame(1, "persistent://t/n/x", "us", 1),
    wire.opened_frame(1, 99, 1000, vector()),
    wire.run_frame(1, 2, (3, 4), sent_run()),
    wire.receipt_frame(1, [(ORIGIN, (3, 4))]),
    wire.gap_frame(1, 2, vector()),
    wire.skip_frame(1, 2, RECORD),
    wire.heartbeat_frame(BEAT),
    wire.close_frame(1, "moved", "it moved"),
    wire.claims_frame(1, "orders", claimed().fields()),
    audit.ask_frame(1, 9, ASKED),
    audit.tell_frame(1, 9, What.DIGEST, TOLD[What.DIGEST]),
    audit.tell_frame(1, 9, What.ROWS, TOLD[What.ROWS]),
    audit.tell_frame(1, 9, What.ENTRIES, TOLD[What.ENTRIES]),
]


def asked(what: What) -> Ask:
    return Ask(what, ORIGIN, (3, -1), (3, 9))


def read(frame: bytes, of: What | None = What.DIGEST) -> Any:
    kind, fields, payload = parsed(frame)
    readers: dict[LinkFrameKind, Any] = {
        LinkFrameKind.OPEN: wire.read_open,
        LinkFrameKind.OPENED: wire.read_opened,
        LinkFrameKind.RECEIPT: wire.read_receipt,
        LinkFrameKind.GAP: wire.read_gap,
        LinkFrameKind.SKIP: wire.read_skip,
        LinkFrameKind.HEARTBEAT: wire.read_heartbeat,
        LinkFrameKind.CLOSE: wire.read_close,
        LinkFrameKind.CLAIMS: read_claims_frame,
        LinkFrameKind.ASK: audit.read_ask,
    }
    if kind is LinkFrameKind.TELL:
        stream, request, content, answer = audit.read_tell(fields, payload)
        return stream, request, {what: audit.told(asked(what), content, answer) for what in What if what is of}
    return wire.read_run(fields, payload) if kind is LinkFrameKind.RUN else readers[kind](fields)


def whole(frame: list[Any]) -> bytes:
    return b"".join(bytes(b) for b in frame)


def test_each_command_comes_back_as_it_was() -> None:
    opened, gap = read(whole(FRAMES[1])), read(whole(FRAMES[4]))
    assert read(whole(FRAMES[0])) == (1, "persistent://t/n/x", "us", 1, wire.FEATURE_LEVEL)
    assert opened == (1, 99, 1000, vector(), wire.FEATURE_LEVEL) and gap == (1, 2, vector())
    stream, attempt, previous, run = read(whole(FRAMES[2]))
    assert (stream, attempt, previous, run.origin, run.spans) == (1, 2, (3, 4), ORIGIN, ((3, 5, 3),))
    assert [bytes(p) for p in run.parts] == sent_run().parts and run.producers == (("p", 3, 0, None),)
    assert read(whole(FRAMES[3])) == (1, [(ORIGIN, (3, 4))])
    assert read(whole(FRAMES[5])) == (1, 2, RECORD)
    assert read(whole(FRAMES[6])) == BEAT
    assert read(whole(FRAMES[7])) == (1, "moved", "it moved")
    stream, subscription, claims = read(whole(FRAMES[8]))
    assert (stream, subscription, claims.fields()) == (1, "orders", claimed().fields())
    assert (claims.epoch, claims.base, claims.ranges, claims.partly) == (
        (2, 1),
        {ORIGIN: (3, 4)},
        claimed().ranges,
        claimed().partly,
    )
    assert read(whole(FRAMES[9])) == (1, 9, ASKED)
    for frame, what in zip(FRAMES[10:12], (What.DIGEST, What.ROWS), strict=True):
        assert read(whole(frame), what) == (1, 9, {what: TOLD[what]})
    entries = read(whole(FRAMES[12]), What.ENTRIES)[2][What.ENTRIES]
    assert [[bytes(p) for p in run.parts] for run in entries.runs] == [
        sent_run().parts,
        sent_run(1).parts,
    ] and entries.upto == (3, 9)
    assert read(whole(audit.tell_frame(1, 9, What.ROWS, AuditAnswer("not now"))), What.ROWS) == (
        1,
        9,
        {What.ROWS: AuditAnswer("not now")},
    )
    older = wire.read_opened([1, 99, 1000, vector().encode()])
    assert older[4] == 1, "an older version says no feature level: it is told nothing that it does not know"


def test_whatever_arrives_is_read_or_is_a_peer_error() -> None:
    rng = random.Random(5)
    for _ in range(4000):
        frame = bytearray(whole(rng.choice(FRAMES)))
        for _ in range(rng.randrange(1, 4)):
            frame[rng.randrange(8, len(frame))] = rng.randrange(256)
        if rng.random() < 0.3:
            del frame[rng.randrange(9, len(frame)) :]
        try:
            read(bytes(frame), rng.choice(list(What)))
        except PeerError:
            pass


def test_random_fields_are_read_or_are_a_peer_error() -> None:
    rng = random.Random(6)
    values = [
        None,
        -1,
        0,
        1,
        1 << 64 - 1,
        True,
        "x",
        "",
        b"",
        b"\x01\x00\x00",
        [],
        [1, 1, 7, 3, 4],
        {},
        {"us": b"\x01\x00\x00"},
        2.5,
        [1, None, {}],
    ]
    for _ in range(4000):
        kind = rng.choice(list(LinkFrameKind))
        content = b"\x01" + msgpack.packb([rng.choice(values) for _ in range(rng.randrange(7))])
        number, fields = wire.parse(kind, content)
        try:
            if number is LinkFrameKind.RUN:
                wire.read_run(fields, b"")
            elif number is LinkFrameKind.ASK:
                audit.read_ask(fields)
            elif number in (LinkFrameKind.SCHEMAS, LinkFrameKind.OVERRULE):
                read_schemas(fields)
            elif number is LinkFrameKind.CLOSE:
                wire.read_close(fields)
                close_rows(fields)
            elif number is LinkFrameKind.TELL:
                audit.told(
                    asked(rng.choice(list(What))), *audit.read_tell(fields, rng.randbytes(rng.randrange(30)))[2:]
                )
            else:
                getattr(wire, f"read_{number.name.lower()}")(fields)
        except PeerError:
            pass


@pytest.mark.parametrize(
    "changes",
    [
        {"origin": None},
        {"checksums": None},
        {"spans": ((3, 5, 2),)},
        {"spans": ((3, 4, 3),)},
        {"spans": ((3, 5, 2), (3, 6, 1))},
        {"spans": ((3, 7, 2), (2, 0, 1))},
        {"flags": [0, FLAG_HIDDEN, 0]},
        {"producers": (("p", 65_535, 0, None),) * 2},
    ],
)
def test_a_run_without_what_a_link_needs_is_refused(changes: dict[str, Any]) -> None:
    run = sent_run(**changes)
    frame = wire.frame(LinkFrameKind.RUN, [1, 2, 3, 4], encode_block(run, 3, 5))
    with pytest.raises(PeerError):
        read(whole(frame))


def test_whole_is_asked_of_entries_alone_and_an_older_version_takes_it_for_passing() -> None:
    for what in What:
        _, _, back = read(whole(audit.ask_frame(1, 9, Ask(what, ORIGIN, (2, 0), (3, 9), whole=True))))
        assert back == Ask(what, ORIGIN, (2, 0), (3, 9), passing=True, whole=what is What.ENTRIES)
    for told in (
        AuditAnswer("", (2, 1), (3, 9), 0, runs=(sent_run(),), passing=True, whole=True),
        AuditAnswer("", (2, 1), (3, 9), 0, runs=(sent_run(),), passing=True),
    ):
        frame = whole(audit.tell_frame(1, 9, What.ENTRIES, told))
        (_, _, read_back) = read(frame, What.ENTRIES)
        assert (read_back[What.ENTRIES].passing, read_back[What.ENTRIES].whole) == (True, told.whole)
    digest = AuditAnswer("", (2, 1), (3, 9), 0, count=2, checksum=7)  # a count is no mark
    assert read(whole(audit.tell_frame(1, 9, What.DIGEST, digest)), What.DIGEST)[2][What.DIGEST] == digest


def test_an_older_version_that_asks_is_told_of_no_leadership() -> None:
    for level, leadership in ((wire.LEADERSHIP_LEVEL, 5), (wire.LEADERSHIP_LEVEL - 1, 0)):
        told = AuditAnswer("", (2, 1), (3, 9), 0, runs=(sent_run(leadership=5),))
        _, _, back = read(whole(audit.tell_frame(1, 9, What.ENTRIES, told, level)), What.ENTRIES)
        assert [run.leadership for run in back[What.ENTRIES].runs] == [leadership]


def test_what_is_taken_is_asked_of_rows_alone_and_told_to_nobody_else() -> None:
    for what in What:
        _, _, back = read(whole(audit.ask_frame(1, 9, Ask(what, ORIGIN, (2, 0), (3, 9), taken=True))))
        assert back == Ask(what, ORIGIN, (2, 0), (3, 9), taken=what is What.ROWS)
    rows = (((3, 4), 5), ((3, 6), 7))
    for told in (AuditAnswer("", (2, 1), (3, 9), 0, taken=1, passing=passing) for passing in (False, True)):
        assert read(whole(audit.tell_frame(1, 9, What.ROWS, told)), What.ROWS)[2][What.ROWS] == told
    frame = whole(audit.tell_frame(1, 9, What.ROWS, AuditAnswer("", (2, 1), (3, 9), 0, rows=rows)))
    assert frame == whole(audit.tell_frame(1, 9, What.ROWS, AuditAnswer("", (2, 1), (3, 9), 0, rows=rows, taken=0))), (
        "as earlier versions say it"
    )


def test_a_sealed_run_is_refused() -> None:
    run = sent_run()
    sealed = run.with_body(bytes(run.size_bytes + SEAL_TAG_BYTES), Seal(1, 2, 5, 0))
    frame = wire.frame(LinkFrameKind.RUN, [1, 2, 3, 4], encode_block(sealed, 3, 5))
    with pytest.raises(PeerError, match="open"):
        read(whole(frame))
    told = audit.tell_frame(1, 9, What.ENTRIES, AuditAnswer("", (2, 1), (3, 9), 0, runs=(sealed,)))
    with pytest.raises(PeerError, match="open"):
        read(whole(told), What.ENTRIES)


def test_another_version_is_refused() -> None:
    with pytest.raises(PeerError, match="version"):
        wire.parse(LinkFrameKind.OPEN, b"\x02\x90")


def test_a_skip_record_is_a_hidden_entry_of_no_message() -> None:
    run = RECORD.as_run()
    _, _, stored = decode_block(b"".join(bytes(b) for b in encode_block(run, 8, 1)))
    assert SkipRecord.decode(stored.parts[0]) == RECORD
    assert stored.messages == 0 and stored.flags is not None and stored.flags[0] & FLAG_HIDDEN
    for blob in (
        b"",
        RECORD.encode()[:20],
        b"\x07" + RECORD.encode()[1:],
        SkipRecord(ORIGIN, (3, 4), (3, 4), SkipReason.LOST, "eu").encode(),
    ):
        with pytest.raises(CorruptData):
            SkipRecord.decode(blob)


@pytest.mark.parametrize(
    "columns",
    [
        {"counts": (1, (1 << 18) + 1, 1)},
        {"counts": (1 << 31,) * 3},
        {"producers": (("p", 0, 5, None), ("p", 3, 0, None))},
        {"producers": (("p", 0, 0, ()), ("p", 3, 0, None))},
        {"producers": (("p", 3, (1 << 63) - 2, None),)},
        {"producers": (("p", 4, 0, None),)},
    ],
)
def test_what_no_entries_can_bear_out_is_not_counted_on(columns: dict[str, Any]) -> None:
    """An index beyond its bounds would stop the topic, and a range of no sequences put all others out of order."""
    run = sent_run(**columns)
    _, fields, payload = parsed(b"".join(bytes(b) for b in wire.run_frame(1, 2, (3, 4), run)))
    with pytest.raises(PeerError):
        wire.read_run(fields, payload)
    told = AuditAnswer("", (2, 1), (3, 9), 0, runs=(run,))
    _, fields, payload = parsed(b"".join(bytes(b) for b in audit.tell_frame(1, 9, What.ENTRIES, told)))
    _, _, content, payload = audit.read_tell(fields, payload)
    with pytest.raises(PeerError):
        audit.told(asked(What.ENTRIES), content, payload)


def test_a_heartbeat_names_a_stream_once() -> None:
    """Each naming may bring vectors, which are compared with what is known."""
    twice = LinkHeartbeat(5, 4, 3, (StreamBeat(1, None, {}), StreamBeat(2, None, {}), StreamBeat(1, None, {})))
    with pytest.raises(PeerError, match="once"):
        read(whole(wire.heartbeat_frame(twice)))
