"""KafkaConnection: one connection of a Kafka client, as `asyncio.BufferedProtocol`.

Is: frames in, answers out in the order of their requests, back-pressure, and whose turn it is. Isn't: an answer
(`request_table` and the modules it names), or the client (`region_node.faces.kafka.session.kafka_session`).
Invariants: answers go out in the order of their requests; one request is under way at a time, but for Produce requests,
of which several are; a fault of the peer closes this connection and nothing else; large frames are received right where
they stay; at most one write a loop pass.
Source: docs/protocols/kafka.md, "Connections".
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from heliograph.model.errors import HeliographError, PeerError
from heliograph.runtime.throttle import in_steps
from heliograph.wire.kafka.message_codec import APIS, BY_NAME, Fields, Request, decode_request
from heliograph.wire.run import Buffer
from region_node.faces.kafka.connection.request_table import BEFORE_LOGIN, SERVED, refuse_version
from region_node.faces.kafka.produce_fetch.produce import begin_produce
from region_node.faces.kafka.quotas.request_time import Worked
from region_node.faces.kafka.security.api_rights import ApiRow
from region_node.faces.kafka.session.heavy_reads import Place, is_heavy
from region_node.faces.kafka.session.kafka_broker import KafkaBroker
from region_node.faces.kafka.session.kafka_session import KafkaSession, Slot
from region_node.faces.kafka.session.refusals import refused
from region_node.faces.open_connections import OpenConnections

log = logging.getLogger("region_node.kafka")

STAGING_BYTES = 256 << 10
_OWN_BUFFER_ABOVE = 4096
"""A frame of this size that is not whole yet gets a buffer of its own, into which the rest is received."""
_FIRST_BYTES = 2 << 20
"""So much is set aside for a frame that claims to be larger; more as it comes. For a client that has not authenticated
it is _OWN_BUFFER_ABOVE: thousands of them claim what they like.
"""
_HANDSHAKE_BYTES_MAX = 64 << 10
"""A frame, and what waits together, of a client that has not authenticated."""
_JOIN_BELOW = 64 << 10
TAKEN_WITHIN_S = 10.0
"""What is left to be sent when a connection is closed, by its client; then it is aborted."""
_PRODUCE = b"\0\0"
"""What such a request's frame begins with."""
_BEFORE_LOGIN = frozenset(BY_NAME[name].key.to_bytes(2, "big") for name in BEFORE_LOGIN)
"""What those frames begin with that are looked into before a client has authenticated."""


