"""The frame cutter: the same events however the stream is split, every shape of SEND, and nothing but PeerError for
what makes no sense.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import crc32c
import pytest

from heliograph.model.errors import PeerError
from heliograph.wire.pulsar import frame_cutter
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.frame_cutter import (
    COMMAND_BYTES_MAX,
    COMMAND_BYTES_MAX_OF,
    FRAME_BYTES_MAX,
    BadSend,
    Flow,
    FrameCutter,
    Private,
    ReplicatedSend,
    SendRun,
    StraySend,
)
from heliograph.wire.run import COUNT_MAX
from heliograph.wire.varint import varint
from tests.region_node.faces.pulsar.codec import entry, frame, send

K = pb.BaseCommand


def cutter(**fields: Any) -> FrameCutter:
    made = FrameCutter(bytes_max=FRAME_BYTES_MAX, **fields)
    topic, other = object(), object()
    made.producers.update({1: (topic, "a"), 2: (topic, "b"), 3: (other, "c"), 300: (other, "d")})
    return made


def cut(made: FrameCutter, *reads: bytes) -> list[Any]:
    return [event for data in reads for event in made.feed(data)]


def ordered(events: list[Any]) -> tuple[list[Any], list[Any]]:
    """`plain`, with what may overtake SENDs apart."""
    rows = plain(events)
    return [r for r in rows if not isinstance(r, Flow)], [r for r in rows if isinstance(r, Flow)]


def plain(events: list[Any]) -> list[Any]:
    """Events without the splits of runs that only the reads decide: one row an entry."""
    out: list[Any] = []
    for event in events:
        if isinstance(event, SendRun):
            at = 0
            for producer_id, sequences, highest in event.segments:
                for i, sequence in enumerate(sequences):
                    run = event.run
                    out.append(
                        (
                            producer_id,
                            sequence,
                            highest[i] if highest else 0,
                            run.counts[at] if run.counts else 1,
                            run.flags[at] if run.flags else 0,
                            bytes(run.parts[at]),
                        )
                    )
                    at += 1
        elif isinstance(event, pb.BaseCommand):
            out.append(event.SerializeToString())
        elif isinstance(event, Private):
            out.append((event.kind, bytes(event.command), bytes(event.payload)))
        else:
            out.append(event)
    return out


def stream(rng: random.Random) -> bytes:
    frames = []
    for _ in range(rng.randrange(1, 30)):
        match rng.randrange(10):
            case 0:
                frames.append(frame(K.FLOW, consumer_id=rng.randrange(300), messagePermits=rng.randrange(2000)))
            case 1:
                frames.append(frame(K.LOOKUP, topic="t", request_id=rng.randrange(300)))
            case 2:
                frames.append(send(9, 7, entry(b"stray")))
            case 3:
                frames.append(
                    send(
                        1,
                        rng.randrange(1 << 40),
                        entry(b"m" * rng.randrange(1200, 3000), sequence=1),
                        num_messages=rng.randrange(1, 200),
                    )
                )
            case 4:
                frames.append(
                    send(2, 5, entry(b"h" * 18), num_messages=3, highest_sequence_id=7, marker=rng.random() < 0.5)
                )
            case 5:
                stored = entry(b"damaged")
                frames.append(send(1, 8, stored[:-1] + b"X"))
            case _:
                frames.append(
                    send(
                        rng.choice([1, 2, 3, 300]),
                        rng.choice([5, 200, 20_000, 1 << 30]),
                        entry(b"x" * rng.randrange(200)),
                    )
                )
    return b"".join(frames)


@pytest.mark.parametrize("seed", range(40))
def test_the_same_events_at_any_split(seed: int) -> None:
    rng = random.Random(seed)
    data = stream(rng)
    whole = ordered(cut(cutter(), data))
    assert ordered(cut(cutter(), *(data[i : i + 1] for i in range(len(data))))) == whole
    cuts = sorted(rng.randrange(len(data)) for _ in range(5))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert ordered(cut(cutter(), *pieces)) == whole


def test_a_producer_that_ends_with_a_run_has_no_part_in_the_next() -> None:
    made, seen = cutter(), []
    for event in made.feed(
        b"".join(send(1, n, entry(b"x"), txnid_most_bits=0, txnid_least_bits=7 + n) for n in range(3))
    ):
        seen.append(type(event).__name__)
        made.producers.pop(1, None)
    assert seen == ["SendRun", "StraySend", "StraySend"]


def test_consecutive_sends_to_one_topic_are_one_run() -> None:
    data = b"".join(send(1 + i % 2, 10 + i // 2, entry(b"x%d" % i)) for i in range(20)) + send(3, 0, entry(b"other"))
    first, second = cut(cutter(), data)
    assert first.run.count == 20 and second.run.count == 1
    assert first.run.producers[0] == ("a", 1, 10, None) and len(first.run.producers) == 20
    data = b"".join(send(1, 10 + i, entry(b"x")) for i in range(7)) + b"".join(
        send(2, i * 2, entry(b"y")) for i in range(3)
    )
    (only,) = cut(cutter(), data)
    assert only.run.producers == (("a", 7, 10, None), ("b", 3, 0, ((0, 0), (2, 2), (4, 4))))
    assert only.segments == [(1, list(range(10, 17)), None), (2, [0, 2, 4], None)]
    pieces = [send(1, 7, entry(b"x", chunk_id=i, num_chunks_from_msg=3), is_chunk=True) for i in range(3)]
    (only,) = cut(cutter(), send(2, 4, entry(b"a")) + b"".join(pieces) + send(1, 8, entry(b"y")))
    assert only.run.producers == (("b", 1, 4, None), ("a", 4, -1, ((-1, -1), (-1, -1), (7, 7), (8, 8)))), (
        "the last piece has the message's sequence"
    )
    assert only.segments == [(2, [4], None), (1, [7, 7, 7, 8], None)], "each is answered under it"
    assert (only.chunks, only.cut(2, 4).chunks, only.cut(4, 5).chunks) == ((1, 2, 3), (0, 1), ())
    (only,) = cut(cutter(), b"".join(send(1, sequence, entry(b"x")) for sequence in (1, 3, 2, 4)))
    assert only.run.producers == (("a", 4, 1, ((1, 1), (3, 3), (2, 2), (4, 4))),)


def test_flow_does_not_cut_a_run_and_a_request_does() -> None:
    one, two = send(1, 1, entry(b"x")), send(1, 2, entry(b"x"))
    events = cut(cutter(), one + frame(K.FLOW, consumer_id=1, messagePermits=5) + two)
    assert isinstance(events[0], Flow) and events[1].run.count == 2
    events = cut(cutter(), one + frame(K.CLOSE_PRODUCER, producer_id=1, request_id=1) + two)
    assert [type(e) for e in events] == [SendRun, pb.BaseCommand, SendRun]


def test_a_run_is_bounded() -> None:
    events = cut(cutter(), b"".join(send(1, i, entry(b"x")) for i in range(COUNT_MAX + 3)))
    assert [e.run.count for e in events] == [COUNT_MAX, 3]
    events = cut(
        cutter(), b"".join(send(1, i, entry(bytes(400_000))) for i in range(3)) + send(1, 3, entry(bytes(3 << 20)))
    )
    assert [e.run.count for e in events] == [2, 1, 1]


def test_batches_and_highest_sequences() -> None:
    events = cut(
        cutter(),
        send(1, 1, entry(b"x"))
        + send(1, 2, entry(b"b" * 30, batch=5), num_messages=5, highest_sequence_id=6)
        + send(1, 7, entry(b"m")),
    )
    (only,) = events
    assert list(only.run.counts) == [1, 5, 1] and only.run.flags is None
    assert only.run.producers == (("a", 3, 1, ((1, 1), (2, 6), (7, 7))),)
    assert only.segments == [(1, [1, 2, 7], [0, 6, 0])]


def test_who_is_no_replicator_sends_no_markers() -> None:
    first, refused, last = cut(
        cutter(), send(1, 1, entry(b"x")) + send(1, 2, entry(b"m"), marker=True) + send(1, 3, entry(b"y"))
    )
    assert isinstance(refused, BadSend) and (refused.sequence, refused.checksum) == (2, False)
    assert "only a replicator may send markers" in refused.reason
    assert first.run.count == last.run.count == 1


@pytest.mark.parametrize("tag", [b"\xaa\x00", b"\xaa\x80\x00", b"\xaa\x80\x80\x00", b"\xaa\x80\x80\x80\x00"])
def test_the_origin_of_a_message_is_seen_however_long_its_tag_is(tag: bytes) -> None:
    """Each way takes it: a SEND that comes alone, the first one of a read, and those behind it."""
    plain, forged = entry(b"x"), long_tagged(entry(b"x", replicated_from="eu"), tag)
    assert pb.MessageMetadata.FromString(bytes(forged)[10:-1]).replicated_from == "eu"
    assert cutter().lone(send(1, 5, forged)) is None
    for before in (b"", send(1, 4, plain)):
        *_, refused, after = cut(cutter(), before + send(1, 5, forged) + send(1, 6, plain))
        assert isinstance(refused, BadSend) and "where a message was replicated from" in refused.reason
        assert isinstance(after, SendRun)


@pytest.mark.parametrize("tag", [b"\xa0\x01", b"\xa0\x81\x00", b"\xa0\x81\x80\x00", b"\xa0\x81\x80\x80\x00"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_marker_in_the_metadata_is_refused_however_long_its_tag_is(tag: bytes, batch: int) -> None:
    """A cluster of Pulsar's, to which a link would bring it, moves a subscription by it."""
    plain, marked = entry(b"x"), with_metadata(entry(b"x" * 30, batch=batch), tag + b"\x0c")
    assert pb.MessageMetadata.FromString(bytes(marked)[10:-30]).marker_type == 12
    said = {"num_messages": batch} if batch > 1 else {}
    assert cutter().lone(send(1, 5, marked, **said)) is None
    for before in (b"", send(1, 4, plain), send(1, 3, plain) + send(1, 4, plain)):
        *_, refused, after = cut(cutter(), before + send(1, 5, marked, **said) + send(1, 6, plain))
        assert isinstance(refused, BadSend) and "only a replicator may send markers" in refused.reason
        assert isinstance(after, SendRun)


