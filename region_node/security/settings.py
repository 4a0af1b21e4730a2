"""Settings of security: who is asked for what, and the limits before that.

Is: frozen values, checked when they are read. Isn't: reading keys (`region_node.security.authentication.token_keys`),
or a default that opens anything: without settings nothing is authenticated, as in a standalone, and nothing is refused.
Source: docs/operating.md, "Security".
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, fields
from pathlib import Path

from heliograph.client.secret_urls import secret_may_go_to
from heliograph.model.configuration.setting import check_bounds, must_be_set, setting
from heliograph.model.errors import ConfigError
from region_node.security.exposure import Exposure

SECRET_BYTES_MIN = {"HS256": 32, "HS384": 48, "HS512": 64}
"""A secret is at least as long as the hash (RFC 7518, 3.2)."""
ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
BUILT_IN = ("token", "basic", "tls")
_PREFIX_CHARS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """PEM files. `ca`: of the instance; for each role of this process its certificate and key."""

    ca: str = field(metadata=must_be_set())
    """The instance's certificate authority, a PEM file, as the others are."""
    replicator_cert: str = setting("")
    """The certificate of links, both sides; a broker with `tls` needs it."""
    replicator_key: str = setting("")
    """The key of `replicator_cert`."""
    config_cert: str = setting("")
    """The certificate of configuration voters; several regions with `tls` need it."""
    config_key: str = setting("")
    """The key of `config_cert`."""
    broker_cert: str = setting("")
    """The certificate of a broker, for the region's other processes."""
    broker_key: str = setting("")
    """The key of `broker_cert`."""
    bookie_cert: str = setting("")
    """The certificate of a bookie."""
    bookie_key: str = setting("")
    """The key of `bookie_cert`."""
    meta_cert: str = setting("")
    """The certificate of a metadata node."""
    meta_key: str = setting("")
    """The key of `meta_cert`."""
    server_cert: str = setting("", theirs="tlsCertificateFilePath")
    """What clients see, of brokers' listeners with TLS."""
    server_key: str = setting("", theirs="tlsKeyFilePath")
    """The key of `server_cert`."""
    client_ca: str = setting("", theirs="tlsTrustCertsFilePath")
    """Signs the certificates of clients; empty: the instance's CA."""
    internal: bool = setting(False)
    """Brokers, bookies, metadata, and configuration nodes of the region talk to each other by mutual TLS alone; wanted
    where `bind` of a bookie or a metadata node is not this machine.
    """
    reload_s: float = setting(10.0, "s", least=0.1, most=3600, theirs="tlsCertRefreshCheckDurationSec")
    """How often certificate files are looked at."""

    def __post_init__(self) -> None:
        for name, path in ((entry.name, getattr(self, entry.name)) for entry in fields(self)):
            if isinstance(path, str) and path and not Path(path).is_file():
                raise ConfigError(f"tls.{name}: the file {path} does not exist")
        check_bounds(self, "tls")

    def pair(self, role: str) -> tuple[str, str]:
        """Certificate and key. Raises ConfigError where they are not set."""
        cert, key = str(getattr(self, f"{role}_cert")), str(getattr(self, f"{role}_key"))
        if not cert or not key:
            raise ConfigError(f"tls: {role}_cert and {role}_key are not set")
        return cert, key


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """One source of JSON web tokens: a key, or an issuer. Exactly one of the four places of keys; none: the issuer's
    discovery document says where.
    """

    algorithms: tuple[str, ...] = field(metadata=must_be_set())
    """Those that are accepted, and no others: what a token's header says decides nothing."""
    issuer: str = setting("", theirs="openIDAllowedTokenIssuers")
    """The `iss` claim must be this; empty: a token of any issuer that no other entry names."""
    secret_file: str = setting("", theirs="tokenSecretKey")
    """The secret that signs tokens: a file."""
    public_key_file: str = setting("", theirs="tokenPublicKey")
    """The public key of who signs tokens: a PEM file."""
    jwks_file: str = setting("")
    """A set of keys: a file."""
    jwks_url: str = setting("")
    """Where a set of keys is fetched."""
    audience: str = setting("", theirs="tokenAudience")
    """The `aud` claim must hold this; empty: not looked at."""
    role_claim: str = setting("sub", theirs="tokenAuthClaim")
    """The claim that has the role."""
    role_prefix: str | None = setting(None)
    """Stands before each role of this source, and no other source gives a role that begins so. None: not said, which
    is nothing, and stops the start where another issuer has the same; sources that say the same mean the same roles.
    """
    console_client_id: str = setting("")
    """Of a public client of the issuer: people sign in to the console there. Empty: they do not."""
    console_scope: str = setting("openid")
    """What the console asks the issuer for; `openid` is in it."""
    leeway_s: int = setting(5, "s", least=0, most=300, theirs="tokenAllowedClockSkewSeconds")
    """So far clocks of issuers may be off."""
    require_expiry: bool = setting(False)
    """A token that never ends is refused."""
    jwks_refresh_s: float = setting(300.0, "s", least=1, theirs="openIDCacheRefreshAfterWriteSeconds")
    """How often keys are fetched again; not above `jwks_stale_s`."""
    jwks_stale_s: float = setting(86_400.0, "s", least=1, theirs="openIDCacheExpirationSeconds")
    """How long the last keys count while their address does not answer."""

    def __post_init__(self) -> None:
        places = [name for name in ("secret_file", "public_key_file", "jwks_file", "jwks_url") if getattr(self, name)]
        if len(places) > 1 or not (places or self.issuer):
            raise ConfigError(
                "security.tokens: give one of secret_file, public_key_file, jwks_file, jwks_url; or an issuer, for "
                "its discovery document"
            )
        for path in (self.secret_file, self.public_key_file, self.jwks_file):
            if path and not Path(path).is_file():
                raise ConfigError(
                    f"security.tokens: the file {path} does not exist; `heliograph tokens keys` makes one"
                )
        self._check_algorithms(places)
        if not self.jwks_file and not self.secret_file and not self.public_key_file:
            check_issuer_url(self.jwks_url or self.issuer)
        if self.console_client_id:
            if not self.issuer:
                raise ConfigError("security.tokens: console_client_id wants an issuer, where people sign in")
            check_issuer_url(self.issuer)
            if "openid" not in self.console_scope.split():
                raise ConfigError("security.tokens: console_scope must have openid in it, such as `openid profile`")
        check_bounds(self, "security.tokens")
        if self.jwks_refresh_s > self.jwks_stale_s:
            raise ConfigError("security.tokens: want jwks_refresh_s <= jwks_stale_s")
        if not self.role_claim:
            raise ConfigError("security.tokens: role_claim is empty; `sub` is usual")
        if len(prefix := self.role_prefix or "") > _PREFIX_CHARS_MAX or any(ord(c) < 32 for c in prefix):
            raise ConfigError(
                f"security.tokens: role_prefix must have at most {_PREFIX_CHARS_MAX} characters, and no control "
                "characters; such as `corp:`"
            )

    def _check_algorithms(self, places: list[str]) -> None:
        secret, shared = places == ["secret_file"], places == ["jwks_file"]
        allowed = (*SECRET_BYTES_MIN, *ASYMMETRIC) if shared else tuple(SECRET_BYTES_MIN) if secret else ASYMMETRIC
        wrong = [name for name in self.algorithms if name not in allowed]
        if wrong or not self.algorithms:
            raise ConfigError(
                f"security.tokens: algorithms must be some of {', '.join(allowed)} for "
                f"{', '.join(places) or 'an issuer'}, "
                f"not {', '.join(wrong) or 'an empty list'}; `none` is never accepted"
            )
        if secret:
            need = max(SECRET_BYTES_MIN[name] for name in self.algorithms)
            if (have := Path(self.secret_file).stat().st_size) < need:
                raise ConfigError(
                    f"security.tokens: the secret in {self.secret_file} has {have} bytes, "
                    f"{', '.join(self.algorithms)} wants at least {need}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """`authentication`: the ways that are open, of token, basic, tls, and the names of plug-ins; empty: nothing is
    authenticated.
    """

    authentication: tuple[str, ...] = setting((), theirs="authenticationProviders (classes)")
    """The ways that are open: `token`, `basic`, `tls`, names of plug-ins; empty: nobody is asked."""
    authorization: bool = setting(False, theirs="authorizationEnabled")
    """Rights are checked; wants `super_users`."""
    anonymous_role: str = setting("", theirs="anonymousUserRole")
    """The role of who presents nothing; empty: such a client is refused."""
    super_users: tuple[str, ...] = setting((), theirs="superUserRoles")
    """Roles that may do everything."""
    proxy_roles: tuple[str, ...] = setting((), theirs="proxyRoles")
    """Roles that may speak for others (`original_principal`), and must; a right is then wanted of both."""
    tokens: tuple[TokenSettings, ...] = ()
    basic_file: str = setting("")
    """htpasswd: lines of user:hash, bcrypt or {SHA}."""
    plugins: dict[str, dict[str, str]] = setting({})
    """Name of a plug-in -> its own settings."""
    refresh_ahead_s: float = setting(30.0, "s", least=1, most=3600)
    """How long before its credentials run out a client is asked for new ones."""
    connections_per_address: int = setting(
        0, "connections", least=0, means="no limit", theirs="brokerMaxConnectionsPerIp"
    )
    """So many connections of one client address are open at a time on Pulsar's ports, and on Kafka's."""
    authenticate_metrics: bool = setting(False, theirs="authenticateMetricsEndpoint")
    """/metrics wants a role."""
    allowed_urls: tuple[str, ...] = setting(())
    """Hosts, *.domains, or address ranges that a region's URL may name; empty: any. Only to those that it names goes
    what is in `cluster_files`.
    """
    region_audiences: dict[str, str] = setting({})
    """Name of another region -> the `audience` of its `security.tokens`: no caller's credentials are passed on to that
    region but a token that names it. Of regions that are not named here none is looked at.
    """
    cluster_files: str = setting("")
    """A folder: from it, and from nowhere else, come the files that the registration of a Pulsar cluster names; empty:
    none is read.
    """
    allowed_hosts: tuple[str, ...] = setting(())
    """Hosts and *.domains by which the admin interface may be asked without credentials, where that is open, beside
    addresses, names of this network alone, and those that the region publishes.
    """
    proxy_protocol: bool = setting(False, theirs="haProxyProtocolEnabled")
    """Each connection to the plain Pulsar ports begins with a PROXY protocol header, version 2: only where a load
    balancer is all that reaches them.
    """
    allow_insecure: bool = setting(False)
    """A broker may listen beyond this machine though whoever reaches it may do everything."""

    @property
    def exposure(self) -> Exposure:
        """Returns to whom a broker with these settings is open."""
        return Exposure(**{entry.name: getattr(self, entry.name) for entry in fields(Exposure)})

    def __post_init__(self) -> None:
        for name in self.authentication:
            if name not in BUILT_IN and name not in self.plugins:
                raise ConfigError(
                    f"security.authentication: {name!r} is none of {', '.join(BUILT_IN)}, and there is no "
                    f"security.plugins.{name}"
                )
        if len(set(self.authentication)) != len(self.authentication):
            raise ConfigError("security.authentication names one way twice")
        if "token" in self.authentication and not self.tokens:
            raise ConfigError("security.authentication has token, but security.tokens is empty")
        _check_prefixes(self.tokens)
        if sum(bool(source.console_client_id) for source in self.tokens) > 1:
            raise ConfigError("security.tokens: leave console_client_id to one source: the console has one button")
        if "basic" in self.authentication and not Path(self.basic_file).is_file():
            raise ConfigError(
                f"security.basic_file: the file {self.basic_file!r} does not exist; `htpasswd -B -c FILE USER` makes "
                "one"
            )
        if self.authorization and not self.authentication and not self.anonymous_role:
            raise ConfigError(
                "security.authorization is on, but nobody is authenticated: set security.authentication, or an "
                "anonymous_role"
            )
        if self.authorization and not self.super_users:
            raise ConfigError("security.authorization is on without super_users: nobody could make the first tenant")
        if empty := [region for region, audience in self.region_audiences.items() if not region or not audience]:
            raise ConfigError(
                f"security.region_audiences: {empty[0]!r} has no audience: give it that of the region's "
                "security.tokens, or leave the line out"
            )
        if self.cluster_files and not Path(self.cluster_files).is_dir():
            raise ConfigError(
                f"security.cluster_files: there is no folder {self.cluster_files}; make it, and put there what Pulsar "
                "clusters are shown, and nothing else"
            )
        check_bounds(self, "security")


def _check_prefixes(sources: tuple[TokenSettings, ...]) -> None:
    """A name that two issuers give is two people's, unless both sources say that it is not. Raises ConfigError."""
    for one, other in itertools.combinations(sources, 2):
        same = (one.role_prefix or "") == (other.role_prefix or "")
        if same and one.issuer != other.issuer and None in (one.role_prefix, other.role_prefix):
            names = " and ".join(repr(source.issuer) if source.issuer else "your own keys" for source in (one, other))
            raise ConfigError(
                f"security.tokens: {names} could give the same role to two different people: set role_prefix of one "
                'source (`"role_prefix": "corp:"`), and name its roles so in grants and super_users; or, where the '
                'same name is the same person, write the same role_prefix at both (`"role_prefix": ""`)'
            )


def check_issuer_url(url: str) -> None:
    """Keys come by TLS, or from this machine. Raises ConfigError."""
    if secret_may_go_to(url):  # what may be told there may be believed from there
        return
    raise ConfigError(
        f"security.tokens: {url!r} must begin with https:// (http:// only for this machine), because what it "
        "says is believed"
    )
