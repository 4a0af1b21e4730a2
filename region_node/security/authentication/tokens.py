"""JSON web tokens: from the text to a role.

Is: the plug-in `token`; which source of keys a token belongs to, its signature, its claims. Isn't: keys (`token_keys`),
or issuing (`token_issuing`).
Invariants: the algorithm is one of the source's pinned ones before a key is looked at, and `none` is none of them; the
signature is verified before a claim counts (the issuer alone is read before, to choose the source; the source then
checks it); a token that has run out is refused whatever else holds; no source gives a role that begins with another's
prefix.
Source: RFC 7515, RFC 7519, RFC 8725 (best practices).
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Sequence
from typing import Any

from joserfc import jws
from joserfc.errors import JoseError

from heliograph.model.configuration.revocations import ProvenBy
from heliograph.model.errors import Unauthenticated
from heliograph.runtime.clock import Clock
from region_node.security.authentication.authentication_counts import EXPIRED
from region_node.security.authentication.principal import Credentials, Principal
from region_node.security.authentication.token_keys import KeySource
from region_node.security.settings import TokenSettings

TOKEN_BYTES_MAX = 16 << 10
_CANDIDATES_MAX = 16
_TIME_MAX = 1 << 40
"""Seconds since 1970 that a claim may say; beyond it is no date."""


class TokenProvider:
    """All sources of tokens, in the order of the settings."""

    def __init__(self, sources: Sequence[tuple[TokenSettings, KeySource]], clock: Clock) -> None:
        self._sources, self._clock = list(sources), clock
        self._named = {settings.issuer for settings, _ in sources if settings.issuer}
        self._prefixes = sorted({settings.role_prefix for settings, _ in sources if settings.role_prefix})

    async def identify(self, credentials: Credentials) -> Principal:
        text = _text(credentials.data)
        header, claims = unverified(text)
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or not (kid is None or isinstance(kid, str)) or "crit" in header:
            raise Unauthenticated("the token's header is not one that is read here")
        issuer = claims.get("iss")
        if not (issuer is None or isinstance(issuer, str)):
            raise Unauthenticated("the token's issuer is no text")
        reason: Unauthenticated | None = None
        for settings, keys in self._sources:
            if settings.issuer != issuer if settings.issuer else issuer in self._named:
                continue
            try:
                return await self._verified(settings, keys, text, algorithm, kid)
            except Unauthenticated as error:
                reason = reason or error
        raise reason or Unauthenticated("the token's issuer is not one that is trusted here")

    async def _verified(
        self, settings: TokenSettings, keys: KeySource, text: str, algorithm: str, kid: str | None
    ) -> Principal:
        if algorithm not in settings.algorithms:
            raise Unauthenticated(
                f"the token's algorithm {algorithm[:16]!r} is not one of {', '.join(settings.algorithms)}"
            )
        for key in (await keys.find(kid, algorithm))[:_CANDIDATES_MAX]:
            try:
                signed = jws.deserialize_compact(text, key, algorithms=[algorithm])
                claims = json.loads(signed.payload)
            except (JoseError, ValueError):
                continue
            return self._own(principal_of(claims, settings, self._clock.wall_ms()), settings.role_prefix or "")
        raise Unauthenticated("the token's signature is not one of a key that is trusted here")

    def _own(self, found: Principal, prefix: str) -> Principal:
        """Refuses a role that begins as another source's do: `corp:` with the subject `a` is nobody's `corp:a`."""
        for other in self._prefixes:
            if len(other) > len(prefix) and other.startswith(prefix) and found.role.startswith(other):
                raise Unauthenticated(f"the token's role begins with {other!r}, as those of another source do")
        return found


def principal_of(claims: Any, settings: TokenSettings, now_ms: int) -> Principal:
    """The role of verified claims. Raises Unauthenticated."""
    if not isinstance(claims, dict):
        raise Unauthenticated("the token holds no claims")
    expires, begins = _seconds(claims, "exp"), _seconds(claims, "nbf")
    leeway_ms = settings.leeway_s * 1000
    if expires is None and settings.require_expiry:
        raise Unauthenticated("the token never runs out, and such are not accepted here")
    if expires is not None and now_ms >= expires * 1000 + leeway_ms:
        raise Unauthenticated("the token has expired", EXPIRED)
    if begins is not None and now_ms + leeway_ms < begins * 1000:
        raise Unauthenticated("the token is not valid yet")
    if settings.issuer and claims.get("iss") != settings.issuer:
        raise Unauthenticated("the token is of another issuer")
    audience = claims.get("aud")
    if settings.audience and settings.audience not in (audience if isinstance(audience, list) else [audience]):
        raise Unauthenticated("the token is meant for another audience")
    role = claims.get(settings.role_claim)
    if isinstance(role, list) and role:
        role = role[0]
    if not isinstance(role, str) or not role:
        raise Unauthenticated(f"the token names no role: its claim {settings.role_claim!r} is missing, or is no text")
    role = (settings.role_prefix or "") + role
    return Principal(
        role=role, expires_ms=0 if expires is None else int(expires * 1000), proof=_proof(claims, settings, role)
    )


def _proof(claims: dict[str, Any], settings: TokenSettings, role: str) -> ProvenBy:
    """What a revocation could name. A claim of a kind that none names is none; a time of issue that is no time is as
    good as none: the token counts as issued before whatever is asked about.
    """
    token, subject, issuer = (str(claims.get(name) or "") for name in ("jti", "sub", "iss"))
    try:
        issued = _seconds(claims, "iat") or 0.0
    except Unauthenticated:
        issued = 0.0
    return ProvenBy(
        token=token, subjects=tuple(dict.fromkeys((role, subject))), issuer=issuer, issued_ms=int(issued * 1000)
    )


def _seconds(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0 <= value <= _TIME_MAX
    ):
        raise Unauthenticated(f"the token's claim {name!r} is no time")
    return float(value)


def _text(data: bytes) -> str:
    if not data or len(data) > TOKEN_BYTES_MAX:
        raise Unauthenticated(f"expected a token of at most {TOKEN_BYTES_MAX} bytes" if data else "no token was given")
    try:
        return data.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise Unauthenticated("the token is no JSON web token") from error


def unverified(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims as they stand there. Raises Unauthenticated unless it is three parts of base64 with JSON
    objects.
    """
    parts = text.split(".")
    try:
        if len(parts) != 3:
            raise ValueError("not three parts")
        header, claims = (
            json.loads(base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True))
            for part in parts[:2]
        )
    except (ValueError, binascii.Error, RecursionError) as error:
        raise Unauthenticated("the token is no JSON web token") from error
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise Unauthenticated("the token is no JSON web token")
    return header, claims
