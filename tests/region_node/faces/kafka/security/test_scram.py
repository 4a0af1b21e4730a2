"""SCRAM: the example of RFC 7677, and proofs that are wrong in every place."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.model.errors import MetadataUnavailable, Unauthenticated
from region_node.faces.kafka.security.scram import FINDS_AT_ONCE, ScramExchange, ScramUser, ScramUsers, user_of

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
KNOWN = user_of("SCRAM-SHA-256", 4096, SALT, hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096))
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


def test_every_user_is_listed_also_behind_a_page_of_the_metadata() -> None:
    async def run() -> None:
        users = ScramUsers(EmbeddedStore(KvMachine(settings=MachineSettings(range_limit=3))), random.Random(1))
        for number in range(8):
            await users.put(f"u{number}", "SCRAM-SHA-256", KNOWN)
        assert list(await users.all()) == [f"u{number}" for number in range(8)]

    asyncio.run(run())


def test_those_who_are_looked_up_wait_and_their_addresses_take_turns() -> None:
    class Slow(EmbeddedStore):
        def __init__(self) -> None:
            super().__init__(KvMachine())
            self.asked: list[str] = []
            self.ends = asyncio.Event()

        async def get(self, key: str) -> tuple[bytes, int] | None:
            self.asked.append(key.split("/")[3])
            await self.ends.wait()
            return None

    async def test() -> None:
        store = Slow()
        users = ScramUsers(store, random.Random(1), waiting_max=20)

        async def find(user: str, host: str) -> ScramUser:
            return await users.find("SCRAM-SHA-256", user, host)

        greedy = [asyncio.ensure_future(find("a", "10.0.0.1")) for _ in range(FINDS_AT_ONCE + 30)]
        await asyncio.sleep(0)
        assert len(store.asked) == FINDS_AT_ONCE
        other = asyncio.ensure_future(find("b", "10.0.0.2"))
        await asyncio.sleep(0)
        store.ends.set()
        assert (await other).iterations == 4096 and store.asked.index("b") <= FINDS_AT_ONCE + 1
        answers = await asyncio.gather(*greedy, return_exceptions=True)
        assert [type(each) for each in answers].count(MetadataUnavailable) == 11
        assert len(store.asked) == FINDS_AT_ONCE + 20

    asyncio.run(test())
