"""Polling an issuer: in virtual time, each of its answers is a sentence, and nothing is asked in clear."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from heliograph.cli.signing_in.openid_issuer import DeviceCode, OpenIdIssuer, claims_of
from heliograph.cli.signing_in.token_store import SignIn
from heliograph.model.errors import ConfigError

URL = "https://idp.test"
WANTED = SignIn(issuer=URL, client_id="c", token="")
PENDING = (400, {"error": "authorization_pending"})


def jwt(**claims: Any) -> str:
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c2ln"


class Provider:
    """Answers what the test says, and moves the clock where somebody sleeps."""

    def __init__(self, *polls: Any, code: Any = None, document: Any = None, url: str = URL) -> None:
        self.polls, self.now = list(polls), 0.0
        self.asked: list[tuple[float, str, Mapping[str, str] | None]] = []
        self.said: list[str] = []
        self.shown: list[DeviceCode] = []
        self.code = {"device_code": "d", "user_code": "AB-CD", "verification_uri": f"{URL}/go", **(code or {})}
        self.document = {
            "issuer": url,
            "token_endpoint": f"{URL}/token",
            "device_authorization_endpoint": f"{URL}/device",
            **(document or {}),
        }
        self.issuer = OpenIdIssuer(url, self.ask, self, self.sleep)

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, url: str, form: Mapping[str, str] | None) -> tuple[int, dict[str, Any]]:
        self.asked.append((self.now, url, form))
        if form is None:
            return 200, self.document
        if url.endswith("/device"):
            return 200, self.code
        answer = self.polls.pop(0) if self.polls else PENDING
        if isinstance(answer, OSError):
            raise answer
        return answer

    def sign_in(self, **fields: Any) -> SignIn:
        wanted = SignIn(**{"issuer": URL, "client_id": "c", "token": "", **fields})
        return self.issuer.sign_in(wanted, self.shown.append, self.said.append)

    def polled(self) -> list[float]:
        return [when for when, url, _ in self.asked if url.endswith("/token")]


def given(**fields: Any) -> tuple[int, dict[str, Any]]:
    return 200, {"access_token": jwt(sub="alice", exp=900), "refresh_token": "r", **fields}


def test_a_person_confirms_the_code() -> None:
    world = Provider(PENDING, PENDING, given())
    found = world.sign_in(audience="heliograph")
    assert (found.token, found.refresh_token, found.expires_ms) == (jwt(sub="alice", exp=900), "r", 900_000)
    assert [(one.code, one.url, one.whole_url, one.lasts_s) for one in world.shown] == [
        ("AB-CD", f"{URL}/go", "", 600.0)
    ]
    assert world.polled() == [5, 10, 15], "by the usual interval where the issuer says none"
    assert world.asked[1][2] == {"client_id": "c", "scope": "openid", "audience": "heliograph"}
    assert world.asked[-1][2] == {
        "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
        "device_code": "d",
        "client_id": "c",
    }
    assert world.said[0] == "waiting until you confirm it there (10 min left)"
    assert world.said[1] == "not confirmed yet (10 min left)"


def test_an_issuer_that_wants_to_be_asked_less_often_or_is_silent_is_asked_less_often() -> None:
    slow = (400, {"error": "slow_down"})
    world = Provider(slow, OSError("down"), (503, {}), PENDING, given(), code={"interval": 2})
    world.sign_in()
    assert world.polled() == [2, 9, 23, 51, 79], "2, then 7, 14, 28 s"
    assert [text.partition(":")[0] for text in world.said[1:4]] == [
        "the issuer wants to be asked less often",
        "the issuer does not answer (down)",
        "the issuer has trouble of its own (503)",
    ]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("expired_token", "not confirmed in time: give `heliograph login` again"),
        ("access_denied", "somebody said no"),
        ("invalid_grant", "sign in again"),
        ("unauthorized_client", "switch that on"),
        ("else\x1b[2J", r"refused: else\[2J \(because\)$"),
    ],
)
def test_each_refusal_is_a_sentence_and_ends_it(code: str, why: str) -> None:
    world = Provider(PENDING, (400, {"error": code, "error_description": "because"}), given())
    with pytest.raises(ConfigError, match=why):
        world.sign_in()
    assert len(world.polled()) == 2


def test_nobody_asks_for_longer_than_the_code_lasts() -> None:
    world = Provider(code={"expires_in": 12})
    with pytest.raises(ConfigError, match="not confirmed in time"):
        world.sign_in()
    assert world.polled() == [5, 10]
    world = Provider(code={"expires_in": 1e12, "interval": -1})
    with pytest.raises(ConfigError, match="not confirmed in time"):
        world.sign_in()
    assert world.now <= 1800


def test_nothing_is_asked_in_clear_or_of_somebody_else() -> None:
    with pytest.raises(ConfigError, match="must begin with https"):
        Provider(url="http://idp.test")
    for name in ("token_endpoint", "device_authorization_endpoint"):
        world = Provider(given(), document={name: "http://idp.test/token"})
        with pytest.raises(ConfigError, match="which is not https://: nothing is sent there"):
            world.sign_in()
        assert not world.polled()
    with pytest.raises(ConfigError, match=r"says it is 'https://other\.test'"):
        Provider(document={"issuer": "https://other.test"}).sign_in()
    with pytest.raises(ConfigError, match="no sign-in by a device code"):
        Provider(document={"device_authorization_endpoint": ""}).sign_in()
    for code in ({"verification_uri": "javascript:alert(1)"}, {"user_code": ""}, {"device_code": None}):
        with pytest.raises(ConfigError, match="gave no code"):
            Provider(code=code).sign_in()
    shown = Provider(given(), code={"user_code": "A\x1b[31mB", "verification_uri_complete": "http://x.test"})
    shown.sign_in()
    assert (shown.shown[0].code, shown.shown[0].whole_url) == ("A[31mB", "")


def test_what_brokers_do_not_take_is_not_kept() -> None:
    id_token = jwt(sub="alice", exp=70)
    found = Provider((200, {"access_token": "opaque", "id_token": id_token})).sign_in()
    assert (found.token, found.expires_ms) == (id_token, 70_000)
    with pytest.raises(ConfigError, match="gave no JSON web token"):
        Provider((200, {"access_token": "opaque"})).sign_in()
    for text in ("", "a.b", "a.!.c", "a.W10.c", "." * 20_000):
        assert claims_of(text) == {}
    ends = Provider((200, {"access_token": jwt(sub="alice"), "expires_in": 60})).sign_in()
    assert ends.expires_ms == 65_000, "where the token itself does not say it"


def test_a_newer_token() -> None:
    old = SignIn(issuer=URL, client_id="c", token=jwt(sub="alice", exp=1), refresh_token="r", scope="openid")
    kept: list[SignIn] = []
    found = Provider((200, {"access_token": jwt(sub="alice", exp=99)})).issuer.renewed(old, kept.append)
    assert (found.refresh_token, found.expires_ms, found.scope) == ("r", 99_000, "openid")
    with pytest.raises(ConfigError, match="sign in again"):
        Provider((400, {"error": "invalid_grant"})).issuer.renewed(old, kept.append)
    with pytest.raises(OSError, match="503"):
        Provider((503, {})).issuer.renewed(old, kept.append)
    assert not kept, "the one that there is goes on counting"
