"""Sealing for tests: master keys as a value, over a configuration in memory."""

from __future__ import annotations

import random
from collections.abc import Callable

import crc32c

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.runtime.clock import CautiousClock, Clock
from heliograph.wire.block import _HEAD
from heliograph.wire.run import Buffer
from storage.sealing.keyring import MasterKeys, new_master_line
from storage.sealing.sealing import Sealing
from tests.storage.managed_ledger.world import Region

HEAD_BYTES = _HEAD.size
ONE, TWO = new_master_line("one"), new_master_line("two")


class Masters:
    """A MasterSource. text: of a file; "": none is set."""

    named = "the test"

    def __init__(self, text: str = ONE) -> None:
        self.text = text

    def read(self) -> MasterKeys | None:
        return MasterKeys.parse(self.text, self.named) if self.text else None


class Config:
    """The global configuration, which outlives brokers."""

    def __init__(self) -> None:
        self.machine = KvMachine()

    def store(self) -> EmbeddedStore:
        return EmbeddedStore(self.machine)

    async def sealing(
        self,
        region: Region,
        masters: Masters | None = None,
        *,
        wanted: bool = True,
        clock: Clock | None = None,
        heard: Callable[[], list[float]] = list,
    ) -> Sealing:
        """A broker starts now. heard: as of a CautiousClock."""
        expiry = CautiousClock(clock or region.sim.clock(), heard)
        made = Sealing(self.store(), "us", masters or Masters(), expiry, random.Random(region.rng.getrandbits(32)))
        made.wanted = lambda topic: wanted
        await made.start()
        return made


def leaks(region: Region, word: str) -> bool:
    """Whether any bookie holds it."""
    return any(
        word.encode() in block
        for bookie in region.bookies.values()
        for held in bookie.ledgers.values()
        for _, block in held.blocks.values()
    )


def forged(block: Buffer, **fields: int) -> bytes:
    """The block with other numbers in its head, and with the checksum that belongs to them."""
    names = ["version", "columns", "count", "size", "header", "checksum", "ledger", "first", "time_ms", "first_index"]
    head = dict(zip(names, _HEAD.unpack_from(block), strict=True)) | fields
    return summed(_HEAD.pack(*head.values()) + bytes(block[HEAD_BYTES:]))


def summed(block: bytes) -> bytes:
    checksum = crc32c.crc32c(block[16:], crc32c.crc32c(block[:12]))
    return block[:12] + checksum.to_bytes(4, "big") + block[16:]
