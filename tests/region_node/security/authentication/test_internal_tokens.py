"""Brokers of a region among themselves: one secret, tokens of a minute, and nobody else's."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from joserfc import jws
from joserfc.jwk import OctKey

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import Unauthenticated
from region_node.security.authentication.authentication_service import Authentication
from region_node.security.authentication.internal_tokens import KEY, LIFETIME_S, METHOD, InternalTokens, region_secret
from region_node.security.authentication.principal import Credentials, Principal
from region_node.security.settings import SecuritySettings
from tests.region_node.topics.fake_storage import FakeClock

SECRET = bytes(range(64))
SETTINGS = SecuritySettings(anonymous_role="guest")


def test_whoever_comes_first_makes_the_secret() -> None:
    async def run() -> None:
        store = EmbeddedStore(KvMachine())
        found = await asyncio.gather(*(region_secret(store, random.Random(seed)) for seed in range(5)))
        stored = await store.get(KEY)
        assert stored is not None and set(found) == {stored[0]} and len(found[0]) == 64

    asyncio.run(run())


def test_a_header_is_taken_for_a_minute_in_its_region() -> None:
    clock = FakeClock()
    here, there = (Authentication(SETTINGS, {}, InternalTokens(SECRET, "us", node, clock)) for node in ("b0", "b1"))
    credentials = there.of_header(here.own_header()["Authorization"], None)
    assert credentials.method == METHOD
    assert asyncio.run(there.identify(credentials)) == Principal(role="broker.b0", internal=True)
    for other in (InternalTokens(SECRET, "eu", "b1", clock), InternalTokens(bytes(64), "us", "b1", clock)):
        with pytest.raises(Unauthenticated):
            asyncio.run(Authentication(SETTINGS, {}, other).identify(credentials))
    clock.now += LIFETIME_S
    with pytest.raises(Unauthenticated):
        asyncio.run(there.identify(credentials))


@pytest.mark.parametrize(
    "claims", [{}, [], {"region": "us", "node": "b"}, {"region": "us", "node": "b", "until_ms": "x"}, "text"]
)
def test_signed_nonsense_is_refused(claims: object) -> None:
    text = jws.serialize_compact(
        {"alg": "HS512"}, json.dumps(claims).encode(), OctKey.import_key(SECRET), algorithms=["HS512"]
    )
    with pytest.raises(Unauthenticated):
        asyncio.run(
            InternalTokens(SECRET, "us", "b1", FakeClock()).identify(Credentials(method=METHOD, data=text.encode()))
        )


def test_without_authentication_there_is_no_header_and_no_scheme() -> None:
    plain = Authentication(SecuritySettings(), {})
    assert plain.own_header() == {} and plain.open
    anonymous = Authentication(SETTINGS, {})
    with pytest.raises(Unauthenticated, match="not open"):
        asyncio.run(anonymous.identify(Credentials(method=METHOD, data=b"x")))
