"""Master keys, and data keys under them: what is refused, and that no error shows a key."""

from __future__ import annotations

import base64

import pytest

from heliograph.model.errors import ConfigError, CorruptData
from storage.sealing.keyring import (
    DataKey,
    Keyring,
    MasterKeys,
    TenantKeys,
    new_master_line,
    new_secret,
    number_of,
    without,
)

ONE, TWO = (
    f"{name} {base64.b64encode(32 * name[:1].encode()).decode()}\n" for name in ("one", "two")
)  # the same in every process: tests are named by them


def masters(text: str) -> MasterKeys:
    return MasterKeys.parse(text, "keys.txt")


def test_the_first_line_wraps_and_every_line_reads() -> None:
    secret = new_secret()
    old = masters(ONE).wrap("eu", "shop", secret, 5)
    both = masters("# of the region eu\n" + TWO + "\n" + ONE)
    assert (both.current, both.names, both.unwrap("eu", "shop", old)) == ("two", ["two", "one"], secret)
    new = both.wrap("eu", "shop", secret, 5)
    assert (new.number, new.master) == (old.number, "two") and secret not in new.wrapped
    assert TenantKeys.decode(TenantKeys((old, new)).encode()) == TenantKeys((old, new))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no master key"),
        ("# nothing\n", "holds no master key"),
        ("one", "line 1: it is no name and key"),
        ("one two three", "line 1: it is no name and key"),
        ("one !!!!", "line 1: it is no name and key"),
        ("one " + base64.b64encode(b"short").decode(), "line 1: the key has 5 bytes, and 32 are wanted"),
        (ONE + ONE, "line 2: master key one stands there twice"),
        ("a/b " + ONE.split()[1], "line 1: master key name 'a/b'"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"keys\.txt") as refused:
        masters(text)
    assert says in str(refused.value)
    for word in text.split():
        assert len(word) < 20 or word not in str(refused.value)


def test_a_data_key_opens_for_its_region_tenant_and_master_alone() -> None:
    key = masters(ONE).wrap("eu", "shop", new_secret(), 5)
    for region, tenant, text in (("us", "shop", ONE), ("eu", "other", ONE), ("eu", "shop", new_master_line("one"))):
        with pytest.raises(ConfigError, match="is not the one that wrapped"):
            masters(text).unwrap(region, tenant, key)
    with pytest.raises(ConfigError, match="wrapped by master key one, and the master keys given are two"):
        masters(TWO).unwrap("eu", "shop", key)


def test_what_is_repaired_is_sealed_with_the_key_of_its_time() -> None:
    one = masters(ONE)
    ring, stored = (
        Keyring("eu", one),
        tuple(one.wrap("eu", "shop", new_secret(), created_ms) for created_ms in (100, 200, 300)),
    )
    assert ring.at("shop", 150) is None
    ring.heard("shop", TenantKeys(stored).encode())
    found = [ring.at("shop", time_ms) for time_ms in (0, 100, 199, 200, 10**13)]
    assert [key and key[0] for key in found] == [stored[at].number for at in (0, 0, 0, 1, 2)]
    blind = Keyring("eu", None)
    blind.heard("shop", TenantKeys(stored).encode())
    assert blind.at("shop", 150) is None


def test_what_is_stored_is_read_or_refused() -> None:
    for blob in (b"", b"{}", b'{"format": 2, "keys": []}', b'{"format": 1, "keys": [{"number": "x"}]}'):
        with pytest.raises(CorruptData, match="data keys"):
            TenantKeys.decode(blob)


def test_the_newest_key_seals_and_one_that_was_opened_stays_open_while_it_is_stored() -> None:
    ring, first, second = Keyring("eu", masters(ONE)), new_secret(), new_secret()
    one = masters(ONE)
    a, b = one.wrap("eu", "shop", first, 1), one.wrap("eu", "shop", second, 2)
    ring.heard("shop", TenantKeys((a,)).encode())
    assert ring.current("shop") == (a.number, first)
    ring.heard("shop", TenantKeys((a, b)).encode())
    assert ring.current("shop") == (b.number, second) and ring.secret(a.number) == first
    foreign = masters(TWO).wrap("eu", "shop", new_secret(), 3)
    ring.heard("shop", TenantKeys((a, b, foreign)).encode())
    assert ring.current("shop") is None and "master key two" in ring.refused["shop"] and ring.secret(b.number) == second
    ring.masters = masters(TWO + ONE)
    ring.heard("shop", TenantKeys((a, b, foreign)).encode())
    assert ring.current("shop") is not None and not ring.refused
    assert ring.heard("shop", without(TenantKeys((a, b, foreign)), a.number).encode()) == [a.number]
    assert ring.secret(a.number) is None and ring.current("shop") is not None
    assert not ring.lost and ring.heard("shop", None) == [] and ring.lost == {"shop"}
    assert ring.current("shop") is not None and ring.stored["shop"].keys == (b, foreign)


def test_a_key_that_nobody_removed_stays_whatever_the_configuration_went_back_to() -> None:
    one = masters(ONE)
    a, b, c, d = (one.wrap("eu", "shop", new_secret(), at) for at in (1, 2, 3, 4))
    cases: list[tuple[tuple[DataKey, ...], TenantKeys, tuple[DataKey, ...]]] = [
        ((a, b, c), TenantKeys((b, c)), (b, c)),  # removed, by a version that did not say so
        ((a, b), TenantKeys((c,), (a.number, b.number)), (c,)),  # removed, and more was heard at once
        ((a, b), TenantKeys((b, c)), (b, c)),
        ((a, b), TenantKeys(), (a, b)),
        ((a, b, c), TenantKeys((a,)), (a, b, c)),
        ((b, c), TenantKeys((a, b)), (a, b, c)),  # before `a` was removed
        ((b, c), TenantKeys((a,)), (a, b, c)),
        ((a, b), TenantKeys((d,), ()), (a, b, d)),  # somebody made a first key meanwhile
        ((a, b, c), TenantKeys((a, d), ()), (a, b, c, d)),
    ]
    for known, heard, wanted in cases:
        ring = Keyring("eu", one)
        ring.heard("shop", TenantKeys(known).encode())
        for _ in range(2):
            ring.heard("shop", heard.encode())
        assert ring.stored["shop"].keys == wanted
        assert ring.lost == ({"shop"} if len(wanted) > len(heard.keys) else set())
        assert ring.current("shop") == (wanted[-1].number, ring.secret(wanted[-1].number))
        assert not ring.heard("shop", ring.stored["shop"].encode()) and not ring.lost
    shorter = without(TenantKeys((a, b)), a.number)
    assert TenantKeys.decode(shorter.encode()) == shorter == TenantKeys((b,), (a.number,))


def test_rewrapping_changes_the_master_and_nothing_else() -> None:
    secret = new_secret()
    ring = Keyring("eu", masters(ONE))
    ring.heard("shop", TenantKeys((masters(ONE).wrap("eu", "shop", secret, 9),)).encode())
    assert ring.rewrapped("shop") is None
    ring.masters = masters(TWO + ONE)
    again = ring.rewrapped("shop")
    assert again is not None and [(key.master, key.number, key.created_ms) for key in again.keys] == [
        ("two", number_of(secret), 9)
    ]
    assert masters(TWO).unwrap("eu", "shop", again.keys[0]) == secret
