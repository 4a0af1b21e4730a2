"""Damage: one stored entry with other content, as a test puts it into one region's copy.

Is: values. Isn't: where it is written (`geo_tests.sim.auditing`, `tests/replicator/audit/audit_world.py`).
"""

from __future__ import annotations

import random
from typing import Any

import crc32c

from heliograph.wire.run import Run
from replicator.log.replicated_entries import published_checksums

MAGIC_AND_CHECKSUM = 6


def with_part(run: Run, part: bytes, checksums: Any) -> Run:
    """The same entry with other bytes."""
    return Run(
        [part],
        [len(part)],
        counts=run.counts,
        flags=run.flags,
        time_ms=run.time_ms,
        first_index=run.first_index,
        origin=run.origin,
        spans=run.spans,
        origin_time_ms=run.origin_time_ms,
        checksums=checksums,
        producers=run.producers,
    )


def flipped(run: Run, rng: random.Random, *, consistent: bool) -> Run:
    """A run of one entry with one bit of its payload flipped. consistent: the entry's checksum and the run's header
    agree with it all the same.
    """
    part = bytearray(run.parts[0])
    part[-1 - rng.randrange(4)] ^= 1 << rng.randrange(8)
    checksums: Any = run.checksums
    if consistent:
        part[2:MAGIC_AND_CHECKSUM] = crc32c.crc32c(bytes(part[MAGIC_AND_CHECKSUM:])).to_bytes(4, "big")
        if run.origin is not None:
            checksums = published_checksums(with_part(run, bytes(part), None))
    return with_part(run, bytes(part), checksums)
