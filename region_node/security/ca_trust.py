"""Trust: the CAs that a file names now, for connections that were let in, or listened for, while it named others; and
single certificates that were revoked.

Is: what a context of OpenSSL cannot do, which only ever trusts more: a CA that was taken out of the file, or a
certificate that was revoked, is not believed any more, neither in the next handshake nor on a connection that stands.
Isn't: the watch of the files, the contexts (`tls`), or a client's certificate, which its face judges.
Invariants: once a CA is gone from the file and that was read, no byte goes across a connection, in either direction,
whose peer's certificate no CA of the file has signed itself; the peer finds it closed at its next byte. What shows a
certificate of an intermediate is therefore closed too when any CA goes, and let in again by a new handshake, which
looks at the whole chain.
Why at its next byte: nothing of a connection that says nothing can be read or changed, and to look there costs one
comparison a read.
Source: docs/operating/keys.md, "Certificates"; docs/decisions/0129-trust-is-taken-back-at-the-next-byte.md.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from cryptography import x509

from global_config.transport.certificate_authorities import signer
from heliograph.model.configuration.revocations import serial
from heliograph.model.errors import ConfigError
from heliograph.model.roles.certificate_role import peer_identity

log = logging.getLogger("region_node.trust")


class Trust:
    """Holds the CAs of one PEM file, as of the last `renew`. `narrowed`: how often a CA was taken out of it since this
    process began; `changes`: how often that, or another list of what was revoked.
    """

    def __init__(self, path: str, revoked: frozenset[str] = frozenset()) -> None:
        self._path = path
        self._roots = _read(path)
        self.revoked = revoked
        self.narrowed = self.changes = 0

    def renew(self) -> bool:
        """Reads the file again; returns whether a CA is gone. Raises ConfigError where it cannot be used: then
        everything is as before.
        """
        roots = _read(self._path)
        gone = not set(self._roots) <= set(roots)
        self._roots = roots
        self.narrowed += gone
        self.changes += gone
        return gone

    def revoke(self, serials: frozenset[str]) -> None:
        """serials: of all certificates that are revoked now."""
        self.changes += not serials <= self.revoked
        self.revoked = serials

    def signed(self, certificate: bytes) -> bool:
        """Whether a CA of the file has signed it itself. certificate: DER."""
        return signer(x509.load_der_x509_certificate(certificate), self._roots) is not None


class Following(ssl.SSLContext):
    """Makes each connection by `newest`, so that who was given this one (a listener, most of all) never needs another.
    An own context of OpenSSL for each change of the files: what it trusts is what stands there, and a session of before
    it cannot be resumed.
    """

    newest: ssl.SSLContext

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*arguments, **named)


class Checked(ssl.SSLObject):
    """One connection: the peer's role and region in the handshake, and the trust in its certificate from then on. One
    subclass for each context.

    roles: of this region, who may be there; empty: any peer that the context itself lets in. made, seen: what
    `trust.narrowed` and `trust.changes` were when the context was made, or it was looked at last.
    """

    roles: ClassVar[frozenset[str]] = frozenset()
    region: ClassVar[str] = ""
    trust: ClassVar[Trust]
    made: int
    seen: int

    def do_handshake(self) -> None:
        super().do_handshake()
        if self.roles:
            role, region = peer_identity(self.getpeercert())
            if role not in self.roles or region != self.region:
                wanted = ", ".join(sorted(self.roles))
                raise ssl.SSLCertVerificationError(
                    f"a peer of role {role or 'none'!r} in region {region or 'none'!r}; wanted {wanted}"
                )
        self._refuse_revoked()

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        if self.seen != self.trust.changes:
            self._look()
        return super().read(len, buffer)

    def write(self, data: Any) -> int:
        if self.seen != self.trust.changes:
            self._look()
        return super().write(data)

    def distrusted(self) -> bool:
        """Whether the peer is believed no more, so that its next byte would be the end: for who waits for none."""
        try:
            if self.seen != self.trust.changes:
                self._look()
        except ssl.SSLCertVerificationError:
            return True
        return False

    def _look(self) -> None:
        if self.made != self.trust.narrowed:
            certificate = self.getpeercert(True)
            if certificate is not None and not self.trust.signed(certificate):
                role, region = peer_identity(self.getpeercert())
                log.info("tls.distrusted", extra={"role": role, "peer_region": region})
                raise ssl.SSLCertVerificationError(
                    "the peer's certificate is of a CA that was taken out of the file of CAs"
                )
            self.made = self.trust.narrowed
        self._refuse_revoked()
        self.seen = self.trust.changes

    def _refuse_revoked(self) -> None:
        """Raises SSLCertVerificationError. A client's, or a link's, is refused by the listener's face, which says why
        in its protocol.
        """
        if not self.trust.revoked or (self.server_side and not self.roles):
            return
        certificate = self.getpeercert() or {}
        if serial(str(certificate.get("serialNumber", "0"))) in self.trust.revoked:
            role, region = peer_identity(certificate)
            log.info("tls.revoked", extra={"role": role, "peer_region": region, "serial": certificate["serialNumber"]})
            raise ssl.SSLCertVerificationError("the peer's certificate was revoked")


def distrusted(connection: object) -> bool:
    """Whether the peer of a connection by one of these contexts is believed no more; of others, and plain ones, none
    is.
    """
    return isinstance(connection, Checked) and connection.distrusted()


def check(context: ssl.SSLContext, trust: Trust, roles: Iterable[str] = (), region: str = "") -> ssl.SSLContext:
    """The same context, whose connections are looked at so."""
    fields = {
        "trust": trust,
        "roles": frozenset(roles),
        "region": region,
        "made": trust.narrowed,
        "seen": trust.changes,
    }
    context.sslobject_class = type("Checked", (Checked,), fields)
    return context


def _read(path: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls: {path} cannot be used as a file of CAs: {error}") from error
