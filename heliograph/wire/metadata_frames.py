"""Frames between the metadata's clients and servers, and between the voters of one region's metadata.

Is: cutting and making frames, bounded. Isn't: what a command or an answer holds (heliograph.kv.machine_commands), or
any I/O.
Invariants: a frame is accepted or PeerError is raised, nothing else; before the handshake a frame is at most
HANDSHAKE_BYTES_MAX.

A frame, big endian:

    0  u32 size of what follows (10 to FRAME_BYTES_MAX)
    4  u8  version (1)
    5  u8  kind
    6  u64 request: chosen by the client and repeated in the answer; of watch frames the watch; of others 0
    14 payload

    to the server                                           to the client
    HELLO 1    [magic, features, name]                      HELLO 1      [magic, features, node, hears leader, index]
    COMMAND 2  a command, as it lies in the log             ANSWER 16    an answer: u8 version, msgpack [status, ...]
    GET 3      [key]                        -> value, version | nothing
    RANGE 4    [start, end, limit]          -> [[key, value, version]...], more follow
    RENEW 5    [lease]                      -> nothing
    WATCH 6    [prefix, since]                              LISTING 17   [index, last, [[key, version, value | nil]...]]
    UNWATCH 7  []                                           EVENT 18     [index, [[key, version, value | nil]...]]
    RAFT 8     [sender, message], between voters            HEARTBEAT 19 [hears leader, index, command]
    STATUS 9   []                           -> leader | nil, leads, term, index: what this node knows, whoever leads
    COUNT 12   [prefix]                     -> how many keys begin with it (heliograph.kv.engine.table_rows: Counts)
    MEMBERS 11 [verb, member, address]      -> a report, whether something was changed
                                               (heliograph.kv.server.members_api)
    BACKUP 10  [at least]                   -> nothing, behind the last PART
                                                            PART 20      a piece of a snapshot
                                                                         (heliograph.kv.engine.table_image)

A LISTING holds every key of the prefix, in order, in one or more frames; the value is nil where the version is not
above `since` (the client has it). What the client knows and the listing lacks was deleted. In an EVENT nil means
deleted. The server waits with the listing until it has applied `since`.
The ANSWER of a COMMAND says how far the node is to who watches `/history` (heliograph.kv.machine_commands).
HEARTBEAT comes each second; "hears leader" false means that what watches tell may be old; command: the index of the
last one that was applied there since the node has its table, 0 where there is none; earlier versions do not say it.
The listing of the watch of exactly `/history` holds its value, also where the version is not above `since`.
Behind BACKUP come the pieces of one consistent image of the node's table, of an index from `at least` on; ANSWER is the
last.
Features (bits): 1 watches, 2 leases, 4 backups. A side uses what both have.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgpack

from heliograph.model.errors import PeerError

VERSION = 1
FRAME_BYTES_MAX = 8 << 20
HANDSHAKE_BYTES_MAX = 4096
MAGIC = "heliograph-meta"
FEATURE_WATCHES, FEATURE_LEASES, FEATURE_BACKUPS = 1, 2, 4
FEATURES = FEATURE_WATCHES | FEATURE_LEASES | FEATURE_BACKUPS

_HEAD = struct.Struct(">IBBQ")
_BEHIND_SIZE = _HEAD.size - 4


class Frame(IntEnum):
    HELLO = 1
    COMMAND = 2
    GET = 3
    RANGE = 4
    RENEW = 5
    WATCH = 6
    UNWATCH = 7
    RAFT = 8
    STATUS = 9
    BACKUP = 10
    MEMBERS = 11
    COUNT = 12
    ANSWER = 16
    LISTING = 17
    EVENT = 18
    HEARTBEAT = 19
    PART = 20


def frame(kind: int, request: int, payload: bytes) -> bytes:
    return _HEAD.pack(_BEHIND_SIZE + len(payload), VERSION, kind, request) + payload


def body(*fields: Any) -> bytes:
    """Makes a payload of fields, as msgpack packs them."""
    packed: bytes = msgpack.packb(fields)
    return packed


def fields(payload: bytes | memoryview, *types: Any, least: int | None = None) -> list[Any]:
    """The fields of a payload, each checked against its type (what `isinstance` takes). Further ones are skipped.
    Raises PeerError.

    least: so many must be there, as earlier versions sent no more; None: all.
    """
    try:
        found = msgpack.unpackb(payload)
    except Exception as error:  # msgpack raises a dozen kinds for wrong bytes
        raise PeerError(f"metadata frame: {error}") from error
    if not isinstance(found, list) or len(found) < (len(types) if least is None else least):
        raise PeerError(f"metadata frame: expected {len(types)} fields")
    for value, kind in zip(found, types, strict=False):
        if not isinstance(value, kind):
            raise PeerError(f"metadata frame: a field is {type(value).__name__}")
    return found[: len(types)]


def rows(found: Sequence[Any]) -> list[tuple[str, int, bytes | None]]:
    """The rows of a LISTING or an EVENT: (key, version, value). Raises PeerError."""
    out: list[tuple[str, int, bytes | None]] = []
    for row in found:
        match row:
            case [str() as key, int() as version, bytes() | None as value]:
                out.append((key, version, value))
            case _:
                raise PeerError("metadata frame: a row is not key, version, value")
    return out


class MetadataFrameCutter:
    """Bytes in, as a socket brings them; whole frames out."""

    def __init__(self, size_max: int = HANDSHAKE_BYTES_MAX) -> None:
        self.size_max = size_max
        """Raise it to FRAME_BYTES_MAX once the handshake is through."""
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> None:
        self._buffer += data

    def next(self) -> tuple[int, int, bytes] | None:
        """(kind, request, payload), or None until more bytes came. Raises PeerError: close the connection."""
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        size = int.from_bytes(buffer[:4], "big")
        if not _BEHIND_SIZE <= size <= self.size_max:
            raise PeerError(f"metadata frame of {size} bytes; {_BEHIND_SIZE} to {self.size_max} are allowed here")
        if len(buffer) > 4 and buffer[4] != VERSION:
            raise PeerError(f"metadata frame of version {buffer[4]}; this side speaks version {VERSION}")
        if len(buffer) < 4 + size:
            return None
        _, _, kind, request = _HEAD.unpack_from(buffer)
        payload = bytes(memoryview(buffer)[_HEAD.size : 4 + size])
        del buffer[: 4 + size]
        return kind, request, payload
