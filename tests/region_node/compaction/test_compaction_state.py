"""What is said of a topic's compaction: before the first one, after it, and of what its entries took."""

from __future__ import annotations

from typing import Any, cast

import pytest

from heliograph.model.ledger_metadata import OffloadRecord, OffloadState
from region_node.compaction.compacted_view import Compacted, CompactedView
from region_node.compaction.compaction_state import TopicCompaction, WriteLatencies
from storage.managed_ledger.append_counts import LATENCIES_S


class View:
    """Only what is there."""

    def __init__(self, compacted: Compacted | None) -> None:
        self.compacted = compacted


def state(offload: OffloadState | None = None, *, there: bool = True) -> TopicCompaction:
    record = None if offload is None else OffloadRecord("00" * 16, "us-1", offload)
    found = Compacted(7, 30, 6000, (5, 9), offload=record) if there else None
    return TopicCompaction(cast("CompactedView", View(found)))


def test_a_topic_that_was_never_compacted_has_no_numbers() -> None:
    made = state(there=False)
    none: dict[str, Any] = {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False}
    assert made.ledger_stats() == none and set(made.stats().values()) == {0} and made.status == "NOT_RUN"
    assert set(made.numbers()) == {0}


@pytest.mark.parametrize("offload", (None, *OffloadState))
def test_its_ledger_is_called_offloaded_where_the_object_alone_is_left(offload: OffloadState | None) -> None:
    told = state(offload).ledger_stats()
    assert (told["ledgerId"], told["entries"], told["size"]) == (7, 30, 6000)
    assert told["offloaded"] == (offload == OffloadState.LOCAL_GONE)


def test_rates_are_those_of_a_run_that_succeeded() -> None:
    made = state()
    made.bytes_read, made.duration_ms, made.removed, made.succeeded = 90_000, 1500, 70, 2
    for status in ("RUNNING", "ERROR"):
        made.status = status
        assert made.numbers()[:8] == [70, 2, 0, 1500, 0.0, 0.0, 30, 6000]
    made.status = "SUCCESS"
    assert made.numbers()[:8] == [70, 2, 0, 1500, 60_000.0, 4000.0, 30, 6000]
    made.duration_ms = 0
    assert made.numbers()[4:6] == [0.0, 0.0], "it took no time"
    made.succeeded_ms, made.failed_ms = 11, 22
    assert list(made.stats().values()) == [70, 11, 22, 0]


def test_an_entry_counts_within_the_first_bound_that_it_keeps() -> None:
    made = WriteLatencies()
    made.add(LATENCIES_S[0], 3)
    made.add(LATENCIES_S[0] * 1.01, 2)
    made.add(LATENCIES_S[-1] * 2, 1)
    found = made.numbers()
    assert found[:2] == [3, 2] and found[len(LATENCIES_S)] == 1 and found[-2] == 6
    taken_s = 3 * LATENCIES_S[0] + 2 * LATENCIES_S[0] * 1.01 + LATENCIES_S[-1] * 2
    assert found[-1] == pytest.approx(taken_s * 1000)
