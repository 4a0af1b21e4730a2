"""How the supervisor speaks to brokers that want authentication: as one of them, by the secret that the region's
metadata keeps.

Is: that secret, read once a minute and region, and headers signed with it. Isn't: a way in for anybody who has not the
data folder: without TLS inside, the metadata's port on loopback is open to this machine's users anyway.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from heliograph.kv.metadata_client import MetaClient
from heliograph.model.errors import HeliographError
from heliograph.runtime.clock import SystemClock, system_rng
from region_node.security.authentication.internal_tokens import KEY, REREAD_S, header

NODE = "supervisor"
READ_S = 60.0
"""So long a secret is taken for the current one: after it was made anew, the one before counts for longer."""


class SupervisorTokens:
    """`metadata`: region -> (address of its metadata, TLS towards it), asked when it is needed."""

    def __init__(self, metadata: Callable[[str], tuple[str, ssl.SSLContext | None]]) -> None:
        self._metadata = metadata
        self._secrets: dict[str, tuple[bytes, float]] = {}
        self._clock = SystemClock()

    async def header(self, region: str, *, anew: bool = False) -> dict[str, str]:
        """Empty where the metadata cannot be read, or no broker has asked for authentication yet. anew: one by the
        secret that is known was refused; where that was read long enough ago, the metadata is asked now.
        """
        now = self._clock.monotonic()
        secret, read_at = self._secrets.get(region, (b"", 0.0))
        if not secret or now - read_at >= (REREAD_S if anew else READ_S):
            address, tls = self._metadata(region)
            client = MetaClient([address], clock=self._clock, rng=system_rng(), ssl=tls)
            try:
                found = await client.get(KEY)
            except HeliographError:  # what is known may still count, and is taken for as long again
                found = None
            finally:
                client.close()
            if found is not None:
                secret = found[0]
            elif not secret:
                return {}
            self._secrets[region] = secret, self._clock.monotonic()
        return {"Authorization": header(secret, region, NODE, self._clock)}
