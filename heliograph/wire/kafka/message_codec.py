"""Kafka requests and answers: bytes to plain dicts and back, for each version of each message.

Is: the reader and writer of one message's version, made from `message_schemas` when it is first needed; request
headers.
Isn't: record batches (`record_batches`), which go through as buffers, or what a request means.
Invariants: whatever bytes come, a request is decoded or PeerError is raised; no array is made that the bytes left could
not fill, and no message has more than ELEMENTS_MAX elements in all its arrays and tagged fields; fields that are given
and not known in a version are left out, fields that are known and not given have their default.
Source: docs/protocols/kafka.md, "Requests".

    frame    u32 size | request: i16 api, i16 version, i32 correlation, str? client [tags] , fields
                      | answer:  i32 correlation [tags], fields
    flexible versions: lengths are varints of length + 1, and each structure ends with its tagged fields
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from heliograph.model.errors import PeerError
from heliograph.wire.kafka.message_schemas import API_ROWS
from heliograph.wire.kafka.produce_codec import decode_produce, encode_produce
from heliograph.wire.run import Buffer

Fields = dict[str, Any]
_LAST = 1 << 15
_I8, _I16, _I32, _I64, _U16, _U32, _F64 = (struct.Struct(f">{code}") for code in "bhiqHId")
_SCALARS = {"i8": _I8, "i16": _I16, "i32": _I32, "i64": _I64, "u16": _U16, "u32": _U32, "f64": _F64}
_NO_UUID = bytes(16)
_FIELD = re.compile(r"(\w+):")
_SUFFIX = re.compile(r"(?:\?(\d*))?(?:@(\d+)(?:-(\d+))?)?(?:#(\d+))?(?:=(-?\d+))?")
UNSUPPORTED_VERSION = 35
ELEMENTS_MAX = 1 << 17
"""More partitions than a client asks one broker for; each element costs far more memory than bytes of its message."""
STEP_ELEMENTS = 512
"""Elements of an answer's arrays that are written before others have their turn: some milliseconds."""
ANSWER_BYTES_MAX = 100_000_000
"""librdkafka takes no larger answer (receive.message.max.bytes), and a broker has other uses for its memory."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: str
    fields: tuple[_Field, ...] = ()
    depth: int = 0
    nullable: int = _LAST
    first: int = 0
    last: int = _LAST
    tag: int = -1
    default: int | None = None

    def there(self, version: int) -> bool:
        return self.first <= version <= self.last


def _parse(text: str, at: int = 0) -> tuple[tuple[_Field, ...], int]:
    """The fields of a structure, up to its closing bracket or the end."""
    fields: list[_Field] = []
    while at < len(text) and text[at] != ")":
        if text[at] == " ":
            at += 1
            continue
        name = _FIELD.match(text, at)
        assert name is not None
        at, depth, kind = name.end(), 0, "struct"
        inner: tuple[_Field, ...] = ()
        while text[at] == "*":
            at, depth = at + 1, depth + 1
        if text[at] == "(":
            inner, at = _parse(text, at + 1)
            at += 1
        else:
            end = at
            while end < len(text) and text[end].isalnum():
                end += 1
            kind, at = text[at:end], end
        suffix = _SUFFIX.match(text, at)
        assert suffix is not None
        null, first, last, tag, default = suffix.groups()
        at = suffix.end()
        fields.append(
            _Field(
                name=name[1],
                kind=kind,
                fields=inner,
                depth=depth,
                nullable=_LAST if null is None else int(null or 0),
                first=int(first or 0),
                last=int(last) if last else _LAST,
                tag=int(tag) if tag else -1,
                default=None if default is None else int(default),
            )
        )
    return tuple(fields), at


class MessageReader:
    """A request's bytes. `view[at:end]` is not read yet. `elements`: how many its arrays and tags may still have."""

    __slots__ = ("at", "elements", "end", "view")

    def __init__(self, view: memoryview, at: int = 0) -> None:
        self.view, self.at, self.end = view, at, len(view)
        self.elements = ELEMENTS_MAX

    def take(self, size: int) -> memoryview:
        start = self.at
        if size < 0 or size > self.end - start:
            raise PeerError(f"kafka: a field of {size} bytes where {self.end - start} are left")
        self.at = start + size
        return self.view[start : start + size]

    def scalar(self, kind: struct.Struct) -> Any:
        if kind.size > self.end - self.at:
            raise PeerError("kafka: the request ends within a field")
        value = kind.unpack_from(self.view, self.at)[0]
        self.at += kind.size
        return value

    def varint(self) -> int:
        value = shift = 0
        while True:
            if self.at >= self.end or shift > 28:
                raise PeerError("kafka: a length that does not end")
            byte = self.view[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def length(self, flexible: bool, short: bool) -> int:
        """Reads how long what follows is; -1: it is null. flexible: a varint. short: else an i16, not an i32."""
        if flexible:
            return self.varint() - 1
        found: int = self.scalar(_I16 if short else _I32)
        return found

    def text(self, flexible: bool) -> str | None:
        size = self.length(flexible, True)
        if size < 0:
            return None
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError as error:
            raise PeerError("kafka: a string that is no UTF-8") from error

    def spend(self, count: int, name: str) -> None:
        """So many elements follow. Raises PeerError: too many in one message."""
        self.elements -= count
        if self.elements < 0:
            raise PeerError(f"kafka: more than {ELEMENTS_MAX} elements, with {count} in {name}; send several requests")

    def tags(self) -> int:
        """Reads how many tagged fields follow: any number may be unknown here, and each costs a turn."""
        count = self.varint()
        if count:
            self.spend(count, "tagged fields")
        return count

    def skip_tags(self) -> None:
        for _ in range(self.tags()):
            self.varint()
            self.take(self.varint())


class _LongMessage(Exception):
    """More elements than may be written in one step."""


class MessageWriter:
    """An answer's bytes, as chunks: large buffers are not copied. `left`: how many elements of arrays this step may
    still have; at_once: there is no other step, and _LongMessage is raised.
    """

    __slots__ = ("at_once", "chunks", "left")

    def __init__(self, left: int = 1 << 62, *, at_once: bool = True) -> None:
        self.chunks: list[Buffer] = []
        self.left, self.at_once = left, at_once

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0 and self.at_once:
            raise _LongMessage

    def varint(self, value: int) -> None:
        self.chunks.append(encode_varint(value))

    def text(self, value: str | None, flexible: bool) -> None:
        if value is None:
            self.chunks.append(b"\0" if flexible else b"\xff\xff")
            return
        data = value.encode()
        if flexible:
            self.varint(len(data) + 1)
        else:
            self.chunks.append(_I16.pack(len(data)))
        self.chunks.append(data)


def encode_varint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


Read = Callable[[MessageReader], Any]
Write = Callable[[MessageWriter, Any], None]


class _Codec:
    """One structure in one version."""

    __slots__ = ("_arrays", "_fields", "_flexible", "_made_of", "_tagged")

    def __init__(self, fields: Sequence[_Field], version: int, flexible: bool) -> None:
        self._made_of = fields, version
        self._arrays: dict[str, _Codec] | None = None
        rows = [
            (f.tag, f.name, *_value(f, version, flexible), _default(f, version))
            for f in fields
            if f.there(version) and (flexible or f.tag < 0)
        ]
        self._fields = [(name, read, write, default) for tag, name, read, write, default in rows if tag < 0]
        self._tagged = sorted((tag, name, read, write, default) for tag, name, read, write, default in rows if tag >= 0)
        self._flexible = flexible

    def read(self, reader: MessageReader) -> Fields:
        out = {name: read(reader) for name, read, _, _ in self._fields}
        if self._flexible:
            for _, name, _, _, default in self._tagged:
                out[name] = default()
            for _ in range(reader.tags()):
                tag, size = reader.varint(), reader.varint()
                start = reader.at
                for known, name, read, _, _ in self._tagged:
                    if known == tag:
                        out[name] = read(reader)
                        if reader.at - start != size:
                            raise PeerError(
                                f"kafka: the tagged field {name} has {size} bytes, and {reader.at - start} were read"
                            )
                        break
                else:
                    reader.take(size)
        return out

    def write(self, writer: MessageWriter, given: Mapping[str, Any]) -> None:
        for name, _, write, default in self._fields:
            write(writer, given[name] if name in given else default())
        self._write_tags(writer, given)

    def steps(self, writer: MessageWriter, given: Mapping[str, Any]) -> Iterator[None]:
        """Writes the same, and yields wherever the writer's step is full: who goes on gives it another one."""
        arrays = self._structs()
        for name, _, write, default in self._fields:
            value = given[name] if name in given else default()
            inner = arrays.get(name)
            if inner is None or not value:
                write(writer, value)
                continue
            writer.chunks.append(_count(len(value), self._flexible))
            plain = not inner._structs()
            for each in value:
                writer.spend(1)
                if writer.left < 0:
                    yield
                if plain:
                    inner.write(writer, each)
                else:
                    yield from inner.steps(writer, each)
        self._write_tags(writer, given)

    def _structs(self) -> dict[str, _Codec]:
        """Its arrays of structures, by name; made for the first long message."""
        if self._arrays is None:
            fields, version = self._made_of
            self._arrays = {
                f.name: _Codec(f.fields, version, self._flexible)
                for f in fields
                if f.there(version) and f.tag < 0 and f.kind == "struct" and f.depth == 1
            }
        return self._arrays

    def _write_tags(self, writer: MessageWriter, given: Mapping[str, Any]) -> None:
        if self._flexible:
            present = [(tag, write, given[name]) for tag, name, _, write, _ in self._tagged if name in given]
            writer.varint(len(present))
            for tag, write, value in present:
                inner = MessageWriter()
                write(inner, value)
                writer.varint(tag)
                writer.varint(sum(map(len, inner.chunks)))
                writer.chunks += inner.chunks


def _default(f: _Field, version: int) -> Callable[[], Any]:
    if f.default is not None:
        value: Any = bool(f.default) if f.kind == "bool" else f.default
        return lambda: value
    if version >= f.nullable:
        return lambda: None
    if f.depth:
        return list
    if f.kind == "struct":
        return dict
    empty: Any = {"str": "", "bytes": b"", "records": None, "bool": False, "uuid": _NO_UUID}.get(f.kind, 0)
    return lambda: empty


def _value(f: _Field, version: int, flexible: bool) -> tuple[Read, Write]:
    nullable = version >= f.nullable
    read, write = (
        _struct(f, version, flexible, nullable and not f.depth)
        if f.kind == "struct"
        else _scalar(f.kind, flexible, nullable and not f.depth, f.name)
    )
    least = _least(f, version, flexible, nullable)
    for _ in range(f.depth):
        read, write = _array(read, write, flexible, nullable, f.name, least)
        least = 1 if flexible else 4
    return read, write


def _least(f: _Field, version: int, flexible: bool, nullable: bool) -> int:
    """How many bytes an element of an array has at least."""
    if f.kind == "struct":
        if nullable and not f.depth:
            return 1
        inner = [g for g in f.fields if g.there(version) and g.tag < 0]
        sizes = (
            (1 if flexible else 4) if g.depth else _least(g, version, flexible, version >= g.nullable) for g in inner
        )
        return max(1, sum(sizes) + flexible)
    if f.kind in _SCALARS:
        return _SCALARS[f.kind].size
    return {"bool": 1, "uuid": 16, "str": 1 if flexible else 2}.get(f.kind, 1 if flexible else 4)


def _struct(f: _Field, version: int, flexible: bool, nullable: bool) -> tuple[Read, Write]:
    codec = _Codec(f.fields, version, flexible)
    if not nullable:
        return codec.read, codec.write

    def write(writer: MessageWriter, value: Any) -> None:
        writer.chunks.append(b"\xff" if value is None else b"\x01")
        if value is not None:
            codec.write(writer, value)

    return lambda reader: None if reader.scalar(_I8) < 0 else codec.read(reader), write


def _count(elements: int, flexible: bool) -> bytes:
    return encode_varint(elements + 1) if flexible else _I32.pack(elements)


def _array(read: Read, write: Write, flexible: bool, nullable: bool, name: str, least: int) -> tuple[Read, Write]:
    """least: bytes that each element has."""

    def read_all(reader: MessageReader) -> Any:
        count = reader.length(flexible, False)
        if count < 0:
            if nullable:
                return None
            raise PeerError(f"kafka: {name} may not be null")
        if count * least > reader.end - reader.at:
            raise PeerError(f"kafka: {name} says {count} elements where {reader.end - reader.at} bytes are left")
        reader.spend(count, name)
        return [read(reader) for _ in range(count)]

    def write_all(writer: MessageWriter, value: Any) -> None:
        if value is None:
            writer.chunks.append(b"\0" if flexible else b"\xff\xff\xff\xff")
            return
        writer.spend(len(value))
        writer.chunks.append(_count(len(value), flexible))
        for each in value:
            write(writer, each)

    return read_all, write_all


def _scalar(kind: str, flexible: bool, nullable: bool, name: str) -> tuple[Read, Write]:
    if kind in _SCALARS:
        packer = _SCALARS[kind]
        return lambda reader: reader.scalar(packer), lambda writer, value: writer.chunks.append(packer.pack(value))
    if kind == "bool":
        return lambda reader: bool(reader.scalar(_I8)), lambda writer, value: writer.chunks.append(
            b"\x01" if value else b"\0"
        )
    if kind == "uuid":
        return lambda reader: bytes(reader.take(16)), lambda writer, value: writer.chunks.append(value)
    if kind == "str":

        def read_text(reader: MessageReader) -> Any:
            text = reader.text(flexible)
            if text is None and not nullable:
                raise PeerError(f"kafka: {name} may not be null")
            return text

        return read_text, lambda writer, value: writer.text(value, flexible)
    assert kind in ("bytes", "records")
    return _bytes(flexible, kind == "records")


def _bytes(flexible: bool, records: bool) -> tuple[Read, Write]:
    """Record batches are read as (start, size) in the request, None where they are null, and written as a list of
    buffers.
    """

    def read(reader: MessageReader) -> Any:
        size = reader.length(flexible, False)
        if size < 0:
            return None if records else b""
        start = reader.at
        taken = reader.take(size)
        return (start, size) if records else bytes(taken)

    def write(writer: MessageWriter, value: Any) -> None:
        if value is None:
            writer.chunks.append(b"\0" if flexible else b"\xff\xff\xff\xff")
            return
        buffers = value if isinstance(value, list) else [value]
        size = sum(map(len, buffers))
        writer.chunks.append(encode_varint(size + 1) if flexible else _I32.pack(size))
        writer.chunks += buffers

    return read, write


# -- the protocol ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Api:
    """One request and its answer. `flexible`: the first flexible version, -1 none."""

    key: int
    name: str
    lowest: int
    highest: int
    flexible: int
    request: tuple[_Field, ...] = field(repr=False)
    answer: tuple[_Field, ...] = field(repr=False)

    def is_flexible(self, version: int) -> bool:
        return 0 <= self.flexible <= version


APIS: dict[int, Api] = {row[0]: Api(*row[:5], _parse(row[5])[0], _parse(row[6])[0]) for row in API_ROWS}
BY_NAME: dict[str, Api] = {api.name: api for api in APIS.values()}
_PRODUCE = BY_NAME["produce"]


@lru_cache(512)
def _codec(key: int, version: int, answer: bool) -> _Codec:
    api = APIS[key]
    return _Codec(api.answer if answer else api.request, version, api.is_flexible(version))


@dataclass(frozen=True, slots=True)
class Request:
    """`supported`: else `version` is none that is answered here, and `fields` is empty."""

    api: Api
    version: int
    correlation: int
    client: str
    fields: Fields
    frame: Buffer
    supported: bool = True


def decode_request(frame: Buffer) -> Request:
    """A frame without its size. Raises PeerError; for a known request of an unknown version only `supported` is
    False.
    """
    if (produced := decode_produce(frame)) is not None:
        return Request(_PRODUCE, *produced, frame)
    return decode_any(frame)


def decode_any(frame: Buffer) -> Request:
    """The same of any request, by its schema."""
    reader = MessageReader(memoryview(frame))
    key, version, correlation = reader.scalar(_I16), reader.scalar(_I16), reader.scalar(_I32)
    api = APIS.get(key)
    if api is None:
        raise PeerError(f"kafka: request {key} is not known here")
    client = reader.text(False) or ""
    if not api.lowest <= version <= api.highest:
        return Request(api, version, correlation, client, {}, frame, False)
    if api.is_flexible(version):
        reader.skip_tags()
    fields = _codec(key, version, False).read(reader)
    return Request(api, version, correlation, client, fields, frame)


def decode_fields(name: str, version: int, data: Buffer, *, answer: bool = False) -> Fields:
    """A message without its header. Raises PeerError."""
    return _codec(BY_NAME[name].key, version, answer).read(MessageReader(memoryview(data)))


def encode_fields(name: str, version: int, fields: Mapping[str, Any], *, answer: bool = True) -> bytes:
    writer = MessageWriter()
    _codec(BY_NAME[name].key, version, answer).write(writer, fields)
    return b"".join(writer.chunks)


def encode_answer(api: Api, version: int, correlation: int, fields: Mapping[str, Any]) -> list[Buffer]:
    """A whole frame, as buffers."""
    if api is _PRODUCE and (produced := encode_produce(version, correlation, fields)) is not None:
        return [produced]
    return encode_any(api, version, correlation, fields)


def encode_any(api: Api, version: int, correlation: int, fields: Mapping[str, Any]) -> list[Buffer]:
    """The same of any answer, by its schema."""
    writer = MessageWriter()
    _codec(api.key, version, True).write(writer, fields)
    return _framed(api, version, correlation, _joined(writer.chunks))


def encode_in_steps(
    api: Api,
    version: int,
    correlation: int,
    fields: Mapping[str, Any],
    *,
    bytes_max: int = ANSWER_BYTES_MAX,
    step_elements: int = STEP_ELEMENTS,
) -> Generator[None, None, list[Buffer]]:
    """Returns the same of any answer; one of more than `step_elements` elements yields behind each so many. Raises
    PeerError: it has more than `bytes_max` bytes.
    """
    codec = _codec(api.key, version, True)
    writer = MessageWriter(step_elements)
    try:
        codec.write(writer, fields)
        _check_size(api, sum(map(len, writer.chunks)), bytes_max)
        return _framed(api, version, correlation, _joined(writer.chunks))
    except _LongMessage:
        writer = MessageWriter(step_elements, at_once=False)
    chunks, size = list[Buffer](), 0
    for _ in codec.steps(writer, fields):
        part = _joined(writer.chunks)
        chunks += part
        size += sum(map(len, part))
        _check_size(api, size, bytes_max)
        writer.chunks, writer.left = [], step_elements
        yield
    _check_size(api, size + sum(map(len, writer.chunks)), bytes_max)
    return _framed(api, version, correlation, [*chunks, *_joined(writer.chunks)])


def _check_size(api: Api, size: int, most: int) -> None:
    if size > most:
        raise PeerError(
            f"an answer to {api.name} of more than {most} bytes: ask for fewer topics, partitions, or groups at once"
        )


def _framed(api: Api, version: int, correlation: int, chunks: list[Buffer]) -> list[Buffer]:
    head = _I32.pack(correlation)
    if api.is_flexible(version) and api.name != "api_versions":
        head += b"\0"
    return [_I32.pack(len(head) + sum(map(len, chunks))) + head, *chunks]


_JOIN_BELOW = 4096


def _joined(chunks: list[Buffer]) -> list[Buffer]:
    """Joins small neighbours, so that fewer buffers are written."""
    out: list[Buffer] = []
    small: list[Buffer] = []
    for chunk in chunks:
        if len(chunk) < _JOIN_BELOW:
            small.append(chunk)
            continue
        if small:
            out.append(b"".join(small))
            small = []
        out.append(chunk)
    if small:
        out.append(b"".join(small))
    return out
