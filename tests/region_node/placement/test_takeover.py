"""A region of two brokers under the official client: one is killed, one is told to end, and nothing that was
acknowledged is lost.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.servers import free_port
from tests.region_node.live import until
from tests.region_node.one_topic import LOOKUP, TOPIC, provision, read_all
from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

pulsar = pytest.importorskip("pulsar")
pytestmark = [pytest.mark.wan, pytest.mark.slow]


@pytest.mark.parametrize("how", ["kill", "drain"])
def test_the_other_broker_takes_over(tmp_path: Path, how: str) -> None:
    with Region(tmp_path) as region:
        region.start(bookies=2, brokers=2)
        provision(region)
        owner = next(
            i for i in range(2) if Rest(region.admin_url())("GET", LOOKUP)[1]["brokerUrl"] == region.service_url(i)
        )
        left = 1 - owner
        client = pulsar.Client(
            f"{region.service_url(0)},{region.service_url(1).removeprefix('pulsar://')}",
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        try:
            producer = client.create_producer(TOPIC, producer_name="p", send_timeout_millis=120_000)
            acknowledged = [b"%d" % index for index in range(100) if producer.send(b"%d" % index)]
            process = region.processes[f"us-broker-{owner}"]
            if how == "kill":
                process.kill()
                producer.send(
                    b"100"
                )  # within the client's own time-out; how long a takeover takes is measured by benchmarks.takeover
            else:
                process.popen.terminate()
                producer.send(b"100")
                assert process.terminate() == 0
            acknowledged += [b"100"] + [b"%d" % index for index in range(101, 110) if producer.send(b"%d" % index)]
            producer.close()
        finally:
            client.close()
        found = read_all(region.service_url(left))
        assert list(dict.fromkeys(found)) == acknowledged
        assert Rest(region.admin_url(left))("GET", LOOKUP)[1]["brokerUrl"] == region.service_url(left)
        again = region.broker(owner).wait_ready()
        until(lambda: len(Rest(region.admin_url(left))("GET", "/admin/v2/brokers")[1]) == 2)
        assert again.terminate() == 0


def test_brokers_of_one_host_share_a_service_port_and_an_admin_port(tmp_path: Path) -> None:
    service, admin = free_port(), free_port()
    with Region(tmp_path) as region:
        region.start(bookies=2, brokers=2, shared_port=service, shared_admin_port=admin)
        provision(region)
        shared = Rest(f"http://127.0.0.1:{admin}")
        for index in range(8):
            topic = f"persistent://public/default/s{index}"
            client = pulsar.Client(
                f"pulsar://127.0.0.1:{service}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            )
            try:
                assert client.create_producer(topic).send(b"x") is not None
            finally:
                client.close()
            assert shared("GET", f"/admin/v2/persistent/public/default/s{index}/stats")[1]["msgInCounter"] == 1
        loaded = [Rest(region.admin_url(i))("GET", "/heliograph/v1/status")[1]["topics"] for i in range(2)]
        assert sum(loaded) == 8
        assert shared("GET", "/heliograph/v1/status?all=true")[1]["links"] == []
