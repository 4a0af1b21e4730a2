"""Cases for Pulsar's listener in which each field is right but one, alone and behind a sign-in, a producer, a consumer.

Is: `PulsarCases`, each a function of (seed, number) alone; the number goes through all fields of all commands.
Isn't: sending them (`tests.region_node.faces.hostile_lines`).

A field gets its value by being written once more behind the valid message: the last one counts, and so any bytes can
be said of any field, those that no library would write among them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

import crc32c
from google.protobuf.message import DecodeError

from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.commands.command_table import SERVED
from tests.region_node.faces.hostile_lines import MARK, OPENED, Case, Opening, Step
from tests.region_node.faces.hostile_values import NAMES, VARINTS, integers, lengths, varint
from tests.region_node.faces.pulsar.codec import FIELDS, command, frame
from tests.region_node.faces.pulsar.harness import K

TOPIC = "persistent://shop/live/orders"
COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign-partition-1"
DEPTH_MAX = 3
MANY = 1000
CLIENT_KINDS = list(SERVED)
ANSWERED = {
    kind for kind in CLIENT_KINDS if kind != K.ACK and hasattr(getattr(pb.BaseCommand(), FIELDS[kind]), "request_id")
}
"""By a frame that names the request; an ACK only where it asks for that."""
LEAVES = {
    K.CONNECT,
    K.AUTH_RESPONSE,
    K.PRODUCER,
    K.CLOSE_PRODUCER,
    K.SUBSCRIBE,
    K.CLOSE_CONSUMER,
    K.UNSUBSCRIBE,
    K.SEEK,
}
"""Behind these a connection is another: what other cases rely on may be gone, or be somebody else's."""
NAMES_REQUEST = {kind for kind in FIELDS if kind > 1 and hasattr(getattr(pb.BaseCommand(), FIELDS[kind]), "request_id")}
MADE, CLOSING = {K.PRODUCER, K.SUBSCRIBE}, {K.CLOSE_PRODUCER, K.CLOSE_CONSUMER, K.UNSUBSCRIBE}
PUBLISHING = {K.SEND, 0, -1, -2}
PING = frame(K.PING)
ORDER = "an order of commands"
UNOPENED = 0.75
"""Part of the cases that surely close their connection for which no producer and no consumer is opened before."""
FIRST_REQUEST = 1 << 40
"""Of the cases; openings, and what is hostile, have others."""


def tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def sized(number: int, data: bytes) -> bytes:
    return tag(number, 2) + varint(len(data)) + data


def variants(field: Any) -> list[bytes]:
    """The field with each value that it should not have, as bytes with its tag."""
    number = field.number
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES, field.TYPE_MESSAGE):
        names = NAMES if field.type == field.TYPE_STRING else (*NAMES[:3], b"\xff" * 9, b"x" * 70_000)
        found = [sized(number, name) for name in names]
        found += [tag(number, 2) + varint(size) + b"abc" for size in lengths(3)]
        found += [tag(number, 2) + raw for raw in VARINTS]
        right = 2
    elif field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        width, code, right = (8, "<d", 1) if field.type == field.TYPE_DOUBLE else (4, "<f", 5)
        found = [tag(number, right) + struct.pack(code, one) for one in (0.0, -1.0, float("nan"), float("inf"))]
        found.append(tag(number, right) + b"\xff" * (width - 1))
    else:
        found = [tag(number, 0) + varint(one) for one in integers(64)]
        found += [tag(number, 0) + raw for raw in VARINTS]
        right = 0
    if field.is_repeated:
        one = sized(number, b"") if right == 2 else tag(number, 0) + b"\x01"
        found += [one * 2, one * MANY]
    found += [tag(number, wire) + b"\x01" * 9 for wire in range(8) if wire != right]
    return found


