"""What the members of a Raft group say to each other, and its bytes.

Is: the message classes, entries, configurations, snapshot descriptions, and their encoding. Isn't: who may say what
when (`core`).
Invariants: `decode` returns a message or raises PeerError; what `encode` made comes back equal. Unknown versions,
kinds, roles, and entry kinds are refused, so that an older member stalls where it does not understand, instead of
diverging.
Source: Ongaro, "Consensus: bridging theory and practice" (pre-vote 9.6, ReadIndex 6.4, snapshots 5); the layout is
ours.

A message, big endian:

    0  u8  version (1)      2  u16 reserved (0)
    1  u8  kind             4  u64 term

Between members of a group that was forced (`generations`) the version is 2, and u64 generation follows the term: an
earlier version refuses it, and so is no part of what it does not know of.

    1 VoteRequest     u64 last index, u64 last term, u8 flags (1 pre-vote, 2 ordered by the leader, 4 numbered)
    2 VoteReply       u8 flags (1 pre-vote, 2 granted, 4 numbered)
    3 Append          u64 previous index, u64 previous term, u64 commit, entries
    4 AppendReply     u64 index, u64 hint index, u64 hint term, u8 success
    5 Heartbeat       u64 commit, u64 round
    6 HeartbeatReply  u64 round
    7 SnapshotChunk   snapshot, u64 offset, data to the end
    8 SnapshotReply   u64 index, u64 received bytes
    9 TimeoutNow      -
    10 AppendReply    of a member that is unproven: as 4, u64 life
    11 HeartbeatReply of a member that is unproven: as 6, u64 life
    12 Proof          u64 life, u64 index
    13 Founding       u8 stage (1 fresh, 2 late, 3 founded), u16 count, count x (u64 life, u8 size, name)
    14 StartNumber        u64 start
    15 StartKnown     u64 start
    16 LaterGeneration    - (in place of the term the index of the configuration that the sender left; 0: not known)

    entries:       u32 count, count x (u64 term, u8 kind, u32 size, data)     kind: 0 no-op, 1 command, 2 configuration
    snapshot:      u64 index, u64 term, u64 size of the blob, u32 crc32c of the blob, configuration
    configuration: u8 version (1), u16 members, members x (u8 role, u8 size, name)     role: 1 voter, 2 learner
                   version 2 (some member has an address): members x (u8 role, u8 size, name, u16 size, address)
                   version 3 (forced): as 2, u64 generation
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from heliograph.model.errors import PeerError

Buffer = bytes | bytearray | memoryview
Entry = tuple[int, int, bytes]
"""(term, kind, data). The index is where it stands."""

NOOP, COMMAND, CONFIG = 0, 1, 2
VERSION = 1
VERSION_FORCED = 2
CONFIG_WITH_ADDRESSES = 2
CONFIG_FORCED = 3
ROLE_VOTER, ROLE_LEARNER = 1, 2

_HEAD = struct.Struct(">BBHQ")
_GENERATION = struct.Struct(">Q")
_ENTRY = struct.Struct(">QBI")
_COUNT = struct.Struct(">I")
_VOTE_REQUEST = struct.Struct(">QQB")
_VOTE_REPLY = struct.Struct(">B")
_APPEND = struct.Struct(">QQQ")
_APPEND_REPLY = struct.Struct(">QQQB")
_HEARTBEAT = struct.Struct(">QQ")
_HEARTBEAT_REPLY = struct.Struct(">Q")
_SNAPSHOT = struct.Struct(">QQQI")
_OFFSET = struct.Struct(">Q")
_SNAPSHOT_REPLY = struct.Struct(">QQ")
_CONFIG_HEAD = struct.Struct(">BH")
_MEMBER = struct.Struct(">BB")
_ADDRESS = struct.Struct(">H")
_APPEND_REPLY_UNPROVEN = struct.Struct(">QQQBQ")
_HEARTBEAT_REPLY_UNPROVEN = struct.Struct(">QQ")
_PROOF = struct.Struct(">QQ")
_FOUNDING = struct.Struct(">BH")
_LIFE = struct.Struct(">QB")
_START = struct.Struct(">Q")

ENTRY_OVERHEAD = _ENTRY.size


@dataclass(frozen=True, slots=True)
class Config:
    """Who belongs to the group. Voters decide; learners receive everything and count for nothing. All sorted.

    addresses: (member, where others reach it), of members that joined later; those of the first ones are settings of
    each node. forced: the generation (`generations`) to which this and all later ones belong; 0: none was forced.
    """

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()
    forced: int = 0

    @property
    def members(self) -> tuple[str, ...]:
        return (*self.voters, *self.learners)


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """What a snapshot stands for: the state after `index`, whose entry had `term`, and the configuration then."""

    index: int
    term: int
    config: Config
    size_bytes: int = 0
    crc: int = 0


@dataclass(slots=True)
class VoteRequest:
    term: int
    last_index: int
    last_term: int
    pre: bool = False
    ordered: bool = False
    numbered: bool = True
    """The sender answers StartNumber; False: it is of an earlier version."""


@dataclass(slots=True)
class VoteReply:
    """`term`: of a granted pre-vote the term that was asked for, else the voter's own."""

    term: int
    granted: bool
    pre: bool = False
    numbered: bool = True
    """What it means in a VoteRequest."""


