"""What is counted of appends: buckets that add up, a slow one in its own, and nothing of a topic that nobody appends
to.
"""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from geo_tests.sim.simulation import SimClock, Simulation
from heliograph.model.errors import LedgerFenced
from heliograph.runtime.recent_latencies import Recent
from heliograph.wire.run import Run
from region_node.metrics import storage_metrics
from region_node.runtime import prometheus_text
from storage.managed_ledger.append_counts import LATENCIES_S, NAMESPACES_MAX, OTHERS, SIZES, AppendCounts, Appends
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, run_of, until


def shown(appends: Appends, now: float = 0.0) -> dict[str, float]:
    text = (
        "".join(storage_metrics.pieces("us", appends, now))
        + prometheus_text.render(storage_metrics.samples("us", appends, now)).decode()
    )
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    assert len({labels for labels, _, _ in rows}) == len(rows), "no series comes twice"
    return {labels: float(value) for labels, _, value in rows}


@pytest.mark.parametrize("seed", range(20))
def test_buckets_add_up_to_the_count(seed: int) -> None:
    rng, counts = random.Random(seed), AppendCounts(Recent())
    runs = [
        (
            rng.randrange(1, 600),
            rng.randrange(1, 1 << rng.randrange(1, 24)),
            rng.expovariate(1 / rng.choice((0.0004, 0.01, 2))),
        )
        for _ in range(200)
    ]
    for entries, size, took_s in runs:
        counts.confirmed(entries, size, 2, took_s)
    count = sum(entries for entries, _, _ in runs)
    assert counts.entries == count == sum(counts.latencies) == sum(counts.sizes)
    assert counts.copied_bytes == 2 * counts.size_bytes == 2 * sum(size for _, size, _ in runs)
    assert counts.sum_s == pytest.approx(sum(entries * took_s for entries, _, took_s in runs))
    for bucket, (low, high) in enumerate(zip((-1.0, *LATENCIES_S), (*LATENCIES_S, float("inf")), strict=True)):
        assert counts.latencies[bucket] == sum(entries for entries, _, took_s in runs if low < took_s <= high)
    for bucket, (low, high) in enumerate(zip((-1.0, *SIZES), (*SIZES, float("inf")), strict=True)):
        assert counts.sizes[bucket] == sum(entries for entries, size, _ in runs if low < size / entries <= high)


