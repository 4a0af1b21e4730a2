"""TLS of a process: contexts for its listeners and for what it connects to, and certificates that are renewed while it
runs.

Is: mutual TLS inside an instance (the peer's role and region are checked in the handshake), TLS for ordinary clients,
and the watch of the files.
Isn't: issuing of certificates (`region_node.security.certificate_authority`).
Invariants: TLS 1.2 or newer; inside an instance both sides present a certificate of its CA, and a role that has no
business at a listener gets no byte across; a new certificate or CA counts for the next connection, and one that cannot
be used leaves the old one in place; a CA that was taken out, or a certificate that was revoked, is believed no more, on
connections that stand either (`ca_trust`).
The host name is not checked inside an instance: connections go through proxies and addresses change; the certificate's
role decides.
Source: docs/security.md, "Transport".
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError
from region_node.security.ca_trust import Following, Trust, check
from region_node.security.settings import TlsSettings

log = logging.getLogger("region_node.tls")

Stamp = tuple[tuple[int, int], ...]
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


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
        loaded(context, cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls: {ca}, {cert}, and {key} cannot be used together: {error}") from error
    return context


def loaded(context: ssl.SSLContext, cert: str, key: str) -> str:
    """The certificate and its key into a context; returns whose certificate that is, of the two files. Raises OSError
    and ssl.SSLError.

    Where the two are not of each other, the certificate that stands behind the key in its own file counts: they are
    renewed together by one rename of that file (`certificate_authority.issue`), and `cert` is the copy that follows it.
    """
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError:
        if _CERTIFICATE not in Path(key).read_bytes():
            raise
        context.load_cert_chain(key)
        return key
    return cert


def together(ca: str, cert: str, key: str) -> tuple[bytes, bytes, bytes]:
    """What the three files hold, certificate and key of each other (`loaded`). Raises ConfigError."""
    context = server_context(ca, cert, key)
    try:
        own = Path(loaded(context, cert, key)).read_bytes()
        return Path(ca).read_bytes(), own[own.find(_CERTIFICATE) :], Path(key).read_bytes()
    except (OSError, ssl.SSLError) as error:  # they are being replaced at this moment
        raise ConfigError(f"tls: {ca}, {cert}, and {key} cannot be used together: {error}") from error


def only(roles: Iterable[str], region: str, ca: str, cert: str, key: str) -> ssl.SSLContext:
    """A connection to peers of these roles of this region alone. Raises ConfigError."""
    return check(client_context(ca, cert, key), Trust(ca), roles, region)


def _outward(ca: str) -> ssl.SSLContext:
    """Believes the machine's authorities and that one. Raises ConfigError."""
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls: {ca} cannot be used: {error}") from error
    return context


@cache
def _machines() -> ssl.SSLContext:
    """Believes the machine's authorities: they are read once a process, which takes 30 ms."""
    return ssl.create_default_context()


@dataclass(frozen=True, slots=True)
class _Kept:
    """A context that somebody has. files: CA, certificate, key; make: from them as they are."""

    context: Following
    make: Callable[[], ssl.SSLContext]
    files: tuple[str, str, str]