@dataclass(slots=True)
class Append:
    term: int
    previous_index: int
    previous_term: int
    commit: int
    entries: Sequence[Entry] = field(default_factory=list)


@dataclass(slots=True)
class AppendReply:
    """`index`: on success the follower's durable log matches through it; else the refused previous index. The hint says
    where it may match.
    """

    term: int
    index: int
    success: bool
    hint_index: int = 0
    hint_term: int = 0
    life: int = 0
    """The sender is unproven, and what it holds counts for nothing; 0: it counts."""


@dataclass(slots=True)
class Heartbeat:
    """`commit`: never above what this follower has acknowledged. `round` is echoed, and confirms reads."""

    term: int
    commit: int
    round: int


@dataclass(slots=True)
class HeartbeatReply:
    """`life`: what it means in an AppendReply."""

    term: int
    round: int
    life: int = 0


@dataclass(slots=True)
class SnapshotChunk:
    term: int
    meta: SnapshotMeta
    offset: int
    data: bytes


@dataclass(slots=True)
class SnapshotReply:
    """`received`: bytes held of the snapshot at `index`; the sender goes on there."""

    term: int
    index: int
    received: int


@dataclass(slots=True)
class TimeoutNow:
    """The leader asks the receiver to stand at once."""

    term: int


@dataclass(slots=True)
class Proof:
    """The leader to a member that is unproven: whoever holds the entry at `index`, which was appended in that life and
    committed without this member, counts from then on.
    """

    term: int
    life: int
    index: int


Lives = tuple[tuple[str, int], ...]
"""(first voter, number of its life), sorted."""


class FoundingStage(IntEnum):
    """FRESH: unproven, and no leader has spoken to it; LATE: one has; FOUNDED: it is proven, and these are the lives
    that founded the group.
    """

    FRESH = 1
    LATE = 2
    FOUNDED = 3


@dataclass(slots=True)
class Founding:
    """Between first voters. `term` is 0. `lives`: those that the sender has heard of, its own among them."""

    term: int
    stage: FoundingStage
    lives: Lives


@dataclass(slots=True)
class StartNumber:
    """A member to a voter: the start with which it comes. `term` is 0."""

    term: int
    start: int


@dataclass(slots=True)
class StartKnown:
    """The answer: the highest start of the receiver that the sender has heard of, durably. `term` is 0."""

    term: int
    start: int


@dataclass(slots=True)
class LaterGeneration:
    """To a member of an earlier generation: the sender's is a later one. left: at which index the configuration lies
    that the sender was forced out of; 0: it does not know any more, or is of an earlier version. `term` is 0.
    """

    term: int
    left: int = 0


Message = (
    VoteRequest
    | VoteReply
    | Append
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | SnapshotChunk
    | SnapshotReply
    | TimeoutNow
    | Proof
    | Founding
    | StartNumber
    | StartKnown
    | LaterGeneration
)


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """The entries block, as messages and the log on disk hold it."""
    parts: list[Buffer] = [_COUNT.pack(len(entries))]
    for term, kind, data in entries:
        parts.append(_ENTRY.pack(term, kind, len(data)))
        parts.append(data)
    return b"".join(parts)


