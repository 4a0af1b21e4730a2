"""What a broker says of itself: where clients, other regions, and the region's other brokers reach it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.runtime.clock import SystemClock, system_rng
from heliograph.runtime.system_disk import SystemDisk
from region_node.faces.admin.calls.admin_context import Admin
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.process.broker_faces import BrokerFaces
from region_node.process.broker_parts import BrokerParts
from region_node.process.role_runtime import Runtime
from region_node.process.settings import BrokerSettings, ProcessSettings

PORTS = {"pulsar": 6650, "admin": 8080, "admin_tls": 8443, "link": 6660}


def record(own: BrokerSettings, **ports: int) -> BrokerRecord:
    settings = ProcessSettings(region="us", node_id="b0", bind="10.0.0.1", broker=own)
    parts = BrokerParts(settings, Runtime(SystemClock(), system_rng(), SystemDisk))
    return BrokerFaces(parts).record(PORTS | ports)


def test_brokers_are_told_another_host_than_clients() -> None:
    own = BrokerSettings(advertised_host="b0.example", inside_host="b0.pods")
    found = record(own, admin_inside=6670)
    assert found.inside_url_by(True) == "https://b0.pods:6670"
    told = [found.url(""), found.url("link-eu"), found.admin_url, found.admin_url_tls]
    assert told == [
        "pulsar://b0.example:6650",
        "pulsar://b0.example:6660",
        "http://b0.example:8080",
        "https://b0.example:8443",
    ]
    plain = record(own)
    assert (plain.inside_url_by(False), plain.inside_url_by(True)) == ("http://b0.pods:8080", "")
    assert plain.admin_url == "http://b0.example:8080"


@pytest.mark.parametrize(("advertised", "host"), [("b0.example", "b0.example"), ("", "10.0.0.1")])
def test_without_a_host_of_their_own_brokers_are_told_what_clients_are(advertised: str, host: str) -> None:
    own = BrokerSettings(advertised_host=advertised)
    assert record(own, admin_inside=6670).inside_url_by(True) == f"https://{host}:6670"
    assert record(own).inside_url_by(False) == f"http://{host}:8080"


def test_a_broker_may_be_asked_by_the_name_that_the_others_are_told() -> None:
    own = record(BrokerSettings(advertised_host="b0.example", inside_host="b0.pods"))
    context: Any = SimpleNamespace(
        region="us",
        view=SimpleNamespace(region=lambda _: None),
        ownership=SimpleNamespace(brokers=lambda: [own]),
        hosts=SimpleNamespace(names=lambda _: False),
    )
    names = ["b0.example", "b0.pods", "b1.pods"]
    assert [Admin.goes_by(context, name) for name in names] == [True, True, False]
