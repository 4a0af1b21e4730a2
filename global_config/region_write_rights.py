"""WriteRights: which region may write which key of the global configuration.

Is: the table of keys that are one region's alone, and the rules of values that several regions write; asked by the node
that leads, of every write, with the region that it comes from. Isn't: who that is
(`global_config.transport.config_transport` proves it), or who may call an admin interface there.
Invariants: what tells of one region's state is written by that region alone; a number of a region is given once.

| keys | who writes |
|---|---|
| /writers/R/, /kafka-brokers/R/, /data-keys/R/, /dr/keys/R/, /dr/silences/R/, /config-merged/R, /seen-by/R | R |
| /config-conflicts/R/ | R; any region takes one away, which resolves it |
| /region-numbers/N | any region, once, together with the region's record; nobody changes it or takes it away |
| /regions/R | any region makes it, and changes its addresses; its number nobody; its epoch, which never falls, its
  feature level, and its metadata R alone; another region takes it away only where nothing names it any more |
| /tombstones/… | any region; that R purges, or has purged, only R says |
| a lease, and what lies under it | any region; renewed and ended by one that may write what lies under it |
| /revocations/… | any region revokes, and revokes more; what another one has revoked it neither lifts nor shortens; a
  record is taken away by nobody before it has been over for a while |
| /restored | any region that finds that the configuration went back: a later time than stands there; it stays |
| /forced, /forcing | nobody: the leader of a forced quorum does |
| counters | any region, a few numbers at a time, and no jumps |
| all others: tenants, namespaces, policies, topics, clusters, leaderships, operations | any region |

Source: docs/security.md, "Between regions".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from global_config import keys
from global_config.backup import RESTORED_AHEAD_MS, restored_ms
from global_config.deferred_edits import CONFLICTS, MERGED
from global_config.revocation_list import KEPT_MS
from heliograph.kv.machine_commands import CommandKind, MalformedCommand, ops_of, unpack
from heliograph.kv.metadata_store import ABSENT, Check, Delete, Op, Put
from heliograph.kv.state_machine import KvMachine
from heliograph.kv.unreadable_records import readable
from heliograph.model.configuration.configuration_records import (
    NamespacePolicies,
    PulsarCluster,
    RegionInfo,
    TenantInfo,
)
from heliograph.model.configuration.kafka_brokers import KAFKA_BROKERS
from heliograph.model.configuration.leadership import WRITERS
from heliograph.model.configuration.revocations import REVOCATIONS, Revocation
from heliograph.model.configuration.tombstones import TOMBSTONES, Tombstone
from heliograph.model.errors import CorruptData, MetadataUnavailable, NotAllowed
from heliograph.wire.metadata_frames import Frame, fields

V = TypeVar("V", RegionInfo, Tombstone, Revocation)

OWN = (WRITERS, KAFKA_BROKERS, keys.DATA_KEYS, keys.REPORT_KEYS, keys.SILENCES, MERGED, keys.SEEN_BY)
"""A region's name follows, which alone writes there."""
_JUDGED = (keys.REGIONS, keys.REGION_NUMBERS, CONFLICTS, TOMBSTONES, REVOCATIONS)
"""What is judged by what it says, and so may not go by itself."""
GONE_MS = KEPT_MS - 86_400_000
"""A revocation may go that has been over for so long: a day less than whoever takes it away waits, for clocks that
differ.
"""
IDS_MAX = 1000


