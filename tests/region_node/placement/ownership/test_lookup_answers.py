"""Direct mode: any broker answers where a topic is, by the listener that the client names; its data goes straight to
the owner, which sees its address.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from benchmarks.servers import free_port
from tests.region_node.one_topic import provision
from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

pulsar = pytest.importorskip("pulsar")
pytestmark = [pytest.mark.wan, pytest.mark.slow]


def test_discovery_through_any_broker_and_data_to_the_owner(tmp_path: Path) -> None:
    with Region(tmp_path) as region:
        region.start(bookies=2, brokers=0)
        ports = [free_port(), free_port()]
        for index, port in enumerate(
            ports
        ):  # by another name of this host, as an address outside of a private network would be
            region.broker(index, port=port, listeners={"outside": f"pulsar://localhost:{port}"})
        for index in range(2):
            region.processes[f"us-broker-{index}"].wait_ready()
        rest = provision(region)
        lookup = "/lookup/v2/topic/persistent/public/default/t"
        owner = next(i for i in range(2) if rest("GET", lookup)[1]["brokerUrl"] == region.service_url(i))
        named = rest("GET", f"{lookup}?listenerName=outside")[1]["brokerUrl"]
        assert named == f"pulsar://localhost:{ports[owner]}"
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(
            region.service_url(1 - owner), listener_name="outside", logger=quiet
        )  # asked where the topic is not
        stranger = pulsar.Client(
            region.service_url(owner), listener_name="nowhere", logger=quiet, operation_timeout_seconds=3
        )
        try:
            consumer = client.subscribe("t", "s")
            client.create_producer("t").send(b"straight")
            assert consumer.receive(timeout_millis=60_000).data() == b"straight"
            stats = Rest(region.admin_url(owner))("GET", "/admin/v2/persistent/public/default/t/stats")[1]
            (seen,) = stats["publishers"]
            mine = [
                c
                for c in psutil.Process().net_connections("tcp")
                if c.raddr and c.raddr.port == ports[owner] and c.status == psutil.CONN_ESTABLISHED
            ]
            assert seen["address"] in [
                f"/{c.laddr.ip}:{c.laddr.port}" for c in mine
            ]  # the client's own socket, with nobody between
            with pytest.raises(pulsar.PulsarException):  # this client tries again until its time-out
                stranger.create_producer("t")
        finally:
            client.close()
            stranger.close()
