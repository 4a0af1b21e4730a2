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

    ca: str
    replicator_cert: str = ""
    replicator_key: str = ""
    config_cert: str = ""
    config_key: str = ""
    broker_cert: str = ""
    broker_key: str = ""
    bookie_cert: str = ""
    bookie_key: str = ""
    meta_cert: str = ""
    meta_key: str = ""
    server_cert: str = ""
    """What clients see, of brokers' listeners with TLS."""
    server_key: str = ""
    client_ca: str = ""
    """Signs the certificates of clients; empty: the instance's CA."""
    internal: bool = False
    """Brokers, bookies, metadata, and configuration nodes of the region talk to each other by mutual TLS alone."""
    reload_s: float = 10.0
    """How often certificate files are looked at."""

    def __post_init__(self) -> None:
        for name, path in ((entry.name, getattr(self, entry.name)) for entry in fields(self)):
            if isinstance(path, str) and path and not Path(path).is_file():
                raise ConfigError(f"tls.{name}: the file {path} does not exist")
        if not 0.1 <= self.reload_s <= 3600:
            raise ConfigError(f"tls.reload_s must be 0.1 to 3600, not {self.reload_s}")

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

    algorithms: tuple[str, ...]
    """Those that are accepted, and no others: what a token's header says decides nothing."""
    issuer: str = ""
    """The `iss` claim must be this; empty: a token of any issuer that no other entry names."""
    secret_file: str = ""
    public_key_file: str = ""
    jwks_file: str = ""
    jwks_url: str = ""
    audience: str = ""
    """The `aud` claim must hold this; empty: not looked at."""
    role_claim: str = "sub"
    role_prefix: str | None = None
    """Stands before each role of this source, and no other source gives a role that begins so. None: not said, which
    is nothing, and stops the start where another issuer has the same; sources that say the same mean the same roles.
    """
    console_client_id: str = ""
    """Of a public client of the issuer: people sign in to the console there. Empty: they do not."""
    console_scope: str = "openid"
    leeway_s: int = 5
    require_expiry: bool = False
    jwks_refresh_s: float = 300.0
    jwks_stale_s: float = 86_400.0
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
        if not 0 <= self.leeway_s <= 300:
            raise ConfigError(f"security.tokens: leeway_s must be 0 to 300, not {self.leeway_s}")
        if not 1 <= self.jwks_refresh_s <= self.jwks_stale_s:
            raise ConfigError("security.tokens: want 1 <= jwks_refresh_s <= jwks_stale_s")
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

    authentication: tuple[str, ...] = ()
    authorization: bool = False
    anonymous_role: str = ""
    """The role of who presents nothing; empty: such a client is refused."""
    super_users: tuple[str, ...] = ()
    proxy_roles: tuple[str, ...] = ()
    """Roles that may speak for others (`original_principal`), and must; a right is then wanted of both."""
    tokens: tuple[TokenSettings, ...] = ()
    basic_file: str = ""
    """htpasswd: lines of user:hash, bcrypt or {SHA}."""
    plugins: dict[str, dict[str, str]] = field(default_factory=dict)
    """Name of a plug-in -> its own settings."""
    refresh_ahead_s: float = 30.0
    """How long before its credentials run out a client is asked for new ones."""
    connections_per_address: int = 0
    """So many connections of one client address are open at a time, at most; 0: no limit."""
    authenticate_metrics: bool = False
    allowed_urls: tuple[str, ...] = ()
    """Hosts, *.domains, or address ranges that a region's URL may name; empty: any. Only to those that it names goes
    what is in `cluster_files`.
    """
    cluster_files: str = ""
    """A folder: from it, and from nowhere else, come the files that the registration of a Pulsar cluster names; empty:
    none is read.
    """
    allowed_hosts: tuple[str, ...] = ()
    """Hosts and *.domains by which the admin interface may be asked where nobody is authenticated, beside addresses,
    names of this network alone, and those that the region publishes.
    """
    proxy_protocol: bool = False
    """Each connection to the plain Pulsar ports begins with a PROXY protocol header, version 2: only where a load
    balancer is all that reaches them.
    """
    allow_insecure: bool = False
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
        if self.cluster_files and not Path(self.cluster_files).is_dir():
            raise ConfigError(
                f"security.cluster_files: there is no folder {self.cluster_files}; make it, and put there what Pulsar "
                "clusters are shown, and nothing else"
            )
        if not 1 <= self.refresh_ahead_s <= 3600:
            raise ConfigError(f"security.refresh_ahead_s must be 1 to 3600, not {self.refresh_ahead_s}")
        if self.connections_per_address < 0:
            raise ConfigError("security.connections_per_address must be 0 (no limit) or more")


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
