"""Who is at the other end of a connection: from CONNECT to an accepted principal, and credentials that are renewed
while it lives.

Is: one connection's principal, the hold of everything behind CONNECT while it is found out, AUTH_CHALLENGE and
AUTH_RESPONSE, and the question whether this client may. Isn't: a plug-in or a rule (`region_node.security`).
Invariants: no command is handled before CONNECTED was written; no connection outlives its credentials by more than the
listener's tick; a renewal never changes the role. Where nothing is authenticated, CONNECT is answered at once.
Source: docs/security.md, "Pulsar connections".
"""

from __future__ import annotations

import logging

from heliograph.model.errors import HeliographError, Unauthenticated
from heliograph.model.topic_names import TopicName
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.server_errors import code_of
from region_node.faces.pulsar.session.pulsar_broker import ClientPort, PulsarBroker
from region_node.security.authentication.authentication_service import revoked_text
from region_node.security.authentication.client_certificates import proof_of
from region_node.security.authentication.principal import NOBODY, Credentials, Principal
from region_node.security.authorization.authorization_service import Action

log = logging.getLogger("region_node.pulsar")

REFRESH = b"PulsarAuthRefresh"
"""What Java clients look for in a challenge that means: your credentials run out."""
_AGAIN_S = 10.0
"""Between two challenges of one port."""