def decode_entries(body: Buffer, at: int) -> list[Entry]:
    """Reads an entries block that must end where `body` ends. Raises PeerError."""
    view = memoryview(body)
    try:
        (count,) = _COUNT.unpack_from(view, at)
        at += _COUNT.size
        if count * _ENTRY.size > len(view) - at:
            raise PeerError("entries: count beyond the message")
        entries: list[Entry] = []
        for _ in range(count):
            term, kind, size = _ENTRY.unpack_from(view, at)
            at += _ENTRY.size
            if kind > CONFIG:
                raise PeerError(f"entries: unknown kind {kind}")
            if size > len(view) - at:
                raise PeerError("entries: an entry is cut off")
            entries.append((term, kind, bytes(view[at : at + size])))
            at += size
    except struct.error as error:
        raise PeerError("entries: cut off") from error
    if at != len(view):
        raise PeerError("entries: bytes behind the last one")
    return entries


def encode_config(config: Config) -> bytes:
    """Version 1 where it says all, so that members of an older version go on as long as they can."""
    addresses = dict(config.addresses)
    long = bool(addresses or config.forced)
    version = CONFIG_FORCED if config.forced else CONFIG_WITH_ADDRESSES if addresses else VERSION
    parts = [_CONFIG_HEAD.pack(version, len(config.members))]
    for role, names in ((ROLE_VOTER, config.voters), (ROLE_LEARNER, config.learners)):
        for name in names:
            raw = name.encode()
            parts.append(_MEMBER.pack(role, len(raw)) + raw)
            if long:
                address = addresses.get(name, "").encode()
                parts.append(_ADDRESS.pack(len(address)) + address)
    if config.forced:
        parts.append(_GENERATION.pack(config.forced))
    return b"".join(parts)


def decode_config(body: Buffer, at: int = 0) -> tuple[Config, int]:
    """Returns the configuration and the offset behind it. Raises PeerError."""
    view = memoryview(body)
    names: dict[int, list[str]] = {ROLE_VOTER: [], ROLE_LEARNER: []}
    addresses: list[tuple[str, str]] = []
    forced = 0
    try:
        version, count = _CONFIG_HEAD.unpack_from(view, at)
        if version not in (VERSION, CONFIG_WITH_ADDRESSES, CONFIG_FORCED):
            raise PeerError(f"configuration: version {version} is not known")
        at += _CONFIG_HEAD.size
        for _ in range(count):
            role, size = _MEMBER.unpack_from(view, at)
            at += _MEMBER.size
            raw = bytes(view[at : at + size])
            at += size
            if len(raw) != size or role not in names:
                raise PeerError("configuration: a member is cut off or has an unknown role")
            names[role].append(raw.decode())
            if version != VERSION:
                (size,) = _ADDRESS.unpack_from(view, at)
                at += _ADDRESS.size
                address = bytes(view[at : at + size])
                at += size
                if len(address) != size:
                    raise PeerError("configuration: an address is cut off")
                if address:
                    addresses.append((names[role][-1], address.decode()))
        if version == CONFIG_FORCED:
            (forced,) = _GENERATION.unpack_from(view, at)
            at += _GENERATION.size
    except (struct.error, UnicodeDecodeError) as error:
        raise PeerError("configuration: cut off") from error
    return Config(tuple(names[ROLE_VOTER]), tuple(names[ROLE_LEARNER]), tuple(sorted(addresses)), forced), at


def encode_meta(meta: SnapshotMeta) -> bytes:
    return _SNAPSHOT.pack(meta.index, meta.term, meta.size_bytes, meta.crc) + encode_config(meta.config)


def decode_meta(body: Buffer, at: int = 0) -> tuple[SnapshotMeta, int]:
    """Returns the description and the offset behind it. Raises PeerError."""
    try:
        index, term, size_bytes, crc = _SNAPSHOT.unpack_from(body, at)
    except struct.error as error:
        raise PeerError("snapshot: cut off") from error
    config, at = decode_config(body, at + _SNAPSHOT.size)
    return SnapshotMeta(index, term, config, size_bytes, crc), at