def with_metadata(stored: bytes, more: bytes) -> bytes:
    """The same entry, these bytes behind its metadata."""
    size = int.from_bytes(stored[6:10], "big")
    body = (size + len(more)).to_bytes(4, "big") + bytes(stored[10 : 10 + size]) + more + bytes(stored[10 + size :])
    return b"\x0e\x01" + crc32c.crc32c(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("producer", ["\u0100\u02aa\x00*", "\u0820\x01", "\u0820\u0801"])
def test_bytes_that_are_like_such_a_tag_refuse_nothing(producer: str) -> None:
    stored = entry(b"x", producer=producer)
    assert any(tag in bytes(stored) for tag in (b"\xaa\x00*", b"\xa0\x01", b"\xa0\x81"))
    (only,) = cut(cutter(), b"".join(send(1, n, stored) for n in range(3)))
    assert only.run.count == 3


def long_tagged(stored: bytes, tag: bytes) -> bytes:
    """The same entry, the tag of its `replicated_from` written in more bytes."""
    size = int.from_bytes(stored[6:10], "big")
    metadata = bytes(stored[10 : 10 + size]).replace(b"\x2a\x02eu", tag + b"\x02eu")
    body = len(metadata).to_bytes(4, "big") + metadata + bytes(stored[10 + size :])
    return b"\x0e\x01" + crc32c.crc32c(body).to_bytes(4, "big") + body


def test_any_field_order_and_unknown_fields() -> None:
    stored = entry(b"x" * 12)
    inner = b"\x18\x02" + b"\x10" + varint(70_000) + b"\xf8\x06\x01" + b"\x08" + varint(300)
    body = b"\x32" + varint(len(inner)) + inner + b"\x08\x06"
    data = struct.pack(">II", len(body) + 4 + len(stored), len(body)) + body + stored
    (only,) = cut(cutter(), data)
    assert only.segments == [(300, [70_000], None)] and list(only.run.counts) == [2]


def test_no_checksum_is_stored_as_it_came() -> None:
    stored = entry(b"x")[6:]
    (only,) = cut(cutter(), send(1, 1, stored))
    assert bytes(only.run.parts[0]) == stored


def test_what_is_not_stored() -> None:
    stored = entry(b"x" * 50)
    good = send(1, 1, stored)
    damaged = send(1, 2, stored[:30] + b"?" + stored[31:])
    events = cut(
        cutter(), good + damaged + send(9, 3, stored) + send(1, 4, stored, txnid_most_bits=1, txnid_least_bits=1) + good
    )
    assert [type(e) for e in events] == [SendRun, BadSend, StraySend, SendRun, SendRun]
    assert events[1].checksum
    forged = send(1, 5, entry(b"x", replicated_from="eu"))
    assert isinstance(cut(cutter(), forged)[0], BadSend)
    assert [type(e) for e in cut(cutter(), good + good + forged)] == [SendRun, BadSend]
    assert isinstance(cut(cutter(), send(1, 5, entry(b"x", producer="***")))[0], SendRun)


def test_a_batch_is_taken_that_can_hold_what_it_says() -> None:
    """In one read with others, and alone; whatever else of its metadata looks like the count's tag."""
    for fields in (
        {"batch": 1, "payload": b"123456"},
        {"batch": 5, "payload": b"x" * 30},
        {"batch": 5, "payload": b"z", "compression": pb.LZ4, "uncompressed_size": 30},
        {"batch": 5, "payload": b"x" * 30, "partition_key": "XX"},
        {"payload": b"x", "partition_key": "X"},
        {"payload": b"x", "partition_key": "X\x05"},
    ):
        stored = entry(**fields)  # type: ignore[arg-type]
        said = {"num_messages": fields["batch"]} if fields.get("batch", 1) != 1 else {}
        for reads in ([send(1, 1, stored, **said)], [send(1, 0, entry(b"a")) + send(1, 1, stored, **said)]):
            (event,) = cut(cutter(), *reads)
            assert isinstance(event, SendRun) and bytes(event.run.parts[-1]) == stored
        assert (cutter().lone(send(1, 1, stored)) is None) or "batch" not in fields


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (entry(b"", batch=300_000), {}),
        (entry(b"", batch=2**31 - 1), {}),
        (entry(b"x" * 11, batch=2), {}),
        (entry(b"x" * 11, batch=2), {"num_messages": 2}),
        (entry(b"x" * 60, num_messages_in_batch=-1), {}),
        (entry(b"x" * 60, num_messages_in_batch=0), {}),
        (entry(b"x" * 60, batch=10), {"num_messages": 11}),
        (entry(b"x" * 60), {"num_messages": 2**31 - 1}),
        (entry(b"x" * 60, batch=5, compression=pb.ZLIB, uncompressed_size=29), {}),
        (entry(b"x", batch=1 << 20, compression=pb.ZLIB, uncompressed_size=2**32 - 1), {"num_messages": 1 << 20}),
        (entry(bytes(2 << 20), batch=300_000), {"num_messages": 300_000}),
    ],
)
def test_a_count_that_cannot_be_true_is_refused(stored: bytes, said: dict[str, int]) -> None:
    good, bad = send(1, 1, entry(b"x")), send(1, 2, stored, **said)
    assert cutter().lone(bad) is None
    for data in (bad, good + bad, bad[:9] + bad[9:]):
        event = cut(cutter(), data)[-1]
        assert isinstance(event, BadSend) and event.sequence == 2 and "in a batch" in event.reason
    # an entry without a checksum goes another way
    assert isinstance(cut(cutter(), send(1, 2, stored[6:], **said))[0], BadSend)


