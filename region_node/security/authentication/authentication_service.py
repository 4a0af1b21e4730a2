"""Authentication: which plug-in a client's credentials belong to, and who it is in the end.

Is: the plug-ins by their method, the anonymous role, and proxies that speak for others. Isn't: a plug-in, or a right
(`region_node.security.authorization`).
Invariants: where any method is open, nobody is let in without a role; a role that is no proxy speaks for itself alone,
and a proxy only for others.
A plug-in of another package: an entry point of the group `heliograph.authentication`, called with (its settings,
clock), gives a `Provider`.
Source: docs/security.md.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from heliograph.model.configuration.revocations import ProvenBy, Revocation, Revoked
from heliograph.model.errors import ConfigError, Unauthenticated, Unauthorized
from heliograph.runtime.clock import Clock, Rng
from region_node.security.authentication.authentication_counts import AuthenticationCounts
from region_node.security.authentication.client_certificates import CertificateProvider
from region_node.security.authentication.internal_tokens import METHOD, InternalTokens, RegionSecrets
from region_node.security.authentication.jwks_issuers import AddressKeys, Fetch
from region_node.security.authentication.passwords import Offload, PasswordProvider
from region_node.security.authentication.principal import NOBODY, Credentials, Principal, Provider, check_role
from region_node.security.authentication.revocations import REVOKED, Revocations
from region_node.security.authentication.token_keys import (
    FileKeys,
    KeySetCache,
    KeySource,
    read_key_set,
    read_public_key,
    read_secret,
)
from region_node.security.authentication.tokens import TokenProvider
from region_node.security.settings import SECRET_BYTES_MIN, SecuritySettings, TokenSettings, check_issuer_url

log = logging.getLogger("region_node.security.authentication")

PLUGINS = "heliograph.authentication"
PluginFactory = Callable[[Mapping[str, str], Clock], Provider]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePorts:
    """What the built-in plug-ins need of the machine."""

    clock: Clock
    rng: Rng
    fetch: Fetch
    offload: Offload


class Authentication:
    """`open`: nothing is authenticated, everybody is nobody in particular. `internal`: how this region's brokers know
    each other.
    """

    def __init__(
        self,
        settings: SecuritySettings,
        providers: Mapping[str, Provider],
        internal: InternalTokens | None = None,
        wall_ms: Callable[[], int] = lambda: 0,
        revocations: Revocations | None = None,
    ) -> None:
        self._providers = dict(providers)
        self._internal = internal
        self._wall_ms = wall_ms
        self.counts = AuthenticationCounts()
        self.revocations = Revocations() if revocations is None else revocations
        self._anonymous = settings.anonymous_role
        self._proxies = frozenset(settings.proxy_roles)
        self.open = not providers and not self._anonymous
        self.refresh_ahead_ms = int(settings.refresh_ahead_s * 1000)

    async def identify(self, credentials: Credentials, original: str = "") -> Principal:
        """original: the role that a proxy says it speaks for. Raises Unauthenticated, Unauthorized, and
        MetadataUnavailable: it could not be found out now.
        """
        if self.open:
            return Principal(role=NOBODY)
        if credentials.method == METHOD and self._internal is not None:
            return await self._internal.identify(credentials)
        return self.speaking(await self._identify(credentials), original)

    def speaking(self, principal: Principal, original: str = "") -> Principal:
        """For whom somebody who has proved who it is speaks: whoever makes a principal sends it by here. Raises
        Unauthorized.
        """
        if principal.role in self._proxies:
            if not original or original in self._proxies:
                raise Unauthorized(f"the proxy role {principal.role!r} must say for which other role it speaks")
            return replace(principal, role=check_role(original), proxy=principal.role)
        if original and original != principal.role:
            raise Unauthorized(f"the role {principal.role!r} is no proxy: it cannot speak for {original[:64]!r}")
        return principal

    async def _identify(self, credentials: Credentials) -> Principal:
        method = credentials.method
        if method in ("", "none"):
            if self._anonymous:
                return Principal(role=self._anonymous)
            self.counts.refused("none", "none", "missing")
            raise Unauthenticated(f"this broker wants authentication by {', '.join(self._providers)}")
        provider = self._providers.get(method)
        if provider is None:
            self.counts.refused("none", "other", "not_open")
            raise Unauthenticated(
                f"authentication by {method[:32]!r} is not open here; there is {', '.join(self._providers) or 'none'}"
            )
        name = type(provider).__name__
        try:
            found = await provider.identify(credentials)
            if not found.role:
                raise Unauthenticated("the credentials name no role")
        except Unauthenticated as error:
            self.counts.refused(name, method, error.reason)
            raise
        if found.proof == ProvenBy():  # a plug-in of another package knows no more than a name
            found = replace(found, proof=ProvenBy(user=found.role))
        self.admit(found, name, method)
        self.counts.accepted(name, method, found.expires_ms - self._wall_ms() if found.expires_ms else None)
        return found

    def admit(self, principal: Principal, provider: str, method: str) -> None:
        """Whoever has proved who it is comes by here. Raises Unauthenticated where what it proved it by was revoked."""
        found = self.revocations.of(principal.proof)
        if found is None:
            return
        self.counts.refused(provider, method, REVOKED)
        log.info(
            "authentication.revoked",
            extra={"kind": found.kind, "revoked": found.name, "role": principal.role, "method": method},
        )
        raise Unauthenticated(revoked_text(found), REVOKED)

    @property
    def brokers_secrets(self) -> RegionSecrets | None:
        """By which the brokers of the region know each other; None: they need none."""
        return self._internal.secrets if self._internal is not None else None

    def own_header(self) -> dict[str, str]:
        """Returns the header of this broker's requests to others of its region; {}: they need none."""
        return {"Authorization": self._internal.header()} if self._internal is not None else {}

    def lets_in_unproven(self, authorization: str, certificate: dict[str, Any] | None) -> bool:
        """Whether who asks by HTTP is let in without a proof of who that is: where nobody is asked for one, and by the
        anonymous role. Such a request has nothing that another site's page could not have a browser send.
        """
        if self.open:
            return True
        return bool(self._anonymous) and not authorization and not (certificate and "tls" in self._providers)

    def of_header(self, authorization: str, certificate: dict[str, Any] | None, host: str = "") -> Credentials:
        """The credentials of an HTTP request from that address. Raises Unauthenticated for a header that is not read
        here.
        """
        if not authorization:
            if certificate and "tls" in self._providers:
                return Credentials(method="tls", certificate=certificate)
            return Credentials(certificate=certificate)
        scheme, _, rest = authorization.partition(" ")
        if scheme == METHOD:
            return Credentials(method=METHOD, data=rest.encode())
        if scheme.lower() == "bearer":
            return Credentials(method="token", data=rest.strip().encode(), certificate=certificate)
        if scheme.lower() == "basic":
            try:
                data = base64.b64decode(rest.strip(), validate=True)
                return Credentials(method="basic", data=data, certificate=certificate, host=host)
            except (ValueError, binascii.Error) as error:
                raise Unauthenticated("the Authorization header is no base64") from error
        raise Unauthenticated("the Authorization header must begin with Bearer or Basic")