def encode(message: Message, generation: int = 0) -> bytes:
    """Returns the message's bytes, as `decode` and `generation_of` read them."""
    raw = _encoded(message)
    if not generation:
        return raw
    head = bytes([VERSION_FORCED]) + raw[1 : _HEAD.size]
    return b"".join((head, _GENERATION.pack(generation), memoryview(raw)[_HEAD.size :]))


def _encoded(message: Message) -> bytes:
    match message:
        case Append(term, previous_index, previous_term, commit, entries):
            return (
                _HEAD.pack(VERSION, 3, 0, term)
                + _APPEND.pack(previous_index, previous_term, commit)
                + encode_entries(entries)
            )
        case AppendReply(term, index, success, hint_index, hint_term, life) if life:
            return _HEAD.pack(VERSION, 10, 0, term) + _APPEND_REPLY_UNPROVEN.pack(
                index, hint_index, hint_term, success, life
            )
        case HeartbeatReply(term, round_, life) if life:
            return _HEAD.pack(VERSION, 11, 0, term) + _HEARTBEAT_REPLY_UNPROVEN.pack(round_, life)
        case Proof(term, life, index):
            return _HEAD.pack(VERSION, 12, 0, term) + _PROOF.pack(life, index)
        case Founding(term, stage, lives):
            return _HEAD.pack(VERSION, 13, 0, term) + encode_lives(stage, lives)
        case StartNumber(term, start):
            return _HEAD.pack(VERSION, 14, 0, term) + _START.pack(start)
        case StartKnown(term, start):
            return _HEAD.pack(VERSION, 15, 0, term) + _START.pack(start)
        case AppendReply(term, index, success, hint_index, hint_term):
            return _HEAD.pack(VERSION, 4, 0, term) + _APPEND_REPLY.pack(index, hint_index, hint_term, success)
        case Heartbeat(term, commit, round_):
            return _HEAD.pack(VERSION, 5, 0, term) + _HEARTBEAT.pack(commit, round_)
        case HeartbeatReply(term, round_):
            return _HEAD.pack(VERSION, 6, 0, term) + _HEARTBEAT_REPLY.pack(round_)
        case VoteRequest(term, last_index, last_term, pre, ordered, numbered):
            flags = pre | ordered << 1 | numbered << 2
            return _HEAD.pack(VERSION, 1, 0, term) + _VOTE_REQUEST.pack(last_index, last_term, flags)
        case VoteReply(term, granted, pre, numbered):
            return _HEAD.pack(VERSION, 2, 0, term) + _VOTE_REPLY.pack(pre | granted << 1 | numbered << 2)
        case SnapshotChunk(term, meta, offset, data):
            return _HEAD.pack(VERSION, 7, 0, term) + encode_meta(meta) + _OFFSET.pack(offset) + data
        case SnapshotReply(term, index, received):
            return _HEAD.pack(VERSION, 8, 0, term) + _SNAPSHOT_REPLY.pack(index, received)
        case TimeoutNow(term):
            return _HEAD.pack(VERSION, 9, 0, term)
        case LaterGeneration(_, term):  # it stands in place of one
            return _HEAD.pack(VERSION, 16, 0, term)


def encode_lives(stage: int, lives: Lives) -> bytes:
    """As messages and the file of a member's life hold them."""
    parts = [_FOUNDING.pack(stage, len(lives))]
    for name, life in lives:
        raw = name.encode()
        parts.append(_LIFE.pack(life, len(raw)) + raw)
    return b"".join(parts)


def decode_lives(body: Buffer, at: int) -> tuple[int, Lives]:
    """(stage, lives); they must end where `body` ends. Raises PeerError."""
    view, lives = memoryview(body), list[tuple[str, int]]()
    try:
        stage, count = _FOUNDING.unpack_from(view, at)
        at += _FOUNDING.size
        for _ in range(count):
            life, size = _LIFE.unpack_from(view, at)
            at += _LIFE.size + size
            lives.append((bytes(view[at - size : at]).decode(), life))
    except (struct.error, UnicodeDecodeError) as error:
        raise PeerError("lives: cut off") from error
    if at != len(view):
        raise PeerError("lives: cut off, or bytes behind the last one")
    return stage, tuple(lives)


