"""The list of what was revoked: what a record refuses, and what its copy does when the configuration changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from heliograph.model.configuration.revocations import REVOCATIONS, Revocation, revocation, serial
from heliograph.model.errors import NotAllowed, Unauthenticated
from region_node.security.authentication.authentication_service import (
    Authentication,
    MachinePorts,
    build_authentication,
)
from region_node.security.authentication.principal import Credentials, Principal
from region_node.security.settings import SecuritySettings, TokenSettings
from tests.region_node.security.authentication.issuer import SECRET, KeySetServer, beside, secret_token
from tests.region_node.security.authentication.password_lines import line
from tests.region_node.security.authentication.revoking import RevokedHere, settle
from tests.region_node.topics.fake_storage import FakeClock


class Badge:
    async def identify(self, credentials: Credentials) -> Principal:
        return Principal(role="badge-7")


class World:
    def __init__(self, folder: Path) -> None:
        (folder / "secret").write_bytes(SECRET)
        (folder / "users").write_text(line("ann", "password", "2y"))
        settings = SecuritySettings(
            authentication=("token", "basic", "tls"),
            tokens=(TokenSettings(algorithms=("HS256",), secret_file=str(folder / "secret")),),
            basic_file=str(folder / "users"),
        )
        ports = MachinePorts(clock=FakeClock(), rng=random.Random(1), fetch=KeySetServer().fetch, offload=beside)
        self.authentication: Authentication = build_authentication(settings, ports)
        self.authentication._providers["badge"] = Badge()
        self.here = RevokedHere(self.authentication)

    async def token(self, **claims: Any) -> bool:
        return await self.lets_in(method="token", data=secret_token(**{"sub": "app", **claims}))

    async def lets_in(self, **credentials: Any) -> bool:
        try:
            await self.authentication.identify(Credentials(**credentials))
        except Unauthenticated as error:
            assert error.reason == "revoked" and "revoked" in str(error)
            return False
        return True


def with_world(folder: Path, test: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World(folder)
        try:
            await test(world)
        finally:
            world.here.stop()

    asyncio.run(run())


def test_a_token_by_its_id_and_no_other(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        assert await world.token(jti="a")
        await world.here.add("token", "a")
        assert not await world.token(jti="a") and await world.token(jti="b") and await world.token()
        await world.here.lift("token", "a")
        assert await world.token(jti="a")

    with_world(tmp_path, test)


def test_tokens_of_a_subject_that_were_issued_before(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.here.add("subject", "app", before_ms=900_000)
        assert not await world.token(iat=899)
        assert await world.token(iat=900) and await world.token(sub="other", iat=1)
        for iat in (None, "yesterday", float("nan")):  # what does not say when it was issued may be as old as any
            assert not await world.token(iat=iat)
        await world.here.add("subject", "app")
        assert not await world.token(iat=990)

    with_world(tmp_path, test)


def test_tokens_of_an_issuer(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        await world.here.add("issuer", "https://i")
        assert not await world.token(iss="https://i", iat=999) and await world.token(iss="https://j")
        await world.here.add("issuer", "https://i", before_ms=900_000)
        assert await world.token(iss="https://i", iat=999) and not await world.token(iss="https://i", iat=1)

    with_world(tmp_path, test)


def test_a_user_with_a_password_and_one_of_a_plug_in(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        ann: dict[str, Any] = {"method": "basic", "data": b"ann:password"}
        assert await world.lets_in(**ann) and await world.lets_in(method="badge")
        await world.here.add("user", "ann")
        await world.here.add("user", "badge-7")
        assert not await world.lets_in(**ann) and not await world.lets_in(method="badge")
        assert await world.token(sub="ann")  # a token is another credential
        with pytest.raises(Unauthenticated, match="wrong"):  # whoever has no password does not hear that it was revoked
            await world.authentication.identify(Credentials(method="basic", data=b"ann:guess"))

    with_world(tmp_path, test)


def test_a_certificate_by_its_serial_number(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        shown: dict[str, Any] = {"subject": ((("commonName", "app"),),), "serialNumber": "0A4F"}
        assert await world.lets_in(method="tls", certificate=shown)
        await world.here.add("certificate", "a:4f")
        assert not await world.lets_in(method="tls", certificate=shown)
        assert await world.lets_in(method="tls", certificate={**shown, "serialNumber": "0A4E"})
        assert await world.lets_in(method="token", data=secret_token(sub="app"), certificate=shown)
        assert world.authentication.revocations.certificates() == {"a4f"}

    with_world(tmp_path, test)


def test_a_serial_number_is_read_as_tools_print_it() -> None:
    assert {serial(text) for text in ("0A:4F", "0x0a4f", "a4f", " 0A4F\n")} == {"a4f"}
    assert serial("00") == "0"
    for wrong in ("", "xyz", "0x", "f" * 65):
        with pytest.raises(NotAllowed, match="openssl"):
            serial(wrong)


def test_a_refusal_is_counted_and_told_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        await world.here.add("token", "a", reason="leaked")
        with caplog.at_level("INFO"):
            assert not await world.token(jti="a")
        (found,) = [record for record in caplog.records if record.msg == "authentication.revoked"]
        assert (found.kind, found.revoked, found.role, found.method) == ("token", "a", "app", "token")  # type: ignore[attr-defined]
        (count,) = [
            value
            for name, _, labels, value in world.authentication.counts.samples("us")
            if labels.get("reason") == "revoked"
        ]
        assert count == 1

    with_world(tmp_path, test)


def test_a_record_that_only_vanishes_counts_on(tmp_path: Path) -> None:
    """An older configuration was restored, in which it is not: nobody has lifted it."""

    async def test(world: World) -> None:
        await world.here.add("token", "a")
        await world.here.store.delete(revocation("token", "a"))
        await settle()
        assert not await world.token(jti="a")

    with_world(tmp_path, test)


def test_what_cannot_be_read_leaves_what_was_there(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        record = await world.here.add("token", "a")
        for damaged in (b"x", record.encode().replace(b'"format": 1', b'"format": 99')):
            await world.here.store.put(record.key, damaged)
            await settle()
            assert not await world.token(jti="a")

    with_world(tmp_path, test)


def test_many_changes_at_once_are_told_once(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        told: list[int] = []
        revocations = world.authentication.revocations

        def tell() -> int:
            told.append(len(revocations))
            return 2

        revocations.on_change(tell, "x")
        revocations.on_change(lambda: None)
        world.here.stop()
        for number in range(50):
            await world.here.list.add(Revocation(kind="token", name=f"{number}", since_ms=1))
        world.here.stop = revocations.follow(world.here.store, REVOCATIONS)
        await settle()
        assert told == [50] and revocations.closed == {"x": 2}

    with_world(tmp_path, test)