class KafkaConnection(asyncio.BufferedProtocol):
    """`session`: what handlers know of it, from `connection_made` until it has ended and nothing of it is under way.
    `tls`: of the listener.
    """

    session: KafkaSession

    def __init__(
        self, opened: OpenConnections[KafkaConnection], broker: KafkaBroker, staging: bytearray, *, tls: bool
    ) -> None:
        """staging: what is read lies there until it is cut, in the same step of the loop."""
        self._opened, self._broker, self._staging, self._tls = opened, broker, staging, tls
        self.closed = False
        self._host: str | None = None
        """It has a place among the connections of this address."""
        self._transport: asyncio.Transport | None = None
        self._given_up: asyncio.TimerHandle | None = None
        """When it is, once it has been closed."""
        self._rest = b""
        self._frame: bytearray | None = None
        self._filled = self._frame_bytes = 0
        self._slots: deque[Slot] = deque()
        self._waiting: deque[bytearray] = deque()
        self._waiting_bytes = 0
        self._alone = self._advancing = self._closing = False
        self._reading: asyncio.Task[Any] | None = None
        """Makes an answer that is for this client alone."""
        self._places: tuple[Place, ...] = ()
        """Of requests whose answers may be long, until the client has taken those."""
        self._out: list[Buffer] = []
        self._held = False
        self._holds: dict[object, None] = {}
        self._gates = 0
        self.heard_at = self.since = broker.clock.monotonic()

    # -- the transport -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none
        peer, opened, broker = transport.get_extra_info("peername"), self._opened, self._broker
        self.session = KafkaSession(self, broker, SERVED, opened.next_number(), tls=self._tls, peer=peer)
        if len(opened.all) >= broker.settings.connections_max:
            self.close("too many connections")
            return
        if isinstance(peer, tuple):
            if not opened.addresses.take(peer[0]):
                self.close(f"too many connections: at most {opened.addresses.most} from one address")
                return
            self._host = peer[0]
        self._transport.set_write_buffer_limits(high=1 << 20)
        opened.all[self] = None
        if isinstance(peer, tuple) and (late_s := broker.quotas.connected(peer[0])) > 0:
            self.hold_reading(True, "address")
            self.call_later(late_s, partial(self.close, "too many connections a second from this address"))
            return
        self.sign_in(transport.get_extra_info("peercert"))

    def sign_in(self, certificate: dict[str, Any] | None) -> None:
        """Lets the client in where nobody has to say who it is; else looks at its certificate, if there is one, before
        anything is read.
        """
        if self.session.login.begin() and certificate:
            self.hold("login")
            self._broker.tasks.spawn(self._by_certificate(self.session, certificate))

    async def _by_certificate(self, session: KafkaSession, certificate: dict[str, Any]) -> None:
        await session.login.by_certificate(certificate)
        self.release("login")

    def connection_lost(self, exc: Exception | None) -> None:
        left = () if self.closed else (frame for frame in self._waiting if frame[:2] == _PRODUCE)
        self._waiting, self.closed = deque(left), True
        self._opened.lost(self, known=self.session.login.principal is not None)
        if self._host is not None:
            self._opened.addresses.give(self._host)
            self._host = None
        self.session.end()
        self._slots.clear()
        self._out, self._transport, self._frame = [], None, None
        if self._given_up is not None:
            self._given_up.cancel()
        if self._reading is not None:
            self._reading.cancel()
        for place in self._places:
            place.end()
        self._places = ()
        self._finish_waiting()

    def _finish_waiting(self) -> None:
        """What a client sent whole before it closed is stored, as in Kafka: with acks=0 it waits for nothing, and takes
        it for sent.
        """
        while self._waiting and not self._alone and self._transport is None:
            frame = self._waiting.popleft()
            if self.session.login.principal is None:
                continue
            try:
                request = decode_request(frame)
            except PeerError:
                self._waiting.clear()
                break
            if request.supported:
                slot = Slot(request, len(frame))
                if not begin_produce(self.session, slot):
                    self._run(slot, None)
        if self._transport is None and not self._alone:
            del self.session  # it has us, and nobody looks for cycles among what lived for long

    def spare(self, seconds: float) -> None:
        """The broker itself stood still for so long: what the peer has sent meanwhile lies unread, and is not late by
        that.
        """
        self.since += seconds
        self.heard_at += seconds

    def close(self, reason: str = "", request: Request | None = None) -> None:
        if self.closed:
            return
        if reason:
            log.info("kafka.connection_closed", extra={**self.session.named(request), "reason": reason})
        self.flush()
        self.closed = True
        if self._transport is not None:
            self._transport.close()  # a client that takes nothing keeps nothing of ours
            self._given_up = self.call_later(TAKEN_WITHIN_S, self.abort)

    def close_when_answered(self) -> None:
        """Nothing more is read; the answer that is being made goes out first."""
        self.hold("closing")
        self._closing = True

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        """The client does not take its answers: no other is made meanwhile, whatever it has asked already."""
        self.hold_reading(True, "writing")

    def resume_writing(self) -> None:
        self._taken()
        self.hold_reading(False, "writing")

    def hold_reading(self, hold: bool, reason: object = None) -> None:
        """A topic's publish rate is used up, or has recovered: until then no request of this connection is begun
        either.
        """
        self._gates += 1 if hold else -1
        if hold:
            self.hold(reason)
        else:
            self.release(reason)
            self._advance()

    def call_later(self, wait_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(wait_s, action)

    def hold(self, reason: object) -> None:
        """Nothing is read while anybody has a reason."""
        self._holds[reason] = None
        if not self._held and self._transport is not None and not self.closed:
            self._held = True
            self._transport.pause_reading()

    def release(self, reason: object) -> None:
        self._holds.pop(reason, None)
        if self._held and not self._holds and self._transport is not None and not self.closed:
            self._held = False
            self._transport.resume_reading()

    # -- frames in -----------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """The staging buffer is shared by all connections: a read and what follows it are one step of the loop."""
        frame = self._frame
        if frame is not None:
            if self._filled == len(frame):
                frame.extend(bytes(min(self._frame_bytes - len(frame), len(frame))))
            return memoryview(frame)[self._filled :]
        staging, rest = self._staging, self._rest
        staging[: len(rest)] = rest
        return memoryview(staging)[len(rest) :]

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = self._broker.clock.monotonic()
        if self.closed:
            return
        if self._frame is None:
            self._cut(len(self._rest) + nbytes)
            return
        self._filled += nbytes
        if self._filled == self._frame_bytes:
            frame, self._frame = self._frame, None
            self._take(frame)

    def _cut(self, end: int) -> None:
        """Frames of what is staged; what is left goes to a buffer of this connection's own."""
        staging, at, self._rest = self._staging, 0, b""
        while end - at >= 4 and not self.closed:
            known = self.session.login.principal is not None
            size_max = self._broker.settings.request_bytes_max if known else _HANDSHAKE_BYTES_MAX
            size = int.from_bytes(staging[at : at + 4], "big", signed=True)
            if not 0 <= size <= size_max:
                self.close(f"a request of {size} bytes; at most {size_max} are taken")
                return
            if end - at - 4 >= size:
                self._take(bytearray(memoryview(staging)[at + 4 : at + 4 + size]))
                at += 4 + size
                continue
            if size > _OWN_BUFFER_ABOVE:
                self._filled, self._frame_bytes = end - at - 4, size
                first = _FIRST_BYTES if known else _OWN_BUFFER_ABOVE
                self._frame = bytearray(min(size, max(first, self._filled)))
                self._frame[: self._filled] = memoryview(staging)[at + 4 : end]
                return
            break
        self._rest = bytes(memoryview(staging)[at:end])

    # -- requests ------------------------------------------------------------------------------------------------------

    def _take(self, frame: bytearray) -> None:
        self._waiting.append(frame)
        self._waiting_bytes += len(frame)
        self._advance()
        settings = self._broker.settings
        bytes_max = settings.waiting_bytes_max if self.session.login.principal is not None else _HANDSHAKE_BYTES_MAX
        if len(self._waiting) >= settings.requests_max or self._waiting_bytes > bytes_max:
            self.hold("requests")

    def _advance(self) -> None:
        """Begins what waits, as far as it is its turn."""
        if self._advancing:
            return
        self._advancing = True
        while self._waiting and not self.closed and not self._gates:
            frame = self._waiting.popleft()
            if not self._begin(frame):
                self._waiting.appendleft(frame)
                break
            self._waiting_bytes -= len(frame)
        self._advancing = False

    def _begin(self, frame: bytearray) -> bool:
        """Whether it was its turn."""
        if self._alone:
            return False
        try:
            if self.session.login.takes_bare_tokens:
                self._run(Slot(None, len(frame)), self.session.login.bare_token(frame))
                return True
            produce = frame[:2] == _PRODUCE
            if self.session.login.principal is None:
                _check_before_login(frame)
            if self._slots and not produce:
                return False
            request = decode_request(frame)
            if not request.supported:
                slot = Slot(request, len(frame))
                self._slots.append(slot)
                self.answered(slot, refuse_version(request))
                return True
            if produce:
                slot = Slot(request, len(frame))
                if begin_produce(self.session, slot):
                    return True
                if self._slots:
                    return False
            if request.api.name not in SERVED:
                raise PeerError(f"{request.api.name} is a request between Kafka's own brokers")
            self._run(Slot(request, len(frame)), None)
        except PeerError as error:
            self.close(str(error))
        return True

    def _run(self, slot: Slot, work: Any) -> None:
        """What takes its time, alone."""
        self._slots.append(slot)
        self._alone = True
        self._broker.tasks.spawn(self._work(slot, work))

    async def _work(self, slot: Slot, work: Any) -> None:
        request = slot.request
        try:
            if request is None:
                slot.answer = await work
            else:
                slot.answer = await self._answer(request, slot.size_bytes)
        except PeerError as error:
            self.close(str(error), request)
        except HeliographError as error:
            self.close(f"a request could not be answered: {error}", request)
        except Exception:
            self.close("an answer could not be made", request)
            raise
        finally:
            self._alone = False
            if self.closed:
                self._finish_waiting()
            else:
                self.answered(slot, slot.answer)

    async def _answer(self, request: Request, size_bytes: int) -> list[Buffer]:
        """Nothing goes on that only looks once its client has gone."""
        row = SERVED[request.api.name]
        if not row.reads:
            return await self._answer_of(row, request)
        if self.closed:
            return []
        self._reading = asyncio.current_task()
        try:
            if is_heavy(request, size_bytes) and self.session.login.principal is not None:
                role = self.session.login.principal.role
                place = await self._broker.heavy.place(role, self.session.host)
                self._places += (place,)
                answer = await self._answer_of(row, request)
                place.made(sum(map(len, answer)))
                return answer
            return await self._answer_of(row, request)
        finally:
            self._reading = None

    async def _answer_of(self, row: ApiRow, request: Request) -> list[Buffer]:
        work = row.handler(self.session, request)
        if self._broker.quotas.active:
            answer: Fields | None = None
            timed = Worked(work, self._broker.clock.monotonic)
            try:
                answer = await timed
            finally:  # what ends its connection has worked too: its client comes again, and finds what it has taken
                self.session.charge(request, answer, timed.seconds)
        else:
            answer = await work
        if answer is None:
            return []
        if request.api.name == "produce":  # its batches say what was refused
            return self.session.encode(request, answer)
        found = await in_steps(refused(answer))
        self.session.note_refusal(request, found)
        if row.changes:
            self.session.record(request, answer, found)
        return await self.session.encode_paced(request, answer)

    def enqueue(self, slot: Slot) -> None:
        """A Produce request is under way."""
        self._slots.append(slot)

    def answered(self, slot: Slot, answer: list[Buffer] | None) -> None:
        """Sends what is at the head of the order, and begins what waited for it."""
        slot.answer = answer if answer is not None else []
        slots = self._slots
        while slots and slots[0].answer is not None:
            head = slots.popleft()
            if head.answer:
                if not self._out:
                    self._opened.outbox.add(self)
                self._out += head.answer
        if self._closing and not slots:
            self.close("the client was told why")
            return
        self._advance()
        settings = self._broker.settings
        if (
            "requests" in self._holds
            and len(self._waiting) * 2 < settings.requests_max
            and self._waiting_bytes * 2 <= settings.waiting_bytes_max
        ):
            self.release("requests")

    # -- answers out ---------------------------------------------------------------------------------------------------

    def _taken(self) -> None:
        """The client has taken what was written, as far as the transport can say."""
        if self._places:
            for place in self._places:
                if place.size_bytes:
                    place.end()
            self._places = tuple(place for place in self._places if not place.size_bytes)

    def flush(self) -> None:
        out = self._out
        if not out or self._transport is None or self.closed:
            return
        self._out = []
        if len(out) == 1:
            self._transport.write(out[0])
        elif sum(map(len, out)) < _JOIN_BELOW:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)
        if "writing" not in self._holds:
            self._taken()


def _check_before_login(frame: bytearray) -> None:
    """Nothing but its kind is read of a request that nobody may send yet. Raises PeerError."""
    kind = bytes(frame[:2])
    if kind not in _BEFORE_LOGIN:
        api = APIS.get(int.from_bytes(kind, "big", signed=True))
        raise PeerError(f"{'a request' if api is None else api.name} before the client has authenticated")
