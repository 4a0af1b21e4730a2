"""Security: what the faces of a broker ask: who is this, and may it.

Is: authentication and authorisation side by side, as one thing to hand around, and how a broker's are built. Isn't:
either of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heliograph.model.errors import MetadataUnavailable
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.compute_thread import Offload, Overloaded
from heliograph.runtime.listeners.address_counts import group_of
from region_node.security.authentication.authentication_service import (
    Authentication,
    MachinePorts,
    build_authentication,
)
from region_node.security.authentication.internal_tokens import InternalTokens, RegionSecrets
from region_node.security.authentication.jwks_issuers import Fetch
from region_node.security.authentication.revocations import Revocations
from region_node.security.authorization.authorization_service import Authorization, RightsView
from region_node.security.settings import SecuritySettings

PASSWORDS_WAITING_MAX = 256
"""Checks of passwords that wait at one process, of one address a quarter of them; each takes some 50 to 250 ms."""


@dataclass(frozen=True, slots=True)
class Security:
    authentication: Authentication
    rights: Authorization


def open_security() -> Security:
    """Nobody is asked for anything: a standalone, and most tests."""
    settings = SecuritySettings()
    return Security(Authentication(settings, {}), Authorization(settings, None))


async def build_security(
    settings: SecuritySettings,
    view: RightsView,
    secrets: RegionSecrets,
    offload: Offload,
    *,
    region: str,
    node: str,
    fetch: Fetch,
    clock: Clock,
    rng: Rng,
) -> Security:
    """A broker's. secrets: are started where somebody is asked who it is. Raises ConfigError, and what the metadata
    raises.
    """
    internal = None
    if settings.authentication or settings.anonymous_role:
        await secrets.start()
        internal = InternalTokens(secrets, region, node, clock)
    return Security(
        authentication_of(settings, offload, internal, fetch=fetch, clock=clock, rng=rng), Authorization(settings, view)
    )


def authentication_of(
    settings: SecuritySettings,
    offload: Offload,
    internal: InternalTokens | None = None,
    *,
    fetch: Fetch,
    clock: Clock,
    rng: Rng,
    revocations: Revocations | None = None,
) -> Authentication:
    """Builds the authentication of any process, with the work on passwords on `offload`. revocations: where others need
    them before. Raises ConfigError.
    """

    async def beside(work: Callable[[bytes, bytes], bool], first: bytes, second: bytes, host: str) -> bool:
        try:
            return await offload.run(lambda: work(first, second), who=group_of(host))
        except Overloaded as error:
            raise MetadataUnavailable("too many passwords wait to be checked: try again") from error

    return build_authentication(
        settings, MachinePorts(clock=clock, rng=rng, fetch=fetch, offload=beside), internal, revocations
    )
