"""TLS of a process: contexts for its listeners and for what it connects to, and certificates that are renewed while it runs.

Is: mutual TLS inside an instance (the peer's role and region are checked in the handshake), TLS for ordinary clients, and the watch of the files.
Isn't: issuing of certificates (`region_node.instance.ca`).
Invariants: TLS 1.2 or newer; inside an instance both sides present a certificate of its CA, and a role that has no business at a listener gets no
byte across; a new certificate or CA counts for the next connection, and one that cannot be used leaves the old one in place.
The host name is not checked inside an instance: connections go through proxies and addresses change; the certificate's role decides.
Source: docs/protocols/security.md, "Transport".
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from heliograph.model.errors import ConfigError
from heliograph.model.identity import peer_identity
from region_node.security.settings import TlsSettings

log = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int], ...]


def server_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """A listener that takes only peers with a certificate of this CA. Raises ConfigError."""
    return _context(ssl.PROTOCOL_TLS_SERVER, ca, cert, key)


def client_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """A connection that trusts this CA alone. Raises ConfigError."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, ca, cert, key)


def _context(protocol: Any, ca: str, cert: str, key: str, *, required: bool = True) -> ssl.SSLContext:
    try:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        context.load_verify_locations(ca)
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls: {ca}, {cert}, and {key} cannot be used together: {error}") from error
    return context


class _RoleChecked(ssl.SSLObject):
    """Ends the handshake with a peer of another role or region. One subclass for each context."""

    roles: ClassVar[frozenset[str]]
    region: ClassVar[str]

    def do_handshake(self) -> None:
        super().do_handshake()
        role, region = peer_identity(self.getpeercert())
        if role not in self.roles or region != self.region:
            raise ssl.SSLCertVerificationError(f"a peer of role {role or 'none'!r} in region {region or 'none'!r}; wanted {', '.join(sorted(self.roles))}")


def only(context: ssl.SSLContext, roles: Iterable[str], region: str) -> ssl.SSLContext:
    """The same context, for peers of these roles of this region alone."""
    context.sslobject_class = type("RoleChecked", (_RoleChecked,), {"roles": frozenset(roles), "region": region})
    return context


class Certificates:
    """A role's contexts. `tick` looks at the files; a shell calls it (`watch`). `tls` None: everything is None, plain connections."""

    def __init__(self, tls: TlsSettings | None, region: str) -> None:
        self._tls, self._region = tls, region
        self._watched: list[tuple[ssl.SSLContext, str, str]] = []
        self._cas: list[tuple[ssl.SSLContext, str]] = []
        self._stamps: dict[tuple[str, str], Stamp] = {}
        self._trusted: dict[str, Stamp] = {}
        self._others: list[tuple[tuple[str, ...], Stamp, Callable[[], None]]] = []

    # -- inside the instance ------------------------------------------------------------------------------------------

    def listener(self, own: str, *peers: str) -> ssl.SSLContext | None:
        """For a listener of role `own` that only these roles of the region may reach; None where the region speaks plainly inside."""
        return self._inside(server_context, own, peers)

    def dialer(self, own: str, *peers: str) -> ssl.SSLContext | None:
        """For connections of role `own` to listeners of these roles."""
        return self._inside(client_context, own, peers)

    def _inside(self, make: Callable[[str, str, str], ssl.SSLContext], own: str, peers: tuple[str, ...]) -> ssl.SSLContext | None:
        if self._tls is None or not self._tls.internal:
            return None
        return only(self.keep(make, self._tls.ca, *self._tls.pair(own)), peers, self._region)

    def pages(self, own: str) -> ssl.SSLContext | None:
        """For HTTP pages of role `own`: who presents a certificate presents one of the instance, but it may be left out (a probe, a token). None: plain."""
        if self._tls is None or not self._tls.internal:
            return None
        return self.keep(partial(_context, ssl.PROTOCOL_TLS_SERVER, required=False), self._tls.ca, *self._tls.pair(own))

    # -- clients --------------------------------------------------------------------------------------------------------

    def for_clients(self) -> ssl.SSLContext:
        """For ordinary clients, who may present a certificate. Raises ConfigError where none is set."""
        if self._tls is None:
            raise ConfigError("tls is not set, and a listener wants TLS: set tls.ca, tls.server_cert, and tls.server_key")
        cert, key = self._tls.pair("server")

        def make(ca: str, cert: str, key: str) -> ssl.SSLContext:
            return _context(ssl.PROTOCOL_TLS_SERVER, ca, cert, key, required=False)

        return self.keep(make, self._tls.client_ca or self._tls.ca, cert, key)

    # -- renewal --------------------------------------------------------------------------------------------------------

    def keep(self, make: Callable[[str, str, str], ssl.SSLContext], ca: str, cert: str, key: str) -> ssl.SSLContext:
        """A context whose certificate follows its files."""
        context = make(ca, cert, key)
        self._watched.append((context, cert, key))
        self._stamps[cert, key] = _stamp(cert, key)
        self._cas.append((context, ca))
        self._trusted.setdefault(ca, _stamp(ca))
        return context

    def follow(self, paths: tuple[str, ...], renewed: Callable[[], None]) -> None:
        """Calls `renewed` when one of these files has changed; what it raises of OSError and ConfigError is logged, and it is called again."""
        self._others.append((paths, _stamp(*paths), renewed))

    def tick(self) -> None:
        self._renew_trust()
        for at, (paths, stamp, renewed) in enumerate(self._others):
            if (now := _stamp(*paths)) and now != stamp:
                try:
                    renewed()
                except (OSError, ConfigError) as error:
                    log.warning("tls.not_renewed", extra={"cert": paths[0], "error": str(error)})
                else:
                    self._others[at] = (paths, now, renewed)
        changed = [pair for pair, stamp in self._stamps.items() if (now := _stamp(*pair)) and now != stamp]
        for cert, key in changed:
            self._stamps[cert, key] = _stamp(cert, key)
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)  # a pair that is half written must not reach a live context
                for context, *pair in self._watched:
                    if pair == [cert, key]:
                        context.load_cert_chain(cert, key)
            except (OSError, ssl.SSLError) as error:
                log.warning("tls.not_renewed", extra={"cert": cert, "error": str(error)})
            else:
                log.info("tls.renewed", extra={"cert": cert})

    def _renew_trust(self) -> None:
        """A CA file that has changed is trusted too; what it held before is trusted until the process ends."""
        for ca, stamp in self._trusted.items():
            if (now := _stamp(ca)) and now != stamp:
                self._trusted[ca] = now
                try:
                    for context, path in self._cas:
                        if path == ca:
                            context.load_verify_locations(ca)
                except (OSError, ssl.SSLError) as error:
                    log.warning("tls.not_renewed", extra={"cert": ca, "error": str(error)})
                else:
                    log.info("tls.renewed", extra={"cert": ca})

    def watch(self) -> Callable[[], None]:
        """Looks every few seconds from now on; returns "stop"."""
        loop = asyncio.get_running_loop()
        timer: list[asyncio.TimerHandle] = []

        def look() -> None:
            self.tick()
            timer[:] = [loop.call_later(self._tls.reload_s if self._tls is not None else 3600.0, look)]

        if self._watched or self._others:
            look()
        return lambda: timer[0].cancel() if timer else None


def _stamp(*paths: str) -> Stamp:
    """Empty where one of them is not there (it is being replaced)."""
    try:
        found = [Path(path).stat() for path in paths]
    except OSError:
        return ()
    return tuple((status.st_mtime_ns, status.st_ino) for status in found)
