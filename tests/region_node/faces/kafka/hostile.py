"""Cases for Kafka's listener in which each field is right but one, alone and behind a sign-in and an honest request.

Is: `KafkaCases`, each a function of (seed, number) alone; the number goes through all requests and their versions.
Isn't: sending them (`tests.region_node.faces.hostile_lines`).

A request is written as parts, a number, a length with what it counts, or a count each, and one part is replaced.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import crc32c

from heliograph.model.errors import PeerError
from heliograph.wire.kafka.message_codec import BY_NAME, Api, decode_fields, encode_varint
from heliograph.wire.kafka.record_batches import build_batch
from region_node.faces.kafka.connection.request_table import BEFORE_LOGIN
from tests.region_node.faces.hostile_lines import MARK, Case, Opening, Step
from tests.region_node.faces.hostile_values import NAMES, VARINTS, lengths, packed
from tests.region_node.faces.kafka.harness import request

TOPIC = "shop/live/orders"
MANY = 1000
HEADS = 0.05
"""Part of the cases whose head is hostile: it is the same of all requests."""
HOSTILE, HONEST, SHAKEN, SIGNED_IN, MARKED = 1, 2, 3, 4, 9
"""Correlations. Answers come in the order of their requests: when the mark's is there, those before it are, or were not
wanted.
"""
NAMES_OF_REQUESTS = sorted(BY_NAME)
LOOKED_INTO = sorted(BEFORE_LOGIN)
"""Of what nobody sends; nothing but its kind is read of the others."""
SIGN_INS = (b"\0u\0p", b"\0\0", b"n,,n=u,r=x", b"n,a=root,n=u,r=x", b"p=x,,n=u,r=", b"n,,n==,r=x", b"c=biws,r=x,p=!")
_TOPICS = ("topic", "topic_name", "name", "resource_name")
_HEADER = (("base offset", 0, 64), ("length", 8, 32), ("leader epoch", 12, 32), ("magic", 16, 8), ("checksum", 17, 32))
_CHECKED = (
    ("attributes", 21, 16),
    ("last offset delta", 23, 32),
    ("first time", 27, 64),
    ("highest time", 35, 64),
    ("producer", 43, 64),
    ("epoch", 51, 16),
    ("sequence", 53, 32),
    ("count", 57, 32),
)


class Part(NamedTuple):
    """`others`: what may stand there instead."""

    about: str
    data: bytes
    others: Callable[[], list[bytes]]


def zigzag(value: int) -> bytes:
    return encode_varint((value << 1 ^ value >> 63) & (1 << 64) - 1)


def batch(rng: random.Random) -> tuple[str, bytes]:
    """(what is wrong with it, a record batch): one number of it, with the checksum made right again, or not."""
    records = [(1, b"k", b"text", ((b"h", b"v"),)), (2, None, None, ())]
    out = bytearray(build_batch(records, codec=rng.choice((0, 0, 0, 1, 2, 3, 4))))
    kind = rng.randrange(4)
    if kind == 0:
        return "nothing", bytes(out)
    if kind == 1:
        about, at, bits = rng.choice(_HEADER)
        real = int.from_bytes(out[at : at + bits // 8], "big")
        out[at : at + bits // 8] = rng.choice(packed(bits, real))
        return about, bytes(out)
    if kind == 2:
        about, at, bits = rng.choice(_CHECKED)
        real = int.from_bytes(out[at : at + bits // 8], "big")
        out[at : at + bits // 8] = rng.choice(packed(bits, real))
    else:
        about = _wrong_record(rng, out)
    struct.pack_into(">I", out, 17, crc32c.crc32c(bytes(out[21:])))
    return about, bytes(out)


def _wrong_record(rng: random.Random, out: bytearray) -> str:
    """Replaces the records by one with a varint that is not true."""
    real = [12, 0, 0, 1, 4, 0]
    names = ("size", "time", "offset", "key's length", "value's length", "count of headers")
    spot = rng.randrange(len(names))
    pieces = [zigzag(one) for one in real]
    pieces[spot] = rng.choice([*VARINTS, *(zigzag(one) for one in (-1, -2, 1 << 31, -(1 << 31), *lengths(real[spot])))])
    size, time, offset, key, value, headers = pieces
    out[61:] = size + b"\0" + time + offset + key + b"k" + value + b"text" + headers
    out[57:61] = b"\0\0\0\1"
    out[23:27] = bytes(4)
    out[21:23] = b"\0\0"
    struct.pack_into(">i", out, 8, len(out) - 12)
    return f"a record's {names[spot]}"


class Writer:
    """One request as parts."""

    def __init__(self, rng: random.Random, version: int, flexible: bool) -> None:
        self.rng, self.version, self.flexible = rng, version, flexible
        self.parts: list[Part] = []

    def number(self, about: str, value: int, bits: int) -> None:
        data = (value & (1 << bits) - 1).to_bytes(bits // 8, "big")
        self.parts.append(Part(about, data, lambda: packed(bits, value)))

    def length(self, size: int, short: bool) -> bytes:
        if self.flexible:
            return encode_varint(size + 1)
        return (size & 0xFFFF).to_bytes(2, "big") if short else (size & 0xFFFFFFFF).to_bytes(4, "big")

    def false_lengths(self, size: int, short: bool) -> list[bytes]:
        if self.flexible:
            return [*VARINTS, *(encode_varint(one) for one in lengths(size + 1))]
        return packed(16 if short else 32, size)

    def text(self, about: str, value: bytes) -> None:
        def others() -> list[bytes]:
            return [self.length(len(one), True) + one for one in NAMES if self.flexible or len(one) < 1 << 15] + [
                one + value for one in self.false_lengths(len(value), True)
            ]

        self.parts.append(Part(about, self.length(len(value), True) + value, others))

    def buffer(self, about: str, value: bytes) -> None:
        self.parts.append(
            Part(
                about,
                self.length(len(value), False) + value,
                lambda: (
                    [one + value for one in self.false_lengths(len(value), False)]
                    + [self.length(len(one), False) + one for one in (b"", b"\0", b"\xff" * 9, b"x" * 70_000)]
                ),
            )
        )

    def count(self, about: str, real: int) -> None:
        self.parts.append(Part(f"{about}, count", self.length(real, False), lambda: self.false_lengths(real, False)))

    def structure(self, fields: Any, about: str) -> None:
        for field in fields:
            if field.there(self.version) and field.tag < 0:
                self.field(field, f"{about}.{field.name}", field.depth)
        if self.flexible:
            tags = [*VARINTS, b"\x01\x00\x00", b"\x01\x00\x01\x00", b"\x01\x7f\xff\x0f", b"\x02\0\0\0\0", b"\x7f"]
            self.parts.append(Part(f"{about}, tags", b"\0", lambda: tags))

    def field(self, field: Any, about: str, depth: int) -> None:
        if depth:
            many = field.kind != "struct" and self.rng.random() < 0.02
            real = MANY if many else self.rng.choice((1, 1, 1, 0, 2))
            self.count(about, real)
            for _ in range(real):
                self.field(field, about, depth - 1)
            return
        match field.kind:
            case "struct":
                if self.version >= field.nullable and not field.depth:
                    self.number(f"{about}, there", 1, 8)
                self.structure(field.fields, about)
            case "str":
                self.text(about, self._name(field.name))
            case "bytes":
                self.buffer(about, self.rng.choice(SIGN_INS) if field.name == "auth_bytes" else b"text")
            case "records":
                wrong, data = batch(self.rng)
                self.buffer(f"{about} ({wrong})", data)
            case "bool":
                self.number(about, self.rng.randrange(2), 8)
            case "uuid":
                self.parts.append(Part(about, bytes(16), lambda: [b"\xff" * 16, b"\1" * 16, b"\1" * 15]))
            case "f64":
                values = [struct.pack(">d", one) for one in (0.0, -1.0, 1e300, float("nan"), float("inf"))]
                self.parts.append(Part(about, values[1], lambda: values))
            case kind:
                self.number(about, self._value(field.name), int(kind[1:]))

    def _name(self, name: str) -> bytes:
        if name in _TOPICS:
            return TOPIC.encode()
        return b"range" if "protocol" in name else b"consumer" if name == "protocol_type" else b"g"

    def _value(self, name: str) -> int:
        if "timeout" in name or name == "max_wait":
            return 6000 if "session" in name else 50
        return {"acks": -1, "partition_max_bytes": 4096, "max_bytes": 8192, "num_partitions": 1}.get(
            name, self.rng.choice((0, 0, 1, -1))
        )


def frame(api: Api, version: int, writer: Writer, correlation: int) -> None:
    """Begins the request with its head."""
    flexible, writer.flexible = writer.flexible, False
    writer.number("head.api", api.key, 16)
    writer.number("head.version", version, 16)
    writer.number("head.correlation", correlation, 32)
    writer.text("head.client", b"f")
    if flexible:
        writer.parts.append(Part("head, tags", b"\0", lambda: [*VARINTS, b"\x01\x00\x00", b"\x7f"]))
    writer.flexible = flexible


def read_answer(name: str, version: int, body: bytes) -> Any:
    """Raises ValueError."""
    api = BY_NAME[name]
    if name == "api_versions" and body[4:6] == b"\0\x23":
        version = 0
    at = 5 if api.is_flexible(version) and name != "api_versions" else 4
    try:
        return decode_fields(name, version, body[at:], answer=True)
    except PeerError as error:
        raise ValueError(f"{name} {version}: {error}") from error


def says_no(answer: Any) -> bool:
    """Whether any code in it is one of an error."""
    if isinstance(answer, list):
        return any(map(says_no, answer))
    return isinstance(answer, dict) and (bool(answer.get("error_code")) or any(map(says_no, answer.values())))


class KafkaCases:
    """`case(seed, number)`; tokens: letter -> the token of a role."""

    face = "kafka"
    module = "tests.region_node.faces.kafka.fuzz"

    def __init__(self, tokens: dict[str, str]) -> None:
        self.tokens = tokens
        self._openings: dict[str, Opening] = {}
        self._mark = request("describe_groups", 0, {"groups": []}, MARKED)
        self._mark_of_nobody = request("api_versions", 0, {}, MARKED)

    def request(self, body: bytes) -> int:
        correlation = int.from_bytes(body[:4], "big", signed=True)
        return MARK if correlation == MARKED else correlation

    def refuses(self, case: Case, body: bytes) -> bool:
        if ": head." in case.about:
            return False  # it may be the answer to another request, or version
        name, _, version = case.about.partition(":")[0].partition(" ")
        return says_no(read_answer(name, int(version), body))

    def case(self, seed: int, number: int) -> Case:
        rng = random.Random(f"{seed} kafka {number}")
        letter = rng.choice("nngocptttttt")
        data = self._honest(rng) if letter != "n" and rng.random() < 0.3 else b""
        name = NAMES_OF_REQUESTS[(number + seed) % len(NAMES_OF_REQUESTS)]
        api = BY_NAME[rng.choice(("produce", "produce", "fetch", name, name, name, name, name))]
        if letter == "n" and rng.random() < 0.75:
            api = BY_NAME[rng.choice(LOOKED_INTO)]
        mechanism = ""
        if api.name == "sasl_authenticate" and letter == "n":
            mechanism = rng.choice(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"))
        version = api.lowest + (number // len(NAMES_OF_REQUESTS)) % (api.highest - api.lowest + 1)
        about, one, whole = self.hostile(rng, api, version)
        last = letter == "n" or not whole or api.name.startswith("sasl_")
        return Case(
            f"{api.name} {version}: {about}",
            letter,
            self._opening(letter, mechanism),
            data + one + (self._mark_of_nobody if letter == "n" else self._mark),
            HOSTILE,
            last=last,
            marked=whole,
        )

    def _opening(self, letter: str, mechanism: str) -> Opening:
        """mechanism: what nobody begins to sign in by."""
        name = letter + mechanism
        if name not in self._openings:
            steps: tuple[Step, ...] = ()
            if letter != "n":
                steps = (Step(self._sign_in(letter), frozenset({SHAKEN, SIGNED_IN}), together=True),)
            elif mechanism:
                shake = request("sasl_handshake", 1, {"mechanism": mechanism}, SHAKEN)
                steps = (Step(shake, frozenset({SHAKEN}), together=True),)
            self._openings[name] = Opening(name, steps, letter in ("g", "c"))
        return self._openings[name]

    def hostile(self, rng: random.Random, api: Api, version: int) -> tuple[str, bytes, bool]:
        """(what is wrong, the frame, whether what follows is read as a frame)."""
        writer = Writer(rng, version, api.is_flexible(version))
        frame(api, version, writer, HOSTILE)
        head = len(writer.parts)
        writer.structure(api.request, "")
        pieces = [part.data for part in writer.parts]
        records = [part.about for part in writer.parts if "records (" in part.about and "nothing" not in part.about]
        about = "; ".join(records[:1])
        if not records or rng.random() < 0.3:
            own = len(pieces) > head and rng.random() >= HEADS
            spot = rng.randrange(head if own else 0, len(pieces) if own else head)
            about = writer.parts[spot].about
            pieces[spot] = rng.choice(writer.parts[spot].others())
        body = b"".join(pieces)
        if rng.random() < 0.03:
            size = rng.choice(lengths(len(body)))
            return f"{about}; the frame's length", (size & 0xFFFFFFFF).to_bytes(4, "big") + body, False
        return about, len(body).to_bytes(4, "big") + body, True

    def _sign_in(self, letter: str) -> bytes:
        plain = b"\0u\0token:" + self.tokens[letter].encode()
        shake = request("sasl_handshake", 1, {"mechanism": "PLAIN"}, SHAKEN)
        return shake + request("sasl_authenticate", 1, {"auth_bytes": plain}, SIGNED_IN)

    def _honest(self, rng: random.Random) -> bytes:
        part = {"index": 0, "records": build_batch([(1, None, b"text", ())])}
        made: dict[str, dict[str, Any]] = {
            "produce": {"acks": -1, "timeout": 1000, "topic_data": [{"name": TOPIC, "partition_data": [part]}]},
            "init_producer_id": {"transactional_id": rng.choice((None, "t")), "transaction_timeout": 10_000},
            "join_group": {
                "group_id": "g",
                "session_timeout": 6000,
                "rebalance_timeout": 50,
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
            },
        }
        name = rng.choice(sorted(made))
        return request(name, {"produce": 7, "init_producer_id": 1, "join_group": 2}[name], made[name], HONEST)