def _exact(shape: struct.Struct, body: Buffer) -> tuple[int, ...]:
    if len(body) != _HEAD.size + shape.size:
        raise PeerError(f"message: {len(body)} bytes where {_HEAD.size + shape.size} belong")
    return shape.unpack_from(body, _HEAD.size)


def generation_of(body: Buffer) -> int:
    """The generation that a message comes from; 0 where it names none. Raises PeerError."""
    if not body or body[0] != VERSION_FORCED:
        return 0
    if len(body) < _HEAD.size + _GENERATION.size:
        raise PeerError("message: shorter than its head")
    (generation,) = _GENERATION.unpack_from(body, _HEAD.size)
    if not generation:
        raise PeerError("message: of a generation that is none")
    return int(generation)


def decode(body: Buffer) -> Message:
    """One whole message from bytes, of whichever generation. Raises PeerError, and nothing else."""
    if generation_of(body):
        view = memoryview(body)
        body = b"".join((bytes([VERSION]), view[1 : _HEAD.size], view[_HEAD.size + _GENERATION.size :]))
    return _decoded(body)


def _decoded(body: Buffer) -> Message:
    try:
        version, kind, _, term = _HEAD.unpack_from(body)
    except struct.error as error:
        raise PeerError("message: shorter than its head") from error
    if version != VERSION:
        raise PeerError(f"message: version {version} is not known")
    match kind:
        case 1:
            last_index, last_term, flags = _exact(_VOTE_REQUEST, body)
            return VoteRequest(term, last_index, last_term, bool(flags & 1), bool(flags & 2), bool(flags & 4))
        case 2:
            (flags,) = _exact(_VOTE_REPLY, body)
            return VoteReply(term, bool(flags & 2), bool(flags & 1), bool(flags & 4))
        case 3:
            if len(body) < _HEAD.size + _APPEND.size:
                raise PeerError("append: cut off")
            previous_index, previous_term, commit = _APPEND.unpack_from(body, _HEAD.size)
            return Append(term, previous_index, previous_term, commit, decode_entries(body, _HEAD.size + _APPEND.size))
        case 4:
            index, hint_index, hint_term, success = _exact(_APPEND_REPLY, body)
            return AppendReply(term, index, bool(success), hint_index, hint_term)
        case 5:
            commit, round_ = _exact(_HEARTBEAT, body)
            return Heartbeat(term, commit, round_)
        case 6:
            return HeartbeatReply(term, *_exact(_HEARTBEAT_REPLY, body))
        case 7:
            meta, at = decode_meta(body, _HEAD.size)
            if len(body) < at + _OFFSET.size:
                raise PeerError("snapshot: cut off")
            return SnapshotChunk(
                term, meta, _OFFSET.unpack_from(body, at)[0], bytes(memoryview(body)[at + _OFFSET.size :])
            )
        case 8:
            return SnapshotReply(term, *_exact(_SNAPSHOT_REPLY, body))
        case 9 | 16:
            if len(body) != _HEAD.size:
                raise PeerError("message: bytes behind its head")
            return TimeoutNow(term) if kind == 9 else LaterGeneration(0, term)
        case 10:
            index, hint_index, hint_term, success, life = _exact(_APPEND_REPLY_UNPROVEN, body)
            return AppendReply(term, index, bool(success), hint_index, hint_term, life)
        case 11:
            return HeartbeatReply(term, *_exact(_HEARTBEAT_REPLY_UNPROVEN, body))
        case 12:
            return Proof(term, *_exact(_PROOF, body))
        case 13:
            stage, lives = decode_lives(body, _HEAD.size)
            if stage not in tuple(FoundingStage):
                raise PeerError(f"founding: stage {stage} is not known")
            return Founding(term, FoundingStage(stage), lives)
        case 14:
            return StartNumber(term, *_exact(_START, body))
        case 15:
            return StartKnown(term, *_exact(_START, body))
    raise PeerError(f"message: kind {kind} is not known")
