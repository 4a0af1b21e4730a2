"""Sealed runs: cut anywhere, by anybody, and opened again; no key and nonce twice."""

from __future__ import annotations

import random
from functools import partial

import pytest

from heliograph.model.errors import CorruptData
from heliograph.wire.block import decode_block, encode_block, is_sealed
from heliograph.wire.run import Buffer, Run, Seal, join
from storage.bookie.entry_log.block_cutting import cut_block
from storage.sealing import cipher
from storage.sealing.cipher import BYTES_ALONE, WITH_HEADER, Ciphers, RunSealer, check_form
from tests.storage.sealing.world import HEAD_BYTES, forged, summed

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


def sealer(number: int = 1, salt: int = 99, form: int = WITH_HEADER) -> RunSealer:
    return RunSealer(LEDGER, salt, (number, SECRETS[number]), lambda: (number, SECRETS[number]), form)


def opener() -> Ciphers:
    return Ciphers(SECRETS.__getitem__)


@pytest.mark.parametrize("form", [BYTES_ALONE, WITH_HEADER])
@pytest.mark.parametrize("seed", range(60))
def test_any_pieces_of_a_sealed_run_open_to_the_same_pieces_of_it(seed: int, form: int) -> None:
    rng = random.Random(seed)
    run, first = a_run(rng, rng.randrange(1, 60)), rng.randrange(1000)
    block = b"".join(encode_block(sealer(form=form)(run, first), LEDGER, first))
    whole_bytes = len(block)
    low, high = 0, run.count
    for _ in range(rng.randrange(4)):  # as bookies, recoveries, and repairs cut, one after another, without a key
        start = rng.randrange(high - low)
        stop = rng.randrange(start + 1, high - low + 1)
        block = bytes(cut_block(block, first + low + start, first + low + stop))
        low, high = low + start, low + stop
    ledger, at, found = decode_block(block)
    assert (ledger, at, found.count) == (LEDGER, first + low, high - low) and is_sealed(block)
    assert form == BYTES_ALONE or len(block) == whole_bytes, "a piece is as long as all of it, and no longer"
    opened, wanted = opener().opened(LEDGER, at, found), run.cut(low, high)
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
        def __init__(self, secret: bytes, ledger: int, salt: int, form: int) -> None:
            self._inner, self._of = real(secret, ledger, salt, form), b"%r" % ((secret, ledger, salt, form),)

        def encrypt(self, nonce: bytes, data: bytes, more: bytes | None) -> bytes:
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


@pytest.mark.parametrize("form", [BYTES_ALONE, WITH_HEADER])
@pytest.mark.parametrize("what", ["ledger", "first", "salt", "key", "body", "tag"])
def test_bytes_that_were_not_sealed_there_are_refused(what: str, form: int) -> None:
    run = a_run(random.Random(1), 4)
    sealed = sealer(form=form)(run, 10)
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
    with pytest.raises(CorruptData, match=f"ledger {ledger}: the run at entry 12 is not what was sealed there"):
        opener().opened(ledger, 12, sealed.with_body(bytes(body), seal))


@pytest.mark.parametrize("seed", range(40))
def test_a_block_that_promises_more_than_it_holds_is_damaged(seed: int) -> None:
    rng = random.Random(seed)
    run = a_run(rng, 3)
    sealed = sealer()(run, 0)
    assert sealed.body is not None
    short = bytes(sealed.body)[: rng.randrange(run.size_bytes + 16)]
    with pytest.raises(CorruptData, match="columns and sizes disagree"):
        decode_block(b"".join(encode_block(sealed.with_body(short, Seal(1, 99, 0, 0)), LEDGER, 0)))
    block = b"".join(encode_block(sealed.with_body(short, sealed.seal), LEDGER, 0))
    with pytest.raises(CorruptData, match="columns and sizes disagree"):
        decode_block(summed(forged(block, size=len(block))))


def test_a_rotated_key_seals_the_next_run_and_one_that_cannot_be_opened_does_not() -> None:
    current: list[tuple[int, bytes] | None] = [(1, SECRETS[1])]
    writer = RunSealer(LEDGER, 4, (1, SECRETS[1]), lambda: current[0])
    seals = []
    for at, now in enumerate([(1, SECRETS[1]), (2, SECRETS[2]), None]):
        current[0] = now
        run = writer(Run([b"x"], [1]), at)
        seals.append(run.seal.key)  # type: ignore[union-attr]
        assert bytes(opener().opened(LEDGER, at, run).parts[0]) == b"x"
    assert seals == [1, 2, 2]


STORED = {
    BYTES_ALONE: (
        "01710002000000f60000007c90157db5000000000000000700000000000000030000000000000003000000000000000b0000"
        "001f0000004b0000000200000002000100017000020100000000000000050000000000000001000000000000000200000000"
        "00000001000000000000006300000000000000030000000054074afdd49eb1d2af131f72f818ea14d540a8c19f1c54bf51d1"
        "1a9d695b7ff7c7167fa004e14fdda8ef1c2256b8bdbe02e43d15c3af4d38ef3c886d17fdc6977c82c84737b4c061b4037a83"
        "401075689de8bcdc43bd563dc6669083609c5338a5b30d528eb216682d0248f790a3cb46b200601829f0b3ac867f"
    ),
    WITH_HEADER: (
        "02710002000000f40000007aefc8a12d000000000000000700000000000000030000000000000003000000000000000b0000"
        "0000000000010000000000000063000000000000000300020000001f0000004b000000020000000200010001700002010000"
        "00000000000500000000000000010000000000000002fab103b5a0aa240067ac93ca226576699db0b4c062a2dcd601c15208"
        "bc38df723aa46e598372b1834ec8ed4ff367e3a6f00e0ead0f6befe808d915c9eb0201c99c2b891344c5da94f496920e792d"
        "743192790610e20101d39147f6c00429a51438786a995aa38b32bfd35cf6ba21bcc4de7902d898a11ee7bbbe"
    ),
}


