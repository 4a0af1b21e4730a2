"""KvMachine: the versioned table that a Raft log drives.

Is: keys with versions, compare-and-set, counters, leases (as facts: which exist, and which keys hang on them), client sessions.
Isn't: time (a lease ends because a command says so), I/O, or a watch's transport; observers are told each change.
Invariants: the same commands at the same indexes give the same answers and the same snapshot bytes on every node; `apply` never raises for what a
command holds; a deduplicated command is applied at most once while its session is known; a version is the index of the entry that made it.
Bounds: SESSIONS_MAX sessions, the least recently used forgotten first; ANSWERS_MAX unanswered commands in each.
The bytes of a snapshot: heliograph.raft.image.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from heliograph.model.errors import CorruptData, NotAllowed
from heliograph.raft.commands import Kind, Malformed, Status, ok, ops_of, refusal, unpack
from heliograph.raft.image import Head, Image, parts, read
from heliograph.raft.store import RANGE_LIMIT, Check, Delete, Put, check_key, check_ops, check_ttl, prefix_end

SESSIONS_MAX = 4096
ANSWERS_MAX = 1024
ID_MAX = (1 << 63) - 1

Change = tuple[str, bytes | None, int]
"""(key, value or None where it was deleted, version)."""
Observer = Callable[[int, list[Change]], None]


class SortedKeys:
    """An ordered set of strings in blocks: insert and remove in O(log n + block), ranges in O(log n + k)."""

    BLOCK = 512

    def __init__(self, keys: list[str] | None = None) -> None:
        """keys: sorted and distinct."""
        keys = keys or []
        self._blocks = [keys[i : i + self.BLOCK] for i in range(0, len(keys), self.BLOCK)]
        self._lasts = [block[-1] for block in self._blocks]

    def add(self, key: str) -> None:
        """`key` must not be there."""
        if not self._blocks:
            self._blocks, self._lasts = [[key]], [key]
            return
        at = min(bisect_left(self._lasts, key), len(self._lasts) - 1)
        block = self._blocks[at]
        insort(block, key)
        if len(block) > 2 * self.BLOCK:
            self._blocks[at : at + 1] = [block[: self.BLOCK], block[self.BLOCK :]]
            self._lasts[at : at + 1] = [block[self.BLOCK - 1], block[-1]]
        else:
            self._lasts[at] = block[-1]

    def remove(self, key: str) -> None:
        """`key` must be there."""
        at = bisect_left(self._lasts, key)
        block = self._blocks[at]
        index = bisect_left(block, key)
        assert block[index] == key
        del block[index]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._blocks)

    def between(self, start: str, end: str) -> Iterator[str]:
        """The keys in [start, end), in order. Not to be held over a change."""
        at = bisect_left(self._lasts, start)
        if at == len(self._blocks):
            return
        index = bisect_left(self._blocks[at], start)
        for block in self._blocks[at:]:
            for key in block[index:]:
                if key >= end:
                    return
                yield key
            index = 0


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


class KvMachine:
    """The state machine. `apply`, `snapshot`, and `restore` are the log's; the rest are reads of what is applied."""

    def __init__(self) -> None:
        self.index = 0
        self._table: dict[str, tuple[bytes, int, int]] = {}
        self._keys = SortedKeys()
        self._counters: dict[str, int] = {}
        self._leases: dict[int, _Lease] = {}
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._observers: list[Observer] = []
        self._images: list[Image] = []
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
            try:
                kind, session, sequence, low, *fields = unpack(command)
                answer = self._deduplicated(kind, session, sequence, low, fields, changes)
            except (Malformed, NotAllowed, ValueError, TypeError) as error:
                answer = refusal(Status.REFUSED, str(error))
        for observer in tuple(self._observers):
            observer(index, changes)
        return answer

    def snapshot(self) -> bytes:
        """All at once: for small tables and tests."""
        return b"".join(self.parts())

    def parts(self) -> Iterator[bytes]:
        """The bytes of a snapshot of this moment, in pieces; entries may be applied between them. Ends early where `restore` came between."""
        return self._parts(self.image())

    def image(self) -> Image:
        """The table of this moment, to be read in pieces. `release` it, else every later change is noted for it."""
        head = Head(
            self.index,
            [(name, self._counters[name]) for name in sorted(self._counters)],
            [(lease, held.ttl_ms) for lease, held in sorted(self._leases.items())],
            [(number, s.low, sorted(s.answers.items())) for number, s in self._sessions.items()],
        )
        return self._taken(Image(head, self._table, self._keys))

    def image_under(self, prefix: str) -> Image:
        """The same of the keys that begin with `prefix`, and of nothing else."""
        return self._taken(Image(Head(self.index), self._table, self._keys, prefix, prefix_end(prefix)))

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
        """Observers are told the difference to what was there. Raises CorruptData, and changes nothing then."""
        try:
            head, table = read(blob)
            held = {number: _Lease(ttl_ms) for number, ttl_ms in head.leases}
            for key, value in table.items():
                if value[2]:
                    held[value[2]].keys[key] = None
            known = OrderedDict((number, _Session(low, dict(answers))) for number, low, answers in head.sessions)
            next_ids: dict[str, int] = dict(head.counters)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptData(f"metadata snapshot: {error}") from error
        before, index = self._table, head.index
        changes: list[Change] = [(key, None, index) for key in sorted(before) if key not in table]
        changes += sorted(
            ((key, value, version) for key, (value, version, _) in table.items() if key not in before or before[key][1] != version),
            key=lambda change: (change[2], change[0]),
        )
        for image in self._images:
            image.broken = True
        self._images = []
        self.index, self._table, self._leases, self._sessions, self._counters = index, table, held, known, next_ids
        self._keys = SortedKeys(sorted(table))
        self.lease_changes += 1
        for observer in tuple(self._observers):
            observer(index, changes)

    # -- reads ----------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> tuple[bytes, int] | None:
        found = self._table.get(key)
        return None if found is None else (found[0], found[1])

    def range(self, start: str, end: str, limit: int = RANGE_LIMIT, bytes_max: int = 1 << 62) -> tuple[list[tuple[str, bytes, int]], bool]:
        """Up to `limit` keys of [start, end), cut behind the one that passes `bytes_max`; and whether more follow."""
        out: list[tuple[str, bytes, int]] = []
        size = 0
        for key in self._keys.between(start, end):
            if len(out) >= limit or size >= bytes_max:
                return out, True
            value, version, _ = self._table[key]
            out.append((key, value, version))
            size += 4 * len(key) + len(value)
        return out, False

    def under(self, prefix: str) -> list[tuple[str, bytes, int]]:
        """Every key that begins with `prefix`, in order."""
        return self.range(prefix, prefix_end(prefix), 1 << 62)[0]

    def leases(self) -> dict[int, int]:
        """Lease -> ttl in ms."""
        return {lease: held.ttl_ms for lease, held in self._leases.items()}

    def ttl_ms(self, lease: int) -> int | None:
        held = self._leases.get(lease)
        return None if held is None else held.ttl_ms

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Called with (index, changes) after each entry, and after a restored snapshot; must not raise. Returns "stop"."""
        self._observers.append(observer)

        def stop() -> None:
            if observer in self._observers:
                self._observers.remove(observer)

        return stop

    def __len__(self) -> int:
        return len(self._table)

    # -- commands -------------------------------------------------------------------------------------------------------

    def _deduplicated(self, kind: int, number: int, sequence: int, low: int, fields: list[Any], changes: list[Change]) -> bytes:
        if kind == Kind.SESSION:
            return self._open_session()
        if number == 0:
            return self._execute(kind, fields, changes)
        session = self._sessions.get(number)
        if session is None:
            return refusal(Status.SESSION_UNKNOWN)
        self._sessions.move_to_end(number)
        if low > session.low:
            session.low = low
            session.answers = {s: a for s, a in session.answers.items() if s >= low}
        if sequence < session.low:
            return refusal(Status.STALE)
        first = session.answers.get(sequence)
        if first is not None:
            return first
        if len(session.answers) >= ANSWERS_MAX:
            return refusal(Status.REFUSED, f"more than {ANSWERS_MAX} writes of one client without an answer")
        try:
            answer = self._execute(kind, fields, changes)
        except (Malformed, NotAllowed, ValueError, TypeError) as error:
            answer = refusal(Status.REFUSED, str(error))
        session.answers[sequence] = answer
        return answer

    def _open_session(self) -> bytes:
        self._sessions[self.index] = _Session()
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return ok(self.index)

    def _execute(self, kind: int, fields: list[Any], changes: list[Change]) -> bytes:
        match kind:
            case Kind.TXN:
                (ops,) = fields
                return self._txn(ops, changes)
            case Kind.NEXT_IDS:
                counter, count, at_least = fields
                if not isinstance(counter, str) or not isinstance(count, int) or not isinstance(at_least, int):
                    raise Malformed("a counter's name is text, ids are integers")
                return self._next_ids(counter, count, at_least)
            case Kind.GRANT:
                (ttl_ms,) = fields
                check_ttl(ttl_ms)
                self._leases[self.index] = _Lease(ttl_ms)
                self.lease_changes += 1
                return ok(self.index)
            case Kind.REVOKE:
                (lease,) = fields
                return self._revoke(lease, changes)
            case _:
                raise Malformed(f"command {kind} is not known here")

    def _txn(self, fields: Any, changes: list[Change]) -> bytes:
        ops = ops_of(fields)
        check_ops(ops)
        for op in ops:
            if op.expected is not None:
                found = self._table.get(op.key)
                actual = -1 if found is None else found[1]
                if actual != op.expected:
                    return refusal(Status.CONFLICT, op.key, op.expected, actual)
        for op in ops:
            if isinstance(op, Put) and op.lease and op.lease not in self._leases:
                return refusal(Status.LEASE_LOST, f"{op.key}: lease {op.lease} has expired or is unknown")
        there = [op.key in self._table for op in ops]
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
        found = self._table.get(key)
        for image in self._images:
            image.keep(key, found)
        if found is None:
            self._keys.add(key)
        elif found[2]:
            del self._leases[found[2]].keys[key]
        if lease:
            self._leases[lease].keys[key] = None
        self._table[key] = (value, self.index, lease)
        changes.append((key, value, self.index))

    def _remove(self, key: str, changes: list[Change]) -> None:
        found = self._table.pop(key, None)
        if found is None:
            return
        for image in self._images:
            image.keep(key, found)
        self._keys.remove(key)
        if found[2]:
            del self._leases[found[2]].keys[key]
        changes.append((key, None, self.index))

    def _next_ids(self, counter: str, count: int, at_least: int) -> bytes:
        check_key(counter)
        first = max(self._counters.get(counter, 0), at_least)
        if count < 1 or first < 0 or first + count > ID_MAX:
            raise NotAllowed(f"counter {counter}: {count} ids from {first} are not to be had")
        self._counters[counter] = first + count
        return ok(first)

    def _revoke(self, lease: int, changes: list[Change]) -> bytes:
        held = self._leases.get(lease)
        if held is None:
            return ok(False)
        for key in sorted(held.keys):
            self._remove(key, changes)
        del self._leases[lease]
        self.lease_changes += 1
        return ok(True)
