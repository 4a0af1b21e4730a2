"""Instances that tests share: one of two regions for all, one of three for each module that asks; each test takes its
own namespace or topic.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from geo_tests.wan.disaster import stopped_pids
from geo_tests.wan.instance import Instance
from tests.region_node.region_processes import Region
from tests.worker_ports import take_own_ports

take_own_ports()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.wan)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Regions us (two brokers) and eu, 20 ms apart, namespace public/geo replicated between them, a folder as their
    object store.
    """
    folder = tmp_path_factory.mktemp("pair")
    (folder / "wan.json").write_text(json.dumps({"us-eu": {"rtt_ms": 20, "jitter_ms": 4}}))
    tiered = {"HELIOGRAPH_BROKER__TIERED__STORE": f"file://{folder}/objects", "HELIOGRAPH_BROKER__TIERED__TICK_S": "1"}
    instance = Instance(
        folder / "data",
        regions=("us", "eu"),
        wan=str(folder / "wan.json"),
        brokers="us=2,eu=1",
        bookies=3,
        environment=tiered,
    )
    try:
        instance.namespace("public/geo", ["us", "eu"])
        yield instance
    finally:
        instance.down()


@pytest.fixture(scope="session")
def kafka_region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    """One region that speaks Kafka's protocol, with one broker; each test takes its own topics and groups."""
    from geo_tests.wan.kafka_support import prepare

    with Region(tmp_path_factory.mktemp("kafka")) as made:
        prepare(made)
        yield made


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Three regions, so that two of them are a majority without the third."""
    folder = tmp_path_factory.mktemp("trio")
    near = {"rtt_ms": 10, "jitter_ms": 1}
    (folder / "wan.json").write_text(json.dumps({"us-eu": near, "us-ap": near, "eu-ap": near}))
    drills = {  # another test may take the machine's processors in the middle of one
        "HELIOGRAPH_BROKER__DRILL__LATENCY_BEFORE_S": "5",
        "HELIOGRAPH_BROKER__DRILL__LATENCY_MORE_MS_MAX": "10000",
    }
    instance = Instance(folder / "data", regions=("us", "eu", "ap"), wan=str(folder / "wan.json"), environment=drills)
    try:
        yield instance
    finally:
        for pid in stopped_pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        instance.down()