def revoked_text(found: Revocation) -> str:
    """What whoever came with it is told: not why."""
    what = {
        Revoked.TOKEN: "this token was revoked: get another one",
        Revoked.SUBJECT: "this token was revoked, with all of its subject that were issued before: get another one",
        Revoked.ISSUER: "this token was revoked, with those of its issuer: get one of another issuer, or a newer one",
        Revoked.CERTIFICATE: "this certificate was revoked: get another one",
    }
    return what.get(Revoked(found.kind), "this user's password was revoked: ask an operator for another one")


def build_authentication(
    settings: SecuritySettings,
    ports: MachinePorts,
    internal: InternalTokens | None = None,
    revocations: Revocations | None = None,
) -> Authentication:
    """The plug-ins that the settings name. Raises ConfigError where one cannot be made."""
    providers: dict[str, Provider] = {}
    for name in settings.authentication:
        if name == "token":
            providers[name] = TokenProvider(
                [(source, _keys_of(source, ports)) for source in settings.tokens], ports.clock
            )
        elif name == "basic":
            providers[name] = PasswordProvider(settings.basic_file, ports.offload, ports.rng)
        elif name == "tls":
            providers[name] = CertificateProvider()
        else:
            providers[name] = _plugin(name)(settings.plugins[name], ports.clock)
    return Authentication(settings, providers, internal, ports.clock.wall_ms, revocations)


def _keys_of(source: TokenSettings, ports: MachinePorts) -> KeySource:
    if source.secret_file:
        bytes_min = max(SECRET_BYTES_MIN[name] for name in source.algorithms)
        return FileKeys(source.secret_file, lambda data: read_secret(data, bytes_min))
    if source.public_key_file:
        return FileKeys(source.public_key_file, read_public_key)
    if source.jwks_file:
        return FileKeys(source.jwks_file, lambda data: read_key_set(data, secrets=True))
    cache = KeySetCache(source.jwks_refresh_s, source.jwks_stale_s)
    return AddressKeys(source.jwks_url, source.issuer, cache, ports.fetch, ports.clock, check_issuer_url)


def _plugin(name: str) -> PluginFactory:
    found = list(metadata.entry_points(group=PLUGINS, name=name))
    if len(found) != 1:
        raise ConfigError(
            f"security.plugins.{name}: {len(found)} installed packages have that entry point in the group {PLUGINS}; "
            "one is wanted"
        )
    factory: PluginFactory = found[0].load()
    return factory
