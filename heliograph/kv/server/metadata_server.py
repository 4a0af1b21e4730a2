"""MetaServer: the listener in front of a MetaService, with the watches of its connections.

Is: sockets, handshakes, frame limits, and the fan-out of changes. Isn't: what a request means
(heliograph.kv.server.metadata_service).
Invariants: a connection that says something wrong, is silent before its handshake, or doesn't read its watches is
closed, and nothing else;
a watch gets its listing first, then each change once, in order, with nothing left out in between. One that has come
further than this node waits for it; or is listed anew where the whole group is behind that, as after its disks were put
back to older copies: known by the index of a command that changes nothing.
A long listing is an image of one moment, sent in pieces as they are read; the changes since wait behind it.
Who watches the history is told how far this node is with each answer of a command that says OK, and before another one,
and each listing: those do not say it.
An answer is read from the table once those before it are on their way: who asks for more than it reads waits, and is
not closed for that. Nor is more asked of the leader for one connection than half of what it may leave unread. Renewals
and heartbeats wait for no answer.
Bounds: REQUESTS_MAX requests of one connection at a time (then its reading stops), `buffer_bytes_max` unread bytes, and
as many of changes behind a listing (then the connection is closed), WATCHES_MAX watches.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as tls
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from heliograph.kv.engine.table_image import Image, parts
from heliograph.kv.history import HISTORY
from heliograph.kv.machine_commands import (
    CommandKind,
    CommandStatus,
    answer_of,
    command,
    ok,
    open_answer,
    refusal,
    txn_fields,
    with_applied,
)
from heliograph.kv.metadata_store import ABSENT, PAGE_BYTES_MAX, VALUE_BYTES_MAX, Check
from heliograph.kv.server.key_requests import check
from heliograph.kv.server.metadata_calls import CALLS
from heliograph.kv.server.metadata_service import MetaService
from heliograph.kv.state_machine import Change
from heliograph.model.errors import CorruptData, HeliographError, MetadataUnavailable, NotAllowed, PeerError
from heliograph.model.roles.certificate_role import peer_identity
from heliograph.model.roles.key_roles import KeyRoles, PeerKeys
from heliograph.runtime.listeners.tls_listener import Listening, listen
from heliograph.wire.metadata_frames import (
    FEATURES,
    FRAME_BYTES_MAX,
    MAGIC,
    Frame,
    MetadataFrameCutter,
    body,
    fields,
    frame,
)

log = logging.getLogger("heliograph.kv")

REQUESTS_MAX = 1024
WATCHES_MAX = 1024
ANSWERED_AT_ONCE = 256 << 10
"""Bytes of answers to one connection between two looks at what else the node has to do, and one answer more."""
_NOTHING = command(CommandKind.TXN, txn_fields([Check("/nothing", ABSENT)]))
"""Its answer says how far the group has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    handshake_timeout_s: float = 5.0
    heartbeat_s: float = 1.0
    connections_max: int = 4096
    buffer_bytes_max: int = 64 << 20
    """Unread bytes of one connection, and of the changes behind one listing: beyond that it is closed."""
    pieces_at_once: int = 8
    """So many pieces of a listing are written at once, about 2 MiB: more of it waits until it is read."""
    keys: KeyRoles | None = None
    """Which keys are for which role's certificate; None: every key for whoever may make the call."""

    def __post_init__(self) -> None:
        assert self.handshake_timeout_s > 0 and self.heartbeat_s > 0 and self.connections_max > 0
        assert self.buffer_bytes_max > 0 and self.pieces_at_once > 0


