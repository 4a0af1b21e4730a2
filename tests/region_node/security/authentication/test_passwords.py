"""htpasswd: which lines are taken, when a password is right, and what changes with the file."""

from __future__ import annotations

import asyncio
import base64
import random
from pathlib import Path
from typing import Any

import pytest

from heliograph.model.errors import ConfigError, MetadataUnavailable, Unauthenticated
from heliograph.runtime.clock import SystemClock
from heliograph.runtime.compute_thread import Offload
from region_node.security.authentication import passwords
from region_node.security.authentication.passwords import PasswordProvider, read_users
from region_node.security.authentication.principal import Credentials
from region_node.security.authorization.security_service import PASSWORDS_WAITING_MAX, authentication_of
from region_node.security.settings import SecuritySettings
from tests.region_node.security.authentication.password_lines import line


class World:
    def __init__(self, path: Path, text: str) -> None:
        self.path, self.checks = path / "users", 0
        self.path.write_text(text)
        self.provider = PasswordProvider(str(self.path), self.count, random.Random(1))

    async def count(self, work: Any, first: bytes, second: bytes, _: str) -> bool:
        self.checks += 1
        return bool(work(first, second))

    def lets_in(self, data: bytes) -> bool:
        try:
            found = asyncio.run(self.provider.identify(Credentials(method="basic", data=data)))
        except Unauthenticated:
            return False
        assert found.role == data.partition(b":")[0].decode()
        return True


@pytest.mark.parametrize("form", ["2a", "2b", "2y", "sha"])
def test_right_and_wrong(tmp_path: Path, form: str) -> None:
    world = World(tmp_path, "# people\n\n" + line("ann", "s:e c", form))
    assert world.lets_in(b"ann:s:e c")
    assert World(tmp_path, line("eve", "x", form)).lets_in(b"eve:x")
    assert not World(tmp_path, line("eve", "x", form)).lets_in(b"eve:" + b"y" * 80)
    long = (b"ann:" + b"x" * 2000, b"ann:" + b"y" * 80)
    for wrong in (
        b"ann:s",
        b"ann:",
        b"ann",
        b"",
        b":s:e c",
        b"bob:s:e c",
        b"ANN:s:e c",
        b"ann:s:e c\x00",
        b"\xff:x",
        *long,
    ):
        assert not world.lets_in(wrong), wrong


def test_a_right_password_is_hashed_once_and_a_wrong_one_each_time(tmp_path: Path) -> None:
    world = World(tmp_path, line("ann", "a"))
    assert all(world.lets_in(b"ann:a") for _ in range(5)) and world.checks == 1
    assert not any(world.lets_in(b"ann:b") for _ in range(3)) and world.checks == 4
    assert not world.lets_in(b"nobody:a") and world.checks == 5  # as costly as a user that is there


def test_a_name_that_is_not_there_costs_what_one_of_the_file_does(tmp_path: Path) -> None:
    cheap = World(tmp_path, line("ann", "a", "sha"))
    assert not cheap.lets_in(b"ann:b") and not cheap.lets_in(b"nobody:a") and cheap.checks == 0
    mixed = World(tmp_path, line("ann", "a", "sha") + line("bob", "b"))
    costs = {}
    for _ in range(2):
        for n in range(20):
            before = mixed.checks
            assert not mixed.lets_in(f"nobody-{n}:a".encode())
            assert costs.setdefault(n, mixed.checks - before) == mixed.checks - before, "the same each time"
    assert set(costs.values()) == {0, 1}


def test_the_file_is_read_again_and_what_it_forgets_is_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path, line("ann", "a") + line("bob", "b"))
    assert world.lets_in(b"ann:a") and world.lets_in(b"bob:b")
    world.path.write_text(line("ann", "new"))
    assert not world.lets_in(b"ann:a") and not world.lets_in(b"bob:b") and world.lets_in(b"ann:new")
    world.path.write_text("nonsense")
    assert world.lets_in(b"ann:new")
    world.path.unlink()
    assert world.lets_in(b"ann:new")


def test_who_guesses_from_one_address_keeps_nobody_else_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users").write_text(line("ann", "a"))
    checked: list[bytes] = []
    monkeypatch.setattr(passwords.bcrypt, "checkpw", lambda given, _: (checked.append(given), given == b"a")[1])

    async def run() -> None:
        offload = Offload(PASSWORDS_WAITING_MAX)
        settings = SecuritySettings(authentication=("basic",), basic_file=str(tmp_path / "users"))
        ports: dict[str, Any] = {"fetch": None, "clock": SystemClock(), "rng": random.Random(1)}
        authentication = authentication_of(settings, offload, **ports)

        async def comes(password: str, host: str) -> str:
            header = "Basic " + base64.b64encode(f"ann:{password}".encode()).decode()
            return (await authentication.identify(authentication.of_header(header, None, host))).role

        guesses = [comes(f"guess {n}", "10.0.0.1") for n in range(2 * PASSWORDS_WAITING_MAX)]
        *guessed, found = await asyncio.gather(*guesses, comes("a", "10.0.0.2"), return_exceptions=True)
        assert found == "ann" and checked.index(b"a") < 3
        share = PASSWORDS_WAITING_MAX - 1  # the one that came last gave its place to another address
        assert [type(one) for one in guessed[share:]] == [MetadataUnavailable] * len(guessed[share:]), "try again"
        assert sum(isinstance(one, Unauthenticated) for one in guessed) == len(checked) - 1
        offload.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "text",
    [
        "ann",
        "ann:",
        ":x",
        "ann:$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00",
        "ann:rqXexS6ZhobKA",
        "ann:secret",
        "a:$2b$15$" + "a" * 53,
        "ok:{SHA}x",
    ],
)
def test_lines_that_are_refused_by_number(text: str) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        read_users("# first\n" + text)