def test_an_append_is_measured_by_a_clock_that_is_finer_than_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop's time counts whole milliseconds: to it an append of 0.7 ms takes 0 or 1."""

    async def main(sim: Simulation) -> None:
        region = Region(sim, delay_s=0.0002)
        await region.start()
        broker = Broker(region)
        ledger = await broker.open()
        broker.append(ledger, "opens the ledger")
        await until(lambda: len(broker.done) == 1)
        fine, recent = sim.loop.time, broker.factory.appends.newest
        monkeypatch.setattr(SimClock, "monotonic", lambda _: fine())
        monkeypatch.setattr(sim.loop, "time", lambda: fine() // 0.001 / 1000)
        took: list[float] = []
        for number in range(1, 31):
            began = fine()
            ledger.append_run(
                run_of(f"n{number}"), lambda *_, began=began: took.append(fine() - began), lambda error: None
            )
            await until(lambda number=number: len(took) == number)
        assert recent.since(1) == pytest.approx(took, abs=1e-6) and any(
            0.00001 < each % 0.001 < 0.00099 for each in took
        )
        broker.factory.abandon()

    with Simulation(7) as sim:
        sim.run(main(sim), limit_s=60)


def test_appends_land_in_the_bucket_of_their_latency_and_size() -> None:
    async def main(sim: Simulation) -> None:
        region = Region(sim, delay_s=0.0001)
        await region.start()
        broker = Broker(region)
        ledger = await broker.open()
        appends = broker.factory.appends
        assert appends.namespaces == {} and "".join(storage_metrics.pieces("us", appends, 0.0)) == "", (
            "nothing was appended yet"
        )
        took: list[float] = []

        async def append(run: Run) -> None:
            began = sim.loop.time()
            ledger.append_run(run, lambda *_: took.append(sim.loop.time() - began), lambda error: None)
            before = len(took)
            await until(lambda: len(took) > before)

        await append(run_of("first"))
        for bookie in region.bookies.values():
            bookie.delay_s = 0.35
        await append(run_of("slow", "slower", pad=700))
        counts = appends.namespaces["public/default"]
        assert 0.2 < took[1] <= 1.0 and took[0] < 0.2, "the test's own premise"
        assert (
            counts.latencies[bisect_left(LATENCIES_S, took[0])] == 1
            and counts.latencies[8] == 2
            and sum(counts.latencies) == 3
        )
        assert counts.sum_s == pytest.approx(took[0] + 2 * took[1]) and appends.newest.sum == pytest.approx(sum(took))
        assert counts.sizes == [1, 0, 2, 0, 0, 0, 0, 0, 0] and sum(counts.switches) == 1
        rows = shown(appends, 2.0)
        here = 'cluster="us",namespace="public/default"'
        assert (
            rows[f"pulsar_storage_write_latency_le_1000{{{here}}}"]
            == 2
            == rows[f'pulsar_ml_AddEntryLatencyBuckets{{{here},quantile="200.0_1000.0"}}']
        )
        assert (
            rows[f"pulsar_storage_write_latency_count{{{here}}}"] == 3 == rows[f"pulsar_ml_AddEntrySucceed{{{here}}}"]
        )
        assert rows[f"pulsar_storage_write_latency_sum{{{here}}}"] == pytest.approx(1000 * counts.sum_s)
        assert (
            rows[f"pulsar_entry_size_le_1_kb{{{here}}}"]
            == 2
            == rows[f'pulsar_ml_EntrySizeBuckets{{{here},quantile="512.0_1024.0"}}']
        )
        assert rows[f"pulsar_entry_size_sum{{{here}}}"] == 1405
        assert rows[f"pulsar_ml_AddEntryBytesRate{{{here}}}"] == pytest.approx(1405 / 2)
        assert rows[f"pulsar_ml_AddEntryWithReplicasBytesRate{{{here}}}"] == pytest.approx(1405)
        assert rows['pulsar_broker_storage_write_rate{cluster="us"}'] == pytest.approx(1.5)
        assert rows['pulsar_broker_publish_latency_count{cluster="us"}'] == 2, "runs"
        assert rows['pulsar_broker_publish_latency{cluster="us",quantile="0.99"}'] == pytest.approx(1000 * took[1])
        for bookie in region.bookies.values():
            bookie.crash()
        broker.append(ledger, "lost", "too")
        ledger.abandon(LedgerFenced("another broker has it"))
        assert len(broker.failed) == 2
        assert counts.errors == 2 and counts.entries == 3
        broker.factory.abandon()

    with Simulation(1) as sim:
        sim.run(main(sim), limit_s=600)


def test_a_cursor_counts_its_holes_and_how_often_it_was_stored() -> None:
    async def main(sim: Simulation) -> None:
        region = Region(sim)
        await region.start()
        broker = Broker(region)
        ledger = await broker.open()
        broker.append(ledger, *(f"e{number}" for number in range(10)))
        await until(lambda: len(broker.done) == 10)
        at = ledger.last_confirmed[0]
        cursor, idle = [await ledger.open_cursor(name, (-1, -1)) for name in ("c", "idle")]
        await cursor.flushed()
        stored = cursor.writes
        cursor.ack([(at, 3), (at, 4), (at, 8)])
        assert cursor.holes == 2 and idle.holes == 0
        await cursor.flushed()
        assert (cursor.writes, cursor.write_errors) == (stored + 1, 0)
        cursor.ack_cumulative((at, 2))
        assert cursor.holes == 1, "3 and 4 are no hole any more"
        await cursor.flushed()
        assert cursor.writes == stored + 2 and idle.writes <= stored
        await broker.factory.close()

    with Simulation(2) as sim:
        sim.run(main(sim), limit_s=600)


def test_only_so_many_namespaces_are_counted_apart() -> None:
    appends = Appends()
    for number in range(NAMESPACES_MAX + 5):
        appends.of(f"persistent://t/n{number}/a/b").confirmed(1, 1, 1, 0.0)
    assert len(appends.namespaces) == NAMESPACES_MAX + 1 and appends.namespaces[OTHERS].entries == 5
    assert (
        appends.of(TOPIC) is appends.namespaces[OTHERS]
        and appends.of("persistent://t/n7/c") is appends.namespaces["t/n7"]
    )


def test_a_ring_keeps_the_newest() -> None:
    recent = Recent()
    assert recent.quantiles((0.5,)) == []
    for value in range(2000):
        recent.add(float(value))
    assert recent.quantiles((0, 0.5, 1)) == [1488, 1744, 1999] and recent.count == 2000 and recent.sum == 1999000
