"""Login: who is at the other end of a Kafka connection.

Is: one session's principal, and SASL in both of its forms: SaslHandshake 1 with SaslAuthenticate, and handshake 0
(or none) with bare tokens, as clients before 1.0 do it. Isn't: a check of a password, a token, or a certificate
(`region_node.security`).
Invariants: nothing but ApiVersions, SaslHandshake, and SaslAuthenticate is answered before there is a principal; no
connection outlives its credentials by more than a tick; credentials are never logged. Where nothing is authenticated,
everybody is nobody in particular, at once.
Source: Kafka KIP-12, KIP-43, KIP-152, KIP-368; docs/protocols/kafka.md, "Security".

    PLAIN        user and password of security's `basic`; the password `token:JWT` is a token of `token`,
                 whatever the user
    OAUTHBEARER  a token of `token`
    SCRAM        a user of the instance's (`scram`), in two steps
    mutual TLS   the certificate, by `tls`
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from heliograph.model.configuration.kafka_users import ScramUser
from heliograph.model.configuration.revocations import ProvenBy
from heliograph.model.errors import HeliographError, PeerError, Unauthenticated
from heliograph.wire.run import Buffer
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.security.scram import HASHES, ScramExchange
from region_node.faces.kafka.session.kafka_broker import KafkaBroker
from region_node.security.authentication.authentication_service import revoked_text
from region_node.security.authentication.principal import NOBODY, Credentials, Principal

MECHANISMS = ("PLAIN", "OAUTHBEARER", *HASHES)
_BEARER = re.compile(rb"n,(?:a=[^,]*)?,\x01(?:[^\x01]*\x01)*?auth=[Bb]earer ([^\x01]+)\x01")
_TOKEN = b"token:"
_BYTES_MAX = 64 << 10
"""A whole request has no more before sign-in; a client that signs in again is held to the same."""


class Login:
    """`principal`: None until the client is known. `takes_bare_tokens`: the next frame is a token without a header."""

    __slots__ = ("_broker", "_exchange", "_host", "_mechanism", "principal", "takes_bare_tokens")

    def __init__(self, broker: KafkaBroker, host: str) -> None:
        """host: whence the client came; "" where that is not known."""
        self._broker, self._host = broker, host
        self._mechanism = ""
        self._exchange: tuple[ScramExchange, ScramUser] | None = None
        self.principal: Principal | None = None
        self.takes_bare_tokens = False

    def begin(self) -> bool:
        """Lets everybody in where nothing is authenticated. Returns whether the client has to say who it is."""
        if self._broker.security.authentication.open:
            self.principal = Principal(role=NOBODY)  # no ACL is looked at: nothing is authorized
        return self.principal is None

    async def by_certificate(self, certificate: dict[str, Any]) -> None:
        """Takes the client for whom its certificate names; it may still authenticate by SASL where that is nobody."""
        with contextlib.suppress(HeliographError):
            found = await self._broker.security.authentication.identify(
                Credentials(method="tls", certificate=certificate)
            )
            self.principal = found.at(self._host)

    # -- SASL ----------------------------------------------------------------------------------------------------------

    def handshake(self, mechanism: str, version: int) -> Code:
        if self._broker.security.authentication.open:
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
        authentication = self._broker.security.authentication
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
        users = self._broker.scram
        if self._exchange is None:
            exchange = ScramExchange(self._mechanism, users.nonce())
            exchange.begin(data)
            known = await users.find(self._mechanism, exchange.user)
            self._exchange = (exchange, known)
            return exchange.challenge(known)
        (exchange, known), self._exchange = self._exchange, None
        answer = exchange.finish(data, known)
        found = Principal(role=exchange.user, proof=ProvenBy(user=exchange.user))
        authentication = self._broker.security.authentication
        authentication.admit(found, "ScramUsers", "scram")
        self._accept(authentication.speaking(found))
        return answer

    def _accept(self, principal: Principal) -> None:
        if self.principal is not None and principal.roles != self.principal.roles:
            raise Unauthenticated("the new credentials are of another role: connect again")
        self.principal = principal.at(self._host)

    def revoked(self) -> str:
        """Returns the sentence with which this client's connection ends, where what it is known by was revoked; else
        "".
        """
        if self.principal is None:
            return ""
        found = self._broker.security.authentication.revocations.of(self.principal.proof)
        return "" if found is None else revoked_text(found)

    def lifetime_ms(self) -> int:
        """How long the client may go on; 0: for ever."""
        if self.principal is None or not self.principal.expires_ms:
            return 0
        return max(1, self.principal.expires_ms - self._broker.clock.wall_ms())

    @property
    def expired(self) -> bool:
        return self.principal is not None and 0 < self.principal.expires_ms <= self._broker.clock.wall_ms()


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