class WriteRights:
    """Over the table of the node that leads. Implements `heliograph.kv.server.metadata_service.RightsPort`."""

    def __init__(self, machine: KvMachine, wall_ms: Callable[[], int]) -> None:
        """wall_ms: the time, in milliseconds since 1970."""
        self._machine, self._wall_ms = machine, wall_ms

    def check(self, writers: Sequence[str], kind: int, payload: bytes) -> None:
        """writers: the regions that whoever asks proves to be. Raises NotAllowed, MetadataUnavailable (this node does
        not know yet what stands there), and what a malformed request raises.
        """
        if kind == Frame.RENEW:
            (lease,) = fields(payload, int)
            self._lease(writers, lease)
        elif kind == Frame.COMMAND:
            try:
                command, _, _, _, *given = unpack(payload)
                self._command(writers, command, given)
            except (ValueError, TypeError) as error:  # a field of another kind than the table, or a value, has there
                raise MalformedCommand(str(error)) from error

    def _command(self, writers: Sequence[str], command: int, given: Sequence[Any]) -> None:
        match command:
            case CommandKind.TXN:
                (ops,) = map(ops_of, given)
                for op in ops:
                    if not isinstance(op, Check):
                        self._write(writers, op, ops)
            case CommandKind.REVOKE:
                (lease,) = given
                self._lease(writers, lease)
            case CommandKind.NEXT_IDS:
                counter, count, at_least = given
                if count > IDS_MAX or at_least > 1:
                    raise NotAllowed(
                        f"counter {counter}: a region takes at most {IDS_MAX} numbers at a time, the next ones"
                    )

    def _lease(self, writers: Sequence[str], lease: int) -> None:
        held = self._machine.held.get(lease)
        for key in () if held is None else held.keys:
            self._own(writers, key)

    def _own(self, writers: Sequence[str], key: str, prefixes: Iterable[str] = OWN) -> None:
        for prefix in prefixes:
            if key.startswith(prefix):
                region = key.removeprefix(prefix).partition("/")[0]
                if region not in writers:
                    raise _refused(writers, key, f"only {region} writes it: ask a broker there")

    def _write(self, writers: Sequence[str], op: Put | Delete, ops: Sequence[Op]) -> None:
        key = op.key
        self._own(writers, key)
        if isinstance(op, Put) and op.lease and key.startswith(_JUDGED):
            raise _refused(writers, key, "it would go with its lease, whatever it says then")
        if key.startswith(CONFLICTS) and isinstance(op, Put):
            self._own(writers, key, (CONFLICTS,))
        elif key.startswith(keys.REGION_NUMBERS):
            if isinstance(op, Delete) or op.expected != ABSENT:
                raise _refused(writers, key, "a region's number is given once, and stays used")
        elif key.startswith(keys.REGIONS):
            name = key.removeprefix(keys.REGIONS)
            if isinstance(op, Put):
                self._region(writers, name, op, ops)
            elif name not in writers and (user := self._user(name)):
                raise _refused(writers, key, f"{user} still names {name}")
        elif key.startswith(TOMBSTONES) and isinstance(op, Put):
            self._tombstone(writers, op)
        elif key.startswith(REVOCATIONS):
            self._revocation(writers, op)
        elif key == keys.RESTORED:
            self._restored(writers, op)
        elif key in (keys.FORCED, keys.FORCING):
            raise _refused(writers, key, "whoever leads a forced quorum writes it")

    def _region(self, writers: Sequence[str], name: str, op: Put, ops: Sequence[Op]) -> None:
        new = _decoded(writers, op.key, RegionInfo, op.value)
        if op.expected == ABSENT:
            number = keys.region_number(new.number)
            if new.name != name or not any(
                isinstance(other, Put) and other.key == number and bytes(other.value) == name.encode() for other in ops
            ):
                raise _refused(writers, op.key, "a new region takes a number of its own in the same transaction")
            return
        old = self._stored(writers, op, RegionInfo)
        if old is None:
            return
        falls = new.epoch < old.epoch or new.feature_level < old.feature_level
        if (new.name, new.number) != (old.name, old.number) or falls:
            raise _refused(
                writers, op.key, "its name and its number stay; its epoch never falls, nor its feature level"
            )
        if name not in writers and _state(new) != _state(old):
            raise _refused(
                writers,
                op.key,
                f"only {name} changes its epoch, its feature level, and its metadata: ask a broker there",
            )

    def _tombstone(self, writers: Sequence[str], op: Put) -> None:
        new = _decoded(writers, op.key, Tombstone, op.value)
        old = None if op.expected == ABSENT else self._stored(writers, op, Tombstone)
        if old is None and op.expected != ABSENT:
            return
        for name in ("purging", "purged"):
            said = set(getattr(new, name)).difference(() if old is None else getattr(old, name), writers)
            if said:
                raise _refused(writers, op.key, f"only {min(said)} says what is purged there")

    def _revocation(self, writers: Sequence[str], op: Put | Delete) -> None:
        new = _decoded(writers, op.key, Revocation, op.value) if isinstance(op, Put) else None
        if new is not None and new.key != op.key:
            raise _refused(writers, op.key, "it speaks of another name")
        old = None if op.expected == ABSENT else self._stored(writers, op, Revocation)
        if old is None:
            return
        if new is None:
            if not old.over(self._wall_ms(), kept_ms=GONE_MS):
                raise _refused(writers, op.key, "a revocation is lifted, and goes when it has been over for a month")
            return
        others = {
            name for name in old.regions if name not in writers and self._machine.get(keys.region(name)) is not None
        }
        said = set(new.regions).difference(old.regions, writers)
        if others and not old.lifted_ms:
            said |= others.difference(new.regions)
            if not new.as_strong_as(old):
                raise _refused(writers, op.key, f"{' and '.join(sorted(others))} revoked it: lift it there")
        if said:
            raise _refused(writers, op.key, f"only {min(said)} says what was revoked there")

    def _restored(self, writers: Sequence[str], op: Put | Delete) -> None:
        """Every broker compares it with what its region knows: an earlier time, or none, has all leaderships ask."""
        try:
            new = 0 if isinstance(op, Delete) else restored_ms(bytes(op.value))
            found = self._machine.get(op.key)
            old = 0 if found is None else readable(restored_ms, op.key, found[0]) or 0
        except CorruptData as error:
            raise _refused(writers, op.key, str(error)) from error
        most = self._wall_ms() + RESTORED_AHEAD_MS
        if new > most:
            raise _refused(writers, op.key, "it is more than a day ahead of the clock: no later time could follow it")
        old = old if old <= most else 0
        if isinstance(op, Delete) or op.lease or op.expected is None or new <= old:
            raise _refused(writers, op.key, "it stays, names the version that it changes, and never goes back")

    def _stored(self, writers: Sequence[str], op: Put | Delete, kind: type[V]) -> V | None:
        """What stands there, and is still there when the write is made; None: another version does, so that nothing
        will be written.
        """
        if op.expected is None:
            raise _refused(writers, op.key, "name the version that you change")
        found = self._machine.get(op.key)
        version = ABSENT if found is None else found[1]
        if version < op.expected:  # what it read was written by an earlier leader, and is on its way into this table
            raise MetadataUnavailable("this node of the global configuration has just begun to lead: try again")
        return _decoded(writers, op.key, kind, found[0]) if found is not None and version == op.expected else None

    def _user(self, region: str) -> str:
        """Who names the region; "": nobody."""
        named: tuple[tuple[str, str, Callable[[bytes], Collection[str]]], ...] = (
            (keys.NAMESPACES, "namespace", lambda value: NamespacePolicies.decode(value).regions),
            (keys.TENANTS, "tenant", lambda value: TenantInfo.decode(value).allowed_regions),
            (keys.CLUSTERS, "cluster", lambda value: (PulsarCluster.decode(value).gateway,)),
        )
        for prefix, what, regions in named:
            for key, value, _ in self._machine.under(prefix):
                try:
                    names = regions(value)
                except CorruptData:  # who knows whom it names
                    names = (region,)
                if region in names:
                    return f"{what} {key.removeprefix(prefix)}"
        return ""


def _state(info: RegionInfo) -> tuple[int, int, str]:
    """What a region tells of itself."""
    return info.epoch, info.feature_level, info.metadata_instance


def _decoded(writers: Sequence[str], key: str, kind: type[V], value: bytes | bytearray | memoryview) -> V:
    try:
        return kind.decode(bytes(value))
    except CorruptData as error:
        raise _refused(writers, key, str(error)) from error


def _refused(writers: Sequence[str], key: str, why: str) -> NotAllowed:
    return NotAllowed(f"region {' and '.join(writers)} may not write {key} so: {why}")
