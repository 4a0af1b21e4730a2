"""Signing in as a person does it, by HTTP with an issuer of ours, and by a token that a broker takes."""

from __future__ import annotations

import asyncio
import json
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from heliograph.cli.main import app
from heliograph.cli.signing_in import signed_in
from heliograph.cli.signing_in.issuer_requests import ask
from heliograph.cli.signing_in.signed_in import token_for
from heliograph.cli.signing_in.token_store import tokens_file
from heliograph.model.errors import ConfigError
from heliograph.runtime.clock import SystemClock
from region_node.security.authentication.authentication_service import MachinePorts, build_authentication
from region_node.security.authentication.jwks_issuers import fetch
from region_node.security.authentication.principal import Credentials
from region_node.security.settings import SecuritySettings, TokenSettings
from tests.heliograph.cli.signing_in.local_issuer import TestIssuer
from tests.region_node.security.authentication.issuer import beside

pytestmark = pytest.mark.slow

ADMIN = "http://127.0.0.1:8080"
Command = Callable[..., Result]


@pytest.fixture
def issuer() -> Iterator[TestIssuer]:
    with TestIssuer() as made:
        yield made


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Nobody waits between polls. Raises what the command was refused with."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    build = signed_in.OpenIdIssuer
    monkeypatch.setattr(signed_in, "OpenIdIssuer", lambda url, ask, clock, _: build(url, ask, clock, lambda _: None))

    def command(*words: str) -> Result:
        result = CliRunner().invoke(app, list(words), env={"HELIOGRAPH_ADMIN": ADMIN, "COLUMNS": "200"})
        if isinstance(result.exception, ConfigError):
            raise result.exception
        assert result.exit_code == 0, (words, result.output, result.exception)
        return result

    return command


def test_a_person_signs_in_once_and_a_broker_takes_the_token(run: Command, issuer: TestIssuer) -> None:
    issuer.polls = [(400, {"error": "authorization_pending"}), (400, {"error": "slow_down"})]
    said = run("login", "--issuer", issuer.url, "--client-id", "cli", "--audience", "heliograph")
    assert f"{issuer.url}/here" in said.stderr and "WDJB-MJHT" in said.stderr and "good for 10 min" in said.stderr
    assert said.stdout.startswith(f"signed in for {ADMIN} as alice, until ") and "renewed by itself" in said.stdout
    token = token_for(ADMIN)
    assert token not in said.output, "it stands in no scrollback"
    assert issuer.asked[0] == (
        "device",
        {"client_id": "cli", "scope": "openid offline_access", "audience": "heliograph"},
    )
    assert stat.S_IMODE(tokens_file().stat().st_mode) == 0o600
    source = TokenSettings(algorithms=("ES256",), issuer=issuer.url, audience="heliograph", role_prefix="corp:")
    ports = MachinePorts(clock=SystemClock(), rng=random.Random(1), fetch=fetch, offload=beside)
    broker = build_authentication(SecuritySettings(authentication=("token",), tokens=(source,)), ports)
    assert asyncio.run(broker.identify(Credentials(method="token", data=token.encode()))).role == "corp:alice"

    shown: dict[str, Any] = json.loads(run("whoami", "--json").stdout)
    assert (shown["admin"], shown["subject"], shown["issuer"]) == (ADMIN, "alice", issuer.url)
    assert token not in run("whoami").output
    issuer.subject = "bob"
    assert "as bob" in run("login").stdout, "the issuer is that of last time"
    assert '"revoked": true' in run("logout", "--json").stdout and issuer.revoked == ["refresh-0"]
    with pytest.raises(ConfigError, match="nobody is signed in for http://127"):
        run("whoami")
    assert "nobody was signed in" in run("logout").stdout and token_for(ADMIN) == ""


def test_what_is_missing_or_would_be_in_clear_is_said(run: Command, issuer: TestIssuer) -> None:
    with pytest.raises(ConfigError, match="Give --issuer"):
        run("login")
    with pytest.raises(ConfigError, match=r"is not sent to http://eu\.test in clear"):
        run("login", "--admin", "http://eu.test", "--issuer", issuer.url, "--client-id", "cli")
    with pytest.raises(ConfigError, match="must begin with https"):
        run("login", "--issuer", "http://idp.test", "--client-id", "cli")
    issuer.polls = [(400, {"error": "access_denied"})]
    with pytest.raises(ConfigError, match="somebody said no"):
        run("login", "--issuer", issuer.url, "--client-id", "cli")
    assert token_for(ADMIN) == ""


def test_an_issuer_sends_nobody_elsewhere_and_answers_shortly(run: Command, issuer: TestIssuer) -> None:
    login = ("login", "--issuer", issuer.url, "--client-id", "cli")
    issuer.redirect = f"{issuer.url}/keys"
    with pytest.raises(ConfigError, match="answered 302 and names another address, which is not followed"):
        run(*login)
    issuer.redirect = ""
    issuer.document = {"padding": "x" * (256 << 10)}
    with pytest.raises(ConfigError, match="more than 256 KiB"):
        run(*login)
    with pytest.raises(OSError, match="took longer"):
        ask(f"{issuer.url}/keys", None, timeout_s=1e-6)
