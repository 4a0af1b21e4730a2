"""Signing in at an issuer by a browser: the authorization code flow with PKCE.

Is: where a browser is sent, and the token for what it comes back with. Isn't: cookies and paths (the console's), or
whether a role may do anything.
Invariants: a code counts only for the browser that began (`state`), with what it alone knows (the verifier), in an
answer that was made for it (`nonce`); the token is one that this broker takes, as of any client. Whoever opens these
pages, however often, makes us ask the issuer for its addresses once in FRESH_S, or FAILED_S, and for CODES_MAX tokens
at once. Who has begun is kept by the browsers alone.
Source: OpenID Connect Core 1.0, 3.1; RFC 7636 (PKCE, S256); RFC 9207 (`iss` in the answer); RFC 9700.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any
from urllib.parse import urlencode

from heliograph.model.errors import ConfigError, MetadataUnavailable, Unauthenticated
from heliograph.runtime.clock import Clock
from region_node.security.authentication.authentication_service import Authentication
from region_node.security.authentication.jwks_issuers import Fetch
from region_node.security.authentication.principal import Credentials
from region_node.security.authentication.tokens import unverified
from region_node.security.settings import TokenSettings, check_issuer_url

PostForm = Callable[[str, Mapping[str, str]], Awaitable[tuple[int, bytes]]]
"""POST of a form. Raises OSError or TimeoutError."""

FRESH_S, FAILED_S = 300.0, 5.0
"""How long an issuer's discovery document counts, and that it could not be had."""
CODES_MAX = 8


@dataclass(frozen=True, slots=True)
class Begun:
    """What the browser keeps between the two steps, and shows to nobody but us."""

    state: str
    verifier: str
    nonce: str

    @classmethod
    def fresh(cls) -> Begun:
        return cls(*(secrets.token_urlsafe(32) for _ in range(3)))

    @classmethod
    def read(cls, text: str) -> Begun | None:
        """Reads what `str` made; None where it did not."""
        parts = text.split(".")
        return cls(*parts) if len(parts) == 3 and all(len(part) == 43 for part in parts) else None

    def __str__(self) -> str:
        return f"{self.state}.{self.verifier}.{self.nonce}"


@dataclass(frozen=True, slots=True)
class Session:
    """A token that this broker takes. `lasts_s`: seconds to its end; 0: it has none."""

    token: str
    lasts_s: int


