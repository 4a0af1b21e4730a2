"""The keys of a request: what a peer of a role with keys of its own asks for, held against them.

Is: which keys a frame speaks of. Isn't: who may (`heliograph.model.roles.key_roles`), or an answer.
Invariants: a request that speaks of keys in a way that is not known here is refused; a lease is renewed and ended by
who may write all that lies under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from heliograph.kv.machine_commands import CommandKind, MalformedCommand, ops_of, unpack
from heliograph.kv.metadata_store import ABSENT, Check, Put
from heliograph.model.errors import NotAllowed
from heliograph.model.roles.key_roles import PeerKeys
from heliograph.wire.metadata_frames import Frame, fields

Held = Callable[[int], Iterable[str]]
"""Lease -> the keys that lie under it."""


def check(keys: PeerKeys, kind: int, payload: bytes, held: Held) -> None:
    """Raises NotAllowed; PeerError where the payload is malformed."""
    match kind:
        case Frame.GET:
            (key,) = fields(payload, str)
            keys.read(key)
        case Frame.RANGE:
            start, end, _ = fields(payload, str, str, int)
            keys.read_range(start, end)
        case Frame.WATCH:
            prefix, _ = fields(payload, str, int)
            keys.watch(prefix)
        case Frame.RENEW:
            (lease,) = fields(payload, int)
            _write_all(keys, held(lease))
        case Frame.COMMAND:
            try:
                command, _, _, _, *given = unpack(payload)
                _command(keys, command, given, held)
            except (MalformedCommand, ValueError, TypeError) as error:
                raise NotAllowed(f"this is no command: {error}") from error
        case Frame.COUNT | Frame.BACKUP | Frame.MEMBERS | Frame.RAFT:
            return  # of roles that have every key, or of voters, as the call's row says
        case _:
            return  # it speaks of no key


def _command(keys: PeerKeys, command: int, given: list[object], held: Held) -> None:
    match command:
        case CommandKind.TXN:
            (found,) = given
            for op in ops_of(found):
                if isinstance(op, Check):
                    keys.read(op.key)
                else:
                    keys.write(op.key, absent=isinstance(op, Put) and op.expected == ABSENT)
        case CommandKind.NEXT_IDS:
            counter, _, _ = given
            keys.write(str(counter))
        case CommandKind.REVOKE:
            (lease,) = given
            if not isinstance(lease, int):
                raise NotAllowed("a lease is a number")
            _write_all(keys, held(lease))
        case CommandKind.GRANT | CommandKind.SESSION:
            return
        case _:
            raise NotAllowed(f"command {command} is not known here")


def _write_all(keys: PeerKeys, under: Iterable[str]) -> None:
    for key in under:
        keys.write(key)
