"""Signing in by a browser: a code counts for who began, once, and everything else is refused."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from aiohttp import ClientSession

from heliograph.model.errors import MetadataUnavailable, Unauthenticated
from heliograph.runtime.clock import SystemClock
from region_node.security.authentication.authentication_service import MachinePorts, build_authentication
from region_node.security.authentication.code_sign_in import (
    CODES_MAX,
    FAILED_S,
    FRESH_S,
    Begun,
    CodeSignIn,
    Session,
)
from region_node.security.authentication.jwks_issuers import fetch, post_form
from region_node.security.authentication.principal import Credentials
from region_node.security.settings import SecuritySettings, TokenSettings
from tests.heliograph.cli.signing_in.local_issuer import TestIssuer
from tests.region_node.security.authentication.issuer import beside
from tests.region_node.topics.fake_storage import FakeClock

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


class SlowIssuer:
    """Answers once `go_on` is set; notes what it was asked."""

    URL = "https://issuer.test"

    def __init__(self) -> None:
        self.clock, self.go_on, self.fails = FakeClock(), asyncio.Event(), False
        self.fetched = self.posted = 0
        source = TokenSettings(algorithms=("ES256",), issuer=self.URL, audience="a", console_client_id="console")
        ports = MachinePorts(clock=self.clock, rng=random.Random(1), fetch=self.fetch, offload=beside)
        settings = SecuritySettings(authentication=("token",), tokens=(source,))
        authentication = build_authentication(settings, ports)
        self.sign_in = CodeSignIn(source, authentication, self.fetch, self.post, self.clock)

    async def fetch(self, url: str) -> bytes:
        self.fetched += 1
        await self.go_on.wait()
        if self.fails:
            raise OSError("down")
        names = ("authorization_endpoint", "token_endpoint")
        return json.dumps({"issuer": self.URL, **dict.fromkeys(names, f"{self.URL}/there")}).encode()

    async def post(self, url: str, form: Mapping[str, str]) -> tuple[int, bytes]:
        self.posted += 1
        await self.go_on.wait()
        return 400, b"{}"

    def begins(self) -> asyncio.Task[str]:
        return asyncio.ensure_future(self.sign_in.address(Begun.fresh(), BACK))

    def comes_back(self) -> asyncio.Task[Session]:
        begun = Begun.fresh()
        return asyncio.ensure_future(self.sign_in.completed(begun, {"state": begun.state, "code": "made up"}, BACK))


def test_whoever_begins_however_often_the_issuer_is_asked_once() -> None:
    async def run() -> None:
        slow = SlowIssuer()
        first, *others = [slow.begins() for _ in range(20)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        slow.go_on.set()
        assert len(set(await asyncio.gather(*others))) == 19
        assert slow.fetched == 2, "the one that was asked for by who has left, and one more"
        slow.clock.now += FRESH_S - 1
        await slow.begins()
        assert slow.fetched == 2
        slow.clock.now += 1
        await asyncio.gather(*(slow.begins() for _ in range(20)))
        assert slow.fetched == 3

    asyncio.run(run())


def test_an_issuer_that_is_down_is_left_alone_for_some_seconds() -> None:
    async def run() -> None:
        slow = SlowIssuer()
        slow.fails = True
        slow.go_on.set()
        for _ in range(3):
            with pytest.raises(MetadataUnavailable, match=r"nobody can sign in at .* now: down"):
                await slow.begins()
        assert slow.fetched == 1
        slow.clock.now, slow.fails = slow.clock.now + FAILED_S, False
        await slow.begins()
        assert slow.fetched == 2

    asyncio.run(run())


def test_codes_that_anybody_makes_up_are_not_sent_on_without_bound() -> None:
    async def run() -> None:
        slow = SlowIssuer()
        slow.go_on.set()
        await slow.begins()
        slow.go_on.clear()
        came = [slow.comes_back() for _ in range(CODES_MAX + 5)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert slow.posted == CODES_MAX
        slow.go_on.set()
        await asyncio.wait(came)
        refused = [one.exception() for one in came if isinstance(one.exception(), MetadataUnavailable)]
        assert len(refused) == 5 and "8 others sign in" in str(refused[0])
        with pytest.raises(Unauthenticated):
            await slow.comes_back()

    asyncio.run(run())
