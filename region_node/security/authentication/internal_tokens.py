"""How a region's brokers know each other on the admin interface: short-lived tokens from a secret that the region's
metadata keeps.

Is: making the secret once, signing, verifying. Isn't: a way in for anybody else; the secret never leaves the metadata
and the brokers' memory.
Invariants: a token counts `LIFETIME_S`, in its own region only; who can read the region's metadata can do everything
there anyway.
"""

from __future__ import annotations

import json

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from heliograph.kv.metadata_store import ABSENT, MetadataStore
from heliograph.model.errors import Unauthenticated, VersionConflict
from heliograph.runtime.clock import Clock, Rng
from region_node.security.authentication.principal import Credentials, Principal

KEY = "/security/brokers"
METHOD = "heliograph"
"""The scheme of the Authorization header."""
LIFETIME_S = 60
_SECRET_BYTES = 64


async def region_secret(meta: MetadataStore, rng: Rng) -> bytes:
    """Made by whoever comes first."""
    found = await meta.get(KEY)
    if found is None:
        try:
            await meta.put(KEY, rng.getrandbits(_SECRET_BYTES * 8).to_bytes(_SECRET_BYTES, "big"), expected=ABSENT)
        except VersionConflict:
            pass  # another broker was faster
        found = await meta.get(KEY)
        assert found is not None
    return found[0]


class InternalTokens:
    """Makes and verifies tokens at one node. secret: the region's, from its metadata; node: whom the tokens name."""

    def __init__(self, secret: bytes, region: str, node: str, clock: Clock) -> None:
        self._key, self._region, self._node, self._clock = OctKey.import_key(secret), region, node, clock

    def header(self) -> str:
        """Returns a new token as the value of Authorization; it holds for LIFETIME_S."""
        claims = {"region": self._region, "node": self._node, "until_ms": self._clock.wall_ms() + LIFETIME_S * 1000}
        return (
            f"{METHOD} "
            f"{jws.serialize_compact({'alg': 'HS512'}, json.dumps(claims).encode(), self._key, algorithms=['HS512'])}"
        )

    async def identify(self, credentials: Credentials) -> Principal:
        """Returns the internal principal that a token names. Raises Unauthenticated: forged, expired, or of another
        region.
        """
        try:
            claims = json.loads(
                jws.deserialize_compact(credentials.data.decode("ascii"), self._key, algorithms=["HS512"]).payload
            )
            region, node, until_ms = str(claims["region"]), str(claims["node"]), int(claims["until_ms"])
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise Unauthenticated("this is no token of a broker of this region") from error
        if region != self._region or until_ms <= self._clock.wall_ms():
            raise Unauthenticated("the broker's token is of another region, or has expired: check the hosts' clocks")
        return Principal(role=f"broker.{node}", internal=True)
