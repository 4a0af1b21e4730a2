"""Key sets at an address: fetched when they are needed, by whoever needs them first.

Is: the shell around `token_keys.KeySetCache`, an issuer's discovery document, and a bounded GET and POST. Isn't: when
to fetch (the cache says).
Invariants: one fetch at a time, and whoever needs its keys waits for it; a fetch that fails leaves the keys that are
there; no redirect is followed, and an answer has at most `_BYTES_MAX` bytes.
Source: RFC 7517; OpenID Connect Discovery 1.0.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import ClientError, ClientSession, ClientTimeout

from heliograph.model.errors import ConfigError, Unauthenticated
from heliograph.runtime.clock import Clock
from region_node.security.authentication.token_keys import Key, KeySetCache, chosen, read_key_set

log = logging.getLogger("region_node.security.issuers")

Fetch = Callable[[str], Awaitable[bytes]]
"""GET of a URL. Raises OSError or TimeoutError."""

_BYTES_MAX = 256 << 10
_TIMEOUT_S = 5.0


class AddressKeys:
    """A key set at `url`, or where the discovery document of `issuer` says (checked by `check_url`, which raises
    ConfigError).
    """

    def __init__(
        self, url: str, issuer: str, cache: KeySetCache, fetch: Fetch, clock: Clock, check_url: Callable[[str], None]
    ) -> None:
        self._url, self._issuer, self._cache, self._fetch, self._clock, self._check_url = (
            url,
            issuer,
            cache,
            fetch,
            clock,
            check_url,
        )
        self._under_way: asyncio.Task[None] | None = None

    async def find(self, kid: str | None, algorithm: str) -> list[Key]:
        now = self._clock.monotonic()
        if self._under_way is None and self._cache.due(now):
            await self._refreshed(now)
        found = chosen(self._cache.keys, kid, algorithm)
        now = self._clock.monotonic()
        if not found and (self._under_way is not None or self._cache.may_look_again(now)):
            await self._refreshed(now)
            found = chosen(self._cache.keys, kid, algorithm)
        if not self._cache.usable(self._clock.monotonic()):
            raise Unauthenticated("the keys of the token's issuer cannot be had now; try again")
        return found

    async def _refreshed(self, now: float) -> None:
        """The fetch is nobody's: it goes on where whoever waits for it is gone, for those that wait beside."""
        if self._under_way is None:
            self._cache.begun(now)
            self._under_way = asyncio.ensure_future(self._refresh())
        await asyncio.shield(self._under_way)

    async def _refresh(self) -> None:
        try:
            url = self._url or await self._discovered()
            keys = read_key_set(await self._fetch(url), secrets=False)
        except (OSError, TimeoutError, ValueError, RecursionError, ConfigError) as error:
            log.warning("keys.not_fetched", extra={"url": self._url or self._issuer, "error": str(error)})
        else:
            self._cache.fetched(self._clock.monotonic(), keys)
            log.info("keys.fetched", extra={"url": url, "keys": len(keys)})
        finally:
            self._under_way = None

    async def _discovered(self) -> str:
        document = json.loads(await self._fetch(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"))
        if not isinstance(document, dict) or document.get("issuer") != self._issuer:
            raise ConfigError("the discovery document is not of this issuer")
        url = str(document.get("jwks_uri", ""))
        self._check_url(url)
        return url


async def fetch(url: str) -> bytes:
    """A small document. Raises OSError (no connection, a status other than 200, too large) or TimeoutError."""
    status, data = await _asked("GET", url, None)
    if status != 200:
        raise OSError(f"{url} answered {status}")
    return data


async def post_form(url: str, form: Mapping[str, str]) -> tuple[int, bytes]:
    """Status and body of the answer. Raises OSError (no connection, too large) or TimeoutError."""
    return await _asked("POST", url, form)


async def _asked(method: str, url: str, form: Mapping[str, str] | None) -> tuple[int, bytes]:
    try:
        async with (
            ClientSession(timeout=ClientTimeout(total=_TIMEOUT_S)) as session,
            session.request(method, url, data=form, allow_redirects=False) as answer,
        ):
            data = await answer.content.read(_BYTES_MAX + 1)
            while len(data) <= _BYTES_MAX and (more := await answer.content.read(_BYTES_MAX + 1)):
                data += more
    except ClientError as error:
        raise OSError(f"{url}: {error}") from error
    if len(data) > _BYTES_MAX:
        raise OSError(f"{url} answered more than {_BYTES_MAX} bytes")
    return answer.status, data
