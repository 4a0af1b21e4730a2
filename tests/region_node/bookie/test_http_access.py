"""Who may ask a bookie's HTTP pages for what: TLS inside the region, certificates, tokens, and super users, over real
sockets.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from heliograph.runtime.clock import SystemClock
from heliograph.runtime.compute_thread import Offload
from region_node.bookie.http_access import BookieAccess
from region_node.bookie.http_face import Answer, HttpConnection
from region_node.security.authentication.jwks_issuers import fetch
from region_node.security.authorization.security_service import authentication_of
from region_node.security.certificate_authority import ensure_certificates
from region_node.security.settings import SecuritySettings, TlsSettings, TokenSettings
from region_node.security.tls import Certificates, client_context
from tests.region_node.bookie.http_client import status_of
from tests.region_node.security.authentication.revoking import RevokedHere

SECRET = b"k" * 64
Ask = Callable[..., Coroutine[Any, Any, int]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    ensure_certificates(made, ["us", "eu"])
    ensure_certificates(made / "foreign", ["us"])
    (made / "secret").write_bytes(SECRET)
    return made


def token(role: str) -> str:
    return jwt.encode({"alg": "HS256"}, {"sub": role}, OctKey.import_key(SECRET))


def security(folder: Path, **fields: Any) -> SecuritySettings:
    return SecuritySettings(
        authentication=("token",),
        tokens=(TokenSettings(algorithms=("HS256",), secret_file=str(folder / "secret")),),
        super_users=("admin",),
        **fields,
    )


def of_bookie(
    folder: Path, settings: SecuritySettings, main: Callable[[Ask], Coroutine[Any, Any, None]], *, inside: bool
) -> None:
    """main(ask): ask(request line, token="", cert="") gives the status; 0: there was no answer."""

    async def run() -> None:
        tls = TlsSettings(
            ca=str(folder / "ca.pem"),
            bookie_cert=str(folder / "bookie.us.pem"),
            bookie_key=str(folder / "bookie.us.key"),
            internal=inside,
        )
        authentication = authentication_of(settings, Offload(), fetch=fetch, clock=SystemClock(), rng=random.Random(1))
        access = BookieAccess(settings, authentication, region="us", inside=inside)

        async def answer(method: str, target: str) -> Answer:
            return 200, "text/plain", f"{method} {target}".encode()

        server = await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(answer, access), "127.0.0.1", 0, ssl=Certificates(tls, "us").pages("bookie")
        )

        async def ask(request: str, *, token: str = "", cert: str = "") -> int:
            outside: ssl.SSLContext | None = None
            if inside and cert:
                outside = client_context(
                    str(folder / "ca.pem"), str(folder / f"{cert}.pem"), str(folder / f"{cert}.key")
                )
            elif inside:
                outside = ssl.create_default_context(cafile=str(folder / "ca.pem"))
            headers = (f"Authorization: Bearer {token}",) if token else ()
            return await status_of(server.sockets[0].getsockname()[1], f"{request} HTTP/1.1", *headers, ssl=outside)

        await main(ask)
        server.close()

    asyncio.run(run())


def test_inside_a_region_a_certificate_of_its_processes_may_do_everything(folder: Path) -> None:
    async def main(ask: Ask) -> None:
        for cert in ("broker.us", "bookie.us", "meta.us"):
            assert await ask("POST /gc", cert=cert) == 200
        for cert in ("replicator.us", "broker.eu", ""):
            assert await ask("GET /state", cert=cert) == 401 and await ask("POST /gc", cert=cert) == 401
            assert [await ask(f"GET {page}", cert=cert) for page in ("/health", "/ready/", "/metrics")] == [
                200,
                200,
                200,
            ]
        assert await ask("GET /health", cert="foreign/broker.us") == 0  # a certificate of another CA is none

    of_bookie(folder, SecuritySettings(), main, inside=True)


@pytest.mark.parametrize("inside", [False, True])
def test_tokens_let_look_and_super_users_change(folder: Path, inside: bool) -> None:
    async def main(ask: Ask) -> None:
        assert await ask("GET /state", token=token("viewer")) == 200
        assert await ask("POST /gc", token=token("viewer")) == 403
        assert await ask("POST /gc", token=token("admin")) == 200
        assert await ask("GET /state") == 401 and await ask("GET /state", token="forged") == 401
        assert await ask("GET /health") == 200 and await ask("POST /health") == 401

    of_bookie(folder, security(folder), main, inside=inside)


def test_metrics_may_be_closed_too(folder: Path) -> None:
    async def main(ask: Ask) -> None:
        assert await ask("GET /metrics") == 401 and await ask("GET /metrics?x=1", token=token("prometheus")) == 200

    of_bookie(folder, security(folder, authenticate_metrics=True), main, inside=False)


def test_without_any_of_it_everybody_may_do_everything(folder: Path) -> None:
    async def main(ask: Ask) -> None:
        assert await ask("POST /gc") == 200

    of_bookie(folder, SecuritySettings(), main, inside=False)


def test_a_revoked_token_and_a_revoked_certificate_get_nowhere(folder: Path) -> None:
    async def run() -> None:
        settings = security(folder)
        authentication = authentication_of(settings, Offload(), fetch=fetch, clock=SystemClock(), rng=random.Random(1))
        access = BookieAccess(settings, authentication, region="us", inside=True)
        shown: dict[str, Any] = {
            "subject": ((("organizationalUnitName", "broker"),), (("commonName", "broker.us"),)),
            "serialNumber": "0A4F",
        }
        bearer = f"Bearer {token('admin')}"
        for authorization, certificate in (("", shown), (bearer, None)):
            assert await access.refusal("POST", "/gc", authorization, certificate) is None
        here = RevokedHere(authentication)
        await here.add("certificate", "a4f")
        await here.add("subject", "admin")
        for authorization, certificate in (("", shown), (bearer, None)):
            refused = await access.refusal("POST", "/gc", authorization, certificate)
            assert refused is not None and refused[0] == 401 and "revoked" in refused[1]
        here.stop()

    asyncio.run(run())
