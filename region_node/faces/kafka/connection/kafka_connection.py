"""KafkaConnection: one connection of a Kafka client, as `asyncio.BufferedProtocol`.

Is: frames in, answers out in the order of their requests, back-pressure, and whose turn it is. Isn't: an answer
(`request_table` and the modules it names).
Invariants: answers go out in the order of their requests; one request is under way at a time, but for Produce requests,
of which several are; a fault of the peer closes this connection and nothing else; large frames are received right where
they stay; at most one write a loop pass.
Source: docs/protocols/kafka.md, "Connections".
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from heliograph.model.errors import HeliographError, PeerError
from heliograph.wire.kafka.message_codec import APIS, BY_NAME, Fields, Request, decode_request, encode_answer
from heliograph.wire.run import Buffer
from region_node.faces.kafka.connection.refusals import in_part, refused
from region_node.faces.kafka.connection.request_table import BEFORE_LOGIN, SERVED, refuse_version
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.produce_fetch.produce import begin_produce
from region_node.faces.kafka.quotas.client_quotas import ClientLimits, Shared
from region_node.faces.kafka.quotas.request_time import Worked
from region_node.faces.kafka.security.api_rights import RequestGate
from region_node.faces.kafka.security.sasl import Login

if TYPE_CHECKING:
    from region_node.faces.kafka.connection.kafka_listener import KafkaListener

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
_PRODUCE = b"\0\0"
"""What such a request's frame begins with."""
_BEFORE_LOGIN = frozenset(BY_NAME[name].key.to_bytes(2, "big") for name in BEFORE_LOGIN)
"""What those frames begin with that are looked into before a client has authenticated."""


class Slot:
    """One answer's place in the order. `answer` None: it is not there yet; []: none is sent. `request` None: a bare
    token.
    """

    __slots__ = ("answer", "request", "size_bytes")

    def __init__(self, request: Request | None, size_bytes: int) -> None:
        self.request, self.size_bytes = request, size_bytes
        self.answer: list[Buffer] | None = None


