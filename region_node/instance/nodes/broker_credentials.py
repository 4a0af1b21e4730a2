"""How the supervisor speaks to brokers that want authentication: as one of them, by the secret that the region's
metadata keeps.

Is: that secret, read once a region, and headers signed with it. Isn't: a way in for anybody who has not the data
folder: without TLS inside, the metadata's port on loopback is open to this machine's users anyway.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from heliograph.kv.metadata_client import MetaClient
from heliograph.model.errors import HeliographError
from heliograph.runtime.clock import SystemClock, system_rng
from region_node.security.authentication.internal_tokens import KEY, InternalTokens

NODE = "supervisor"


class SupervisorTokens:
    """`metadata`: region -> (address of its metadata, TLS towards it), asked when it is needed."""

    def __init__(self, metadata: Callable[[str], tuple[str, ssl.SSLContext | None]]) -> None:
        self._metadata = metadata
        self._tokens: dict[str, InternalTokens] = {}

    async def header(self, region: str) -> dict[str, str]:
        """Empty where the metadata cannot be read, or no broker has asked for authentication yet."""
        if region not in self._tokens:
            address, tls = self._metadata(region)
            client = MetaClient([address], clock=SystemClock(), rng=system_rng(), ssl=tls)
            try:
                found = await client.get(KEY)
            except HeliographError:
                return {}
            finally:
                client.close()
            if found is None:
                return {}
            self._tokens[region] = InternalTokens(found[0], region, NODE, SystemClock())
        return {"Authorization": self._tokens[region].header()}
