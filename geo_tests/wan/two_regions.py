"""An instance of two regions, and the loss of one of them with its vote, as tests with and without a witness share it.

Is: the instance, what is published in it, and ending and starting all processes of a region. Isn't: a test, or a
command of disaster recovery (disaster.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from geo_tests.wan.disaster import active_passive
from geo_tests.wan.instance import Instance, eventually
from region_node.instance.control import STARTED_S, call
from region_node.instance.launch import alive

NAMESPACE, TOPIC = "public/two", "persistent://public/two/orders"


@contextmanager
def two_regions(data: Path, *, witness: str = "") -> Iterator[Instance]:
    """us and eu, and the witness, if one is named; nothing of it runs behind that."""
    made = Instance(data, regions=("us", "eu"), wan="none", witness=witness)
    pids = made.pids()
    try:
        yield made
    finally:
        made.down()
    assert not [pid for pid in pids if alive(pid)]


def publish(instance: Instance, region: str, bodies: list[str]) -> None:
    producer = instance.client(region).create_producer(TOPIC, batching_enabled=False)
    for body in bodies:
        producer.send(body.encode())
    producer.close()


def published_in_us(instance: Instance) -> list[str]:
    """Makes the namespace active in us, and returns what was published there, of which eu has a copy."""
    active_passive(instance, NAMESPACE, "us")
    bodies = [f"us-{n}" for n in range(20)]
    publish(instance, "us", bodies)
    eventually(lambda: instance.read_all("eu", TOPIC) == bodies, "eu has a copy")
    return bodies


def kill_all(instance: Instance, region: str) -> list[str]:
    """The names of the processes of the region, which have ended."""
    names = [row["name"] for row in instance.status()["regions"][region]["processes"]]
    for name in names:
        call(instance.data, "kill", process=name)
    return names


def start_all(instance: Instance, names: list[str]) -> None:
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: call(instance.data, "start", timeout_s=STARTED_S, process=name), names))
