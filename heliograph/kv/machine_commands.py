"""Commands of the key-value machine, and their answers, as bytes.

Is: the encoding that lies in the log. Isn't: frames (heliograph.wire.metadata_frames), or what a command does
(heliograph.kv.state_machine).
Invariants: an answer says either what was done or that nothing was.

A command:  u8 version (1) · msgpack [kind, session, sequence, low, ...fields]
An answer:  u8 version (1) · msgpack [status, ...fields]

session 0: not deduplicated. low: every sequence below it was answered or given up by its client, and will not be sent
again.

    TXN 1       [[0, key, value, expected, lease] | [1, key, expected] | [2, key, expected], ...]
                                              ->  version, [was it there, ...]
    NEXT_IDS 2  counter, count, at_least      ->  first
    GRANT 3     ttl_ms                        ->  lease
    REVOKE 4    lease                         ->  was it there
    SESSION 5   (none; never deduplicated)    ->  session

A server may add {"at": index} behind the fields of an OK (`with_applied`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgpack

from heliograph.kv.metadata_store import Check, Delete, Op, Put
from heliograph.model.errors import (
    LeaseLost,
    MetadataError,
    MetadataUnavailable,
    NotAllowed,
    OutcomeUnknown,
    PeerError,
    VersionConflict,
)

VERSION = 1
_APPLIED = "at"
_SHORT = 0x90
"""The first byte of a msgpack array of no fields; of one of up to 15 it is that much more."""


class CommandKind(IntEnum):
    TXN = 1
    NEXT_IDS = 2
    GRANT = 3
    REVOKE = 4
    SESSION = 5


class CommandStatus(IntEnum):
    OK = 0
    CONFLICT = 1
    """It is followed by the key, the expected version, and the actual one."""
    LEASE_LOST = 2
    """It is followed by a text; the lease has ended, and nothing was done."""
    REFUSED = 3
    """text; a limit or a malformed command"""
    SESSION_UNKNOWN = 4
    """The session was forgotten: whether an earlier try of this command was applied cannot be told."""
    STALE = 5
    """The client gave this sequence up, or another one has come further under the same session; nothing was done."""
    UNAVAILABLE = 6
    """It is followed by a text; nothing was done."""
    UNKNOWN = 7
    """text; may or may not have been done"""
    NOT_LEADER = 8
    """address of the leader for clients or "", text; nothing was done"""


class SessionUnknown(MetadataError):
    """The machine forgot this client session, or has given its number to another client."""


class NotLeaderHere(MetadataUnavailable):
    """Another node leads. `hint`: its address for clients, or empty."""

    def __init__(self, hint: str, text: str) -> None:
        super().__init__(text)
        self.hint = hint


class MalformedCommand(Exception):
    """These bytes are no command or no answer."""


def pack(fields: Sequence[Any]) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return b"\x01" + packed


def unpack(blob: bytes | memoryview) -> list[Any]:
    """Returns the fields of a command or an answer, at least one. Raises MalformedCommand."""
    if not blob or blob[0] != VERSION:
        raise MalformedCommand(f"version {blob[0] if blob else 'none'} is not known here (this is version {VERSION})")
    try:
        fields = msgpack.unpackb(memoryview(blob)[1:])
    except Exception as error:  # msgpack raises a dozen kinds for wrong bytes
        raise MalformedCommand(str(error)) from error
    if not isinstance(fields, list) or not fields:
        raise MalformedCommand("expected a list of fields")
    return fields


# -- commands ---------------------------------------------------------------------------------------------------------


def txn_fields(ops: Sequence[Op]) -> list[Any]:
    fields: list[Any] = []
    for op in ops:
        match op:
            case Put(key, value, expected, lease):
                fields.append([0, key, bytes(value), expected, lease])
            case Delete(key, expected):
                fields.append([1, key, expected])
            case Check(key, expected):
                fields.append([2, key, expected])
    return [fields]


def ops_of(fields: Any) -> list[Op]:
    """Reads the operations of a transaction. Raises MalformedCommand; whether keys and values keep their limits is not
    looked at.
    """
    ops: list[Op] = []
    try:
        for kind, key, *rest in fields:
            if not isinstance(key, str):
                raise MalformedCommand("a key must be text")
            if kind == 0:
                value, expected, lease = rest
                if not isinstance(value, bytes) or not isinstance(lease, int) or not isinstance(expected, int | None):
                    raise MalformedCommand("put of something else than bytes")
                ops.append(Put(key, value, expected, lease))
            else:
                (expected,) = rest
                if not isinstance(expected, int | None) or kind not in (1, 2) or (kind == 2 and expected is None):
                    raise MalformedCommand(f"operation {kind} is not known here")
                ops.append(Check(key, expected) if kind == 2 and expected is not None else Delete(key, expected))
    except (TypeError, ValueError) as error:
        raise MalformedCommand(str(error)) from error
    return ops


def command(kind: CommandKind, fields: Sequence[Any], *, session: int = 0, sequence: int = 0, low: int = 0) -> bytes:
    return pack([int(kind), session, sequence, low, *fields])


# -- answers ----------------------------------------------------------------------------------------------------------


def ok(*fields: Any) -> bytes:
    return pack([int(CommandStatus.OK), *fields])


def refusal(status: CommandStatus, *fields: Any) -> bytes:
    return pack([int(status), *fields])


def with_applied(answer: bytes, index: int) -> bytes | None:
    """An OK with one more field behind its own, {"at": index}: the last command that the node which passes it on has
    applied. None: another answer, whose fields are counted.
    """
    head = answer[:3]
    if len(head) < 3 or not _SHORT <= head[1] < _SHORT + 15 or head[2] != CommandStatus.OK:
        return None
    added: bytes = msgpack.packb({_APPLIED: index})
    return bytes((VERSION, head[1] + 1)) + answer[2:] + added


def applied_of(fields: Sequence[Any]) -> int:
    """What `with_applied` added to the fields of an answer; -1: nothing."""
    last = fields[-1] if fields else None
    index = last.get(_APPLIED) if isinstance(last, dict) else None
    return index if type(index) is int else -1


def answer_of(error: MetadataError) -> bytes:
    """The answer that makes `open_answer` raise the same on the other side."""
    match error:
        case NotLeaderHere():
            return refusal(CommandStatus.NOT_LEADER, error.hint, str(error))
        case OutcomeUnknown():
            return refusal(CommandStatus.UNKNOWN, str(error))
        case LeaseLost():
            return refusal(CommandStatus.LEASE_LOST, str(error))
        case VersionConflict():
            return refusal(CommandStatus.CONFLICT, error.key, error.expected, error.actual)
        case _:
            return refusal(CommandStatus.UNAVAILABLE, str(error))


def open_answer(answer: bytes | memoryview) -> list[Any]:
    """The fields behind an OK. Raises what the status says: VersionConflict, LeaseLost, NotAllowed, SessionUnknown,
    MetadataUnavailable, NotLeaderHere, OutcomeUnknown; PeerError where the bytes are no answer.
    """
    try:
        status, *fields = unpack(answer)
        if status == CommandStatus.OK:
            return fields
        raise _error(CommandStatus(status), fields)
    except (MalformedCommand, ValueError, TypeError) as error:
        raise PeerError(f"metadata answer: {error}") from error


def _error(status: CommandStatus, fields: list[Any]) -> Exception:
    match status:
        case CommandStatus.CONFLICT:
            key, expected, actual = fields
            return VersionConflict(key, expected, actual)
        case CommandStatus.LEASE_LOST:
            return LeaseLost(fields[0] if fields else "the lease is unknown")
        case CommandStatus.REFUSED:
            return NotAllowed(fields[0] if fields else "refused")
        case CommandStatus.SESSION_UNKNOWN:
            return SessionUnknown("the client session was forgotten")
        case CommandStatus.NOT_LEADER:
            hint, text = fields
            return NotLeaderHere(hint, text)
        case CommandStatus.STALE:
            return SessionUnknown("another client has come further under the number of this client session")
        case CommandStatus.UNKNOWN:
            return OutcomeUnknown(fields[0] if fields else "it may or may not have been done")
        case _:
            return MetadataUnavailable(fields[0] if fields else "no answer")