class KafkaConnection(asyncio.BufferedProtocol):
    """`number`: its name in the log. `login`: who is at the other end. `tls`: which of the brokers' listeners it is
    told of.
    """

    def __init__(self, listener: KafkaListener, *, tls: bool) -> None:
        self.listener, self.tls, self.broker = listener, tls, listener.broker
        self.number = listener.accepted = listener.accepted + 1
        self.closed = False
        self.address = ""
        self._host: str | None = None
        """It has a place among the connections of this address."""
        self.login = Login(self)
        self.gate = RequestGate(
            SERVED, self.login, self.broker.security.rights, self.broker.settings.namespace, self.broker.name
        )
        self.certificate: dict[str, Any] | None = None
        self.client_software = ""
        self.limits: tuple[str, ClientLimits] | None = None
        """(client id, the quotas that held for it when it was last looked)"""
        self._quota_timers: dict[Shared, asyncio.TimerHandle] = {}
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._frame: bytearray | None = None
        self._filled = self._frame_bytes = 0
        self._slots: deque[Slot] = deque()
        self._waiting: deque[bytearray] = deque()
        self._waiting_bytes = 0
        self._alone = self._advancing = self._closing = False
        self._out: list[Buffer] = []
        self._held = False
        self._holds: dict[object, None] = {}
        self._gates = 0
        self.heard_at = self.since = listener.broker.clock.monotonic()

    # -- the transport -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
        if len(self.listener.connections) >= self.listener.broker.settings.connections_max:
            self.close("too many connections")
            return
        if isinstance(peer, tuple):
            if not self.listener.addresses.take(peer[0]):
                self.close(f"too many connections: at most {self.listener.addresses.most} from one address")
                return
            self._host = peer[0]
        self.certificate = transport.get_extra_info("peercert")
        self._transport.set_write_buffer_limits(high=1 << 20)
        self.listener.connections[self] = None
        if isinstance(peer, tuple) and (late_s := self.broker.quotas.connected(peer[0])) > 0:
            self.hold_reading(True, "address")
            self.listener.loop.call_later(late_s, self.close, "too many connections a second from this address")
            return
        self.login.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        left = () if self.closed else (frame for frame in self._waiting if frame[:2] == _PRODUCE)
        self._waiting, self.closed = deque(left), True
        self.listener.connections.pop(self, None)
        if self._host is not None:
            self.listener.addresses.give(self._host)
            self._host = None
        self.listener.budget.forget(self)
        for timer in self._quota_timers.values():
            timer.cancel()
        self._quota_timers.clear()
        self.broker.quotas.let_go(self)
        self._slots.clear()
        self._out, self._transport, self._frame = [], None, None
        self._finish_waiting()

    def _finish_waiting(self) -> None:
        """What a client sent whole before it closed is stored, as in Kafka: with acks=0 it waits for nothing, and takes
        it for sent.
        """
        while self._waiting and not self._alone and self._transport is None:
            frame = self._waiting.popleft()
            if self.login.principal is None:
                continue
            try:
                request = decode_request(frame)
            except PeerError:
                self._waiting.clear()
                return
            if request.supported:
                slot = Slot(request, len(frame))
                if not begin_produce(self, slot):
                    self._run(slot, None)

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
            log.info("kafka.connection_closed", extra={**self._named(request), "reason": reason})
        self.flush()
        self.closed = True
        if self._transport is not None:
            self._transport.close()

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

    @property
    def held_for(self) -> list[Shared]:
        """Quotas that are used up."""
        return list(self._quota_timers)

    def hold_for(self, wait_s: float, quota: Shared) -> None:
        """A quota of this client is used up for so long from now on; 0: it is not any more."""
        timer = self._quota_timers.pop(quota, None)
        if timer is not None:
            timer.cancel()
        if wait_s > 0:
            self._quota_timers[quota] = self.listener.loop.call_later(wait_s, self.hold_for, 0.0, quota)
            if timer is None:
                self.hold_reading(True, quota)
        elif timer is not None:
            if not self._quota_timers:
                self.broker.quotas.let_go(self)
            self.hold_reading(False, quota)

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
        staging, rest = self.listener.staging, self._rest
        staging[: len(rest)] = rest
        return memoryview(staging)[len(rest) :]

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = self.broker.clock.monotonic()
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
        staging, at, self._rest = self.listener.staging, 0, b""
        while end - at >= 4 and not self.closed:
            size_max = (
                self.broker.settings.request_bytes_max if self.login.principal is not None else _HANDSHAKE_BYTES_MAX
            )
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
                first = _FIRST_BYTES if self.login.principal is not None else _OWN_BUFFER_ABOVE
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
        settings = self.broker.settings
        bytes_max = settings.waiting_bytes_max if self.login.principal is not None else _HANDSHAKE_BYTES_MAX
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
            if self.login.takes_bare_tokens:
                self._run(Slot(None, len(frame)), self.login.bare_token(frame))
                return True
            produce = frame[:2] == _PRODUCE
            if self.login.principal is None:
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
                if begin_produce(self, slot):
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
        self.broker.tasks.spawn(self._work(slot, work))

    async def _work(self, slot: Slot, work: Any) -> None:
        request = slot.request
        try:
            if request is None:
                slot.answer = await work
            else:
                slot.answer = await self._answer(request)
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

    async def _answer(self, request: Request) -> list[Buffer]:
        row = SERVED[request.api.name]
        work = row.handler(self, request)
        if self.broker.quotas.active:
            answer: Fields | None = None
            timed = Worked(work, self.broker.clock.monotonic)
            try:
                answer = await timed
            finally:  # what ends its connection has worked too: its client comes again, and finds what it has taken
                self.charge(request, answer, timed.seconds)
        else:
            answer = await work
        if answer is None:
            return []
        if request.api.name != "produce":  # its batches say it themselves
            self.note_refusal(request, answer)
        if row.changes:
            self._record(request, answer)
        return self.encode(request, answer)

    def _record(self, request: Request, answer: Fields) -> None:
        """Writes a change down, with the first of the codes that say no as its status, or 0, and with the ACLs that it
        deleted: the request has their filter alone.
        """
        assert self.login.principal is not None
        deleted = [acl for result in answer.get("filter_results", ()) for acl in result["matching_acls"]]
        code, text, _ = refused(answer) or (Code.NONE, "", 0)
        self.broker.audit.change(
            role=self.login.principal.role,
            address=self.address,
            method="KAFKA",
            path=request.api.name,
            status=int(code),
            given=request.fields,
            refused=not in_part(answer),
            **({"reason": text} if text else {}),
            **({"before": deleted} if deleted else {}),
        )

    def note_refusal(self, request: Request, answer: Fields) -> None:
        """One line in the log for each request that is refused, in whole or in part, whatever answers it."""
        found = refused(answer)
        if found is not None:
            code, text, count = found
            fields: Fields = {
                **self._named(request),
                "code": code.name,
                **({"error": text} if text else {}),
                **({"refusals": count} if count > 1 else {}),
            }
            log.info("kafka.request_refused", extra=fields)

    def _named(self, request: Request | None) -> Fields:
        """`request`: the number that the client gave it, and has in its own log."""
        who: Fields = {"connection": self.number, "address": self.address}
        if request is None:
            return who
        return {
            **who,
            "client": request.client,
            "request": request.correlation,
            "kind": f"{request.api.name} {request.version}",
        }

    def charge(self, request: Request, answer: Fields | None, seconds: float) -> None:
        """So long has the broker worked on this request: its quotas may say that nothing more is read for a while, and
        the answer says so too.
        """
        if self.login.principal is not None:
            wait_ms = self.broker.quotas.worked(self, request.client, request.api.name, seconds)
            if answer is not None and wait_ms:
                answer["throttle_time"] = max(wait_ms, answer.get("throttle_time", 0))

    def encode(self, request: Request, answer: Fields) -> list[Buffer]:
        return encode_answer(request.api, request.version, request.correlation, answer)

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
                    self.listener.outbox.add(self)
                self._out += head.answer
        if self._closing and not slots:
            self.close("the client was told why")
            return
        self._advance()
        settings = self.broker.settings
        if (
            "requests" in self._holds
            and len(self._waiting) * 2 < settings.requests_max
            and self._waiting_bytes * 2 <= settings.waiting_bytes_max
        ):
            self.release("requests")

    # -- answers out ---------------------------------------------------------------------------------------------------

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


def _check_before_login(frame: bytearray) -> None:
    """Nothing but its kind is read of a request that nobody may send yet. Raises PeerError."""
    kind = bytes(frame[:2])
    if kind not in _BEFORE_LOGIN:
        api = APIS.get(int.from_bytes(kind, "big", signed=True))
        raise PeerError(f"{'a request' if api is None else api.name} before the client has authenticated")