def test_a_cluster_that_says_what_cannot_be_true_is_held_up_by_nothing() -> None:
    made = cutter()
    made.replicators[7] = "cloud"
    (event,) = cut(made, send(7, 1, entry(b"x", batch=9000, replicated_from="cloud"), num_messages=9000))
    assert isinstance(event, ReplicatedSend) and event.messages == 1


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">II", FRAME_BYTES_MAX + 1, 4),
        struct.pack(">II", 8, 5),
        struct.pack(">II", 8, 0) + bytes(4),
        struct.pack(">II", 6, 2) + b"\xff\xff",
        struct.pack(">II", 8, 4) + b"\x08\xe8\x07\x00",
        send(1, 1 << 63, entry(b"x")),
        send(1, 1, b"\x0e\x01\x00"),
        send(1, 1, struct.pack(">I", 999) + b"x"),
        send(1, 1, entry(b"x"), num_messages=0),
        send(1, 1, b""),
        frame(K.SEND, producer_id=1, sequence_id=1),
    ],
)
def test_nonsense_is_a_peer_error(data: bytes) -> None:
    with pytest.raises(PeerError):
        cut(cutter(), data)


def test_the_limit_counts_before_the_frame_is_whole() -> None:
    made = FrameCutter(bytes_max=100)
    with pytest.raises(PeerError):
        cut(made, struct.pack(">II", 101, 50))