class MetaServer:
    """One listener. `start` binds it and returns its port."""

    def __init__(
        self,
        service: MetaService,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        node: str = "",
        ssl: tls.SSLContext | None = None,
        settings: ServerSettings | None = None,
        on_raft: Callable[[bytes], None] | None = None,
        learns: Callable[[], bool] = lambda: False,
    ) -> None:
        """on_raft: takes the payload of RAFT frames where voters use this listener too; raises PeerError. learns:
        whether the table is still to become what the group has: until then it is told to nobody.
        """
        self.on_raft, self._learns = on_raft, learns
        self.service, self.node, self.settings = service, node, settings or ServerSettings()
        self.host, self.port, self._ssl = host, port, ssl
        self.connections: dict[_Connection, None] = {}
        self._server: Listening | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._watches: dict[str, dict[tuple[_Connection, int], None]] = {}
        self._early: dict[tuple[_Connection, int], tuple[str, int]] = {}
        self._asking = False
        self._listings: dict[tuple[_Connection, int], _Listing] = {}
        self._stop_observing = service.machine.observe(self._on_applied)

    async def start(self) -> int:
        loop = asyncio.get_running_loop()
        self._server = await listen(
            lambda: _Connection(self),
            self.host,
            self.port,
            ssl=self._ssl,
            timeout_s=self.settings.handshake_timeout_s,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._heartbeat = loop.call_later(self.settings.heartbeat_s, self._beat)
        return self.port

    async def stop(self) -> None:
        self._stop_observing()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()
        if self._server is not None:
            await self._server.wait_closed()

    def beat(self) -> bytes:
        """The frame that says how far this node has come."""
        machine = self.service.machine
        return frame(Frame.HEARTBEAT, 0, body(self.service.hears_leader(), machine.index, machine.last_command))

    def _beat(self) -> None:
        self._heartbeat = asyncio.get_running_loop().call_later(self.settings.heartbeat_s, self._beat)
        beat = self.beat()
        for connection in list(self.connections):
            if connection.greeted:
                connection.write(beat)
        self._serve_early(self.service.machine.index)  # it may have learnt
        if self._early and not self._asking:
            self._asking = True
            self.service.spawn(self._ask_how_far(dict(self._early)))

    # -- watches ------------------------------------------------------------------------------------------------------

    def watch(self, connection: _Connection, watch: int, prefix: str, since: int) -> None:
        if self.service.machine.index < since or self._learns():  # the client has seen more already, or others have
            self._early[connection, watch] = (prefix, since)
            return
        self._watches.setdefault(prefix, {})[connection, watch] = None
        self._list(connection, watch, prefix, -1 if prefix == HISTORY else since)

    async def _ask_how_far(self, early: dict[tuple[_Connection, int], tuple[str, int]]) -> None:
        """Lists anew what has come further than the group, which forgot that: nothing would be told until it has made
        as many changes again. early: as it is before this asks.
        """
        try:
            index: int = open_answer(await self.service.handle(Frame.COMMAND, _NOTHING))[0]
        except HeliographError:
            return  # the next beat is followed by another try
        finally:
            self._asking = False
        for (connection, watch), (prefix, since) in early.items():
            if since > index and self._early.pop((connection, watch), None) is not None:
                log.warning("metadata.went_back", extra={"node": self.node, "index": index, "seen": since})
                self.watch(connection, watch, prefix, -1)

    def unwatch(self, connection: _Connection, watch: int, prefix: str) -> None:
        self._early.pop((connection, watch), None)
        self._listings.pop((connection, watch), None)
        watchers = self._watches.get(prefix, {})
        watchers.pop((connection, watch), None)
        if not watchers:
            self._watches.pop(prefix, None)

    def _list(self, connection: _Connection, watch: int, prefix: str, since: int) -> None:
        """A short listing at once; a long one goes on in a task, no faster than it is read."""
        listing = _Listing(self.service.machine.image_under(prefix), since)
        connection.tell_how_far()  # what was deleted is in no row
        try:
            for _ in range(self.settings.pieces_at_once):
                if listing.send_piece(connection, watch):
                    self.service.machine.release(listing.image)
                    return
        except CorruptData as damage:
            self.service.machine.release(listing.image)
            self._damaged(connection, damage)
            return
        self._listings[connection, watch] = listing
        self.service.spawn(self._list_on(connection, watch, listing))

    async def _list_on(self, connection: _Connection, watch: int, listing: _Listing) -> None:
        try:
            while True:
                await asyncio.sleep(0)  # whatever waits goes first
                await connection.writable()
                if self._listings.get((connection, watch)) is not listing:
                    return  # nobody wants it any more
                if listing.image.broken:
                    connection.close()  # the table was replaced by a snapshot: the client begins anew
                    return
                if listing.send_piece(connection, watch):
                    for payload in listing.events:
                        connection.write(frame(Frame.EVENT, watch, payload))
                    return
        except CorruptData as damage:
            self._damaged(connection, damage)
        finally:
            self.service.machine.release(listing.image)
            if self._listings.get((connection, watch)) is listing:
                del self._listings[connection, watch]

    def _damaged(self, connection: _Connection, damage: CorruptData) -> None:
        """Another node may have a table that is whole: this one gives way, if it can, and so does the client."""
        connection.close()
        self.service.on_damage(damage)

    def _on_applied(self, index: int, changes: list[Change] | None) -> None:
        if changes is None:  # another table: who watches lists it anew, on a new connection
            for watchers in list(self._watches.values()):
                for connection, _ in list(watchers):
                    connection.close()
        elif changes:
            for prefix, watchers in list(self._watches.items()):
                rows = [(key, version, value) for key, value, version in changes if key.startswith(prefix)]
                if rows:
                    for payload in _event_payloads(index, rows):
                        for connection, watch in list(watchers):
                            listing = self._listings.get((connection, watch))
                            if listing is None:
                                connection.write(frame(Frame.EVENT, watch, payload))
                            elif not listing.keep(payload, self.settings.buffer_bytes_max):
                                connection.close()
        self._serve_early(index)

    def _serve_early(self, index: int) -> None:
        if self._early and not self._learns():
            for (connection, watch), (prefix, since) in list(self._early.items()):
                if since <= index:
                    del self._early[connection, watch]
                    self.watch(connection, watch, prefix, since)


class _Listing:
    """The first listing of a watch: the table of one moment. What changes while it is on its way waits behind it."""

    def __init__(self, image: Image, since: int) -> None:
        self.image, self.since = image, since
        self.events: list[bytes] = []
        self._events_bytes = 0

    def send_piece(self, connection: _Connection, watch: int) -> bool:
        """Returns whether it was the last one."""
        rows = [
            (key, version, value if version > self.since else None) for key, (value, version, _) in self.image.rows()
        ]
        connection.write(frame(Frame.LISTING, watch, body(self.image.head.index, self.image.ended, rows)))
        return self.image.ended

    def keep(self, payload: bytes, bytes_max: int) -> bool:
        """False: more than `bytes_max` of changes, which are not kept for one that reads so slowly."""
        self.events.append(payload)
        self._events_bytes += len(payload)
        return self._events_bytes <= bytes_max


def _event_payloads(index: int, rows: list[tuple[str, int, bytes | None]]) -> list[bytes]:
    """A transaction is one event where it fits a frame; a restored snapshot's difference may be several."""
    payloads: list[bytes] = []
    start = size = 0
    for at, (key, _, value) in enumerate(rows):
        more = len(key) * 4 + 16 + len(value or b"")
        if size + more > FRAME_BYTES_MAX - 1024:
            payloads.append(body(index, rows[start:at]))
            start, size = at, 0
        size += more
    payloads.append(body(index, rows[start:]))
    return payloads


class _Connection(asyncio.Protocol):
    def __init__(self, server: MetaServer) -> None:
        self._server = server
        self._cutter = MetadataFrameCutter()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._requests = 0
        self._paused = False
        self._watches: dict[int, str] = {}
        self._writable = asyncio.Event()
        self._writable.set()
        self._room = asyncio.Event()
        """Whether there is room for an answer is to be looked at again."""
        self._order = asyncio.Lock()
        """Whose answer is read from the table next."""
        self._answered_bytes = 0
        """Since the last pause."""
        self._expected: dict[int, int] = {}
        """Request -> bytes that its answer may have, while it is read, here or by the leader."""
        self._expected_bytes = 0
        self._calls = CALLS.every
        self._keys: PeerKeys | None = None
        self.greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # no isinstance: uvloop's are not of that class
        server = self._server
        if len(server.connections) >= server.settings.connections_max:
            self._transport.abort()
            return
        server.connections[self] = None
        certificate = transport.get_extra_info("peercert")
        encrypted = transport.get_extra_info("ssl_object") is not None
        self._calls = CALLS.of(certificate, tls=encrypted)
        if encrypted and server.settings.keys is not None:
            self._keys = server.settings.keys.of(peer_identity(certificate)[0])
        self._deadline = asyncio.get_running_loop().call_later(server.settings.handshake_timeout_s, self.close)

    async def writable(self) -> None:
        """Until the other side has read most of what was written, or is gone."""
        await self._writable.wait()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        self._room.set()
        if self._deadline is not None:
            self._deadline.cancel()
        self._server.connections.pop(self, None)
        for watch, prefix in self._watches.items():
            self._server.unwatch(self, watch, prefix)
        self._watches = {}

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if transport.get_write_buffer_size() > self._server.settings.buffer_bytes_max:
            transport.abort()

    @property
    def _judges(self) -> bool:
        """By how far this node is what is there later (`heliograph.kv.client_history`)."""
        return HISTORY in self._watches.values()

    def tell_how_far(self) -> None:
        """To who judges by it."""
        if self._judges:
            self.write(self._server.beat())

    def data_received(self, data: bytes) -> None:
        self._cutter.feed(data)
        self._go_on()

    def _go_on(self) -> None:
        try:
            while self._requests < REQUESTS_MAX:
                found = self._cutter.next()
                if found is None:
                    break
                self._on_frame(*found)
        except (PeerError, CorruptData):
            self.close()
            return
        full = self._requests >= REQUESTS_MAX
        if full != self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _on_frame(self, kind: int, request: int, payload: bytes) -> None:
        if kind not in self._calls and kind in CALLS.every:
            log.warning("metadata.call_refused", extra={"call": Frame(kind).name, "node": self._server.node})
            raise PeerError(f"metadata: {Frame(kind).name} is not for the role of this certificate: show a broker's")
        if not self.greeted:
            self._on_hello(kind, payload)
            return
        if self._keys is not None and not self._may(self._keys, kind, request, payload):
            return
        match kind:
            case Frame.COMMAND | Frame.GET | Frame.RANGE | Frame.COUNT | Frame.RENEW | Frame.STATUS | Frame.MEMBERS:
                self._requests += 1
                self._server.service.spawn(self._answer(kind, request, payload))
            case Frame.BACKUP:
                (at_least,) = fields(payload, int)
                self._requests += 1
                self._server.service.spawn(self._send_image(request, at_least))
            case Frame.RAFT if self._server.on_raft is not None:
                self._server.on_raft(payload)
            case Frame.WATCH:
                prefix, since = fields(payload, str, int)
                if request in self._watches or len(self._watches) >= WATCHES_MAX:
                    raise PeerError("metadata: too many watches, or one twice")
                self._watches[request] = prefix
                self._server.watch(self, request, prefix, since)
            case Frame.UNWATCH:
                prefix_known = self._watches.pop(request, None)
                if prefix_known is not None:
                    self._server.unwatch(self, request, prefix_known)
            case _:
                raise PeerError(f"metadata frame of kind {kind} is not known here")

    def _may(self, keys: PeerKeys, kind: int, request: int, payload: bytes) -> bool:
        """Whether its keys are this peer's; else it is answered so. Raises PeerError."""
        held = self._server.service.machine.held
        try:
            check(keys, kind, payload, lambda lease: held[lease].keys if lease in held else ())
        except NotAllowed as error:
            log.warning("metadata.key_refused", extra={"error": str(error), "node": self._server.node})
            self.write(frame(Frame.ANSWER, request, refusal(CommandStatus.REFUSED, str(error))))
            return False
        return True

    def _on_hello(self, kind: int, payload: bytes) -> None:
        if kind != Frame.HELLO:
            raise PeerError("metadata: the first frame must be HELLO")
        magic, features, _name = fields(payload, str, int, str)
        if magic != MAGIC:
            raise PeerError("metadata: this is not a client of the metadata")
        self.greeted = True
        self._cutter.size_max = FRAME_BYTES_MAX
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        service = self._server.service
        self.write(
            frame(
                Frame.HELLO,
                0,
                body(MAGIC, features & FEATURES, self._server.node, service.hears_leader(), service.machine.index),
            )
        )

    async def _send_image(self, request: int, at_least: int) -> None:
        """An image in pieces, no faster than it is read; a client that goes away ends it."""
        service = self._server.service
        try:
            image = await service.backup(at_least)
            try:
                for piece in parts(image):
                    self.write(frame(Frame.PART, request, piece))
                    await asyncio.sleep(0)  # whatever waits goes first
                    await self.writable()
                    if self._transport is None:
                        return
            finally:
                service.end_backup(image)
            if image.broken:
                raise MetadataUnavailable("the table was replaced during the backup: begin again")
            self.write(frame(Frame.ANSWER, request, ok()))
        except MetadataUnavailable as error:
            self.write(frame(Frame.ANSWER, request, answer_of(error)))
        except CorruptData as damage:
            self.write(frame(Frame.ANSWER, request, refusal(CommandStatus.UNAVAILABLE, str(damage))))
        finally:
            self._end_request()

    async def _answer(self, kind: int, request: int, payload: bytes) -> None:
        try:
            answer = await self._server.service.handle(kind, payload, partial(self._paced, request))
            self._answered_bytes += len(answer)
            if kind == Frame.COMMAND and self._judges:
                said = with_applied(answer, self._server.service.machine.last_command)
                if said is None:
                    self.tell_how_far()
                answer = said or answer
            self.write(frame(Frame.ANSWER, request, answer))
        except PeerError:
            self.close()
        finally:
            self._expect(request, 0)
            self._end_request()

    async def _paced(self, request: int, kind: int, left_s: float) -> None:
        """Returns when this answer may be read from the table, or asked of the leader. Raises MetadataUnavailable."""
        self._expect(request, 0)  # of an earlier try
        size_max = PAGE_BYTES_MAX if kind == Frame.RANGE else VALUE_BYTES_MAX
        if kind == Frame.RANGE or self._order.locked() or not self._has_room(size_max):  # one key is small as a rule
            try:
                async with asyncio.timeout(left_s), self._order:
                    if self._answered_bytes >= ANSWERED_AT_ONCE:
                        self._answered_bytes = 0
                        await asyncio.sleep(0)  # whatever waits goes first
                    while not self._has_room(size_max):
                        self._room.clear()
                        await self._room.wait()
            except TimeoutError:
                raise MetadataUnavailable(
                    "the answers before this one did not come, or were not read, in time: ask for less"
                ) from None
            if self._transport is None:
                raise MetadataUnavailable("the connection is closed")
        self._expect(request, size_max)

    def _has_room(self, size_max: int) -> bool:
        within = self._expected_bytes + size_max <= self._server.settings.buffer_bytes_max // 2
        return self._writable.is_set() and (within or not self._expected_bytes)

    def _expect(self, request: int, size_max: int) -> None:
        """size_max: bytes that its answer may have; 0: it came, or none will."""
        self._expected_bytes += size_max - self._expected.pop(request, 0)
        if size_max:
            self._expected[request] = size_max
        else:
            self._room.set()

    def _end_request(self) -> None:
        self._requests -= 1
        if self._paused:
            self._go_on()
