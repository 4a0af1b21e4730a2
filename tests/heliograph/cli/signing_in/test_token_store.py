"""The file of tokens is its owner's alone, and a token is found by its own address."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from heliograph.cli.signing_in.token_store import SignIn, TokenStore, address, tokens_file
from heliograph.model.errors import ConfigError

ALICE = SignIn(issuer="https://idp.test", client_id="c", token="t", refresh_token="r", expires_ms=7)


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    made = TokenStore(tmp_path / "config" / "heliograph" / "tokens.json")
    before = os.umask(0)
    try:
        with made.locked():
            made.write("https://eu.test:8443/", ALICE)
    finally:
        os.umask(before)
    return made


def test_a_token_is_found_by_its_own_address_alone(store: TokenStore) -> None:
    assert store.read("https://EU.test:8443") == ALICE
    for other in ("http://eu.test:8443", "https://eu.test", "https://eu.test:8443/b", "https://eu.test.x:8443"):
        assert store.read(other) is None
    with store.locked():
        store.write("https://us.test", ALICE)
        store.write("https://eu.test:8443", None)
    assert store.read("https://eu.test:8443") is None
    assert store.read("https://us.test:443") == ALICE
    assert address("http://[::1]:8080") == "http://[::1]:8080"
    for wrong in ("eu.test", "ftp://eu.test", "https://:1", "https://a:b"):
        with pytest.raises(ConfigError, match="expected http"):
            address(wrong)


def test_whatever_the_umask_it_is_private(store: TokenStore) -> None:
    files = [store.path, *store.path.parent.iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_is_open_to_others_is_not_read(store: TokenStore, mode: int) -> None:
    store.path.chmod(mode)
    with pytest.raises(ConfigError, match=r"chmod 600 .*tokens\.json"):
        store.read("https://eu.test:8443")
    store.path.chmod(0o600)
    store.path.parent.chmod(0o750)
    with pytest.raises(ConfigError, match="chmod 700"):
        store.read("https://eu.test:8443")
    with pytest.raises(ConfigError, match="chmod 700"), store.locked():
        raise AssertionError("nothing is written there")


def test_a_link_and_a_file_of_something_else_are_not_read(store: TokenStore, tmp_path: Path) -> None:
    store.path.write_text('{"https://eu.test:8443": {"token": 1}}')
    with pytest.raises(ConfigError, match="no file of tokens: delete it"):
        store.read("https://eu.test:8443")
    store.path.rename(tmp_path / "else")
    store.path.symlink_to(tmp_path / "else")
    with pytest.raises(ConfigError, match="cannot be read"):
        store.read("https://eu.test:8443")


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    assert tokens_file() == Path("/c/heliograph/tokens.json")
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setenv("HOME", "/h")
    assert tokens_file() == Path("/h/.config/heliograph/tokens.json")
