"""How a region's brokers know each other on the admin interface: short-lived tokens from a secret that the region's
metadata keeps.

Is: making the secret, once and anew, signing, verifying. Isn't: a way in for anybody else; the secret never leaves the
metadata and the brokers' memory.
Invariants: a token counts `LIFETIME_S`, in its own region only; who can read the region's metadata can do everything
there anyway. At most two secrets count, the older one until a time that stands beside it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from heliograph.kv.metadata_store import ABSENT, Delete, MetadataStore, Op, Put
from heliograph.model.errors import MetadataError, NotAllowed, Unauthenticated, VersionConflict
from heliograph.runtime.clock import Clock, Rng
from local_meta import keys
from region_node.security.authentication.principal import Credentials, Principal

KEY = keys.BROKERS_SECRET
"""The secret that signs."""
BEFORE = f"{KEY}-before"
"""The secret that signed until KEY was made anew, with the time until which it counts (wall ms, u64) behind it."""
METHOD = "heliograph"
"""The scheme of the Authorization header."""
LIFETIME_S = 60
OVERLAP_S = 600
"""So long the secret before counts where nothing else is said: programs beside the brokers look once a minute."""
REREAD_S = 1.0
"""At most so often a token that no secret here has signed makes a broker ask the metadata for a newer one."""
_SECRET_BYTES = 64


def header(secret: bytes, region: str, node: str, clock: Clock) -> str:
    """Returns a new token as the value of Authorization; it holds for LIFETIME_S. node: whom it names."""
    return _header(OctKey.import_key(secret), region, node, clock)


def _header(secret: OctKey, region: str, node: str, clock: Clock) -> str:
    claims = {"region": region, "node": node, "until_ms": clock.wall_ms() + LIFETIME_S * 1000}
    signed = jws.serialize_compact({"alg": "HS512"}, json.dumps(claims).encode(), secret, algorithms=["HS512"])
    return f"{METHOD} {signed}"


class RegionSecrets:
    """The secret that signs, and the one before it while it counts, as the region's metadata has them now."""

    def __init__(self, store: MetadataStore, rng: Rng, clock: Clock) -> None:
        self._store, self._rng, self._clock = store, rng, clock
        self._signing, self._version = b"", -1
        self._before: tuple[bytes, int] | None = None
        self._asked_at: float | None = None
        self._asking = asyncio.Lock()
        self._stop: Callable[[], None] | None = None

    async def start(self) -> None:
        """Makes the secret where there is none, and follows it. Raises what the metadata raises."""
        if await self._store.get(KEY) is None:
            try:
                await self._store.put(KEY, self._new(), expected=ABSENT)
            except VersionConflict:
                pass  # another broker was faster
        self._stop = self._store.watch(KEY, self._heard)
        await self._store.synced(KEY)

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()

    @property
    def signing(self) -> OctKey:
        return OctKey.import_key(self._signing)

    def accepted(self) -> list[OctKey]:
        """Those that count now, the newest first."""
        found = [self.signing]
        if self._before is not None and self._clock.wall_ms() < self._before[1]:
            found.append(OctKey.import_key(self._before[0]))
        return found

    async def read_again(self) -> bool:
        """Asks the metadata, for a token may be of a secret that is not heard of here yet. Returns whether there is a
        newer one.
        """
        known = self._version
        async with self._asking:
            now = self._clock.monotonic()
            if self._version == known and (self._asked_at is None or now - self._asked_at >= REREAD_S):
                try:
                    found = await self._store.get(KEY)
                except MetadataError:
                    return False
                finally:  # those who have waited for this one are not each to wait as long again
                    self._asked_at = self._clock.monotonic()
                if found is not None:
                    self._heard(KEY, *found)
        return self._version != known

    async def rotate(self, overlap_s: float = OVERLAP_S) -> int:
        """Makes the secret anew. Returns until when the one before counts, wall ms; 0: no more. Raises NotAllowed: it
        was made anew at the same moment, or the one before still counts and would not; and what the metadata raises.
        """
        found, before = await self._store.get(KEY), await self._store.get(BEFORE)
        now_ms = self._clock.wall_ms()
        until_ms = now_ms + int(overlap_s * 1000) if found is not None and overlap_s > 0 else 0
        ops: list[Op] = [Put(KEY, self._new(), expected=ABSENT if found is None else found[1])]
        if found is not None and until_ms:
            known = None if before is None else _read_before(before[0])
            if known is not None and known[1] > now_ms:
                raise NotAllowed(
                    f"the brokers' secret was made anew a moment ago, and the one before counts for "
                    f"{(known[1] - now_ms) / 1000:.0f} s more: wait for that, or let only the newest count (--at-once)"
                )
            value = found[0] + until_ms.to_bytes(8, "big")
            ops.append(Put(BEFORE, value, expected=ABSENT if before is None else before[1]))
        else:
            ops.append(Delete(BEFORE))
        try:
            await self._store.txn(ops)
        except VersionConflict as error:
            raise NotAllowed("the brokers' secret was made anew by somebody else at this moment") from error
        return until_ms

    def _new(self) -> bytes:
        return self._rng.getrandbits(_SECRET_BYTES * 8).to_bytes(_SECRET_BYTES, "big")

    def _heard(self, key: str, value: bytes | None, version: int) -> None:
        if key == KEY and value and version > self._version:
            self._signing, self._version = value, version
        elif key == BEFORE:
            self._before = None if value is None else _read_before(value)


def _read_before(value: bytes) -> tuple[bytes, int] | None:
    """(the secret, until when it counts); None where it is of no form that is known here."""
    if len(value) != _SECRET_BYTES + 8:
        return None
    return value[:_SECRET_BYTES], int.from_bytes(value[_SECRET_BYTES:], "big")


class InternalTokens:
    """Makes and verifies tokens at one node. node: whom the tokens name."""

    def __init__(self, secrets: RegionSecrets, region: str, node: str, clock: Clock) -> None:
        self.secrets = secrets
        self._region, self._node, self._clock = region, node, clock

    def header(self) -> str:
        """Returns a new token as the value of Authorization; it holds for LIFETIME_S."""
        return _header(self.secrets.signing, self._region, self._node, self._clock)

    async def identify(self, credentials: Credentials) -> Principal:
        """Returns the internal principal that a token names. Raises Unauthenticated: forged, expired, or of another
        region.
        """
        signed = self._signed(credentials.data)
        if signed is None and await self.secrets.read_again():
            signed = self._signed(credentials.data)
        if signed is None:
            raise Unauthenticated("this is no token of a broker of this region")
        try:
            claims = json.loads(signed)
            region, node, until_ms = str(claims["region"]), str(claims["node"]), int(claims["until_ms"])
        except (ValueError, KeyError, TypeError) as error:
            raise Unauthenticated("this is no token of a broker of this region") from error
        if region != self._region or until_ms <= self._clock.wall_ms():
            raise Unauthenticated("the broker's token is of another region, or has expired: check the hosts' clocks")
        return Principal(role=f"broker.{node}", internal=True)

    def _signed(self, token: bytes) -> bytes | None:
        """What a secret that counts has signed; None: none of them has."""
        for secret in self.secrets.accepted():
            try:
                return jws.deserialize_compact(token.decode("ascii"), secret, algorithms=["HS512"]).payload
            except (JoseError, ValueError):
                continue
        return None
