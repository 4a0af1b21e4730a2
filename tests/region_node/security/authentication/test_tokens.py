"""Tokens: what is accepted, and everything that a forger would try."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc.jwk import ECKey, OctKey, RSAKey

from heliograph.model.errors import ConfigError, Unauthenticated
from region_node.security.authentication.authentication_service import MachinePorts, build_authentication
from region_node.security.authentication.principal import Credentials, Principal
from region_node.security.authentication.token_keys import (
    UNKNOWN_WAIT_S,
    KeySetCache,
    read_key_set,
    read_public_key,
    serves,
)
from region_node.security.settings import SecuritySettings, TokenSettings
from tests.region_node.security.authentication.issuer import (
    EC,
    RSA,
    SECRET,
    KeySetServer,
    beside,
    by_hand,
    secret_token,
    token,
)
from tests.region_node.topics.fake_storage import FakeClock

NOW = 1000.0


class World:
    def __init__(self, *sources: TokenSettings, server: KeySetServer | None = None) -> None:
        self.clock, self.server = FakeClock(), server or KeySetServer()
        ports = MachinePorts(clock=self.clock, rng=random.Random(1), fetch=self.server.fetch, offload=beside)
        self.authentication = build_authentication(SecuritySettings(authentication=("token",), tokens=sources), ports)

    def identify(self, data: bytes) -> Principal:
        return asyncio.run(self.authentication.identify(Credentials(method="token", data=data)))

    def refuses(self, data: bytes, why: str) -> None:
        with pytest.raises(Unauthenticated, match=why):
            self.identify(data)


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return str(path)


def source(secret: str, **fields: Any) -> TokenSettings:
    return TokenSettings(**{"algorithms": ("HS256",), "secret_file": secret, **fields})


def test_a_token_gives_its_role_and_its_end(secret: str) -> None:
    world = World(source(secret))
    assert world.identify(secret_token(sub="alice")) == Principal(role="alice")
    assert world.identify(secret_token(sub="alice", exp=NOW + 60)).expires_ms == 1_060_000


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_each_secret_algorithm(secret: str, algorithm: str) -> None:
    assert World(source(secret, algorithms=(algorithm,))).identify(secret_token(algorithm, sub="a")).role == "a"


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA, "RS256"), (RSA, "RS512"), (RSA, "PS256"), (EC, "ES256"), (ECKey.generate_key("P-384"), "ES384")],
)
@pytest.mark.parametrize("der", [False, True])
def test_a_public_key_in_pem_or_der(tmp_path: Path, key: Any, algorithm: str, der: bool) -> None:
    path = tmp_path / "public"
    path.write_bytes(key.as_der(private=False) if der else key.as_pem(private=False))
    world = World(TokenSettings(algorithms=(algorithm,), public_key_file=str(path)))
    assert world.identify(token(key, algorithm, sub="a")).role == "a"
    other = (
        RSAKey.generate_key(2048)
        if algorithm[0] in "RP"
        else ECKey.generate_key({"ES256": "P-256", "ES384": "P-384"}[algorithm])
    )
    world.refuses(token(other, algorithm, sub="a"), "signature")


def test_none_is_never_an_algorithm(secret: str) -> None:
    world = World(source(secret))
    for name in ("none", "None", "NONE", ""):
        world.refuses(by_hand({"alg": name}, {"sub": "alice"}), "algorithm")
    world.refuses(by_hand({}, {"sub": "alice"}), "header")
    with pytest.raises(ConfigError, match="none"):
        source(secret, algorithms=("none",))


def test_an_algorithm_that_is_not_pinned_is_refused_though_the_key_would_fit(secret: str) -> None:
    World(source(secret)).refuses(secret_token("HS512", sub="alice"), "algorithm")


def test_a_public_key_is_no_secret(tmp_path: Path) -> None:
    """The classic: a token signed by HMAC with the bytes of the public key, which everybody has."""
    path = tmp_path / "public"
    path.write_bytes(RSA.as_pem(private=False))
    world = World(TokenSettings(algorithms=("RS256",), public_key_file=str(path)))
    world.refuses(by_hand({"alg": "HS256"}, {"sub": "alice"}, path.read_bytes()), "algorithm")
    world.refuses(by_hand({"alg": "RS256"}, {"sub": "alice"}, path.read_bytes()), "signature")
    with pytest.raises(ConfigError, match="algorithms must be"):
        TokenSettings(algorithms=("HS256",), public_key_file=str(path))
    with pytest.raises(ConfigError, match="algorithms must be"):
        TokenSettings(algorithms=("RS256", "HS256"), jwks_url="https://issuer.test/keys")


def test_time(secret: str) -> None:
    world = World(source(secret))
    world.refuses(secret_token(sub="a", exp=NOW - 5), "expired")
    assert world.authentication.counts.expired == 1
    world.identify(secret_token(sub="a", exp=NOW - 4))
    world.refuses(secret_token(sub="a", nbf=NOW + 6), "not valid yet")
    world.identify(secret_token(sub="a", nbf=NOW + 5))
    for wrong in ("tomorrow", True, -1, 1e300, [1], {}):
        world.refuses(secret_token(sub="a", exp=wrong), "no time")
    World(source(secret, require_expiry=True)).refuses(secret_token(sub="a"), "never runs out")


def test_audience_role_and_issuer(secret: str) -> None:
    world = World(source(secret, audience="heliograph", role_claim="user", issuer="https://issuer.test"))
    good = {"user": "alice", "aud": ["x", "heliograph"], "iss": "https://issuer.test"}
    assert world.identify(secret_token(**good)).role == "alice"
    assert world.identify(secret_token(**{**good, "user": ["bob", "c"], "aud": "heliograph"})).role == "bob"
    world.refuses(secret_token(**{**good, "aud": "other"}), "audience")
    world.refuses(secret_token(**{**good, "aud": None}), "audience")
    world.refuses(secret_token(**{**good, "iss": "https://other.test"}), "issuer")
    world.refuses(secret_token(**{k: v for k, v in good.items() if k != "iss"}), "issuer")
    for no_text in (["https://issuer.test"], {"a": 1}, 7, True):
        world.refuses(secret_token(**{**good, "iss": no_text}), "issuer is no text")
    for role in (None, "", 7, [], [7], {}):
        world.refuses(secret_token(**{**good, "user": role}), "no role")
    world.refuses(secret_token(**{**good, "user": "a\nb"}), "control")


def test_an_issuer_with_an_entry_of_its_own_is_judged_by_that_alone(secret: str, tmp_path: Path) -> None:
    """Else the key of one tenant's issuer would sign for another issuer's users."""
    path = tmp_path / "public"
    path.write_bytes(RSA.as_pem(private=False))
    named = TokenSettings(algorithms=("RS256",), public_key_file=str(path), issuer="corp", role_prefix="")
    world = World(source(secret, role_prefix=""), named)
    world.refuses(secret_token(sub="a", iss="corp"), "algorithm")
    assert world.identify(token(RSA, "RS256", sub="a", iss="corp")).role == "a"
    world.refuses(token(RSA, "RS256", sub="a", iss="else"), "algorithm")
    assert world.identify(secret_token(sub="a", iss="else")).role == "a"


def test_the_same_subject_of_two_issuers_is_two_roles(secret: str, tmp_path: Path) -> None:
    path = tmp_path / "public"
    path.write_bytes(RSA.as_pem(private=False))
    corp, plant = (
        TokenSettings(algorithms=("RS256",), public_key_file=str(path), issuer=issuer, role_prefix=prefix)
        for issuer, prefix in (("corp", "corp:"), ("plant", "corp:plant:"))
    )
    world = World(source(secret), corp, plant)
    found = [world.identify(secret_token(sub="alice"))]
    found += [world.identify(token(RSA, "RS256", sub="alice", iss=issuer)) for issuer in ("corp", "plant")]
    assert [one.role for one in found] == ["alice", "corp:alice", "corp:plant:alice"]
    assert found[1].proof.subjects == ("corp:alice", "alice"), "a revocation may name either"
    world.refuses(secret_token(sub="corp:alice"), "begins with 'corp:'")
    world.refuses(token(RSA, "RS256", sub="plant:alice", iss="corp"), "begins with 'corp:plant:'")
    assert world.identify(token(RSA, "RS256", sub="corp:alice", iss="plant")).role == "corp:plant:corp:alice"


def test_two_secrets_side_by_side_rotate_without_a_gap(secret: str, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(bytes(64))
    world = World(source(secret), source(str(old)))
    assert (
        world.identify(secret_token(sub="a")).role
        == world.identify(secret_token(secret=bytes(64), sub="a")).role
        == "a"
    )


def test_a_key_file_is_read_again_when_it_changes_and_kept_when_it_breaks(secret: str, tmp_path: Path) -> None:
    path = tmp_path / "public"
    path.write_bytes(RSA.as_pem(private=False))
    world = World(TokenSettings(algorithms=("RS256", "ES256"), public_key_file=str(path)))
    assert world.identify(token(RSA, "RS256", sub="a")).role == "a"
    path.write_bytes(b"half a ke")
    assert world.identify(token(RSA, "RS256", sub="a")).role == "a"
    path.write_bytes(EC.as_pem(private=False) + b"\n")
    assert world.identify(token(EC, "ES256", sub="a")).role == "a"
    world.refuses(token(RSA, "RS256", sub="a"), "signature")
    path.unlink()
    assert world.identify(token(EC, "ES256", sub="a")).role == "a"


def test_a_secret_that_is_being_written_is_no_secret(secret: str) -> None:
    """For a moment the file is empty, or half of it is there: what is signed with that is a forgery."""
    world = World(source(secret))
    for short in (b"", SECRET[:16], SECRET[:31]):
        Path(secret).write_bytes(short)
        world.refuses(by_hand({"alg": "HS256"}, {"sub": "a"}, short), "signature")
        assert world.identify(secret_token(sub="a")).role == "a"
    Path(secret).write_bytes(bytes(32))
    assert world.identify(secret_token(secret=bytes(32), sub="b")).role == "b"
    world.refuses(secret_token(sub="a"), "signature")


@pytest.mark.filterwarnings("ignore:Key size")
def test_weak_secrets_and_keys_are_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(bytes(33))
    TokenSettings(algorithms=("HS256",), secret_file=str(path))
    with pytest.raises(ConfigError, match="at least 48"):
        TokenSettings(algorithms=("HS384",), secret_file=str(path))
    small = RSAKey.import_key(rsa.generate_private_key(65537, 1024))
    with pytest.raises(ConfigError, match="2048"):
        read_public_key(small.as_pem(private=False))


# -- key sets


def discovered(**fields: Any) -> TokenSettings:
    return TokenSettings(**{"algorithms": ("RS256", "ES256"), "issuer": "https://issuer.test", **fields})


def test_a_key_set_is_found_by_discovery_and_kept() -> None:
    world = World(discovered(), server=KeySetServer(RSA))
    good = token(RSA, "RS256", sub="a", iss="https://issuer.test")
    assert world.identify(good).role == world.identify(good).role == "a"
    assert world.server.asked == ["https://issuer.test/.well-known/openid-configuration", "https://issuer.test/keys"]


def test_rotation() -> None:
    world = World(discovered(jwks_url="https://issuer.test/keys"), server=KeySetServer(RSA))
    old, new = (
        token(key, algorithm, sub="a", iss="https://issuer.test") for key, algorithm in ((RSA, "RS256"), (EC, "ES256"))
    )
    assert world.identify(old).role == "a"
    world.server.keys = [EC]
    world.refuses(new, "signature")  # just fetched: an unknown key id does not make a fetch at once
    world.clock.now += UNKNOWN_WAIT_S
    assert world.identify(new).role == "a"
    world.refuses(old, "signature")
    assert len(world.server.asked) == 2


def test_forged_key_ids_make_no_storm_of_fetches() -> None:
    world = World(discovered(jwks_url="https://issuer.test/keys"), server=KeySetServer(RSA))
    world.identify(token(RSA, "RS256", sub="a", iss="https://issuer.test"))
    for number in range(200):
        world.clock.now += 0.1
        world.refuses(
            by_hand({"alg": "RS256", "kid": f"k{number}"}, {"sub": "a", "iss": "https://issuer.test"}), "signature"
        )
    assert len(world.server.asked) <= 4


def test_an_issuer_that_is_down_is_trusted_only_so_long() -> None:
    world = World(
        discovered(jwks_url="https://issuer.test/keys", jwks_refresh_s=10, jwks_stale_s=100), server=KeySetServer(RSA)
    )
    good = token(RSA, "RS256", sub="a", iss="https://issuer.test")
    world.identify(good)
    world.server.down = True
    world.clock.now += 99
    assert world.identify(good).role == "a"
    world.clock.now += 1
    world.refuses(good, "cannot be had")
    world.server.down = False
    world.clock.now += 10
    assert world.identify(good).role == "a"


@pytest.mark.parametrize("leaves", [None, 0, 5], ids=["nobody leaves", "who came first leaves", "another one leaves"])
def test_all_who_come_while_the_first_fetch_is_under_way_wait_for_it(leaves: int | None) -> None:
    world = World(discovered(jwks_url="https://issuer.test/keys"), server=KeySetServer(RSA))
    asked, going = world.server.fetch, asyncio.Event()

    async def slow(url: str) -> bytes:
        await going.wait()
        return await asked(url)

    world = World(discovered(jwks_url="https://issuer.test/keys"), server=world.server)
    good = Credentials(method="token", data=token(RSA, "RS256", sub="a", iss="https://issuer.test"))

    async def run() -> None:
        ports = MachinePorts(clock=world.clock, rng=random.Random(1), fetch=slow, offload=beside)
        settings = SecuritySettings(
            authentication=("token",), tokens=(discovered(jwks_url="https://issuer.test/keys"),)
        )
        authentication = build_authentication(settings, ports)
        tasks = [asyncio.ensure_future(authentication.identify(good)) for _ in range(20)]
        await asyncio.sleep(0)
        if leaves is not None:
            tasks.pop(leaves).cancel()
            await asyncio.sleep(0)
        going.set()
        assert {p.role for p in await asyncio.gather(*tasks)} == {"a"}

    asyncio.run(run())
    assert len(world.server.asked) == 1


def test_a_key_set_from_an_address_holds_no_secrets() -> None:
    rows = {
        "keys": [
            {"kty": "oct", "k": "AAAA", "kid": "1"},
            EC.as_dict(private=False),
            {"kty": "OKP", "crv": "Ed25519", "x": "AA"},
            7,
        ]
    }
    assert [key.kid for key in read_key_set(json.dumps(rows).encode(), secrets=False)] == [EC.kid]
    for bad in (
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b'{"keys": 1}',
        b'{"keys": [{"kty": "EC", "crv": "P-256"}]}',
        json.dumps({"keys": [{}] * 65}).encode(),
    ):
        with pytest.raises(ConfigError):
            read_key_set(bad, secrets=False)


def test_a_key_that_says_what_it_is_for_serves_nothing_else() -> None:
    public = RSA.as_dict(private=False)
    for extra, fits in (
        ({"use": "enc"}, False),
        ({"alg": "RS512"}, False),
        ({"key_ops": ["encrypt"]}, False),
        ({"alg": "RS256"}, True),
    ):
        world = World(
            discovered(jwks_url="https://issuer.test/keys"), server=KeySetServer(RSAKey.import_key({**public, **extra}))
        )
        good = token(RSA, "RS256", sub="a", iss="https://issuer.test")
        if fits:
            assert world.identify(good).role == "a"
        else:
            world.refuses(good, "signature")


def test_which_key_serves_which_algorithm() -> None:
    secret, p384 = OctKey.import_key(SECRET), ECKey.generate_key("P-384")
    names = ("HS256", "RS256", "PS256", "ES256", "ES384", "none", "EdDSA")
    fitting = {
        (kind, name)
        for kind, key in (("secret", secret), ("rsa", RSA), ("ec", EC), ("p384", p384))
        for name in names
        if serves(key, name)
    }
    assert fitting == {("secret", "HS256"), ("rsa", "RS256"), ("rsa", "PS256"), ("ec", "ES256"), ("p384", "ES384")}
    for field in ({"use": "enc"}, {"alg": "RS512"}, {"key_ops": ["encrypt"]}):
        assert not serves(RSAKey.import_key({**RSA.as_dict(private=False), **field}), "RS256")


def test_the_cache_counts_from_the_last_success() -> None:
    cache = KeySetCache(refresh_s=10, stale_s=100)
    assert cache.due(0) and not cache.usable(0)
    cache.begun(0)
    assert not cache.due(4) and cache.due(5)
    cache.fetched(5, [])
    assert cache.usable(104) and not cache.usable(105) and not cache.due(14) and cache.due(15)


def test_keys_come_by_tls_or_from_this_machine() -> None:
    TokenSettings(algorithms=("RS256",), jwks_url="http://127.0.0.1:9/keys")
    for url in ("http://issuer.test/keys", "file:///etc/passwd", "ftp://x/y", "issuer.test"):
        with pytest.raises(ConfigError, match="https"):
            TokenSettings(algorithms=("RS256",), jwks_url=url)


# -- bytes


def test_any_bytes_are_a_refusal_and_nothing_else(secret: str) -> None:
    world = World(source(secret))
    good = secret_token(sub="alice", exp=NOW + 60)
    rng = random.Random(7)
    for _ in range(600):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            match rng.randrange(3):
                case 0:
                    data[at] ^= 1 << rng.randrange(8)
                case 1:
                    del data[at]
                case _:
                    data.insert(at, rng.randrange(256))
        try:
            found = world.identify(bytes(data))
        except Unauthenticated:
            continue
        assert found.role == "alice"  # bits of base64 padding that mean nothing
    for data in (b"", b".", b"..", b"a.b.c", b"\xff" * 10, b"e30.e30.", b"." * 10_000, b"x" * 20_000):
        world.refuses(data, "token")
    world.refuses(by_hand({"alg": "HS256", "crit": ["x"]}, {"sub": "a"}, SECRET), "header")
    world.refuses(by_hand({"alg": "HS256"}, ["sub"], SECRET), "token")


def test_any_bytes_of_a_key_are_keys_or_a_refusal() -> None:
    rng = random.Random(5)
    document = json.dumps({"keys": [RSA.as_dict(private=False), EC.as_dict(private=False)]}).encode()
    for read, good in (
        (read_public_key, RSA.as_pem(private=False)),
        (read_public_key, EC.as_der(private=False)),
        (read_set, document),
    ):
        for _ in range(200):
            data = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            try:
                assert isinstance(read(bytes(data)), list)
            except ConfigError:
                pass


def read_set(data: bytes) -> list[Any]:
    return list(read_key_set(data, secrets=False))
