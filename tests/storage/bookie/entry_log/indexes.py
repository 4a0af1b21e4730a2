"""Indexes of entry logs that no disk has."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from storage.bookie.entry_log.log_index import LogIndex


def index_of(ledgers: Mapping[int, Sequence[tuple[int, int, int]]], begin: int = 16) -> LogIndex:
    """ledgers: (first entry, count, bytes) of each block, by ledger."""
    runs = [run for ledger in sorted(ledgers) for run in ledgers[ledger]]
    firsts, counts, sizes = (array(code, [run[at] for run in runs]) for at, code in enumerate("qHI"))
    groups = array("Q", sorted(ledgers))
    run_counts = array("I", [len(ledgers[ledger]) for ledger in groups])
    return LogIndex(
        (groups, run_counts, firsts, sizes, counts), array("q", [-1] * len(groups)), bytes(len(groups)), begin
    )