def spots(descriptor: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Each field of the message, and of those in it."""
    for field in descriptor.fields:
        yield (*path, field)
        if (
            field.type == field.TYPE_MESSAGE
            and len(path) < DEPTH_MAX
            and field.message_type not in (one.message_type for one in path)
        ):
            yield from spots(field.message_type, (*path, field))


def within(path: tuple[Any, ...], raw: bytes) -> bytes:
    """`raw`, a field with its tag, in the messages that it lies in."""
    for field in reversed(path[:-1]):
        raw = sized(field.number, raw)
    return raw


@cache
def plan() -> list[tuple[str, int, bytes]]:
    """(what it is, the command's kind, what is written behind it); kind 0: behind an entry's metadata, -1: behind the
    metadata of a message in a batch, -2: in place of the frame's own numbers.
    """
    found = []
    for kind in FIELDS:
        if kind == 1:
            continue
        base = pb.BaseCommand.DESCRIPTOR.fields_by_number[kind]
        for path in spots(base.message_type, (base,)):
            about = ".".join(field.name for field in path[1:])
            every = variants(path[-1])
            for raw in every if kind in CLIENT_KINDS else every[:2]:
                found.append((f"{base.name}.{about}", kind, within(path, raw)))
    for kind, made in ((0, pb.MessageMetadata), (-1, pb.SingleMessageMetadata)):
        for path in spots(made.DESCRIPTOR):
            about = ".".join(field.name for field in path)
            found += [(f"{made.DESCRIPTOR.name}.{about}", kind, within(path, raw)) for raw in variants(path[-1])]
    for spot in range(6):
        for value in integers(32, 20):
            found.append((f"frame, number {spot}", -2, struct.pack(">BI", spot, value & 0xFFFFFFFF)))
    return found


def sensible(rng: random.Random, field: Any, depth: int) -> Any:
    """What a client that means well would say."""
    if field.type == field.TYPE_MESSAGE:
        made = field.message_type._concrete_class()
        fill(rng, made, depth + 1)
        return made
    if field.type == field.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if field.type == field.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == field.TYPE_STRING:
        named = {"namespace": "shop/live", "subscription": "f", "topics_pattern": "persistent://shop/live/.*"}
        return named.get(field.name, TOPIC if "topic" in field.name else rng.choice(("a", "b")))
    if field.type == field.TYPE_BYTES:
        return b"{}"
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        return 1.5
    return {"ledgerId": rng.randrange(8), "entryId": rng.randrange(50), "protocol_version": 21}.get(field.name, 1)


def fill(rng: random.Random, made: Any, depth: int = 0) -> None:
    for field in made.DESCRIPTOR.fields:
        if field.is_required or (depth < DEPTH_MAX and rng.random() < 0.4):
            if field.is_repeated:
                getattr(made, field.name).extend(sensible(rng, field, depth) for _ in range(rng.randrange(3)))
            elif field.type == field.TYPE_MESSAGE:
                getattr(made, field.name).CopyFrom(sensible(rng, field, depth))
            else:
                setattr(made, field.name, sensible(rng, field, depth))


def valid(rng: random.Random, kind: int, request: int = 1) -> bytes:
    """A command, without the frame's numbers. request: its id, where it has one."""
    made = pb.BaseCommand(type=kind)  # type: ignore[arg-type]
    part = getattr(made, FIELDS[kind])
    part.SetInParent()
    fill(rng, part)
    if kind in ANSWERED:
        part.request_id = request
    return made.SerializePartialToString()


def closes(kind: int, body: bytes) -> bool:
    """Whether a broker surely closes a connection on which it comes."""
    made = pb.BaseCommand()
    try:
        made.ParseFromString(body)
    except DecodeError:
        return True
    return kind not in CLIENT_KINDS or not made.IsInitialized()


def framed(body: bytes, stored: bytes = b"") -> bytes:
    return struct.pack(">II", len(body) + 4 + len(stored), len(body)) + body + stored


def entry(metadata: bytes, payload: bytes) -> bytes:
    rest = struct.pack(">I", len(metadata)) + metadata + payload
    return b"\x0e\x01" + struct.pack(">I", crc32c.crc32c(rest)) + rest


def publish(rng: random.Random, kind: int, raw: bytes, sequence: int = 1) -> bytes:
    """SEND of an entry. kind: where `raw` stands; 1: nowhere."""
    batched = kind == -1 or rng.random() < 0.3
    fields: dict[str, Any] = {"num_messages_in_batch": 2} if batched else {}
    if rng.random() < 0.2:
        fields["partition_key"] = "k"
    metadata = pb.MessageMetadata(producer_name="a", sequence_id=sequence, publish_time=1, **fields)
    payload = b"text"
    if batched:
        single = pb.SingleMessageMetadata(payload_size=4).SerializeToString() + (raw if kind == -1 else b"")
        payload = (struct.pack(">I", len(single)) + single + b"text") * 2
    made = metadata.SerializeToString() + (raw if kind == 0 else b"")
    sent = command(K.SEND, producer_id=1, sequence_id=sequence, num_messages=2 if batched else 1)
    data = bytearray(framed(sent.SerializeToString(), entry(made, payload)))
    if kind == -2:
        at = 8 + struct.unpack_from(">I", data, 4)[0]
        spot, value = struct.unpack(">BI", raw)
        struct.pack_into(">I", data, (0, 4, at - 2, at, at + 2, at + 6)[spot], value)
    return bytes(data)


class PulsarCases:
    """`case(seed, number)`; tokens: letter -> the token of a role."""

    face = "pulsar"
    module = "tests.region_node.faces.pulsar.fuzz"

    def __init__(self, tokens: dict[str, str]) -> None:
        self.tokens = tokens
        self._openings: dict[str, Opening] = {}

    def request(self, body: bytes) -> int:
        kind = body[5]  # behind the command's size, and the tag of its type
        if kind == K.PONG:
            return MARK
        if kind == K.CONNECTED:
            return OPENED
        if kind not in NAMES_REQUEST:
            return 0
        return int(getattr(self._read(body), FIELDS[kind]).request_id)

    def refuses(self, case: Case, body: bytes) -> bool:
        kind = body[5]
        if kind == K.ERROR:
            return True
        answer = getattr(self._read(body), FIELDS[kind])
        return any(
            answer.HasField(name) for name in ("error", "error_code") if name in answer.DESCRIPTOR.fields_by_name
        )

    def _read(self, body: bytes) -> pb.BaseCommand:
        return pb.BaseCommand.FromString(body[4 : 4 + int.from_bytes(body[:4], "big")])

    def case(self, seed: int, number: int) -> Case:
        rng = random.Random(f"{seed} pulsar {number}")
        every = plan()
        about, kind, raw = every[(number * 7919 + seed) % len(every)]
        letter = rng.choice("nngocptttttt")
        request = FIRST_REQUEST + number if kind in ANSWERED and not about.endswith(".request_id") else 0
        publishes = kind in PUBLISHING
        if rng.random() < 0.15:
            kinds = [rng.choice(CLIENT_KINDS) for _ in range(rng.randrange(2, 8))]
            about, request, last, ends, marked = ORDER, 0, True, False, True
            hostile = b"".join(framed(valid(rng, one)) for one in kinds)
        else:
            hostile, ends = self._hostile(rng, letter, kind, raw, FIRST_REQUEST + number)
            last, marked = ends or letter == "n" or kind in LEAVES or kind == -2, kind != -2
            if rng.random() < 0.3:
                _, other, behind = rng.choice(every)
                more, closing = self._hostile(rng, letter, other, behind, 1)
                hostile, ends = hostile + more, ends or closing
                last = last or closing or other in LEAVES or other == -2
                publishes, marked = publishes or other in PUBLISHING, marked and other != -2
                if kind in MADE and other in CLOSING:
                    request = 0  # what is closed before it is made is not answered, as in Pulsar
        begins = kind == K.CONNECT and about != ORDER
        stages = 0
        if letter != "n" and not begins and not (ends and rng.random() < UNOPENED):
            stages = rng.randrange(4) if kind > 1 else 1 | rng.randrange(4)
            if kind in (K.SEND, K.CLOSE_PRODUCER):
                stages |= 1
            elif kind in (K.FLOW, K.ACK, K.SEEK, K.UNSUBSCRIBE, K.CLOSE_CONSUMER, K.GET_LAST_MESSAGE_ID):
                stages |= 2
        opening = self._opening("" if begins else letter, stages, rng.randrange(4), kind)
        data = b""
        if stages & 2:
            data += frame(K.FLOW, consumer_id=1, messagePermits=rng.randrange(1, 20))
        if stages & 1 and rng.random() < 0.5:
            data += publish(rng, 1, b"")
            publishes = True
        return Case(
            about,
            letter,
            opening,
            data + hostile + PING,
            request,
            asks=bool(request),
            last=last,
            pauses=publishes,
            marked=marked,
        )

    def _opening(self, letter: str, stages: int, shared: int, kind: int) -> Opening:
        """letter: who signs in; "n" and "": nobody does."""
        coordinates = letter in ("t", "p") and kind > 1 and "TXN" in K.Type.Name(kind)
        name = f"{letter}{stages}{shared if stages & 2 else ''}{'txn' if coordinates else ''}"
        if name not in self._openings:
            self._openings[name] = Opening(name, self._steps(letter, stages, shared, coordinates), letter in ("g", "c"))
        return self._openings[name]

    def _steps(self, letter: str, stages: int, shared: int, coordinates: bool) -> tuple[Step, ...]:
        if letter in ("n", ""):
            return ()
        data, wanted = framed(self._connect(letter)), {OPENED}
        if stages & 1:
            data += frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1)
            wanted.add(1)
        if stages & 2:
            data += frame(
                K.SUBSCRIBE, topic=TOPIC, subscription="efgh"[shared], subType=shared, consumer_id=1, request_id=2
            )
            wanted.add(2)
        if not coordinates:
            return (Step(data, frozenset(wanted), together=not stages),)
        first = Step(data + frame(K.LOOKUP, topic=COORDINATOR, request_id=3), frozenset({*wanted, 3}))
        begin = frame(K.NEW_TXN, request_id=5, txn_ttl_millis=60_000, tc_id=1)
        return first, Step(frame(K.TC_CLIENT_CONNECT_REQUEST, request_id=4, tc_id=1) + begin, frozenset({4, 5}))

    def _hostile(self, rng: random.Random, letter: str, kind: int, raw: bytes, request: int) -> tuple[bytes, bool]:
        """(what is hostile, whether it surely closes a connection)."""
        if kind == K.CONNECT:
            body = self._connect(letter) + raw
            return framed(body), closes(kind, body)
        if kind > 1:
            body = valid(rng, kind, request) + raw
            stored = entry(b"\x0a\x01a\x10\x01\x18\x01", b"text") if kind == K.SEND else b""
            return framed(body, stored), closes(kind, body)
        return publish(rng, kind, raw, rng.randrange(100)), False

    def _connect(self, letter: str) -> bytes:
        """Without the frame's numbers."""
        made = command(K.CONNECT, client_version="f", protocol_version=21)
        if letter != "n":
            made.connect.auth_method_name, made.connect.auth_data = "token", self.tokens[letter].encode()
        return made.SerializeToString()