def command_of(kind: int, size_bytes: int, *, end: bytes = b"") -> bytes:
    """A frame of a command of so many bytes, most of which no version knows. end: what follows it."""
    whole = frame(kind, **FIELDS[kind])[8:]
    missing = size_bytes - len(whole) - len(end)
    filler = b"\xfa\x7f" + varint(missing - 5) + bytes(missing - 5)
    body = whole + filler + end
    assert len(body) == size_bytes
    return struct.pack(">II", len(body) + 4, len(body)) + body


FIELDS: dict[int, dict[str, Any]] = {
    K.LOOKUP: {"topic": "t", "request_id": 1},
    K.SUBSCRIBE: {"topic": "t", "subscription": "s", "subType": 0, "consumer_id": 1, "request_id": 1},
    K.REDELIVER_UNACKNOWLEDGED_MESSAGES: {"consumer_id": 1},
    K.ACK: {"consumer_id": 1, "ack_type": 0},
}


@pytest.mark.parametrize("kind", FIELDS)
def test_a_command_is_bounded_by_its_kind_before_it_is_worked_through(kind: int) -> None:
    size_max = COMMAND_BYTES_MAX_OF.get(kind, COMMAND_BYTES_MAX)
    (taken,) = cut(cutter(), command_of(kind, size_max))
    assert taken.type == kind
    with pytest.raises(PeerError, match=f"at most {size_max} "):
        cut(cutter(), command_of(kind, size_max + 1))


