"""KvMachine: the versioned table that a Raft log drives.

Is: keys with versions, compare-and-set, counters, leases (as facts: which exist, and which keys hang on them), client
sessions.
Isn't: time (a lease ends because a command says so), I/O, where its rows lie (`table_rows`, `durable_state_machine`),
or a watch's transport; observers are told each change.
Invariants: the same commands at the same indexes give the same answers and the same snapshot bytes on every node;
`apply` never raises for what a command holds; a deduplicated command is applied at most once while its session is
known; a version is the index of the entry that made it.
Bounds: `sessions_max` sessions, the least recently used forgotten first; `answers_max` unanswered commands in each.
The bytes of a snapshot: heliograph.kv.engine.table_image.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from heliograph.kv.engine.table_image import PART_ROWS, Head, Image, Restoring, parts
from heliograph.kv.engine.table_rows import KeyCounts, MemoryRows, Row, TableRows
from heliograph.kv.machine_commands import CommandKind, CommandStatus, MalformedCommand, ok, ops_of, refusal, unpack
from heliograph.kv.metadata_store import RANGE_LIMIT, Check, Delete, Put, check_key, check_ops, check_ttl, prefix_end
from heliograph.model.errors import CorruptData, NotAllowed
from heliograph.raft.ports import Done, DurableTable, Restore

ID_MAX = (1 << 63) - 1

Change = tuple[str, bytes | None, int]
"""(key, value or None where it was deleted, version)."""
Observer = Callable[[int, list[Change] | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSettings:
    """All members of a group must have the same: what a command answers, and a snapshot's bytes, depend on them."""

    sessions_max: int = 4096
    answers_max: int = 1024
    """Commands of one session whose answers its client may still ask for."""
    part_rows: int = PART_ROWS
    """Rows in one part of a snapshot or a listing, at most."""
    range_limit: int = RANGE_LIMIT
    """Keys in the answer to one range, at most; it may differ between members."""

    def __post_init__(self) -> None:
        assert min(self.sessions_max, self.answers_max, self.part_rows, self.range_limit) > 0


class _Session:
    """Answers of one client that it may still ask for again."""

    __slots__ = ("answers", "low")

    def __init__(self, low: int = 0, answers: dict[int, bytes] | None = None) -> None:
        self.low, self.answers = low, answers or {}


