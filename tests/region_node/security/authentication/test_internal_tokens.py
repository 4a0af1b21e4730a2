"""Brokers of a region among themselves: one secret, tokens of a minute, and nobody else's."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable

import pytest
from joserfc import jws
from joserfc.jwk import OctKey

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import NotAllowed, Unauthenticated
from region_node.security.authentication.authentication_service import Authentication
from region_node.security.authentication.internal_tokens import (
    BEFORE,
    KEY,
    LIFETIME_S,
    METHOD,
    OVERLAP_S,
    REREAD_S,
    InternalTokens,
    RegionSecrets,
    header,
)
from region_node.security.authentication.principal import Credentials, Principal
from region_node.security.settings import SecuritySettings
from tests.region_node.topics.fake_storage import FakeClock

SECRET = bytes(range(64))
SETTINGS = SecuritySettings(anonymous_role="guest")


class Region:
    """Brokers over one metadata, which counts how often it was asked."""

    def __init__(self, seed: int = 0) -> None:
        self.store, self.clock, self.asked, self._seed = EmbeddedStore(KvMachine()), FakeClock(), 0, seed

    async def broker(self, node: str, region: str = "us", *, deaf: bool = False) -> Authentication:
        """deaf: it hears of no change, as one whose watch is late."""
        self._seed += 1
        store = Counted(self, deaf)
        secrets = RegionSecrets(store, random.Random(self._seed), self.clock)
        await secrets.start()
        return Authentication(SETTINGS, {}, InternalTokens(secrets, region, node, self.clock))

    async def stored(self, key: str = KEY) -> bytes:
        found = await self.store.get(key)
        assert found is not None
        return found[0]


class Counted:
    def __init__(self, region: Region, deaf: bool) -> None:
        self._region, self._deaf = region, deaf

    async def get(self, key: str) -> tuple[bytes, int] | None:
        self._region.asked += 1
        return await self._region.store.get(key)

    def watch(self, prefix: str, callback: Callable[[str, bytes | None, int], None]) -> Callable[[], None]:
        heard = []

        def once(key: str, value: bytes | None, version: int) -> None:
            if not self._deaf or not heard:
                heard.append(key)
                callback(key, value, version)

        return self._region.store.watch(prefix, once)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        return getattr(self._region.store, name)


async def known(by: Authentication, token: str) -> bool:
    try:
        return (await by.identify(by.of_header(token, None))).internal
    except Unauthenticated:
        return False


def test_whoever_comes_first_makes_the_secret() -> None:
    async def run() -> None:
        region = Region()
        brokers = await asyncio.gather(*(region.broker(f"b{number}") for number in range(5)))
        assert len(await region.stored()) == 64
        for one in brokers:
            assert all([await known(other, one.own_header()["Authorization"]) for other in brokers])

    asyncio.run(run())


def test_a_header_is_taken_for_a_minute_in_its_region() -> None:
    async def run() -> None:
        region = Region()
        here, there = await region.broker("b0"), await region.broker("b1")
        credentials = there.of_header(here.own_header()["Authorization"], None)
        assert credentials.method == METHOD
        assert await there.identify(credentials) == Principal(role="broker.b0", internal=True)
        same_secret = Region()
        await same_secret.store.put(KEY, await region.stored())
        for other in (await same_secret.broker("b1", "eu"), await Region(seed=100).broker("b1")):
            with pytest.raises(Unauthenticated):
                await other.identify(credentials)
        region.clock.now += LIFETIME_S
        with pytest.raises(Unauthenticated):
            await there.identify(credentials)

    asyncio.run(run())


def test_a_secret_that_is_made_anew_signs_at_once_and_the_one_before_counts_for_a_while() -> None:
    async def run() -> None:
        region = Region()
        here, there, late = await region.broker("b0"), await region.broker("b1"), await region.broker("b2", deaf=True)
        stolen = await region.stored()
        assert here.brokers_secrets is not None
        until_ms = await here.brokers_secrets.rotate()
        assert until_ms == region.clock.wall_ms() + OVERLAP_S * 1000
        await region.store.synced(KEY)
        assert await region.stored() != stolen == (await region.stored(BEFORE))[:64]
        brokers = (here, there, late)
        for one in brokers:  # the late one signs with the secret before, and asks for the one that it does not know
            assert [await known(other, one.own_header()["Authorization"]) for other in brokers] == [True] * 3
        assert await known(there, header(stolen, "us", "thief", region.clock))
        region.clock.now += OVERLAP_S
        assert not await known(there, header(stolen, "us", "thief", region.clock))
        assert await known(there, here.own_header()["Authorization"])

    asyncio.run(run())


def test_a_stolen_secret_can_be_ended_at_once() -> None:
    async def run() -> None:
        region = Region()
        here, there = await region.broker("b0"), await region.broker("b1")
        secrets, stolen = here.brokers_secrets, await region.stored()
        assert secrets is not None
        await secrets.rotate()  # somebody was in no hurry
        middle = await region.stored()
        assert await secrets.rotate(0) == 0
        await region.store.synced(KEY)
        for secret in (stolen, middle):
            for broker in (here, there, await region.broker("b2")):
                assert not await known(broker, header(secret, "us", "thief", region.clock))
        assert await known(there, here.own_header()["Authorization"])

    asyncio.run(run())


def test_the_one_before_counts_as_long_as_was_said() -> None:
    """Whoever asks a second time, as the first answer was lost, does not end the one that brokers still sign with."""

    async def run() -> None:
        region = Region()
        secrets, first = (await region.broker("b0")).brokers_secrets, await region.stored()
        assert secrets is not None
        await secrets.rotate()
        second = await region.stored()
        with pytest.raises(NotAllowed, match=r"a moment ago.*600 s more.*--at-once"):
            await secrets.rotate()
        assert await region.stored() == second and (await region.stored(BEFORE))[:64] == first
        region.clock.now += OVERLAP_S
        await secrets.rotate()
        assert (await region.stored(BEFORE))[:64] == second != await region.stored()

    asyncio.run(run())


def test_of_two_who_make_it_anew_at_once_one_is_told() -> None:
    async def run() -> None:
        region = Region()
        made = [(await region.broker(f"b{number}")).brokers_secrets for number in range(2)]
        done = await asyncio.gather(*(one.rotate() for one in made if one is not None), return_exceptions=True)
        assert sorted(type(result) for result in done if not isinstance(result, int)) in ([], [NotAllowed])
        assert any(isinstance(result, int) for result in done)

    asyncio.run(run())


def test_forged_tokens_ask_the_metadata_once_a_second() -> None:
    async def run() -> None:
        region = Region()
        broker = await region.broker("b0")
        begun = region.asked
        for _ in range(50):
            assert not await known(broker, header(SECRET, "us", "thief", region.clock))
        assert region.asked == begun + 1
        region.clock.now += REREAD_S
        assert not await known(broker, header(SECRET, "us", "thief", region.clock)) and region.asked == begun + 2

    asyncio.run(run())


@pytest.mark.parametrize(
    "claims", [{}, [], {"region": "us", "node": "b"}, {"region": "us", "node": "b", "until_ms": "x"}, "text"]
)
def test_signed_nonsense_is_refused(claims: object) -> None:
    text = jws.serialize_compact(
        {"alg": "HS512"}, json.dumps(claims).encode(), OctKey.import_key(SECRET), algorithms=["HS512"]
    )

    async def run() -> None:
        region = Region()
        await region.store.put(KEY, SECRET)
        with pytest.raises(Unauthenticated):
            await (await region.broker("b1")).identify(Credentials(method=METHOD, data=text.encode()))

    asyncio.run(run())


def test_without_authentication_there_is_no_header_and_no_scheme() -> None:
    plain = Authentication(SecuritySettings(), {})
    assert plain.own_header() == {} and plain.open
    anonymous = Authentication(SETTINGS, {})
    with pytest.raises(Unauthenticated, match="not open"):
        asyncio.run(anonymous.identify(Credentials(method=METHOD, data=b"x")))
