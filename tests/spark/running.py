"""What tests that run jobs over a real region have in common: messages, a job until it is done, and a micro-batch that comes twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pulsar

from heliograph.spark.driver import start_query
from heliograph.spark.job import Query
from tests.live import until

NAMESPACE = "persistent://public/default"


def publish(client: pulsar.Client, topic: str, bodies: Sequence[str], **how: Any) -> None:
    producer = client.create_producer(f"{NAMESPACE}/{topic}", batching_enabled=True, batching_max_messages=20)
    for body in bodies:
        producer.send_async(body.encode(), None, **how)
    producer.flush()
    producer.close()


def run(spark: Any, job: str, admin_url: str, *options: dict[str, Any], timeout_s: float = 180) -> None:
    """Queries of a shipped job, one for each of `options`, all at once, until all are done; as a driver does. Raises what one of them fails with."""
    going = []
    try:
        for number, each in enumerate(options):
            query = Query(name=f"{job}{number or ''}", kind="start", start=f"heliograph.spark.jobs.{job}:start", options=each)
            going.append(start_query(spark, {"admin_url": admin_url}, query))

        def done() -> bool:
            for queries in going:
                queries.look()
                for stream in queries.streams:
                    if not stream.isActive and (error := stream.exception()) is not None:
                        raise error
            return not any(queries.busy or any(stream.isActive for stream in queries.streams) for queries in going)

        until(done, timeout_s)
    finally:
        for queries in going:
            for stream in queries.streams:
                stream.stop()
            queries.close()


def forget(state: Path) -> None:
    """As if the driver had died before Spark wrote that its last micro-batch was done."""
    newest = max((path for path in (state / "commits").iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
