"""Fixtures of tests against a real region, one region for each module: its admin interface, and the official client.

A module that wants another region than one broker with two bookies makes its own `region`. Modules marked `either` get
a real Apache Pulsar from `make oracle`, the same one in all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.broken_rules import BrokenRules
from tests.region_node.either import ORACLE, Either, either, oracle
from tests.region_node.rest_client import Rest
from tests.worker_ports import take_own_ports

take_own_ports()

settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")  # the same examples each time, however slow the machine is


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> BrokenRules:
    return BrokenRules(monkeypatch)


@pytest.fixture(scope="session")
def pulsar_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Either | None]:
    """The real Pulsar; None: Heliograph is asked."""
    if not ORACLE:
        yield None
        return
    with oracle(tmp_path_factory.mktemp("oracle")) as server:
        yield server


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory, pulsar_server: Either | None) -> Iterator[Any]:
    with either(tmp_path_factory.mktemp("region"), pulsar_server) as server:
        yield server


@pytest.fixture(scope="module")
def rest(region: Any) -> Rest:
    return Rest(region.admin_url())


@pytest.fixture(scope="module")
def cluster(rest: Rest) -> str:
    """What the server that is asked calls itself."""
    return str(next(name for name in rest("GET", "/admin/v2/clusters")[1] if name != "global"))


@pytest.fixture(scope="module")
def client(region: Any) -> Iterator[Any]:
    """Its requests have a minute, on a machine that does other things too."""
    pulsar = pytest.importorskip("pulsar")
    made = pulsar.Client(
        region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=60
    )
    yield made
    with contextlib.suppress(
        pulsar.AlreadyClosed
    ):  # of a producer whose topic was terminated, it depends on what the client heard
        made.close()