class Certificates:
    """A role's contexts. `tick` looks at the files; a shell calls it (`watch`). `tls` None: everything is None, plain
    connections.
    """

    def __init__(self, tls: TlsSettings | None, region: str) -> None:
        self._tls, self._region = tls, region
        self._kept: list[_Kept] = []
        self._stamps: dict[str, Stamp] = {}
        self._trusts: dict[str, Trust] = {}
        self._revoked: frozenset[str] = frozenset()
        self._others: list[tuple[tuple[str, ...], Stamp, Callable[[], None]]] = []

    # -- inside the instance ------------------------------------------------------------------------------------------

    def listener(self, own: str, *peers: str) -> ssl.SSLContext | None:
        """For a listener of role `own` that only these roles of the region may reach; None where the region speaks
        plainly inside.
        """
        return self._inside(server_context, own, peers)

    def dialer(self, own: str, *peers: str) -> ssl.SSLContext | None:
        """For connections of role `own` to listeners of these roles."""
        return self._inside(client_context, own, peers)

    def _inside(
        self, make: Callable[[str, str, str], ssl.SSLContext], own: str, peers: tuple[str, ...]
    ) -> ssl.SSLContext | None:
        if self._tls is None or not self._tls.internal:
            return None
        return self.keep(make, self._tls.ca, *self._tls.pair(own), roles=peers)

    def pages(self, own: str) -> ssl.SSLContext | None:
        """For HTTP pages of role `own`: who presents a certificate presents one of the instance, but it may be left out
        (a probe, a token). None: plain.
        """
        if self._tls is None or not self._tls.internal:
            return None
        return self.keep(partial(_context, ssl.PROTOCOL_TLS_SERVER, required=False), self._tls.ca, *self._tls.pair(own))

    # -- clients ------------------------------------------------------------------------------------------------------

    def for_clients(self) -> ssl.SSLContext:
        """For ordinary clients, who may present a certificate. Raises ConfigError where none is set."""
        if self._tls is None:
            raise ConfigError(
                "tls is not set, and a listener wants TLS: set tls.ca, tls.server_cert, and tls.server_key"
            )
        cert, key = self._tls.pair("server")

        def make(ca: str, cert: str, key: str) -> ssl.SSLContext:
            return _context(ssl.PROTOCOL_TLS_SERVER, ca, cert, key, required=False)

        return self.keep(make, self._tls.client_ca or self._tls.ca, cert, key)

    def outward(self) -> Callable[[], ssl.SSLContext]:
        """For requests to brokers' pages, of any region: the newest context. It believes the machine's authorities and
        the instance's, and checks host names.

        Raises ConfigError where the CA cannot be used.
        """
        if self._tls is None:
            return _machines
        ca = self._tls.ca
        newest = _outward(ca)

        def renewed() -> None:
            nonlocal newest
            newest = _outward(ca)

        self.follow((ca,), renewed)
        return lambda: newest

    # -- revocation ----------------------------------------------------------------------------------------------------

    def revoke(self, serials: frozenset[str]) -> None:
        """serials: of all certificates that are revoked now; peers who show one are let in no more, and those who were
        end at their next byte.
        """
        self._revoked = serials
        for trust in self._trusts.values():
            trust.revoke(serials)

    # -- renewal ------------------------------------------------------------------------------------------------------

    def keep(
        self,
        make: Callable[[str, str, str], ssl.SSLContext],
        ca: str,
        cert: str,
        key: str,
        *,
        roles: tuple[str, ...] = (),
    ) -> ssl.SSLContext:
        """A context whose connections are made by what the files hold then. roles: of this region's peers; empty:
        whoever `make` lets in.
        """
        for path in (ca, cert, key):
            self._stamps.setdefault(path, _stamp(path))
        if ca not in self._trusts:
            self._trusts[ca] = Trust(ca, self._revoked)
        trust = self._trusts[ca]

        def made() -> ssl.SSLContext:
            return check(make(ca, cert, key), trust, roles, self._region)

        first = made()
        context = Following(first.protocol)
        context.newest = first
        self._kept.append(_Kept(context, made, (ca, cert, key)))
        return context

    def follow(self, paths: tuple[str, ...], renewed: Callable[[], None]) -> None:
        """Calls `renewed` when one of these files has changed; what it raises of OSError and ConfigError is logged, and
        it is called again.
        """
        self._others.append((paths, _stamp(*paths), renewed))

    def tick(self) -> None:
        for at, (paths, stamp, renewed) in enumerate(self._others):
            if (now := _stamp(*paths)) and now != stamp:
                try:
                    renewed()
                except (OSError, ConfigError) as error:
                    log.warning("tls.not_renewed", extra={"cert": paths[0], "error": str(error)})
                else:
                    self._others[at] = (paths, now, renewed)
        if changed := {path: now for path, stamp in self._stamps.items() if (now := _stamp(path)) and now != stamp}:
            self._renew(changed)

    def _renew(self, changed: Mapping[str, Stamp]) -> None:
        """Other contexts of what has changed. Files that cannot be used (one is half written) are looked at again;
        until then all stays as it was.
        """
        failed: dict[str, str] = {}
        for ca in changed.keys() & self._trusts.keys():
            try:
                self._trusts[ca].renew()
            except ConfigError as error:
                failed[ca] = str(error)
        for kept in self._kept:
            if of_it := changed.keys() & set(kept.files):
                try:
                    kept.context.newest = kept.make()
                except ConfigError as error:
                    failed |= dict.fromkeys(of_it, str(error))
        for path, stamp in changed.items():
            if path in failed:
                log.warning("tls.not_renewed", extra={"cert": path, "error": failed[path]})
            else:
                self._stamps[path] = stamp
                log.info("tls.renewed", extra={"cert": path})

    def watch(self) -> Callable[[], None]:
        """Looks every few seconds from now on; returns "stop"."""
        loop = asyncio.get_running_loop()
        timer: list[asyncio.TimerHandle] = []

        def look() -> None:
            timer[:] = [
                loop.call_later(self._tls.reload_s if self._tls is not None else 3600.0, look)
            ]  # first: whatever happens, it looks again
            self.tick()

        if self._kept or self._others:
            look()
        return lambda: timer[0].cancel() if timer else None


def _stamp(*paths: str) -> Stamp:
    """Empty where one of them is not there (it is being replaced)."""
    try:
        found = [Path(path).stat() for path in paths]
    except OSError:
        return ()
    return tuple((status.st_mtime_ns, status.st_ino) for status in found)
