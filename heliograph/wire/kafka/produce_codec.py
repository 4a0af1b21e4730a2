"""Produce requests and their answers, in the shape in which clients send them all day.

Is: a shorter way past `message_codec` for the flexible versions. Isn't: another truth: what is out of the ordinary, or
wrong, is left to `message_codec`, which says what is wrong with it.
Invariants: what is decoded here `message_codec` decodes to the same fields, and what is encoded here it encodes to the
same bytes.
Source: docs/protocols/kafka.md, "Requests".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from heliograph.wire.run import Buffer

Fields = dict[str, Any]
FIRST, LAST = 9, 13
"""These versions of Produce are read and written here."""
_BY_ID = 13
_SHORT = 127
"""Lengths and counts below that are one byte."""
_HEAD, _ACKS, _INDEX = struct.Struct(">hhih"), struct.Struct(">hi"), struct.Struct(">i")
_ANSWER, _PART = struct.Struct(">iiBB"), struct.Struct(">ihqqqB")
_NO_UUID = bytes(16)


def decode_produce(frame: Buffer) -> tuple[int, int, str, Fields] | None:
    """(version, correlation, client, fields) of a frame without its size; None: ask `message_codec`."""
    try:
        return _decode(frame)
    except (IndexError, struct.error, UnicodeDecodeError):
        return None


def _decode(frame: Buffer) -> tuple[int, int, str, Fields] | None:
    key, version, correlation, size = _HEAD.unpack_from(frame)
    if key or not FIRST <= version <= LAST:
        return None
    at = 10 + max(0, size)
    client, length = str(frame[10:at], "utf-8"), frame[at + 1]
    if frame[at] or length >= _SHORT:
        return None
    end = at + 1 + max(1, length)
    transactional = str(frame[at + 2 : end], "utf-8") if length else None
    acks, timeout = _ACKS.unpack_from(frame, end)
    count, at = frame[end + 6], end + 7
    if not 0 < count < _SHORT:
        return None
    topics: list[Fields] = []
    for _ in range(count - 1):
        topic: Fields = {}
        if version >= _BY_ID:
            topic["topic_id"], at = bytes(frame[at : at + 16]), at + 16
        else:
            length = frame[at]
            if not 0 < length < _SHORT:
                return None
            topic["name"], at = str(frame[at + 1 : at + length], "utf-8"), at + length
        parts = frame[at]
        at += 1
        if not 0 < parts < _SHORT:
            return None
        rows: list[Fields] = []
        topic["partition_data"] = rows
        topics.append(topic)
        for _ in range(parts - 1):
            (index,) = _INDEX.unpack_from(frame, at)
            at += 4
            size = shift = 0
            while (byte := frame[at]) >= 128:
                size |= (byte & 127) << shift
                at, shift = at + 1, shift + 7
                if shift > 28:
                    return None
            size |= byte << shift
            if not size:
                return None
            rows.append({"index": index, "records": (at + 1, size - 1)})
            at += size
            if frame[at]:
                return None
            at += 1
        if frame[at]:
            return None
        at += 1
    if frame[at]:
        return None
    return (
        version,
        correlation,
        client,
        {"transactional_id": transactional, "acks": acks, "timeout": timeout, "topic_data": topics},
    )


def encode_produce(version: int, correlation: int, fields: Mapping[str, Any]) -> bytes | None:
    """A whole frame; None: ask `message_codec`."""
    topics = fields["responses"]
    if not FIRST <= version <= LAST or len(topics) + 1 >= _SHORT or "node_endpoints" in fields:
        return None
    out: list[bytes] = []
    for topic in topics:
        parts = topic["partition_responses"]
        if version >= _BY_ID:
            out.append(topic.get("topic_id") or _NO_UUID)
        else:
            name = topic["name"].encode()
            if len(name) + 1 >= _SHORT:
                return None
            out += (bytes((len(name) + 1,)), name)
        if len(parts) + 1 >= _SHORT:
            return None
        out.append(bytes((len(parts) + 1,)))
        for part in parts:
            text = part.get("error_message")
            if text is not None or "current_leader" in part or "record_errors" in part:
                return None
            get = part.get
            out.append(
                _PART.pack(
                    part["index"],
                    get("error_code", 0),
                    get("base_offset", 0),
                    get("log_append_time", -1),
                    get("log_start_offset", -1),
                    1,
                )
            )
            out.append(b"\0\0")
        out.append(b"\0")
    body = b"".join(out)
    head = _ANSWER.pack(len(body) + 11, correlation, 0, len(topics) + 1)
    return head + body + _INDEX.pack(fields.get("throttle_time", 0)) + b"\0"
