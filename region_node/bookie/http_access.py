"""BookieAccess: who may ask a bookie's HTTP pages for what.

Is: the decision on one request, by the process's `security` and `tls` settings. Isn't: HTTP (`http_face`), TLS
(`region_node.security.tls`), or who somebody is (`region_node.security.authentication.authentication_service`).
Invariants: /health and /ready tell everybody (a load balancer has no credentials); /metrics too, unless
`security.authenticate_metrics`; everything else is for a process of the instance (its certificate), or for who is
authenticated, and only a super user changes something. Where neither authentication nor TLS inside is set, everybody
may do everything, as on the other listeners: such a bookie listens on loopback.
"""

from __future__ import annotations

from typing import Any

from heliograph.model.errors import MetadataUnavailable, Unauthenticated, Unauthorized
from heliograph.model.roles.certificate_role import peer_identity
from region_node.security.authentication.authentication_service import Authentication, revoked_text
from region_node.security.authentication.client_certificates import proof_of
from region_node.security.settings import SecuritySettings

_OPEN = ("/health", "/ready")
_INSIDE = ("broker", "bookie", "meta")


class BookieAccess:
    def __init__(
        self, settings: SecuritySettings, authentication: Authentication, *, region: str, inside: bool
    ) -> None:
        """inside: the processes of the region speak TLS to each other, and nobody else is let in without
        credentials.
        """
        self._settings, self._authentication, self._region, self._inside = settings, authentication, region, inside

    async def refusal(
        self, method: str, path: str, authorization: str, certificate: dict[str, Any] | None, host: str = ""
    ) -> tuple[int, str] | None:
        """(401, 403, or 503, the reason); None: it is allowed. certificate: as `getpeercert()` tells it, verified
        against the instance's CA. host: the address that asks.
        """
        if not self._inside and self._authentication.open:
            return None
        if method == "GET" and (path in _OPEN or (path == "/metrics" and not self._settings.authenticate_metrics)):
            return None
        role, region = peer_identity(certificate)
        if role in _INSIDE and region == self._region:
            found = self._authentication.revocations.of(proof_of(certificate))
            return None if found is None else (401, revoked_text(found))
        if self._authentication.open:
            return (
                401,
                "this bookie wants a certificate of the instance's CA, of a broker, bookie, or metadata node of its "
                "region",
            )
        try:
            given = self._authentication.of_header(authorization, certificate, host)
            principal = await self._authentication.identify(given)
        except Unauthorized as error:
            return 403, str(error)
        except Unauthenticated as error:
            return 401, str(error)
        except MetadataUnavailable as error:
            return 503, str(error)
        if method != "GET" and self._settings.super_users and principal.role not in self._settings.super_users:
            return 403, f"the role {principal.role!r} is no super user: it may look, and change nothing"
        return None
