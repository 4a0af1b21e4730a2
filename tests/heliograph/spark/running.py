"""What tests that run jobs over a real region have in common: messages, streams that begin, a job until it is done, and
a micro-batch that comes twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pulsar

from heliograph.spark.driver import start_query
from heliograph.spark.job_files.job_file import Query
from heliograph.spark.job_files.running_queries import initializing
from tests.region_node.live import until

NAMESPACE = "persistent://public/default"
PATIENT: dict[str, Any] = {"send_timeout_millis": 0, "block_if_queue_full": True}
"""Of a producer that waits, however long a broker takes on a busy machine."""
_STARTS = 6


def publish(client: pulsar.Client, topic: str, bodies: Sequence[str], **how: Any) -> None:
    producer = client.create_producer(
        f"{NAMESPACE}/{topic}", batching_enabled=True, batching_max_messages=20, **PATIENT
    )
    for body in bodies:
        producer.send_async(body.encode(), None, **how)
    producer.flush()
    producer.close()


def _late(error: Exception | None) -> bool:
    """Whether Spark gave up on a stream's Python process: it waits 10 s, whatever else the machine has to do. The
    driver starts such a query again.
    """
    return error is not None and "failed to connect back" in str(error)


def started(start: Callable[[], Any]) -> Any:
    """What `start` gives, a stream or several, once their Python processes are there. It is called again, on the same
    checkpoints, where one came too late.
    """
    for left in reversed(range(_STARTS)):
        made = start()
        streams = made if isinstance(made, list) else [made]
        until(lambda streams=streams: not initializing(streams), 300)
        if not left or not any(_late(stream.exception()) for stream in streams if not stream.isActive):
            break
        for stream in streams:
            stream.stop()
    return made


def run(spark: Any, job: str, admin_url: str, *options: dict[str, Any], timeout_s: float = 400) -> None:
    """Queries of a shipped job, one for each of `options`, all at once, until all are done; as a driver does. Raises
    what one of them fails with.
    """
    for left in reversed(range(_STARTS)):
        try:
            _run(spark, job, admin_url, options, timeout_s)
            return
        except Exception as error:
            if not left or not _late(error):
                raise


def _run(spark: Any, job: str, admin_url: str, options: Sequence[dict[str, Any]], timeout_s: float) -> None:
    going = []
    try:
        for number, each in enumerate(options):
            query = Query(
                name=f"{job}{number or ''}", kind="start", start=f"heliograph.spark.jobs.{job}:start", options=each
            )
            going.append(start_query(spark, {"admin_url": admin_url}, query))

        def done() -> bool:
            for queries in going:
                queries.look()
            ended = not any(queries.busy or any(stream.isActive for stream in queries.streams) for queries in going)
            for stream in (
                stream for queries in going for stream in queries.streams
            ):  # behind it: what has ended is told
                if not stream.isActive and (error := stream.exception()) is not None:
                    raise error
            return ended

        until(done, timeout_s)
    finally:
        for queries in going:
            for stream in queries.streams:
                stream.stop()
            queries.close()


def forget(state: Path) -> None:
    """As if the driver had died before Spark wrote that its last micro-batch was done."""
    newest = max(
        (path for path in (state / "commits").iterdir() if path.name.isdecimal()), key=lambda path: int(path.name)
    )
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