# -- by whoever writes to a bookie's disk, or to an object store -------------------------------------------------------


def block_at(first: int, count: int = 4, *, form: int = WITH_HEADER, seed: int = 0) -> bytes:
    run = a_run(random.Random(seed or first), count)
    return b"".join(encode_block(sealer(form=form)(run, first), LEDGER, first))


def read_at(ledger: int, first: int, block: Buffer) -> Run:
    """As a reader does who has asked for entry `first`, and looks at what the block says of its place."""
    found, at, run = decode_block(block)
    assert (found, at) == (ledger, first)
    return opener().opened(ledger, at, run)


def refused(ledger: int, first: int, block: Buffer) -> None:
    with pytest.raises(CorruptData, match=rf"ledger {ledger}: .*\bentry {first}\b") as error:
        read_at(ledger, first, block)
    assert "sealed" in str(error.value)


def test_a_run_that_was_moved_is_refused() -> None:
    block = block_at(10)
    assert read_at(LEDGER, 10, block).count == 4
    refused(LEDGER, 20, forged(block, first=20))
    refused(8, 10, forged(block, ledger=8))
    seal = HEAD_BYTES + 16  # u64 key, u64 salt, u64 first entry
    refused(LEDGER, 20, summed(forged(block, first=20)[:seal] + (20).to_bytes(8, "big") + block[seal + 8 :]))


def test_two_runs_that_were_swapped_are_refused() -> None:
    one, other = block_at(10), block_at(14)
    refused(LEDGER, 14, forged(one, first=14))
    refused(LEDGER, 10, forged(other, first=10))
    header = int.from_bytes(one[8:12], "big")
    twin = block_at(14, seed=10)  # as long, column by column
    assert len(twin) == len(one)
    refused(LEDGER, 10, summed(one[:header] + twin[header:]))


def test_a_piece_is_refused_elsewhere_and_as_another() -> None:
    block = block_at(10, 8)
    piece = cut_block(block, 12, 15)
    assert [bytes(part) for part in read_at(LEDGER, 12, piece).parts] == a_run(random.Random(10), 8).parts[2:5]
    for first in (3, 9, 16, 18, 400):  # behind 15 it would hold what was never sealed
        refused(LEDGER, first, forged(piece, first=first))
    refused(LEDGER, 12, forged(piece, count=7))
    seal = HEAD_BYTES + 16  # u64 key, u64 salt, u64 first entry, u16 count
    shifted = forged(piece, first=22)
    refused(LEDGER, 22, summed(shifted[:seal] + (20).to_bytes(8, "big") + shifted[seal + 8 :]))


def test_no_bit_of_a_header_can_be_another() -> None:
    """Whatever is said of entries is what was sealed, or is refused: also lengths, flags, times, and producers."""
    run = a_run(random.Random(10), 5)
    block = b"".join(encode_block(sealer()(run, 10), LEDGER, 10))
    pieces = 0
    for bit in range(8 * int.from_bytes(block[8:12], "big")):
        changed = bytearray(block)
        changed[bit // 8] ^= 1 << bit % 8
        if bit // 8 in range(12, 16) or bit // 8 in range(16, 24):  # the checksum; another ledger, which nobody asks
            continue
        try:
            _, at, found = decode_block(summed(bytes(changed)))
            opened = opener().opened(LEDGER, at, found)
        except (CorruptData, KeyError):  # of a data key that is not here
            continue
        pieces += 1
        wanted = run.cut(at - 10, at - 10 + opened.count)
        assert encode_block(opened, LEDGER, at) == encode_block(wanted, LEDGER, at), bit
    assert pieces == 2, "those of a lower count, 1 and 4: as a piece says it"


def test_a_run_of_one_form_is_not_taken_for_one_of_the_other() -> None:
    new, old = sealer()(a_run(random.Random(10), 4), 10), sealer(form=BYTES_ALONE)(a_run(random.Random(10), 4), 10)
    assert new.seal is not None and old.seal is not None and new.body is not None and old.body is not None
    lowered = new.with_body(new.body, new.seal._replace(header=None))
    raised = old.with_body(old.body, new.seal)
    for run in (lowered, raised):
        refused(LEDGER, 10, b"".join(encode_block(run, LEDGER, 10)))
    check_form(LEDGER, 10, new, WITH_HEADER)
    for run, says in ((old, "sealed in an older form"), (a_run(random.Random(10), 4), "not sealed")):
        with pytest.raises(CorruptData, match=f"ledger 7: entry 10 is {says}"):
            check_form(LEDGER, 10, run, WITH_HEADER)


@pytest.mark.parametrize("form", [BYTES_ALONE, WITH_HEADER])
def test_what_was_sealed_once_is_read_for_good(form: int) -> None:
    """Bytes as they were stored by the version that introduced the form."""
    stored = bytes.fromhex(STORED[form])
    assert block_at(3, 2, form=form) == stored
    ledger, first, run = decode_block(stored)
    opened, wanted = opener().opened(ledger, first, run), a_run(random.Random(3), 2)
    assert (ledger, first) == (LEDGER, 3) and encode_block(opened, ledger, first) == encode_block(wanted, ledger, first)
