"""A sealed backup comes back as it was written, says nothing in clear, and no record of it is taken for another."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import crc32c
import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.backup_file import BackedUpStore, BackupReader, BackupWriter, Info
from heliograph.kv.metadata_store import Put
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.model.errors import ConfigError, CorruptData
from heliograph.runtime.disk import File
from storage.sealing.backup_seal import BackupSeal
from storage.sealing.keyring import MasterKeys, new_master_line
from tests.heliograph.kv.driver import Driver

INFO = Info(BackedUpStore.LOCAL, "us-east", 1_700_000_000_000, 0, "1.2.3")
KEYS = MasterKeys.parse(new_master_line("b") + new_master_line("a"), "keys")
HEAD_BYTES = 8


def backed_up(file: File, seal: BackupSeal | None, rows: int = 10) -> Driver:
    driver = Driver(KvMachine(settings=MachineSettings(part_rows=3)))
    for number in range(rows):
        driver.txn(Put(f"/secret/{number:03d}", b"password-%d" % number))
    writer = BackupWriter(file, seal)
    writer.begin(INFO)
    for piece in driver.machine.parts():
        writer.add(piece)
    return driver


def read(file: File, keys: MasterKeys | None = KEYS) -> list[tuple[str, bytes]]:
    reader = BackupReader(file, lambda about: BackupSeal.found(about, keys, "keys"))
    assert reader.info == INFO and reader.sealed
    return [(key, value) for key, (value, _, _) in reader.rows()]


def records(raw: bytes) -> Iterator[bytes]:
    """The body of each."""
    at = HEAD_BYTES
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "big")
        yield raw[at + 8 : at + 8 + size]
        at += 8 + size


def forged(head: bytes, bodies: list[bytes]) -> bytes:
    """A file of these, with checksums that fit: who can write to a disk makes them, too."""
    out = head
    for number, body in enumerate(bodies):
        crc = crc32c.crc32c(body, crc32c.crc32c(head + number.to_bytes(8, "big")))
        out += struct.pack(">II", len(body), crc) + body
    return out


def opened(sim: Simulation, raw: bytes) -> File:
    file = sim.machine("m").disk("backup").open("other", create=True)
    file.truncate(0)
    file.pwritev([raw], 0)
    return file


def test_what_was_sealed_comes_back_and_nothing_of_it_is_in_clear() -> None:
    with Simulation(1) as sim:
        disk = sim.machine("m").disk("backup")
        one, two = (disk.open(name, create=True) for name in ("one", "two"))
        driver = backed_up(one, BackupSeal.new(KEYS, "keys"))
        backed_up(two, BackupSeal.new(KEYS, "keys"))
        raw = one.pread(one.size_bytes(), 0)
        assert read(one) == read(one) == [(key, value) for key, value, _ in driver.machine.under("/")]
        assert not [word for word in (b"secret", b"password", b"us-east", b"1.2.3") if word in raw]
        again = list(records(two.pread(two.size_bytes(), 0)))
        assert not set(records(raw)) & set(again), "each backup has a key of its own"


def test_any_key_of_the_file_opens_and_no_other() -> None:
    with Simulation(1) as sim:
        file = sim.machine("m").disk("backup").open("b", create=True)
        backed_up(file, BackupSeal.new(KEYS, "keys"))
        lines = {name: f"{name} {new_master_line(name).split()[1]}\n" for name in ("b", "c")}
        assert read(file, MasterKeys({"c": bytes(32), "b": KEYS.secret("b")}))
        for keys, why in (
            (None, "sealed with the key b: give the file"),
            (MasterKeys.parse(lines["c"], "keys"), "sealed with the key b, and keys has c"),
            (MasterKeys.parse(lines["b"], "keys"), "key b in keys is not the one that sealed this backup"),
        ):
            with pytest.raises(ConfigError, match=why):
                read(file, keys)
        with pytest.raises(CorruptData, match="no key is given"):
            BackupReader(file)


def test_no_record_is_taken_for_another_though_its_checksum_fits() -> None:
    with Simulation(1) as sim:
        disk = sim.machine("m").disk("backup")
        file, other = disk.open("b", create=True), disk.open("c", create=True)
        seal = BackupSeal.new(KEYS, "keys")
        backed_up(file, seal)
        backed_up(other, BackupSeal.new(KEYS, "keys"))
        raw = file.pread(file.size_bytes(), 0)
        head, bodies = raw[:HEAD_BYTES], list(records(raw))
        theirs = list(records(other.pread(other.size_bytes(), 0)))
        assert forged(head, bodies) == raw and len(bodies) > 5
        wrong = [
            forged(head[:5] + bytes([BackedUpStore.GLOBAL]) + head[6:], bodies),  # of another store
            forged(head[:6] + b"\0\1", bodies),
            forged(head, theirs[:1] + bodies[1:]),
            forged(head, [bodies[0], theirs[1], *bodies[2:]]),
            forged(head[:4] + b"\1" + head[5:], bodies),  # said to be in clear
            forged(head[:4] + b"\1" + head[5:], bodies[1:]),
            forged(head, bodies[:1]),
            forged(head, []),
        ]
        for at in range(1, len(bodies)):
            wrong.append(forged(head, bodies[:at] + bodies[at + 1 :]))  # one is gone
            wrong.append(forged(head, [*bodies[:at], theirs[at], *bodies[at + 1 :]]))  # of another backup
            wrong.append(forged(head, [*bodies[:at], bodies[at], *bodies[at:]]))  # twice
        for at in range(2, len(bodies)):
            wrong.append(forged(head, [*bodies[: at - 1], bodies[at], bodies[at - 1], *bodies[at + 1 :]]))
        rng = random.Random(1)
        for at, body in enumerate(bodies):
            place = rng.randrange(len(body))
            turned = body[:place] + bytes([body[place] ^ 1 << rng.randrange(8)]) + body[place + 1 :]
            wrong.append(forged(head, [*bodies[:at], turned, *bodies[at + 1 :]]))
        for number, each in enumerate(wrong):
            with pytest.raises((CorruptData, ConfigError)):
                read(opened(sim, each))
                pytest.fail(f"number {number} was read")
