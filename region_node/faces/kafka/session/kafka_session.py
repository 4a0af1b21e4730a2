"""KafkaSession: what the handlers of requests know of one client, and may do to its connection.

Is: who it is and what it may, how it is named in the log, what its quotas allow, and the port to its connection. Isn't:
a frame, or the order of answers (`region_node.faces.kafka.connection`).
Invariants: handlers take the session and never the connection; nothing is set on it but by its own methods.
Source: docs/protocols/kafka.md, "Connections".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from heliograph.runtime.throttle import in_steps
from heliograph.wire.kafka.message_codec import Fields, Request, encode_answer, encode_in_steps
from heliograph.wire.run import Buffer
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.quotas.client_quotas import ANONYMOUS, ClientLimits, Shared
from region_node.faces.kafka.security.api_rights import ApiRow, RequestGate
from region_node.faces.kafka.session.client_epochs import ClientEpochs
from region_node.faces.kafka.session.kafka_broker import KafkaBroker
from region_node.faces.kafka.session.login import Login
from region_node.faces.kafka.session.refusals import Refusals, in_part
from region_node.subscriptions.delayed_delivery import DelayTimer

log = logging.getLogger("region_node.kafka")

SOFTWARE_MAX = 256
"""Characters that are kept of what a client says that it is."""


class Slot:
    """One answer's place in the order. `answer` None: it is not there yet; []: none is sent. `request` None: a bare
    token.
    """

    __slots__ = ("answer", "request", "size_bytes")

    def __init__(self, request: Request | None, size_bytes: int) -> None:
        self.request, self.size_bytes = request, size_bytes
        self.answer: list[Buffer] | None = None


class SessionPort(Protocol):
    """`region_node.faces.kafka.connection.kafka_connection.KafkaConnection`, as its session drives it."""

    @property
    def closed(self) -> bool: ...

    @property
    def since(self) -> float: ...

    def close(self, reason: str = "", request: Request | None = None) -> None: ...

    def close_when_answered(self) -> None: ...

    def hold(self, reason: object) -> None: ...

    def release(self, reason: object) -> None: ...

    def hold_reading(self, hold: bool, reason: object = None) -> None: ...

    def call_later(self, wait_s: float, action: Callable[[], None]) -> DelayTimer: ...

    def enqueue(self, slot: Slot) -> None: ...

    def answered(self, slot: Slot, answer: list[Buffer] | None) -> None: ...


class KafkaSession:
    """`number`: the connection's name in the log. `login`: who is at the other end. `gate`: what it may. `epochs`:
    which offsets it may go on with. `tls`: which of the brokers' listeners it is told of.
    """

    __slots__ = (
        "_limits",
        "_port",
        "_quota_timers",
        "_software",
        "address",
        "broker",
        "epochs",
        "gate",
        "login",
        "number",
        "tls",
    )

    def __init__(
        self,
        port: SessionPort,
        broker: KafkaBroker,
        rows: Mapping[str, ApiRow],
        number: int,
        *,
        tls: bool,
        peer: object,
    ) -> None:
        """rows: of the requests that are answered. peer: (host, port, …) where the transport knows it."""
        self._port, self.broker, self.number, self.tls = port, broker, number, tls
        host = str(peer[0]) if isinstance(peer, tuple) else ""
        self.address = f"{host}:{peer[1]}" if isinstance(peer, tuple) else ""
        self.login = Login(broker, host)
        self.gate = RequestGate(rows, self.login, broker.security.rights, broker.settings.namespace, broker.name)
        self.epochs = ClientEpochs(port)
        self._software = ""
        self._limits: tuple[str, ClientLimits] | None = None
        """(client id, the quotas that held for it when it was last looked)"""
        self._quota_timers: dict[Shared, DelayTimer] | None = None

    # -- the client ----------------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The address without its port; "" where the transport knows none."""
        return self.address.rpartition(":")[0]

    @property
    def client_software(self) -> str:
        """What the client says that it is; "" until it says something."""
        return self._software

    def introduce(self, name: str, version: str) -> None:
        """Keeps what the client says that it is, SOFTWARE_MAX characters of it."""
        self._software = f"{name[:SOFTWARE_MAX]} {version[:SOFTWARE_MAX]}".strip()[:SOFTWARE_MAX]

    def end_revoked(self) -> bool:
        """The list of what was revoked has changed: where it names what this client is known by, its connection is
        closed.
        """
        why = "" if self.closed else self.login.revoked()
        if why:
            self.close(why)
        return bool(why)

    # -- its connection ------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._port.closed

    def close(self, reason: str) -> None:
        self._port.close(reason)

    def close_when_answered(self) -> None:
        """Nothing more is read; the answer that is being made goes out first."""
        self._port.close_when_answered()

    def hold_reading(self, hold: bool, reason: object = None) -> None:
        """A rate is used up, or has recovered: until then no request is read, and none that was read is begun."""
        self._port.hold_reading(hold, reason)

    def over_budget(self, over: bool) -> None:
        """Too much of all clients is not durable yet: nothing more is read meanwhile."""
        if over:
            self._port.hold("budget")
        else:
            self._port.release("budget")

    def enqueue(self, slot: Slot) -> None:
        """A Produce request is under way."""
        self._port.enqueue(slot)

    def answered(self, slot: Slot, answer: list[Buffer] | None) -> None:
        """The answer is there, and goes out when those before it have."""
        self._port.answered(slot, answer)

    def end(self) -> None:
        """The connection is lost: nobody holds it, or waits for it, any more."""
        self.broker.budget.forget(self)
        for timer in (self._quota_timers or {}).values():
            timer.cancel()
        self._quota_timers = None
        self.broker.quotas.let_go(self)

    # -- quotas --------------------------------------------------------------------------------------------------------

    def limits_of(self, client: str) -> ClientLimits:
        """Returns what quotas allow this user with that client id."""
        known, quotas = self._limits, self.broker.quotas
        if known is None or known[0] != client or known[1].version != quotas.table.version:
            assert self.login.principal is not None
            known = self._limits = client, quotas.limits(self.login.principal.role or ANONYMOUS, client)
        return known[1]

    def limits_again(self) -> ClientLimits:
        """Returns the same for the client id that was last asked for."""
        assert self._limits is not None
        return self.limits_of(self._limits[0])

    @property
    def held_for(self) -> list[Shared]:
        """Quotas that are used up."""
        return list(self._quota_timers or ())

    def hold_for(self, wait_s: float, quota: Shared) -> None:
        """A quota of this client is used up for so long from now on; 0: it is not any more."""
        timers = self._quota_timers or {}
        timer = timers.pop(quota, None)
        if timer is not None:
            timer.cancel()
        if wait_s > 0:
            timers[quota] = self._port.call_later(wait_s, partial(self.hold_for, 0.0, quota))
            self._quota_timers = timers
            if timer is None:
                self.hold_reading(True, quota)
        elif timer is not None:
            if not timers:
                self._quota_timers = None
                self.broker.quotas.let_go(self)
            self.hold_reading(False, quota)

    def charge(self, request: Request, answer: Fields | None, seconds: float) -> None:
        """So long has the broker worked on this request: its quotas may say that nothing more is read for a while, and
        the answer says so too.
        """
        if self.login.principal is not None:
            wait_ms = self.broker.quotas.worked(self, request.client, request.api.name, seconds)
            if answer is not None and wait_ms:
                answer["throttle_time"] = max(wait_ms, answer.get("throttle_time", 0))

    # -- answers -------------------------------------------------------------------------------------------------------

    def encode(self, request: Request, answer: Fields) -> list[Buffer]:
        return encode_answer(request.api, request.version, request.correlation, answer)

    async def encode_paced(self, request: Request, answer: Fields) -> list[Buffer]:
        """Returns the same, with a pause behind each piece of a long one. Raises PeerError: it is too large."""
        return await in_steps(encode_in_steps(request.api, request.version, request.correlation, answer))

    def record(self, request: Request, answer: Fields, found: Refusals | None) -> None:
        """Writes a change down, with the first of the codes that say no as its status, or 0, and with the ACLs that it
        deleted: the request has their filter alone.
        """
        assert self.login.principal is not None
        deleted = [acl for result in answer.get("filter_results", ()) for acl in result["matching_acls"]]
        code, text, _ = found or (Code.NONE, "", 0)
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

    def note_refusal(self, request: Request, found: Refusals | None) -> None:
        """One line in the log for each request that is refused, in whole or in part, whatever answers it."""
        if found is not None:
            code, text, count = found
            fields: Fields = {
                **self.named(request),
                "code": code.name,
                **({"error": text} if text else {}),
                **({"refusals": count} if count > 1 else {}),
            }
            log.info("kafka.request_refused", extra=fields)

    def named(self, request: Request | None) -> Fields:
        """Returns how the client, and its request, are named in the log. `request`: the number that the client gave
        it, and has in its own log.
        """
        who: Fields = {"connection": self.number, "address": self.address}
        if request is None:
            return who
        return {
            **who,
            "client": request.client,
            "request": request.correlation,
            "kind": f"{request.api.name} {request.version}",
        }
