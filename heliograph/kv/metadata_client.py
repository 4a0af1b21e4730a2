"""MetaClient: a MetadataStore over frames, to one or more MetaServers.

Is: one connection at a time, remade with backoff; pipelined requests, each bounded in time; a client session, so that a
repeated write returns its first answer; watches that go on where they were. Isn't: a cache; what a watch tells
(`client_watches`), or a connection's bytes (`metadata_connection`).
Invariants: a write is repeated only under the same session and sequence; where it may have been made and no answer can
be had, OutcomeUnknown;
a watch never goes back in time, but with its whole group; it tells every deletion that happened while it was cut off.
Where the group is in another history (`client_history`), watches tell all that there is, and no lease of before is
renewed, or anything put under it, whoever has its number by now.
Reads, and writes, take turns by the first two parts of their keys (a kind, and a tenant as a rule), ledgers together,
and each kind of Kafka's by group, or id, in one turn; a renewal waits for none of them.
Bounds: `reads_at_once` reads, `writes_at_once` writes, and LARGE_AT_ONCE large ones on their way; `reads_waiting_max`
and `writes_waiting_max` that wait for their turns.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from heliograph.kv.client_history import AnotherHistory, ClientHistory
from heliograph.kv.client_watches import Watch
from heliograph.kv.machine_commands import (
    CommandKind,
    CommandStatus,
    MalformedCommand,
    SessionUnknown,
    applied_of,
    command,
    open_answer,
    txn_fields,
    unpack,
)
from heliograph.kv.metadata_connection import MetaConnection
from heliograph.kv.metadata_store import (
    RANGE_LIMIT,
    Delete,
    Op,
    Put,
    WatchCallback,
    check_key,
    check_ops,
    check_ttl,
    fills_page,
)
from heliograph.model.errors import MetadataUnavailable, OutcomeUnknown, PeerError, reason_of
from heliograph.runtime.backoff import Backoff
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.throttle import FairQueue
from heliograph.wire.metadata_frames import Frame, body, fields, frame, rows

LARGE_BYTES = 64 << 10
"""Writes of more wait for those alike."""
LARGE_AT_ONCE = 8
"""So many large writes are on their way: together they have at most 32 MiB, and few of them no more than others."""
FRESH_S = 3.0
"""A server speaks each second; what it said longer ago than this says nothing about now."""
_TOGETHER = {"ledgers": 2, "located": 2, "underreplicated": 2, "replicating": 2, "kafka": 3}
"""Keys that name no tenant: these have one turn together for so many parts of them, and take turns in that by the next
one, a ledger's number, or the name of a group or a transactional id.
"""
_HISTORY = 0
"""The number of the watch of the history; others count from 1."""
_REPEAT_S = 0.1
_SILENCE_S = 5.0
"""A server says something each second; one that is silent this long is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    timeout_s: float = 10.0
    """Bounds one call, reconnects and repetitions included."""
    connect_timeout_s: float = 3.0
    backoff_min_s: float = 0.05
    backoff_max_s: float = 1.0
    name: str = ""
    reads_at_once: int = 512
    """Reads without an answer: others wait for their turns. With writes below what a server takes of one connection at
    a time, so that renewals of leases are read at once.
    """
    writes_at_once: int = 384
    """The same of writes. Below `answers_max` of the machine."""
    reads_waiting_max: int = 8192
    """Where so many wait, whoever has most gives a place to who has fewer, or the call is refused."""
    writes_waiting_max: int = 1000
    range_limit: int = RANGE_LIMIT
    """Keys that a range without a limit returns at most."""

    def __post_init__(self) -> None:
        assert 0 < self.backoff_min_s <= self.backoff_max_s and self.timeout_s > 0
        assert min(self.reads_at_once, self.writes_at_once, self.reads_waiting_max, self.writes_waiting_max) > 0


class _Request:
    __slots__ = ("answer", "payload_frame", "sent", "unsure", "write")

    def __init__(self, payload_frame: bytes, answer: asyncio.Future[bytes], write: bool) -> None:
        self.payload_frame, self.answer, self.write = payload_frame, answer, write
        self.sent = False
        """It is on its way, and no answer came yet."""
        self.unsure = False
        """A try of it may have been applied."""


