"""`heliograph tokens`: what it makes a broker takes, and what it says is what a broker says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from heliograph.model.errors import ConfigError
from region_node.commands import token_commands
from region_node.security.authentication.token_issuing import seconds

ALL = ("HS256", "HS512", "RS256", "PS512", "ES256", "ES384", "ES512")


def run(*arguments: str | Path, stdin: str = "") -> Result:
    app = typer.Typer()
    token_commands.register(app)
    return CliRunner().invoke(app, ["tokens", *map(str, arguments)], input=stdin)


def done(*arguments: str | Path, stdin: str = "") -> str:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output or result.exception
    return result.stdout.strip()


def refused(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


def made(folder: Path, algorithm: str) -> tuple[list[Any], list[Any]]:
    """Options that sign, and options that verify."""
    inner, outer = folder / "inner", folder / "outer"
    if algorithm.startswith("HS"):
        done("keys", "--algorithm", algorithm, "--secret", inner)
        return ["--secret", inner], ["--secret", inner]
    done("keys", "--algorithm", algorithm, "--private", inner, "--public", outer)
    return ["--private", inner], ["--public", outer]


@pytest.mark.parametrize("algorithm", ALL)
def test_each_algorithm_from_the_key_to_the_role(tmp_path: Path, algorithm: str) -> None:
    signing, verifying = made(tmp_path, algorithm)
    token = done("create", "-s", "alice", "--algorithm", algorithm, *signing)
    assert json.loads(done("validate", token, *verifying, "--algorithm", algorithm))["role"] == "alice"
    assert json.loads(done("validate", *verifying, stdin=f"{token}\n"))["role"] == "alice"
    pinned = {
        "HS512": "HS256",
        "RS256": "PS256",
        "PS512": "RS512",
        "ES256": "ES384",
        "ES384": "ES256",
        "ES512": "ES256",
        "HS256": "",
    }[algorithm]
    assert not pinned or run("validate", token, *verifying, "--algorithm", pinned).exit_code == 1
    assert (tmp_path / "inner").stat().st_mode & 0o077 == 0


def test_claims_and_times(tmp_path: Path) -> None:
    signing, verifying = made(tmp_path, "HS256")
    token = done(
        "create", "-s", "a", *signing, "--audience", "x", "--issuer", "me", "--claim", "role=r", "--expires", "7d"
    )
    assert (
        json.loads(done("validate", token, *verifying, "--audience", "x", "--issuer", "me", "--role-claim", "role"))[
            "role"
        ]
        == "r"
    )
    for wrong in (["--audience", "y"], ["--issuer", "you"], ["--role-claim", "none"]):
        assert run("validate", token, *verifying, *wrong).exit_code == 1
    later = done("create", "-s", "a", *signing, "--not-before", "1h")
    assert "not valid yet" in run("validate", later, *verifying).output
    assert (
        json.loads(done("validate", done("create", "-s", "a", *signing, "--expires", "never"), *verifying))[
            "expires_ms"
        ]
        == 0
    )


def test_a_key_set_holds_the_old_key_beside_the_new(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    tokens = []
    for name in ("one", "two"):
        done("keys", "--private", tmp_path / name, "--jwks", keys)
        tokens.append(done("create", "-s", name, "--private", tmp_path / name))
    assert [json.loads(done("validate", token, "--jwks", keys))["role"] for token in tokens] == ["one", "two"]
    text = keys.read_text()
    assert '"d"' not in text and "PRIVATE" not in text
    keys.write_text(json.dumps({"keys": json.loads(text)["keys"][1:]}))
    assert (
        run("validate", tokens[0], "--jwks", keys).exit_code == 1
        and run("validate", tokens[1], "--jwks", keys).exit_code == 0
    )


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    signing, verifying = made(tmp_path, "HS256")
    assert "exists" in refused("keys", "--algorithm", "HS256", "--secret", tmp_path / "inner")
    assert "takes a secret" in refused(
        "keys", "--algorithm", "HS256", "--private", tmp_path / "x", "--public", tmp_path / "y"
    )
    assert "key pair" in refused("keys", "--algorithm", "ES256", "--secret", tmp_path / "x")
    assert "none" not in ALL and "takes a secret" in refused(
        "keys", "--algorithm", "none", "--private", tmp_path / "x", "--public", tmp_path / "y"
    )
    assert "cannot sign" in refused("create", "-s", "a", *signing, "--algorithm", "HS512")
    assert "cannot sign" in refused("create", "-s", "a", *signing, "--algorithm", "RS256")
    assert "exactly one" in refused("create", "-s", "a")
    assert "does not exist" in refused("create", "-s", "a", "--secret", tmp_path / "nowhere")
    assert "no private key" in refused("create", "-s", "a", "--private", tmp_path / "inner")
    assert "duration" in refused("create", "-s", "a", *signing, "--expires", "soon")
    assert "algorithms must be" in refused("validate", "x.y.z", *verifying, "--algorithm", "none")
    assert not (tmp_path / "x").exists() and not (tmp_path / "y").exists()


def test_durations() -> None:
    assert [seconds(text) for text in ("30s", "5m", "12h", "7d", "1y")] == [30, 300, 43_200, 604_800, 31_536_000]
