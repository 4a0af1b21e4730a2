"""Sealed runs: cut anywhere, by anybody, and opened again; no key and nonce twice."""

from __future__ import annotations

import random
from functools import partial

import pytest

from heliograph.model.errors import CorruptData
from heliograph.wire.block import decode_block, encode_block, is_sealed
from heliograph.wire.run import Run, Seal, join
from storage.bookie.entry_log.block_cutting import cut_block
from storage.sealing import cipher
from storage.sealing.cipher import Ciphers, RunSealer

SECRETS = {1: bytes(range(32)), 2: bytes(range(1, 33))}
LEDGER = 7


def a_run(rng: random.Random, count: int) -> Run:
    parts = [rng.randbytes(rng.randrange(1, 90)) for _ in range(count)]
    lengths = [len(part) for part in parts]
    return Run(
        parts,
        lengths,
        counts=[2] * count,
        producers=(("p", count, 5, None),),
        time_ms=3,
        first_index=11,
        transaction=(1, 2),
    )


def sealer(number: int = 1, salt: int = 99) -> RunSealer:
    return RunSealer(LEDGER, salt, (number, SECRETS[number]), lambda: (number, SECRETS[number]))


def opener() -> Ciphers:
    return Ciphers(SECRETS.__getitem__)


@pytest.mark.parametrize("seed", range(60))
def test_any_pieces_of_a_sealed_run_open_to_the_same_pieces_of_it(seed: int) -> None:
    rng = random.Random(seed)
    run, first = a_run(rng, rng.randrange(1, 60)), rng.randrange(1000)
    block = b"".join(encode_block(sealer()(run, first), LEDGER, first))
    low, high = 0, run.count
    for _ in range(rng.randrange(4)):  # as bookies, recoveries, and repairs cut, one after another, without a key
        start = rng.randrange(high - low)
        stop = rng.randrange(start + 1, high - low + 1)
        block = bytes(cut_block(block, first + low + start, first + low + stop))
        low, high = low + start, low + stop
    ledger, at, found = decode_block(block)
    assert (ledger, at, found.count) == (LEDGER, first + low, high - low) and is_sealed(block)
    opened, wanted = opener().opened(LEDGER, found), run.cut(low, high)
    assert [bytes(part) for part in opened.parts] == wanted.parts
    assert opened.seal is None and encode_block(opened, LEDGER, at) == encode_block(wanted, LEDGER, at)


def test_nothing_of_the_entries_is_in_a_sealed_block() -> None:
    run = Run([b"a secret thing", b"another secret"], [14, 14])
    block = b"".join(encode_block(sealer()(run, 0), LEDGER, 0))
    assert b"secret" not in block
    _, _, found = decode_block(block)
    with pytest.raises(CorruptData, match="sealed with data key 0000000000000001, and were not opened"):
        _ = found.parts
    for wrong in (
        partial(found.as_replicated, (1, 1, 1), 7, 0, [1, 2]),
        partial(found.flagged, None),
        partial(join, [found, found]),
    ):
        with pytest.raises((AssertionError, CorruptData)):
            wrong()


def test_a_run_is_sealed_once_a_key_and_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[tuple[bytes, bytes]] = set()
    real = cipher.cipher_of

    class Watched:
        def __init__(self, secret: bytes, ledger: int, salt: int) -> None:
            self._inner, self._of = real(secret, ledger, salt), b"%r" % ((secret, ledger, salt),)

        def encrypt(self, nonce: bytes, data: bytes, more: None) -> bytes:
            assert (self._of, nonce) not in used
            used.add((self._of, nonce))
            return self._inner.encrypt(nonce, data, more)

    monkeypatch.setattr(cipher, "cipher_of", Watched)
    rng = random.Random(5)
    for salt in range(3):  # three writers of one ledger, each from its first entry on
        current, first = [1], 0
        writer = RunSealer(LEDGER, salt, (1, SECRETS[1]), lambda current=current: (current[0], SECRETS[current[0]]))  # type: ignore[misc]
        for at in range(40):
            current[0] = 1 + (at // 10) % 2  # rotated to and fro
            run = a_run(rng, rng.randrange(1, 5))
            writer(run, first)
            first += run.count
    assert len(used) == 120


@pytest.mark.parametrize("what", ["ledger", "first", "salt", "key", "body", "tag"])
def test_bytes_that_were_not_sealed_there_are_refused(what: str) -> None:
    run = a_run(random.Random(1), 4)
    sealed = sealer()(run, 10)
    assert sealed.seal is not None and sealed.body is not None
    body, seal, ledger = bytearray(sealed.body), sealed.seal, LEDGER
    if what == "ledger":
        ledger = 8
    elif what == "body":
        body[0] ^= 1
    elif what == "tag":
        body[-1] ^= 1
    else:
        seal = seal._replace(**{what: 2})
    with pytest.raises(CorruptData, match="is not what was sealed"):
        opener().opened(ledger, sealed.with_body(bytes(body), seal))


@pytest.mark.parametrize("seed", range(40))
def test_a_block_that_promises_more_than_it_holds_is_damaged(seed: int) -> None:
    rng = random.Random(seed)
    run = a_run(rng, 3)
    sealed = sealer()(run, 0)
    assert sealed.body is not None
    short = sealed.with_body(bytes(sealed.body)[: rng.randrange(run.size_bytes + 16)], Seal(1, 99, 0, 0))
    with pytest.raises(CorruptData, match="columns and sizes disagree"):
        decode_block(b"".join(encode_block(short, LEDGER, 0)))


def test_a_rotated_key_seals_the_next_run_and_one_that_cannot_be_opened_does_not() -> None:
    current: list[tuple[int, bytes] | None] = [(1, SECRETS[1])]
    writer = RunSealer(LEDGER, 4, (1, SECRETS[1]), lambda: current[0])
    seals = []
    for at, now in enumerate([(1, SECRETS[1]), (2, SECRETS[2]), None]):
        current[0] = now
        run = writer(Run([b"x"], [1]), at)
        seals.append(run.seal.key)  # type: ignore[union-attr]
        assert bytes(opener().opened(LEDGER, run).parts[0]) == b"x"
    assert seals == [1, 2, 2]