class Identity:
    """`principal`: None until CONNECT is accepted; `busy`: CONNECT is being looked at."""

    __slots__ = (
        "_answering",
        "_broker",
        "_can_refresh",
        "_challenged_at",
        "_method",
        "_original",
        "_port",
        "busy",
        "principal",
    )

    def __init__(self, port: ClientPort, broker: PulsarBroker) -> None:
        self._port, self._broker = port, broker
        self.principal: Principal | None = None
        self.busy = False
        self._method = self._original = ""
        self._can_refresh = False
        self._challenged_at = float("-inf")
        self._answering = False

    # -- CONNECT -------------------------------------------------------------------------------------------------------

    def connect(self, command: pb.CommandConnect) -> None:
        """Accepts at once, or holds what follows and finds out."""
        port = self._port
        authentication = self._broker.security.authentication
        self._can_refresh = command.feature_flags.supports_auth_refresh
        if port.link:
            role = f"replicator.{port.peer_region}"
            linked = Principal(role=role, internal=True, proof=proof_of(port.certificate))
            try:
                authentication.admit(linked, "links", "tls")
            except Unauthenticated as error:
                port.close(str(error), code_of(error))
                return
            self._accept(command, linked)
        elif authentication.open:
            self._accept(command, Principal(role=NOBODY))
        else:
            self.busy = True
            self._method, self._original = command.auth_method_name, command.original_principal
            self._broker.tasks.spawn(self._identify(command))

    async def _identify(self, command: pb.CommandConnect) -> None:
        port = self._port
        credentials = Credentials(
            method=command.auth_method_name,
            data=command.auth_data,
            certificate=port.certificate,
            host=self._host,
        )
        try:
            principal = await self._broker.security.authentication.identify(credentials, self._original)
        except HeliographError as error:
            log.info(
                "connection.unauthenticated",
                extra={"address": port.address, "method": command.auth_method_name[:32], "error": str(error)},
            )
            port.close(str(error), code_of(error))
            return
        finally:
            self.busy = False
        if not port.closed:
            self._accept(command, principal)
            port.go_on()

    def _accept(self, command: pb.CommandConnect, principal: Principal) -> None:
        self.principal = self._from_here(principal)
        self._port.accept(command)

    # -- renewal -------------------------------------------------------------------------------------------------------

    def tick(self, now: float, wall_ms: int) -> None:
        """Asks for new credentials in time; closes the connection when they have run out."""
        principal, port = self.principal, self._port
        if principal is None or not principal.expires_ms:
            return
        if wall_ms >= principal.expires_ms:
            log.info("connection.expired", extra={"address": port.address, "role": principal.role})
            port.close("the credentials of this connection have run out", pb.AuthenticationError)
        elif (
            self._can_refresh
            and wall_ms >= principal.expires_ms - self._broker.security.authentication.refresh_ahead_ms
            and now - self._challenged_at >= _AGAIN_S
        ):
            self._challenged_at = now
            challenge = pb.CommandAuthChallenge(
                protocol_version=port.protocol_version, server_version=self._broker.settings.server_version
            )
            challenge.challenge.auth_method_name, challenge.challenge.auth_data = self._method, REFRESH
            port.send(pb.BaseCommand(type=pb.BaseCommand.AUTH_CHALLENGE, authChallenge=challenge))

    def respond(self, command: pb.CommandAuthResponse) -> None:
        """The client's new credentials; one that nobody asked for is let be."""
        if self._challenged_at == float("-inf") or self._answering:
            return
        self._answering = True
        self._broker.tasks.spawn(self._renew(command))

    async def _renew(self, command: pb.CommandAuthResponse) -> None:
        port, old = self._port, self.principal
        given = command.response
        credentials = Credentials(
            method=given.auth_method_name or self._method,
            data=given.auth_data,
            certificate=port.certificate,
            host=self._host,
        )
        try:
            found = await self._broker.security.authentication.identify(credentials, self._original)
            assert old is not None
            if found.roles != old.roles:
                raise Unauthenticated("the new credentials are of another role: connect again")
        except HeliographError as error:
            log.info("connection.not_renewed", extra={"address": port.address, "error": str(error)})
            port.close(str(error), code_of(error))
            return
        finally:
            self._answering = False
        self.principal = self._from_here(found)

    def _from_here(self, principal: Principal) -> Principal:
        return principal.at(self._host)

    @property
    def _host(self) -> str:
        return self._port.address.removeprefix("/").rpartition(":")[0]

    def end_revoked(self) -> bool:
        """The list of what was revoked has changed: where it names what this client is known by, that is its end."""
        principal, port = self.principal, self._port
        if principal is None or port.closed:
            return False
        found = self._broker.security.authentication.revocations.of(principal.proof)
        if found is not None:
            log.info(
                "connection.revoked",
                extra={
                    "address": port.address,
                    "role": principal.role,
                    "kind": found.kind,
                    "revoked": found.name,
                },
            )
            port.close(revoked_text(found), pb.AuthenticationError)
        return found is not None

    # -- rights --------------------------------------------------------------------------------------------------------

    @property
    def role(self) -> str:
        return self.principal.role if self.principal is not None else NOBODY

    def check(self, action: Action, topic: TopicName) -> None:
        """Raises Unauthorized where the client may not do that with the topic."""
        assert self.principal is not None
        self._broker.security.rights.check(self.principal, action, topic)

    def check_subscribe(self, topic: TopicName, subscription: str) -> None:
        """Raises Unauthorized where the client may not consume the topic by that subscription."""
        assert self.principal is not None
        self._broker.security.rights.check_subscribe(self.principal, topic, subscription)

    def check_look_up(self, topic: TopicName) -> None:
        """Raises Unauthorized where the client may neither produce to nor consume the topic."""
        assert self.principal is not None
        self._broker.security.rights.check_look_up(self.principal, topic)

    def may_open(self, topic: TopicName) -> bool:
        """Whether the client may produce to the topic, or consume it."""
        assert self.principal is not None
        return self._broker.security.rights.may_open(self.principal, topic)

    def check_transactions(self) -> None:
        """Raises Unauthorized where the client may begin no transactions."""
        assert self.principal is not None
        self._broker.security.rights.check_transactions(self.principal)

    def check_list(self, namespace: str) -> None:
        """Raises Unauthorized where the client may not list the namespace's topics."""
        assert self.principal is not None
        self._broker.security.rights.check_list(self.principal, namespace)
