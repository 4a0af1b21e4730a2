"""SCRAM: the example of RFC 7677, and proofs that are wrong in every place."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest

from heliograph.kv.metadata_store import pages_under
from heliograph.model.configuration.kafka_users import KAFKA_USERS, key_of
from heliograph.model.errors import Unauthenticated
from region_node.faces.kafka.security.scram import ScramExchange, user_of
from tests.region_node.faces.kafka.security.user_regions import KNOWN, OTHER, SALT, SHA, Regions

NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
LAST = f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()


def begun() -> ScramExchange:
    exchange = ScramExchange("SCRAM-SHA-256", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    exchange.begin(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert exchange.challenge(KNOWN) == f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    return exchange


def test_the_example_of_the_rfc() -> None:
    exchange = begun()
    assert exchange.user == "user"
    assert exchange.finish(LAST, KNOWN) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("seed", range(100))
def test_anything_else_is_refused(seed: int) -> None:
    rng = random.Random(seed)
    last = bytearray(LAST)
    at = rng.randrange(len(last) - 1)  # the last character of base64 may hold bits that do not count
    last[at] = rng.choice([c for c in range(33, 127) if c != last[at]])
    with pytest.raises(Unauthenticated):
        begun().finish(bytes(last), KNOWN)
    with pytest.raises(Unauthenticated):
        begun().finish(rng.randbytes(rng.randrange(200)), KNOWN)
    with pytest.raises(Unauthenticated):
        ScramExchange("SCRAM-SHA-256", "x").begin(rng.randbytes(rng.randrange(60)))


def test_a_user_with_commas_and_a_proof_of_another_password() -> None:
    exchange = ScramExchange("SCRAM-SHA-256", "x")
    exchange.begin(b"n,,n=a=2Cb=3Dc,r=n")
    assert exchange.user == "a,b=c"
    other = user_of("SCRAM-SHA-256", 4096, SALT, hashlib.pbkdf2_hmac("sha256", b"pen", SALT, 4096))
    with pytest.raises(Unauthenticated):
        begun().finish(LAST, other)


def test_a_user_is_made_and_deleted_once_for_all_regions() -> None:
    async def run() -> None:
        regions = Regions()
        us, eu = regions.users["us"], regions.users["eu"]
        for number in range(8):
            await us.put(f"u/{number}", SHA, KNOWN)
        await asyncio.sleep(0)
        assert list(await eu.all()) == [f"u/{number}" for number in range(8)]
        assert (await eu.find(SHA, "u/3"))[:4] == KNOWN[:4]
        assert await eu.delete("u/3", SHA) and not await eu.delete("u/3", SHA)
        await asyncio.sleep(0)
        assert (await us.find(SHA, "u/3"))[:4] != KNOWN[:4] and "u/3" not in await us.all()
        assert not [row async for page in pages_under(regions.own["us"], KAFKA_USERS) for row in page]

    asyncio.run(run())


def test_who_may_do_everything_in_a_region_is_made_there() -> None:
    """Whoever has another region would else have this one, too; and two that are called so shut nobody out."""

    async def run() -> None:
        regions = Regions()
        us, eu = regions.users["us"], regions.users["eu"]
        await us.put("root", SHA, KNOWN)
        await regions.config.put(key_of("root", SHA), KNOWN.encode())
        unknown = await eu.find(SHA, "root")
        assert unknown.salt != KNOWN.salt and await eu.find(SHA, "root") == unknown
        await eu.put("root", SHA, OTHER)
        for users in (us, eu):
            await users.rows._move_all()
        assert await us.find(SHA, "root") == KNOWN and await eu.find(SHA, "root") == OTHER
        assert await eu.delete("root", SHA) and await us.find(SHA, "root") == KNOWN

    asyncio.run(run())