def test_a_command_that_says_its_kind_twice_is_bounded_by_what_it_is() -> None:
    with pytest.raises(PeerError, match=f"at most {COMMAND_BYTES_MAX} "):
        lookup = frame(K.LOOKUP, topic="t", request_id=1)[8:]
        cut(cutter(), command_of(K.ACK, COMMAND_BYTES_MAX + 1, end=lookup))


def test_texts_are_looked_at_where_there_are_some_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    check, looked_at = frame_cutter._check_texts, list[Any]()

    def counted(message: Any, before: int) -> int:
        looked_at.append(message)
        return check(message, before)

    monkeypatch.setattr(frame_cutter, "_check_texts", counted)
    most = frame_cutter._TEXTS_MAX
    ids = [pb.MessageIdData(ledgerId=200, entryId=n) for n in range(most + 1)]
    (taken,) = cut(cutter(), frame(K.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=ids))
    assert len(taken.redeliverUnacknowledgedMessages.message_ids) == most + 1 and not looked_at
    (taken,) = cut(cutter(), frame(K.ADD_PARTITION_TO_TXN, request_id=1, partitions=["é"] * (most - 10)))
    assert len(taken.addPartitionToTxn.partitions) == most - 10 and len(looked_at) == 2
    with pytest.raises(PeerError, match=f"{most} fields"):
        cut(cutter(), frame(K.ADD_PARTITION_TO_TXN, request_id=1, partitions=["é"] * (most + 1)))
    pairs = [pb.KeyValue(key="é", value="v")] * (most // 3 + 1)
    with pytest.raises(PeerError, match=f"{most} fields"):  # elements of elements too
        cut(cutter(), frame(K.PRODUCER, topic="t", producer_id=1, request_id=1, metadata=pairs))


def test_private_commands_only_where_they_are_allowed() -> None:
    content = b"\x81\xa1a\x01"
    body = b"\x08" + varint(1003) + varint(1003 << 3 | 2) + varint(len(content)) + content
    data = struct.pack(">II", len(body) + 4 + 5, len(body)) + body + b"bytes"
    assert plain(cut(cutter(private=True), data)) == [(1003, content, b"bytes")]
    with pytest.raises(PeerError):
        cut(cutter(), data)


def test_a_large_entry_is_copied_once_however_it_comes() -> None:
    data = send(1, 1, entry(bytes(4 << 20)))
    made = cutter()
    joined = 0
    for i in range(0, len(data), 1 << 16):
        for event in made.feed(data[i : i + (1 << 16)]):
            joined += 1
            assert isinstance(event.run.parts[0], memoryview)
        assert len(made._parts) <= (i >> 16) + 1
    assert joined == 1 and made.waiting_bytes == 0


def test_a_small_large_entry_does_not_pin_its_block() -> None:
    data = frame(K.LOOKUP, topic="t" * 4000, request_id=1) * 10 + send(1, 1, entry(bytes(3000)))
    events = cut(cutter(), data)
    assert isinstance(events[-1].run.parts[0], bytes)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_streams_raise_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        data = bytearray(stream(rng))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            cut(cutter(private=rng.random() < 0.5), bytes(data[: rng.randrange(len(data) + 1)]))
        except PeerError:
            pass


@pytest.mark.parametrize("seed", range(20))
def test_a_lone_send_is_what_feed_makes_of_it(seed: int) -> None:
    rng = random.Random(seed)
    taken = 0
    for _ in range(200):
        stored = entry(b"x" * rng.randrange(60), **({"replicated_from": "eu"} if rng.random() < 0.1 else {}))
        fields = rng.choice([{}, {}, {}, {"num_messages": 1}, {"num_messages": 2}, {"highest_sequence_id": 9}])
        data = bytearray(
            send(
                rng.choice([1, 2, 9, 200, 300, 2120]),
                rng.choice([0, 5, 200, 20_000, 1 << 30, 1 << 40]),
                stored,
                **fields,
            )
        )
        if rng.random() < 0.4:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        data = data[: rng.randrange(len(data) + 1)] if rng.random() < 0.1 else data
        made, reference = cutter(), cutter()
        for other in (made, reference):
            other.producers.update({200: (object(), "e")})
        lone = made.lone(bytes(data))
        if lone is not None:
            taken += 1
            (whole,) = cut(reference, bytes(data))
            assert plain([lone]) == plain([whole])
            assert (lone.run.producers, lone.run.counts, lone.run.flags) == (
                whole.run.producers,
                whole.run.counts,
                whole.run.flags,
            )
    assert taken > 5


def test_a_lone_send_behind_half_a_frame_is_left_to_feed() -> None:
    made, whole = cutter(), send(1, 1, entry(b"x" * 50))
    assert made.lone(whole) is not None
    assert cut(made, whole[:10]) == []
    assert made.lone(whole[10:]) is None and made.lone(whole) is None