class MetaClient:
    """Implements MetadataStore. Connects by itself at the first call or watch; `close` ends it."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        clock: Clock,
        rng: Rng,
        ssl: tls.SSLContext | None = None,
        settings: ClientSettings | None = None,
        on_another_history: Callable[[AnotherHistory], None] = lambda found: None,
    ) -> None:
        """addresses: `host:port` of the servers; the leader's hint may add another. on_another_history: called once
        the metadata is found to lack what this client was told of it.
        """
        assert addresses
        self.settings = settings or ClientSettings()
        self._addresses, self._clock, self._rng, self._ssl = list(addresses), clock, rng, ssl
        self._at = 0
        self._runner: asyncio.Task[None] | None = None
        self._connection: MetaConnection | None = None
        self._closed = False
        self._trouble = "not connected yet"
        self._ids = 0
        self._pending: dict[int, _Request] = {}
        self._reads = FairQueue(self.settings.reads_at_once, self.settings.reads_waiting_max)
        self._writes = FairQueue(self.settings.writes_at_once, self.settings.writes_waiting_max)
        self._large = FairQueue(LARGE_AT_ONCE, self.settings.writes_waiting_max)
        self._session = 0
        self._opening = asyncio.Lock()
        self._sequence = clock.wall_ms() << 16
        """Of the last write: no other client's, also where the number of its session is given out again."""
        self._unanswered: dict[int, None] = {}
        self._watched: dict[int, Watch | ClientHistory] = {}
        """By the number that the server is told."""
        self.history = ClientHistory(self._begin_anew)
        self._on_another_history = on_another_history
        self._hears_leader = False
        self._answered = False
        """By the server of the present connection, or the last one: a request, or all that it was asked to watch."""
        self._fresh_at = clock.monotonic()
        self.on_done: Callable[[bool, int, float, bool], None] | None = None
        """Called after each request: (whether it wrote, its bytes, the seconds that it took, whether an answer
        came).
        """

    # -- the store ----------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> tuple[bytes, int] | None:
        check_key(key)
        found = await self._read(Frame.GET, body(key), key)
        return (found[0], found[1]) if found else None

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        return await self.txn([Put(key, value, expected, lease)])

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        ops = [Delete(key, expected)]
        check_ops(ops)
        there: bool = (await self._write(CommandKind.TXN, txn_fields(ops), key))[1][0]
        return there

    async def txn(self, ops: Sequence[Op]) -> int:
        check_ops(ops)
        for op in ops:
            if isinstance(op, Put) and op.lease:
                self.history.check(op.lease)
        version: int = (await self._write(CommandKind.TXN, txn_fields(ops), ops[0].key, large=_are_large(ops)))[0]
        return version

    async def range(self, start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
        out: list[tuple[str, bytes, int]] = []
        most = self.settings.range_limit if limit is None else limit
        while True:
            page, more = await self._read(Frame.RANGE, body(start, end, most - len(out)), start)
            out += [(key, value, version) for key, value, version in page]
            if not more or len(out) >= most or (limit is None and fills_page(out)):
                return out
            start = out[-1][0] + "\x00"

    @property
    def range_limit(self) -> int:
        return self.settings.range_limit

    async def count(self, prefix: str) -> int:
        counted: int = (await self._read(Frame.COUNT, body(prefix), prefix))[0]
        return counted

    async def next_ids(self, counter: str, count: int = 1, *, at_least: int = 0) -> int:
        check_key(counter)
        first: int = (await self._write(CommandKind.NEXT_IDS, [counter, count, at_least], counter))[0]
        return first

    async def grant(self, ttl_ms: int) -> int:
        check_ttl(ttl_ms)
        self._want_history()
        while True:
            lease: int = (await self._write(CommandKind.GRANT, [ttl_ms]))[0]
            if self.history.granted(lease):
                return lease
            await self._write(CommandKind.REVOKE, [lease])

    async def renew(self, lease: int) -> None:
        self.history.check(lease)
        await self._read(Frame.RENEW, body(lease))
        self.history.check(lease)  # which is told before the answer

    async def revoke(self, lease: int) -> None:
        if not self.history.is_lost(lease):  # else it ends by itself, and the number may be another's
            await self._write(CommandKind.REVOKE, [lease])
        self.history.revoked(lease)

    def watch(self, prefix: str, callback: WatchCallback) -> Callable[[], None]:
        self._ids += 1
        number = self._ids
        watch = Watch(prefix, callback)
        self._want_history()
        self._watched[number] = watch
        self._run()
        self._ask()

        def stop() -> None:
            watch.stop()
            if self._watched.pop(number, None) and self._connection is not None and watch.asked:
                self._connection.write(frame(Frame.UNWATCH, number, body()))

        return stop

    async def synced(self, prefix: str) -> None:
        for watch in [watch for watch in self._watches() if watch.prefix == prefix]:
            await watch.synced()

    @property
    def where(self) -> str:
        """The addresses of the servers, for people."""
        return ", ".join(self._addresses)

    def stale_s(self) -> float:
        age_s = self._clock.monotonic() - self._fresh_at
        return 0.0 if self._is_fresh() and age_s < FRESH_S else age_s

    async def status(self) -> dict[str, Any]:
        """What the node that this client talks to knows: leader (or None), whether it leads itself, term, index; and
        `stale_s` of the watches here.
        """
        leader, leads, term, index = await self._read(Frame.STATUS, body())
        return {"leader": leader, "leads": leads, "term": term, "index": index, "stale_s": self.stale_s()}

    async def members(self, verb: str = "show", member: str = "", address: str = "") -> tuple[dict[str, Any], bool]:
        """The members of the group behind a verb (heliograph.kv.server.members_api), and whether it changed something.
        Raises NotAllowed with the reason.
        """
        report, changed = await self._read(Frame.MEMBERS, body(verb, member, address))
        return report, changed

    def close(self) -> None:
        self._closed = True
        if self._runner is not None:
            self._runner.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        for watch in self._watches():
            watch.stop()
        self._watched.clear()
        for request in self._pending.values():
            if not request.answer.done():
                if request.write and (request.sent or request.unsure):
                    request.answer.set_exception(
                        OutcomeUnknown("the metadata client was closed before the answer came")
                    )
                else:
                    request.answer.set_exception(MetadataUnavailable("the metadata client is closed"))

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _read(self, kind: Frame, payload: bytes, key: str | None = None) -> list[Any]:
        """key: None: it waits for no turn."""
        deadline = asyncio.get_running_loop().time() + self.settings.timeout_s
        if key is None:
            return open_answer(await self._request(kind, payload, deadline, write=False))
        await self._queue(self._reads, key, deadline)
        try:
            return open_answer(await self._request(kind, payload, deadline, write=False))
        finally:
            self._reads.give()

    async def _queue(self, queue: FairQueue, key: str, deadline: float) -> None:
        """Raises MetadataUnavailable: nothing was asked."""
        what = "reads" if queue is self._reads else "writes"
        if self._closed:
            raise MetadataUnavailable("the metadata client is closed")
        if queue.take_now():
            return
        try:
            async with asyncio.timeout_at(deadline):
                if await queue.take(*_waits_as(key)):
                    return
        except TimeoutError:
            raise MetadataUnavailable(
                f"the turn of this one among the metadata {what} did not come within {self.settings.timeout_s:g} s "
                f"({self._trouble})"
            ) from None
        raise MetadataUnavailable(f"too many metadata {what} wait for their turns already: try again")

    async def _write(self, kind: CommandKind, what: list[Any], key: str = "", *, large: bool = False) -> list[Any]:
        deadline = asyncio.get_running_loop().time() + self.settings.timeout_s
        queue = self._large if large else self._writes
        await self._queue(queue, key, deadline)
        try:
            return await self._in_session(kind, what, deadline)
        finally:
            queue.give()

    async def _in_session(self, kind: CommandKind, what: list[Any], deadline: float) -> list[Any]:
        while True:
            session = await self._open_session(deadline)
            self._sequence += 1
            sequence = self._sequence
            self._unanswered[sequence] = None
            low = next(iter(self._unanswered))
            payload = command(kind, what, session=session, sequence=sequence, low=low)
            try:
                return open_answer(await self._request(Frame.COMMAND, payload, deadline, write=True))
            except SessionUnknown:  # of a first try: nothing was done
                if self._session == session:
                    self._session = 0
            finally:
                del self._unanswered[sequence]

    async def _open_session(self, deadline: float) -> int:
        if self._session:
            return self._session
        async with self._opening:
            if not self._session:
                answer = await self._request(Frame.COMMAND, command(CommandKind.SESSION, []), deadline, write=False)
                self._session = open_answer(answer)[0]
            return self._session

    async def _request(self, kind: Frame, payload: bytes, deadline: float, *, write: bool) -> bytes:
        if self._closed:
            raise MetadataUnavailable("the metadata client is closed")
        began, answered = self._clock.monotonic(), False
        self._ids += 1
        number = self._ids
        request = _Request(frame(kind, number, payload), asyncio.get_running_loop().create_future(), write)
        self._pending[number] = request
        self._run()
        self._send(request)
        try:
            async with asyncio.timeout_at(deadline):
                answer = await request.answer
            answered = True
            return answer
        except TimeoutError:
            text = f"no answer from the metadata at {self.where} within {self.settings.timeout_s:g} s ({self._trouble})"
            if write and (request.sent or request.unsure):
                raise OutcomeUnknown(f"{text}; the write may or may not have been made") from None
            raise MetadataUnavailable(text) from None
        finally:
            del self._pending[number]
            if self.on_done is not None:
                self.on_done(write, len(payload), self._clock.monotonic() - began, answered)

    def _send(self, request: _Request) -> None:
        if self._connection is not None and not request.answer.done():
            request.sent = True
            self._connection.write(request.payload_frame)

    def _on_answer(self, number: int, answer: bytes) -> None:
        """Decides whether an answer ends its request, or it is to be repeated until its deadline; or a watch is not
        given.
        """
        try:
            status, *found = unpack(answer)
        except MalformedCommand as error:
            raise PeerError(f"metadata answer: {error}") from error
        request = self._pending.get(number)
        if request is None:
            if status == CommandStatus.REFUSED and number in self._watched:
                self._watched[number].on_refused(str(found[0]) if found else "refused")
                self._ask()
                self._touch()
            return
        self.history.heard(applied_of(found))
        if request.answer.done():
            return
        request.sent = False
        if status == CommandStatus.NOT_LEADER:
            self._follow(found[0] if found and isinstance(found[0], str) else "")
        elif status == CommandStatus.UNKNOWN or (status == CommandStatus.UNAVAILABLE and request.unsure):
            self._trouble = str(found[0]) if found else "no majority"
            request.unsure = True
            asyncio.get_running_loop().call_later(_REPEAT_S, self._repeat, number)
        elif status in (CommandStatus.SESSION_UNKNOWN, CommandStatus.STALE) and request.unsure:
            request.answer.set_exception(
                OutcomeUnknown("the metadata forgot this client's session; the write may or may not have been made")
            )
        else:
            request.answer.set_result(answer)

    def _repeat(self, number: int) -> None:
        request = self._pending.get(number)
        if request is not None and not request.sent:
            self._send(request)

    # -- the connection -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._runner is None and not self._closed:
            self._runner = asyncio.get_running_loop().create_task(self._stay_connected())

    async def _stay_connected(self) -> None:
        settings = self.settings
        backoff, failures = Backoff(settings.backoff_min_s, settings.backoff_max_s), 0
        while not self._closed:
            address = self._addresses[self._at]
            connection: MetaConnection | None = None
            try:
                async with asyncio.timeout(settings.connect_timeout_s):
                    connection = await self._connect(address)
                    await connection.ready
            except (OSError, TimeoutError, PeerError, ValueError) as error:
                self._trouble = f"{address}: {reason_of(error, 'no answer')}"
                if connection is not None:
                    connection.close()
                self._at = (self._at + 1) % len(self._addresses)
            except asyncio.CancelledError:
                if connection is not None:
                    connection.close()
                raise
            else:
                failures = 0
                self._on_connected(connection)
                try:
                    self._trouble = f"{address}: {await connection.lost or 'the connection was closed'}"
                finally:
                    self._on_disconnected()
                if not self._answered:  # it is there, and of no use, as one with a damaged table may be
                    self._at = (self._at + 1) % len(self._addresses)
            failures += 1
            await asyncio.sleep(backoff.pause_s(failures, self._rng))

    async def _connect(self, address: str) -> MetaConnection:
        host, _, port = address.rpartition(":")
        loop, settings = asyncio.get_running_loop(), self.settings
        made = partial(MetaConnection, self, settings.name, _SILENCE_S)
        _, connection = await loop.create_connection(made, host.strip("[]"), int(port), ssl=self._ssl)
        return connection

    def _on_connected(self, connection: MetaConnection) -> None:
        self._connection, self._answered = connection, False
        self._trouble = "it is connected"
        self._touch()
        self._ask()
        for request in self._pending.values():
            self._send(request)

    def _want_history(self) -> None:
        """Asks for it from now on, before all that is judged by it."""
        self._watched[_HISTORY] = self.history
        self._ask()

    def _watches(self) -> list[Watch]:
        return [each for each in self._watched.values() if isinstance(each, Watch)]

    def _ask(self) -> None:
        """For what the present connection is to tell, and was not asked for yet."""
        if (connection := self._connection) is None:
            return
        for number, each in self._watched.items():
            since = each.ask(judged=self.history.caught_up)
            if since is not None:
                connection.write(frame(Frame.WATCH, number, body(each.prefix, since)))

    def _on_disconnected(self) -> None:
        self._connection, self._hears_leader = None, False
        for each in self._watched.values():
            each.on_disconnected()
        for request in self._pending.values():
            request.unsure |= request.sent
            request.sent = False

    def _follow(self, hint: str) -> None:
        """This server doesn't lead: go to the one that does, or to the next."""
        if hint and hint in self._addresses:
            self._at = self._addresses.index(hint)
        elif hint and len(self._addresses) < 16:
            self._addresses.append(hint)
            self._at = len(self._addresses) - 1
        else:
            self._at = (self._at + 1) % len(self._addresses)
        if self._connection is not None:
            self._connection.close()

    def on_frame(self, kind: int, number: int, payload: bytes) -> None:
        """A frame behind the handshake. Raises PeerError."""
        match kind:
            case Frame.ANSWER:
                self._answered = True
                self._on_answer(number, payload)
            case Frame.LISTING:
                index, last, found = fields(payload, int, bool, list)
                if (watched := self._watched.get(number)) is not None:
                    watched.on_listing(index, last, listed := rows(found))
                    self.history.heard(max((row[1] for row in listed), default=-1))
                    self._ask()
                    self._answered |= self._caught_up()
                    self._touch()
            case Frame.EVENT:
                index, found = fields(payload, int, list)
                if (watched := self._watched.get(number)) is not None:
                    watched.on_event(index, rows(found))
                    self.history.heard(index)
            case Frame.HEARTBEAT:
                hears, _index, *last_command = fields(payload, bool, int, int, least=2)
                self.history.heard(*last_command or [-1])
                self.on_leader_heard(hears)
            case _:
                pass  # of a newer server: it may say more than this client understands

    def _begin_anew(self, found: AnotherHistory) -> NoReturn:
        """What the connection was asked for by what was known of another history is asked for on another one."""
        for watch in self._watches():
            watch.forget()
        self._answered = True  # this server may stay: its history is known now
        self._on_another_history(found)
        raise PeerError("the metadata is in another history than before")

    def on_leader_heard(self, hears: bool) -> None:
        self._hears_leader = hears
        self._touch()

    def _is_fresh(self) -> bool:
        """Connected to a node that hears the leader, and every watch has caught up since."""
        return self._connection is not None and self._hears_leader and self._caught_up()

    def _caught_up(self) -> bool:
        return all(each.caught_up for each in self._watched.values())

    def _touch(self) -> None:
        if self._is_fresh():
            self._fresh_at = self._clock.monotonic()


def _waits_as(key: str) -> tuple[str, str]:
    """Returns whose turn a key's is: a kind's, and a tenant's as a rule; and of which part of those."""
    parts = key.split("/", 4)
    depth = _TOGETHER.get("".join(parts[1:2]))
    return ("/".join(parts[:3]), "") if depth is None else ("/".join(parts[:depth]), "".join(parts[depth : depth + 1]))


def _are_large(ops: Sequence[Op]) -> bool:
    return sum(len(op.value) for op in ops if isinstance(op, Put)) > LARGE_BYTES
