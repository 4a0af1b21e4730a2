"""The other end of the wire for tests: frames as a client writes them, by the general protobuf codec only."""

from __future__ import annotations

import struct
from typing import Any

import crc32c

from heliograph.wire.pulsar import pulsar_pb2 as pb

FIELDS = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields}


def command(kind: int, **fields: Any) -> pb.BaseCommand:
    made = pb.BaseCommand(type=kind)  # type: ignore[arg-type]
    part = getattr(made, FIELDS[kind])
    part.SetInParent()
    for name, value in fields.items():
        if isinstance(value, dict):
            inner = getattr(part, name)
            inner.SetInParent()
            for key, item in value.items():
                if isinstance(item, (list, tuple)):
                    getattr(inner, key).extend(item)
                else:
                    setattr(inner, key, item)
        elif isinstance(value, (list, tuple)):
            getattr(part, name).extend(value)
        else:
            setattr(part, name, value)
    return made


def frame(kind: int, **fields: Any) -> bytes:
    body = command(kind, **fields).SerializeToString()
    return struct.pack(">II", len(body) + 4, len(body)) + body


def entry(payload: bytes, *, producer: str = "p", sequence: int = 0, batch: int = 0, **metadata: Any) -> bytes:
    """Checksum, metadata, payload."""
    made = pb.MessageMetadata(producer_name=producer, sequence_id=sequence, publish_time=1000 + sequence, **metadata)
    if batch:
        made.num_messages_in_batch = batch
    encoded = made.SerializeToString()
    rest = struct.pack(">I", len(encoded)) + encoded + payload
    return b"\x0e\x01" + struct.pack(">I", crc32c.crc32c(rest)) + rest


def send(producer_id: int, sequence: int, stored: bytes, **fields: Any) -> bytes:
    body = command(pb.BaseCommand.SEND, producer_id=producer_id, sequence_id=sequence, **fields).SerializeToString()
    return struct.pack(">II", len(body) + 4 + len(stored), len(body)) + body + stored


class Reader:
    """Cuts what a server wrote: (command, payload) each."""

    def __init__(self) -> None:
        self.waiting = b""

    def feed(self, data: bytes) -> list[tuple[pb.BaseCommand, bytes]]:
        self.waiting += data
        out = []
        while len(self.waiting) >= 8:
            total, size = struct.unpack_from(">II", self.waiting)
            if len(self.waiting) < total + 4:
                break
            made = pb.BaseCommand()
            made.ParseFromString(self.waiting[8 : 8 + size])
            out.append((made, self.waiting[8 + size : total + 4]))
            self.waiting = self.waiting[total + 4 :]
        return out
