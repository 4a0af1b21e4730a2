"""Login: who is at the other end of a Kafka connection.

Is: one connection's principal, and SASL in both of its forms: SaslHandshake 1 with SaslAuthenticate, and handshake 0
(or none) with bare tokens, as clients before 1.0 do it. Isn't: a check of a password, a token, or a certificate
(`region_node.security`).
Invariants: nothing but ApiVersions, SaslHandshake, and SaslAuthenticate is answered before there is a principal; no
connection outlives its credentials by more than a tick; credentials are never logged. Where nothing is authenticated,
everybody is nobody in particular, at once.
Source: Kafka KIP-12, KIP-43, KIP-152, KIP-368; docs/protocols/kafka.md, "Security".

    PLAIN        user and password of security's `basic`; the password `token:JWT` is a token of `token`,
                 whatever the user
    OAUTHBEARER  a token of `token`
    SCRAM        a user of this region's own (`scram`), in two steps
    mutual TLS   the certificate, by `tls`
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from heliograph.model.configuration.revocations import ProvenBy
from heliograph.model.errors import HeliographError, MetadataUnavailable, PeerError, Unauthenticated
from heliograph.wire.kafka.message_codec import Fields, Request
from heliograph.wire.run import Buffer
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.security.scram import HASHES, ScramExchange, ScramUser
from region_node.security.authentication.authentication_service import revoked_text
from region_node.security.authentication.principal import NOBODY, Credentials, Principal

if TYPE_CHECKING:
    from region_node.faces.kafka.connection.kafka_connection import KafkaConnection

MECHANISMS = ("PLAIN", "OAUTHBEARER", *HASHES)
_BEARER = re.compile(rb"n,(?:a=[^,]*)?,\x01(?:[^\x01]*\x01)*?auth=[Bb]earer ([^\x01]+)\x01")
_TOKEN = b"token:"
_BYTES_MAX = 64 << 10
"""A whole request has no more before sign-in; a client that signs in again is held to the same."""


class Login:
    """`principal`: None until the client is known. `takes_bare_tokens`: the next frame is a token without a header."""

    __slots__ = ("_connection", "_exchange", "_mechanism", "principal", "takes_bare_tokens")

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._mechanism = ""
        self._exchange: tuple[ScramExchange, ScramUser] | None = None
        self.principal: Principal | None = None
        self.takes_bare_tokens = False

    @property
    def _host(self) -> str:
        return self._connection.address.rpartition(":")[0]

    def begin(self) -> None:
        authentication = self._connection.broker.security.authentication
        if authentication.open:
            self.principal = Principal(role=NOBODY)  # no ACL is looked at: nothing is authorized
        elif self._connection.certificate:
            self._connection.hold("login")
            self._connection.broker.tasks.spawn(self._by_certificate())

    async def _by_certificate(self) -> None:
        connection = self._connection
        try:
            found = await connection.broker.security.authentication.identify(
                Credentials(method="tls", certificate=connection.certificate)
            )
            self.principal = found.at(self._host)
        except HeliographError:
            pass  # it may still authenticate by SASL
        connection.release("login")

    # -- SASL ----------------------------------------------------------------------------------------------------------

    def handshake(self, mechanism: str, version: int) -> Code:
        if self._connection.broker.security.authentication.open:
            return Code.NONE if mechanism in MECHANISMS else Code.UNSUPPORTED_SASL_MECHANISM
        if mechanism not in MECHANISMS:
            return Code.UNSUPPORTED_SASL_MECHANISM
        self._mechanism, self._exchange = mechanism, None
        self.takes_bare_tokens = version == 0
        return Code.NONE

    async def bare_token(self, frame: Buffer) -> list[Buffer]:
        """What came without a header is answered without one. Raises Unauthenticated: the connection is closed, as
        clients of that age expect.
        """
        answer = await self.token(bytes(frame))
        self.takes_bare_tokens = self._exchange is not None
        return [len(answer).to_bytes(4, "big") + answer]

    async def token(self, data: bytes) -> bytes:
        """Takes a client's token and returns the answer; a login that is complete sets `principal`. Raises
        Unauthenticated, and PeerError where no handshake chose a mechanism.
        """
        authentication = self._connection.broker.security.authentication
        if authentication.open:
            return b""
        if len(data) > _BYTES_MAX:
            raise Unauthenticated(f"credentials of {len(data)} bytes; at most {_BYTES_MAX} are taken")
        if self._mechanism == "PLAIN":
            credentials = _plain(data, self._host)
        elif self._mechanism == "OAUTHBEARER":
            found = _BEARER.match(data)
            if found is None:
                raise Unauthenticated("an OAUTHBEARER token that is not one")
            credentials = Credentials(method="token", data=found[1])
        elif self._mechanism in HASHES:
            return await self._scram(data)
        else:
            raise PeerError("SaslAuthenticate before SaslHandshake")
        self._accept(await authentication.identify(credentials))
        return b""

    async def _scram(self, data: bytes) -> bytes:
        users = self._connection.broker.scram
        if self._exchange is None:
            exchange = ScramExchange(self._mechanism, users.nonce())
            exchange.begin(data)
            known = await users.find(self._mechanism, exchange.user)
            self._exchange = (exchange, known)
            return exchange.challenge(known)
        (exchange, known), self._exchange = self._exchange, None
        answer = exchange.finish(data, known)
        found = Principal(role=exchange.user, proof=ProvenBy(user=exchange.user))
        self._connection.broker.security.authentication.admit(found, "ScramUsers", "scram")
        self._accept(found)
        return answer

    def _accept(self, principal: Principal) -> None:
        if self.principal is not None and principal.roles != self.principal.roles:
            raise Unauthenticated("the new credentials are of another role: connect again")
        self.principal = principal.at(self._host)

    def end_revoked(self) -> bool:
        """The list of what was revoked has changed: where it names what this client is known by, that is its end."""
        connection = self._connection
        if self.principal is None or connection.closed:
            return False
        found = connection.broker.security.authentication.revocations.of(self.principal.proof)
        if found is not None:
            connection.close(revoked_text(found))
        return found is not None

    def lifetime_ms(self) -> int:
        """How long the client may go on; 0: for ever."""
        if self.principal is None or not self.principal.expires_ms:
            return 0
        return max(1, self.principal.expires_ms - self._connection.broker.clock.wall_ms())

    @property
    def expired(self) -> bool:
        return self.principal is not None and 0 < self.principal.expires_ms <= self._connection.broker.clock.wall_ms()


def _plain(data: bytes, host: str) -> Credentials:
    parts = data.split(b"\0", 3)
    if len(parts) != 3 or not parts[1]:
        raise Unauthenticated("a PLAIN token that is not one")
    identity, user, password = parts
    if identity and identity != user:
        raise Unauthenticated("a PLAIN token for another identity than its user")
    if password.startswith(_TOKEN):
        return Credentials(method="token", data=password[len(_TOKEN) :])
    return Credentials(method="basic", data=user + b":" + password, host=host)


async def sasl_handshake(connection: KafkaConnection, request: Request) -> Fields:
    return {
        "error_code": connection.login.handshake(request.fields["mechanism"], request.version),
        "mechanisms": list(MECHANISMS),
    }


async def sasl_authenticate(connection: KafkaConnection, request: Request) -> Fields:
    try:
        answer = await connection.login.token(request.fields["auth_bytes"])
    except MetadataUnavailable:  # closed without an answer, as by Kafka's brokers: any code of one is final
        raise
    except HeliographError as error:
        if isinstance(error, PeerError):
            return {"error_code": Code.ILLEGAL_SASL_STATE, "error_message": str(error)}
        connection.close_when_answered()
        return {"error_code": Code.SASL_AUTHENTICATION_FAILED, "error_message": f"Authentication failed: {error}"}
    return {"error_code": 0, "auth_bytes": answer, "session_lifetime": connection.login.lifetime_ms()}