class _Lease:
    __slots__ = ("keys", "ttl_ms")

    def __init__(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self.keys: dict[str, None] = {}


class _MemoryRestore:
    """A snapshot on its way into memory."""

    def __init__(self, machine: KvMachine) -> None:
        self._machine, self._reading = machine, Restoring()
        self._table: dict[str, Row] = {}

    def add(self, data: bytes, done: Done) -> None:
        try:
            self._table.update(self._reading.add(data))
        except CorruptData as error:
            done(error)
            return
        done(None)

    def finish(self, description: bytes, done: Done) -> None:
        try:
            self._table.update(self._reading.finish_rows())
            self._machine._take_over(
                self._reading.finish(), MemoryRows(self._table), self._reading.counts, self._reading.leased
            )
        except CorruptData as error:
            done(error)
            return
        done(None)

    def abandon(self) -> None:
        self._table = {}


class KvMachine:
    """The state machine. `apply`, `snapshot`, and `restore` are the log's; the rest are reads of what is applied."""

    def __init__(self, rows: TableRows | None = None, settings: MachineSettings | None = None) -> None:
        """rows: empty ones of its own; in memory unless given. settings: all members of a group must have the same, for
        which session is forgotten and which command is refused is part of the replicated state.
        """
        self.index = 0
        self._settings = settings or MachineSettings()
        self.range_limit = self._settings.range_limit
        self._rows: TableRows = MemoryRows() if rows is None else rows
        self._counts = KeyCounts()
        self._counters: dict[str, int] = {}
        self.held: dict[int, _Lease] = {}
        """Leases that exist, with the keys under each."""
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._observers: list[Observer] = []
        self._images: list[Image] = []
        self.last_command = self.taken_over = 0
        """The index of the last command applied here, 0 before there is one; and of the table that was taken over."""
        self.lease_changes = 0
        """Grows whenever the set of leases changes, for who keeps their deadlines; no part of the state."""

    # -- the log's side -----------------------------------------------------------------------------------------------

    def apply(self, index: int, command: bytes) -> bytes:
        """Applies one committed command and returns its answer. An empty command only moves the index."""
        assert index > self.index, f"entry {index} after {self.index}"
        self.index = index
        changes: list[Change] = []
        answer = b""
        if command:
            self.last_command = index
            try:
                kind, session, sequence, low, *fields = unpack(command)
                answer = self._deduplicated(kind, session, sequence, low, fields, changes)
            except (MalformedCommand, NotAllowed, ValueError, TypeError) as error:
                answer = refusal(CommandStatus.REFUSED, str(error))
        for observer in tuple(self._observers):
            observer(index, changes)
        return answer

    def snapshot(self) -> bytes:
        """All at once: for small tables and tests."""
        return b"".join(self.parts())

    def parts(self) -> Iterator[bytes]:
        """The bytes of a snapshot of this moment, in pieces; entries may be applied between them. Ends early where
        `restore` came between.
        """
        return self._parts(self.image())

    def image(self) -> Image:
        """The table of this moment, to be read in pieces. `release` it, else every later change is noted for it."""
        return self._taken(Image(self.head(), self._rows, part_rows=self._settings.part_rows))

    def head(self) -> Head:
        """What it holds beside the rows."""
        return Head(
            self.index,
            [(name, self._counters[name]) for name in sorted(self._counters)],
            [(lease, held.ttl_ms) for lease, held in sorted(self.held.items())],
            [(number, s.low, sorted(s.answers.items())) for number, s in self._sessions.items()],
        )

    def image_under(self, prefix: str) -> Image:
        """The same of the keys that begin with `prefix`, and of nothing else."""
        part_rows = self._settings.part_rows
        return self._taken(Image(Head(self.index), self._rows, prefix, prefix_end(prefix), part_rows=part_rows))

    def _taken(self, image: Image) -> Image:
        self._images.append(image)
        return image

    def release(self, image: Image) -> None:
        if image in self._images:
            self._images.remove(image)

    def _parts(self, image: Image) -> Iterator[bytes]:
        try:
            yield from parts(image)
        finally:
            self.release(image)

    def restore(self, blob: bytes) -> None:
        """A whole snapshot at once, into memory: for small tables and tests. Raises CorruptData, and changes nothing
        then.
        """
        errors: list[BaseException | None] = []
        restore = self.begin_restore(errors.append)
        restore.add(blob, errors.append)
        if not any(errors):
            restore.finish(b"", errors.append)
        for error in filter(None, errors):
            raise error

    def begin_restore(self, done: Done) -> Restore:
        done(None)
        return _MemoryRestore(self)

    @property
    def kept(self) -> DurableTable | None:
        return None

    def _take_over(self, head: Head, rows: TableRows, counts: KeyCounts, leased: dict[int, dict[str, None]]) -> None:
        """Another table in the place of what there was: observers are told None, which may be any difference. Raises
        CorruptData, and changes nothing then.
        """
        try:
            held = {number: _Lease(ttl_ms) for number, ttl_ms in head.leases}
            for lease, keys in leased.items():
                held[lease].keys = keys
            sessions = OrderedDict((number, _Session(low, dict(answers))) for number, low, answers in head.sessions)
            counters: dict[str, int] = dict(head.counters)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptData(f"metadata snapshot: {error}") from error
        for image in self._images:
            image.broken = True
        self._images = []
        self.index, self._rows, self._counts = head.index, rows, counts
        self.held, self._counters, self._sessions = held, counters, sessions
        self.last_command, self.taken_over = 0, head.index
        self.lease_changes += 1
        for observer in tuple(self._observers):
            observer(head.index, None)

    # -- reads ---------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> tuple[bytes, int] | None:
        found = self._rows.get(key)
        return None if found is None else (found[0], found[1])

    def range(
        self, start: str, end: str, limit: int | None = None, bytes_max: int = 1 << 62
    ) -> tuple[list[tuple[str, bytes, int]], bool]:
        """Up to `limit` keys (None: `range_limit`) of [start, end), cut behind the one that passes `bytes_max`; and
        whether more follow.
        """
        out: list[tuple[str, bytes, int]] = []
        size = 0
        limit = self.range_limit if limit is None else limit
        for key, (value, version, _) in self._rows.items(start, end):
            if len(out) >= limit or size >= bytes_max:
                return out, True
            out.append((key, value, version))
            size += 4 * len(key) + len(value)
        return out, False

    def under(self, prefix: str) -> list[tuple[str, bytes, int]]:
        """Every key that begins with `prefix`, in order."""
        return self.range(prefix, prefix_end(prefix), 1 << 62)[0]

    def count(self, prefix: str) -> int:
        """How many keys begin with `prefix`, without a look at them. Raises NotAllowed where they are not counted by it
        (see Counts).
        """
        return self._counts.under(prefix)

    def counter(self, name: str) -> int:
        """The next id that this counter would give out."""
        return self._counters.get(name, 0)

    def leases(self) -> dict[int, int]:
        """Maps each lease that exists to its ttl in ms."""
        return {lease: held.ttl_ms for lease, held in self.held.items()}

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Called with (index, changes) after each entry, with (index, None) where the table was replaced; must not
        raise. Returns "stop".
        """
        self._observers.append(observer)

        def stop() -> None:
            if observer in self._observers:
                self._observers.remove(observer)

        return stop

    def __len__(self) -> int:
        return self._counts.total

    # -- commands ------------------------------------------------------------------------------------------------------

    def _deduplicated(
        self, kind: int, number: int, sequence: int, low: int, fields: list[Any], changes: list[Change]
    ) -> bytes:
        if kind == CommandKind.SESSION:
            return self._open_session()
        if number == 0:
            return self._execute(kind, fields, changes)
        session = self._sessions.get(number)
        if session is None:
            return refusal(CommandStatus.SESSION_UNKNOWN)
        self._sessions.move_to_end(number)
        if low > session.low:
            session.low = low
            session.answers = {s: a for s, a in session.answers.items() if s >= low}
        if sequence < session.low:
            return refusal(CommandStatus.STALE)
        first = session.answers.get(sequence)
        if first is not None:
            return first
        answers_max = self._settings.answers_max
        if len(session.answers) >= answers_max:
            return refusal(CommandStatus.REFUSED, f"more than {answers_max} writes of one client without an answer")
        try:
            answer = self._execute(kind, fields, changes)
        except (MalformedCommand, NotAllowed, ValueError, TypeError) as error:
            answer = refusal(CommandStatus.REFUSED, str(error))
        session.answers[sequence] = answer
        return answer

    def _open_session(self) -> bytes:
        self._sessions[self.index] = _Session()
        while len(self._sessions) > self._settings.sessions_max:
            self._sessions.popitem(last=False)
        return ok(self.index)

    def _execute(self, kind: int, fields: list[Any], changes: list[Change]) -> bytes:
        match kind:
            case CommandKind.TXN:
                (ops,) = fields
                return self._txn(ops, changes)
            case CommandKind.NEXT_IDS:
                counter, count, at_least = fields
                if not isinstance(counter, str) or not isinstance(count, int) or not isinstance(at_least, int):
                    raise MalformedCommand("a counter's name is text, ids are integers")
                return self._next_ids(counter, count, at_least)
            case CommandKind.GRANT:
                (ttl_ms,) = fields
                check_ttl(ttl_ms)
                self.held[self.index] = _Lease(ttl_ms)
                self.lease_changes += 1
                return ok(self.index)
            case CommandKind.REVOKE:
                (lease,) = fields
                return self._revoke(lease, changes)
            case _:
                raise MalformedCommand(f"command {kind} is not known here")

    def _txn(self, fields: Any, changes: list[Change]) -> bytes:
        ops = ops_of(fields)
        check_ops(ops)
        for op in ops:
            if op.expected is not None:
                found = self._rows.get(op.key)
                actual = -1 if found is None else found[1]
                if actual != op.expected:
                    return refusal(CommandStatus.CONFLICT, op.key, op.expected, actual)
        for op in ops:
            if isinstance(op, Put) and op.lease and op.lease not in self.held:
                return refusal(CommandStatus.LEASE_LOST, f"{op.key}: lease {op.lease} has expired or is unknown")
        there = [self._rows.get(op.key) is not None for op in ops]
        for op in ops:
            match op:
                case Put(key, value, _, lease):
                    self._set(key, value, lease, changes)
                case Delete(key):
                    self._remove(key, changes)
                case Check():
                    pass
        return ok(self.index, there)

    def _set(self, key: str, value: bytes, lease: int, changes: list[Change]) -> None:
        found = self._rows.get(key)
        for image in self._images:
            image.keep(key, found)
        if found is None:
            self._counts.add(key)
        elif found[2]:
            del self.held[found[2]].keys[key]
        if lease:
            self.held[lease].keys[key] = None
        self._rows.set(key, (value, self.index, lease))
        changes.append((key, value, self.index))

    def _remove(self, key: str, changes: list[Change]) -> None:
        found = self._rows.get(key)
        if found is None:
            return
        for image in self._images:
            image.keep(key, found)
        self._rows.remove(key)
        self._counts.add(key, -1)
        if found[2]:
            del self.held[found[2]].keys[key]
        changes.append((key, None, self.index))

    def _next_ids(self, counter: str, count: int, at_least: int) -> bytes:
        check_key(counter)
        first = max(self._counters.get(counter, 0), at_least)
        if count < 0 or first < 0 or first + count > ID_MAX:
            raise NotAllowed(f"counter {counter}: {count} ids from {first} are not to be had")
        if count:
            self._counters[counter] = first + count
        return ok(first)

    def _revoke(self, lease: int, changes: list[Change]) -> bytes:
        held = self.held.get(lease)
        if held is None:
            return ok(False)
        for key in sorted(held.keys):
            self._remove(key, changes)
        del self.held[lease]
        self.lease_changes += 1
        return ok(True)