class Endpoints:
    """The addresses in the discovery document of `issuer`: asked for once, whoever needs them."""

    def __init__(self, issuer: str, fetch: Fetch, clock: Clock) -> None:
        self._issuer, self._fetch, self._clock = issuer, fetch, clock
        self._document: dict[str, Any] = {}
        self._why = ""
        self._until = float("-inf")
        self._under_way: asyncio.Event | None = None

    async def find(self, name: str) -> str:
        """The address of that name. Raises MetadataUnavailable."""
        while self._clock.monotonic() >= self._until:
            if self._under_way is not None:
                await self._under_way.wait()
            else:
                await self._ask()
        try:
            if self._why:
                raise ValueError(self._why)
            url = str(self._document.get(name) or "")
            check_issuer_url(url)
        except (ValueError, ConfigError) as error:
            raise MetadataUnavailable(f"nobody can sign in at {self._issuer} now: {error}") from error
        return url

    async def _ask(self) -> None:
        self._under_way = under_way = asyncio.Event()
        try:
            found = json.loads(await self._fetch(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"))
            if not isinstance(found, dict) or found.get("issuer") != self._issuer:
                raise ValueError("its discovery document is of another issuer")
            self._document, self._why, lasts_s = found, "", FRESH_S
        except (OSError, TimeoutError, ValueError, RecursionError) as error:
            self._document, self._why, lasts_s = {}, str(error) or "it does not answer", FAILED_S
        finally:
            self._under_way = None
            under_way.set()
        self._until = self._clock.monotonic() + lasts_s


class CodeSignIn:
    """At the issuer of one source of tokens, as its `console_client_id`."""

    def __init__(
        self, source: TokenSettings, authentication: Authentication, fetch: Fetch, post: PostForm, clock: Clock
    ) -> None:
        self.issuer = source.issuer
        self._source, self._authentication, self._clock = source, authentication, clock
        self._post, self._endpoints = post, Endpoints(source.issuer, fetch, clock)
        self._codes = 0

    async def address(self, begun: Begun, redirect: str) -> str:
        """Where the browser goes. redirect: where it comes back to. Raises MetadataUnavailable."""
        challenge = base64.urlsafe_b64encode(hashlib.sha256(begun.verifier.encode()).digest()).rstrip(b"=").decode()
        endpoint = await self._endpoints.find("authorization_endpoint")
        asked = {
            "response_type": "code",
            "client_id": self._source.console_client_id,
            "redirect_uri": redirect,
            "scope": self._source.console_scope,
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    async def completed(self, begun: Begun | None, answer: Mapping[str, str], redirect: str) -> Session:
        """answer: the query that the browser came back with. Raises Unauthenticated, MetadataUnavailable."""
        if begun is None or not _same(answer.get("state"), begun.state):
            raise Unauthenticated("this sign-in was not begun in this browser, or more than ten minutes ago: try again")
        if answer.get("iss", self.issuer) != self.issuer:
            raise Unauthenticated("the answer is of another issuer than was asked")
        if "error" in answer or not answer.get("code"):
            raise Unauthenticated(f"the issuer let nobody in: {_shown(answer.get('error', 'it sent no code'))}")
        form = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": redirect,
            "client_id": self._source.console_client_id,
            "code_verifier": begun.verifier,
        }
        found = await self._tokens(form)
        id_token = str(found.get("id_token") or "")
        self._check(id_token, begun)
        return await self._session((str(found.get("access_token") or "").strip(), id_token.strip()))

    async def _tokens(self, form: Mapping[str, str]) -> dict[str, Any]:
        endpoint = await self._endpoints.find("token_endpoint")
        if self._codes >= CODES_MAX:
            raise MetadataUnavailable(f"{CODES_MAX} others sign in at {self.issuer} just now: try again")
        self._codes += 1
        try:
            status, body = await self._post(endpoint, form)
            found = json.loads(body)
        except (OSError, TimeoutError, ValueError, RecursionError) as error:
            raise MetadataUnavailable(f"the issuer {self.issuer} gives no token now: try again ({error})") from error
        finally:
            self._codes -= 1
        if status != 200 or not isinstance(found, dict):
            code = found.get("error", status) if isinstance(found, dict) else status
            raise Unauthenticated(f"the issuer took its own code back: {_shown(code)}")
        return found

    def _check(self, id_token: str, begun: Begun) -> None:
        """It came from the issuer itself, by TLS or on this machine, which is as good as its signature (OpenID Connect
        Core, 3.1.3.7).
        """
        _, claims = unverified(id_token)
        audience = claims.get("aud")
        if claims.get("iss") != self.issuer:
            raise Unauthenticated("the ID token is of another issuer than was asked")
        if self._source.console_client_id not in (audience if isinstance(audience, list) else [audience]):
            raise Unauthenticated("the ID token is meant for another client")
        if not _same(claims.get("nonce"), begun.nonce):
            raise Unauthenticated("the ID token was made for another sign-in")

    async def _session(self, tokens: tuple[str, ...]) -> Session:
        """By the first of the tokens that this broker takes."""
        reason: Unauthenticated | None = None
        for token in filter(None, tokens):
            try:
                found = await self._authentication.identify(Credentials(method="token", data=token.encode()))
            except (Unauthenticated, UnicodeError) as error:
                reason = error if isinstance(error, Unauthenticated) and reason is None else reason
                continue
            lasts_s = (found.expires_ms - self._clock.wall_ms()) // 1000 if found.expires_ms else 0
            return Session(token, max(lasts_s, 1) if found.expires_ms else 0)
        raise reason or Unauthenticated("the issuer gave no token")


def _same(given: Any, wanted: str) -> bool:
    return isinstance(given, str) and compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _shown(text: Any) -> str:
    return "".join(one for one in str(text)[:100] if one.isprintable())
