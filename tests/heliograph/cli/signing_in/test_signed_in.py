"""A kept token goes to its own address, by TLS or on this machine, and is renewed before it runs out."""

from __future__ import annotations

import email.message
import io
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.cli import rest
from heliograph.cli.signing_in.signed_in import authorize, token_for
from heliograph.cli.signing_in.token_store import SignIn, TokenStore, tokens_file
from heliograph.model.errors import ConfigError
from heliograph.runtime.clock import SystemClock
from tests.heliograph.cli.signing_in.local_issuer import TestIssuer

EU = "https://eu.test:8443"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenStore:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return TokenStore(tokens_file())


@pytest.fixture(scope="module")
def issuer() -> Iterator[TestIssuer]:
    with TestIssuer() as made:
        yield made


def keep(store: TokenStore, admin: str, **fields: Any) -> None:
    found = SignIn(**{"issuer": "https://idp.test", "client_id": "c", "token": "kept", **fields})
    with store.locked():
        store.write(admin, found)


class Network:
    """Where requests went, and by which token; `moved`: URL -> where its answer sends on to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **moved: str) -> None:
        self.went: list[tuple[str, str | None]] = []
        self.moved = moved
        monkeypatch.setattr(rest, "_opener", lambda url: self)

    def open(self, request: urllib.request.Request, timeout: float) -> Any:
        host = request.host.partition(":")[0].partition(".")[0]
        self.went.append((f"{request.type}://{request.host}", request.get_header("Authorization")))
        headers = email.message.Message()
        if host in self.moved:
            headers["Location"] = self.moved[host]
        code = 307 if host in self.moved else 404
        raise urllib.error.HTTPError(request.full_url, code, "no", headers, io.BytesIO(b"{}"))


def test_it_goes_to_its_address_and_to_no_other(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(store, EU)
    keep(store, "http://plain.test:8080")
    network = Network(monkeypatch)
    kept = rest.Rest(EU)
    asked = [
        *(kept, rest.Rest(EU, "given"), kept.at("https://us.test:8443"), kept.at(timeout_s=1)),
        *(rest.Rest("http://plain.test:8080"), rest.Rest("https://eu.test:8444"), rest.Rest("http://eu.test:8443")),
    ]
    for one in asked:
        with pytest.raises(rest.RestRefused):
            one.get("/x")
    assert network.went == [
        (EU, "Bearer kept"),
        (EU, "Bearer given"),
        ("https://us.test:8443", None),
        (EU, "Bearer kept"),
        ("http://plain.test:8080", None),
        ("https://eu.test:8444", None),
        ("http://eu.test:8443", None),
    ]


def test_its_broker_may_send_on_to_a_topics_owner_but_not_in_clear(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, EU)
    network = Network(monkeypatch, eu="https://owner.test:8443/x", owner="http://clear.test/x", clear=f"{EU}2/x")
    with pytest.raises(ConfigError):
        rest.Rest(EU).get("/x")
    assert [token for _, token in network.went[:4]] == ["Bearer kept", "Bearer kept", None, None]


def test_other_requests_take_it_along_to_no_redirect(store: TokenStore) -> None:
    keep(store, EU)
    request = authorize(urllib.request.Request(f"{EU}/x"), EU, "")
    assert request.unredirected_hdrs == {"Authorization": "Bearer kept"} and not request.headers
    assert authorize(urllib.request.Request(EU), EU, "given").headers == {"Authorization": "Bearer given"}
    assert not authorize(urllib.request.Request(EU), "https://us.test", "").has_header("Authorization")


def test_it_is_renewed_once_before_it_runs_out(store: TokenStore, issuer: TestIssuer) -> None:
    soon = SystemClock().wall_ms() + 30_000
    issuer.refresh_tokens = {"refresh-0"}
    keep(store, EU, issuer=issuer.url, refresh_token="refresh-0", expires_ms=soon)
    before = len(issuer.asked)
    fresh = token_for(EU)
    assert fresh not in ("", "kept") and token_for(EU) == fresh
    assert [form["grant_type"] for _, form in issuer.asked[before:]] == ["refresh_token"]
    found = store.read(EU)
    assert found is not None and found.refresh_token in issuer.refresh_tokens and found.expires_ms > soon


def test_the_next_refresh_token_is_kept_whatever_becomes_of_the_rest(
    store: TokenStore, issuer: TestIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before counts no more: an issuer that gave once what brokers do not take asks nobody to sign in again."""
    now, token = SystemClock().wall_ms(), issuer.token
    issuer.refresh_tokens = {"refresh-0"}
    keep(store, EU, issuer=issuer.url, refresh_token="refresh-0", expires_ms=now + 30_000)
    monkeypatch.setattr(issuer, "token", lambda **claims: "opaque")
    assert token_for(EU) == "kept", "it is good for a while"
    found = store.read(EU)
    assert found is not None and found.refresh_token != "refresh-0" and found.refresh_token in issuer.refresh_tokens
    monkeypatch.setattr(issuer, "token", token)
    assert token_for(EU) not in ("", "kept")


def test_where_it_cannot_be_renewed_it_counts_to_its_end(store: TokenStore, issuer: TestIssuer) -> None:
    now = SystemClock().wall_ms()
    keep(store, EU, issuer=issuer.url, refresh_token="used", expires_ms=now + 30_000)
    assert token_for(EU) == "kept"
    keep(store, EU, issuer=issuer.url, refresh_token="used", expires_ms=now - 1)
    with pytest.raises(ConfigError, match=r"is not renewed: .*sign in again: `heliograph login --admin https://eu"):
        token_for(EU)
    keep(store, EU, issuer=issuer.url, expires_ms=now - 1)
    with pytest.raises(ConfigError, match="gave no refresh token"):
        token_for(EU)
    keep(store, EU, expires_ms=0)
    assert token_for(EU) == "kept"
    store.path.chmod(0o644)
    with pytest.raises(ConfigError, match="open to others"):
        token_for(EU)
