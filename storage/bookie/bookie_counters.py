"""BookieCounts: what a bookie has done since its start, for its metrics.

Is: numbers. Isn't: state that anything depends on, or the reading of them (`region_node.bookie.http_face`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.runtime.recent_latencies import Recent


@dataclass(slots=True)
class BookieCounts:
    added: int = 0
    """Entries that were taken, to be journalled."""
    refused: int = 0
    """Entries of adds that were not."""
    added_bytes: int = 0
    reads: int = 0
    """Reads that were answered with something."""
    failed_reads: int = 0
    """Reads that met a bad block or a failing disk. (That there is no such entry is an answer too, but neither.)"""
    read_bytes: int = 0
    records: int = 0
    """Journal records that were made durable, over all journals of the bookie."""
    failed_records: int = 0
    throttled: int = 0
    """How often a connection was read no further, as the bookie had its bound."""
    adds_ms: Recent = field(default_factory=Recent)
    """From the loop pass that received them until they are durable, a record of a journal each; nothing where the
    bookie has no clock.
    """
    reads_ms: Recent = field(default_factory=Recent)
    """Until their last part was handed to the connection."""
    failed_reads_ms: Recent = field(default_factory=Recent)
    deleted: int = 0
    """Ledgers that brokers, or garbage collection, gave up."""
