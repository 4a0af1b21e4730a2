"""Transactions of a region in tests of links: publishing in one, and what a consumer sees."""

from __future__ import annotations

from heliograph.wire.run import FLAG_HIDDEN, FLAG_MARKER, Run, TxnId
from replicator.log.transaction_buffer import below
from tests.replicator.link_instance import TestRegion
from tests.replicator.link_world import entry


def publish(region: TestRegion, txn: TxnId | None, count: int = 1) -> list[int]:
    """Payloads."""
    producer, first = f"{region.name}-producer", region.sequence
    bodies = [region.info.number * 1_000_000 + first + i for i in range(count)]
    parts = [entry(body, producer, first + i) for i, body in enumerate(bodies)]
    region.sequence += count
    append(region, Run(parts, [len(p) for p in parts], producers=((producer, count, first, None),), transaction=txn))
    return bodies


def append(region: TestRegion, run: Run) -> None:
    region.brokers[region.owner].machine.run(
        region.log.publish, run, lambda _: None, lambda error: region.faults.append(repr(error))
    )


def shown(region: TestRegion) -> list[int]:
    """What a consumer of the region sees."""
    buffer, pieces = region.log.state.transactions, list(region.store.runs())
    if buffer is not None:
        end = buffer.undecided_from()
        pieces = buffer.committed_view(pieces if end is None else below(pieces, end))
    return [
        int.from_bytes(bytes(part)[-8:], "big")
        for _, _, run in pieces
        for at, part in enumerate(run.parts)
        if run.flags is None or not run.flags[at] & (FLAG_HIDDEN | FLAG_MARKER)
    ]
