"""Signing in by a browser: a code counts for who began, once, and everything else is refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from aiohttp import ClientSession

from heliograph.model.errors import MetadataUnavailable, Unauthenticated
from heliograph.runtime.clock import SystemClock
from region_node.security.authentication.authentication_service import MachinePorts, build_authentication
from region_node.security.authentication.code_sign_in import Begun, CodeSignIn, Session
from region_node.security.authentication.jwks_issuers import fetch, post_form
from region_node.security.authentication.principal import Credentials
from region_node.security.settings import SecuritySettings, TokenSettings
from tests.heliograph.cli.signing_in.local_issuer import TestIssuer
from tests.region_node.security.authentication.issuer import beside

BACK = "https://eu.test:8443/console/signed-in"


class World:
    """A broker's side of it, and a browser that goes to the issuer and comes back."""

    def __init__(self, issuer: TestIssuer, **fields: Any) -> None:
        source = TokenSettings(
            **{
                "algorithms": ("ES256",),
                "issuer": issuer.url,
                "audience": "heliograph",
                "role_prefix": "corp:",
                "console_client_id": "console",
                **fields,
            }
        )
        ports = MachinePorts(clock=SystemClock(), rng=random.Random(1), fetch=fetch, offload=beside)
        settings = SecuritySettings(authentication=("token",), tokens=(source,))
        self.authentication = build_authentication(settings, ports)
        self.sign_in = CodeSignIn(source, self.authentication, fetch, post_form, SystemClock())

    async def came_back(self, begun: Begun) -> dict[str, str]:
        address = await self.sign_in.address(begun, BACK)
        async with ClientSession() as browser, browser.get(address, allow_redirects=False) as answer:
            location = answer.headers["Location"]
        assert location.startswith(f"{BACK}?")
        return dict(parse_qsl(urlsplit(location).query))

    def signed_in(self, *, begun: Begun | None = None, changed: Mapping[str, str] | None = None) -> Session:
        """begun: what the browser shows in the place of what it began with."""

        async def run() -> Session:
            own = Begun.fresh()
            answer = await self.came_back(own)
            return await self.sign_in.completed(begun or own, {**answer, **(changed or {})}, BACK)

        return asyncio.run(run())

    def refuses(self, why: str, **fields: Any) -> None:
        with pytest.raises(Unauthenticated, match=why):
            self.signed_in(**fields)


@pytest.fixture
def issuer() -> Iterator[TestIssuer]:
    with TestIssuer() as made:
        yield made


def test_who_comes_back_has_a_token_that_this_broker_takes(issuer: TestIssuer) -> None:
    world = World(issuer)
    found = world.signed_in()
    assert 290 <= found.lasts_s <= 300
    token = Credentials(method="token", data=found.token.encode())
    assert asyncio.run(world.authentication.identify(token)).role == "corp:alice"


def test_the_address_holds_no_secret(issuer: TestIssuer) -> None:
    begun = Begun.fresh()
    asked = dict(parse_qsl(urlsplit(asyncio.run(World(issuer).sign_in.address(begun, BACK))).query))
    assert asked["client_id"] == "console" and asked["redirect_uri"] == BACK and asked["scope"] == "openid"
    assert (asked["state"], asked["nonce"]) == (begun.state, begun.nonce)
    assert asked["code_challenge_method"] == "S256" and begun.verifier not in asked.values()
    assert Begun.read(str(begun)) == begun and Begun.fresh() != begun
    for wrong in ("", "a.b.c", f"{begun}.x", str(begun)[1:]):
        assert Begun.read(wrong) is None


def test_a_code_counts_only_for_the_browser_that_began(issuer: TestIssuer) -> None:
    world, other = World(issuer), Begun.fresh()
    world.refuses("not begun in this browser", begun=other)
    world.refuses("not begun in this browser", changed={"state": ""})

    async def without() -> None:
        await world.sign_in.completed(None, {"state": "", "code": "c"}, BACK)

    with pytest.raises(Unauthenticated, match="not begun in this browser"):
        asyncio.run(without())
    assert not [form for _, form in issuer.asked], "the code was not even used"


def test_the_verifier_and_the_nonce_are_the_browsers_own(issuer: TestIssuer) -> None:
    world = World(issuer)

    async def run(**fields: str) -> None:
        own = Begun.fresh()
        answer = await world.came_back(own)
        stolen = Begun(*(fields.get(name, getattr(own, name)) for name in ("state", "verifier", "nonce")))
        await world.sign_in.completed(stolen, answer, BACK)

    other = Begun.fresh()
    with pytest.raises(Unauthenticated, match="took its own code back: invalid_grant"):
        asyncio.run(run(verifier=other.verifier))
    with pytest.raises(Unauthenticated, match="made for another sign-in"):
        asyncio.run(run(nonce=other.nonce))


def test_an_answer_of_somebody_else_or_for_somebody_else(issuer: TestIssuer) -> None:
    world = World(issuer)
    world.refuses("another issuer", changed={"iss": "https://other.test"})
    world.refuses("let nobody in: access_denied", changed={"error": "access_denied"})
    world.refuses("it sent no code", changed={"code": ""})
    world.refuses("invalid_grant", changed={"code": "guessed"})
    issuer.id_claims = {"iss": "https://other.test"}
    world.refuses("the ID token is of another issuer")
    issuer.id_claims = {"aud": ["other"]}
    world.refuses("meant for another client")
    issuer.id_claims = {"nonce": 7}
    world.refuses("made for another sign-in")


def test_a_token_that_clients_could_not_use_makes_no_session(issuer: TestIssuer) -> None:
    World(issuer, audience="other").refuses("another audience")
    assert World(issuer, audience="console").signed_in().token, "the ID token is one, where brokers take it"
    issuer.lasts_s = -100
    World(issuer).refuses("has expired")


def test_endpoints_in_clear_are_not_gone_to(issuer: TestIssuer) -> None:
    for name in ("authorization_endpoint", "token_endpoint"):
        issuer.document = {name: "http://idp.test/x"}
        with pytest.raises(MetadataUnavailable, match="https"):
            World(issuer).signed_in()
    issuer.document = {"issuer": "https://other.test"}
    with pytest.raises(MetadataUnavailable, match="of another issuer"):
        World(issuer).signed_in()
