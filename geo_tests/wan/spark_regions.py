"""Whole regions killed in the middle of micro-batches of a Spark job, one and the other in turn; the job goes on in the
other one from its checkpoint.

Is: `make soak-spark REGIONS=24`. Isn't: deaths of single processes, or what a job is (`spark_kills`).
How: messages are published in both regions and replicated; the job reads them in small micro-batches in one of them,
and writes them with Spark's file sink, our own (`portable`), and the ETL. At a moment that the seed picks all processes
of that region die at once, and with them, or a little later, all of Spark. The job then starts in the other region, and
has to bring out everything once, before the dead region comes back. At the end the same topics are read by a job that
nothing happens to, and both outputs are compared.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from geo_tests.wan.instance import Instance, eventually
from geo_tests.wan.spark_kills import Job
from geo_tests.wan.spark_sinks import verdict
from heliograph.client.block_reader import BlockReader
from heliograph.model.errors import HeliographError
from heliograph.spark.scan.offsets import end
from region_node.instance.control import STARTED_S, call
from tests.heliograph.spark.running import PATIENT

REGIONS, SINKS = ("us", "eu"), ("files", "portable", "tables")
_SOURCE = "tasks_min = 2, max_bytes_per_trigger = 20000"
"""About a tenth of what is published at once."""
_AT_REST_S = 10.0
"""How long two micro-batches under way are waited for: a job that has read everything has none, and its region dies at
rest.
"""


def soak(kills: int, seed: int, until: float, say: Callable[[str], Any]) -> dict[str, Any]:
    """What happened. until: no region is killed after that. Raises AssertionError where an output is not what it should
    be.
    """
    from heliograph.spark import session

    rng, published, in_batch, killed, twice = random.Random(seed), list[str](), Counter[str](), 0, 0
    topics = [f"persistent://public/geo/regions-in-{n}" for n in range(2)]
    targets = [f"persistent://public/geo/{name}-out" for name in ("regions", "undisturbed")]
    with tempfile.TemporaryDirectory(prefix="heliograph-regions-") as folder:
        instance, job = Instance(Path(folder) / "data", regions=REGIONS, wan="none"), None
        try:
            instance.namespace("public/geo", list(REGIONS))
            clients, (here, there) = {region: instance.client(region) for region in REGIONS}, REGIONS
            for region in REGIONS:
                for target in targets:
                    clients[region].create_producer(target).close()
            spark = session("verdict")
            while killed < kills and time.monotonic() < until:
                for client in clients.values():
                    published += _publish(client, topics, len(published), rng.randint(1000, 1600))
                eventually(lambda: _same(instance, topics), "both regions have what was published", 240)
                job = job or Job(
                    instance, Path(folder) / "job", "regions", SINKS, region=here, sources=topics, source=_SOURCE
                )
                within = _kill(instance, job, rng)
                killed += 1
                in_batch.update(within)
                job = Job(
                    instance,
                    Path(folder) / "job",
                    "regions",
                    SINKS,
                    region=there,
                    sources=topics,
                    source=_SOURCE,
                    twice=job.twice,
                )
                verdict(job, published, spark)
                for name in _processes(instance, here):
                    call(instance.data, "start", process=name, timeout_s=STARTED_S)
                eventually(lambda: _same(instance, [*topics, *targets]), f"{here} is back", 240)
                job.twice = Counter(instance.read_all(there, job.target)) - Counter(published)
                say(
                    f"{time.strftime('%H:%M:%S')} killed {here} in the middle of {within}; it brought "
                    f"{job.twice.total() - twice} again"
                )
                here, there, twice = there, here, job.twice.total()
            assert job is not None and job.stop() == 0
            verdict(job, published, spark)
            with Job(
                instance, Path(folder) / "undisturbed", "undisturbed", SINKS, region=here, sources=topics
            ) as undisturbed:
                verdict(undisturbed, published, spark)
            assert _rows(job) == _rows(undisturbed), "every column is what it is in a run that nothing happened to"
        finally:
            if job is not None and job.process.poll() is None:
                job.end()
            instance.down()
    return {
        "regions": killed,
        "seed": seed,
        "published": len(published),
        "lost": 0,
        "duplicated": 0,
        "in_batch": dict(in_batch),
        "again": twice,
    }


def _publish(client: Any, topics: Sequence[str], first: int, count: int) -> list[str]:
    """So many in each, with bodies that nobody else has."""
    made = list[str]()
    for topic in topics:
        producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=20, **PATIENT)
        for _ in range(count):
            number = first + len(made)
            made.append(f'{{"n": {number}}}')
            producer.send_async(
                made[-1].encode(),
                None,
                partition_key=f"k{number % 7}",
                properties={"n": str(number)},
                event_timestamp=1 + number,
            )
        producer.flush()
        producer.close()
    return made


def _kill(instance: Instance, job: Job, rng: random.Random) -> list[str]:
    """The region that the job reads, and the job. Returns the sinks in the middle of a micro-batch."""
    pause, wanted = threading.Event(), job.batches() + rng.randint(1, 3)
    eventually(
        lambda: job.process.poll() is not None or job.batches() >= wanted,
        f"micro-batches before {job.region} is killed",
        600,
    )
    assert job.process.poll() is None, job.log()[-3000:]
    pause.wait(rng.random() * job.slowest_s())
    deadline = time.monotonic() + _AT_REST_S
    while len(job.under_way()) < 2 and time.monotonic() < deadline:
        pause.wait(0.05)
    for name in _processes(instance, job.region):
        call(instance.data, "kill", process=name)
    pause.wait(rng.choice((0.0, 0.0, 5 * rng.random())))  # Spark may live to see it
    job.end()
    return job.under_way()


def _processes(instance: Instance, region: str) -> list[str]:
    return [row["name"] for row in instance.status()["regions"][region]["processes"]]


def _same(instance: Instance, topics: Sequence[str]) -> bool:
    """Whether all regions have the same messages of all topics, by their vectors."""
    found = []
    for region in REGIONS:
        reader = BlockReader(instance.admin(region))
        try:
            last = {topic: end(snapshot) for topic, snapshot in reader.snapshots(topics).items()}
            found.append(reader.vectors({topic: (at[0], at[1] - 1) for topic, at in last.items()}))
        except HeliographError:  # it is on its way up
            return False
        finally:
            reader.close()
    return all(set(each) == set(topics) and each == found[0] for each in found)


def _rows(job: Job) -> list[str]:
    """Of the ETL's table, each with all its columns."""
    found = [str(path) for path in (job.folder / "tables" / "all").glob("batch=*/*.parquet")]
    return sorted(map(str, ds.dataset(found).to_table().to_pylist()))
