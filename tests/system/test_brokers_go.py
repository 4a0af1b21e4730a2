"""The broker that owns a topic is killed, or stands still for longer than its lease and goes on, again and again under
load: nothing acknowledged is lost.

E=3, Qw=2, Qa=2 over three bookies, and two brokers of which the other one takes the topic over each time.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.servers import free_port
from tests.region_node.live import until
from tests.region_node.one_topic import LOOKUP, provision
from tests.region_node.region_processes import Process, Region
from tests.region_node.rest_client import Rest
from tests.system.publishing import Load, check

pulsar = pytest.importorskip("pulsar")
pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

TURNS = 6
BEYOND_THE_LEASE_S = 5.0


def owner_of(region: Region) -> int:
    url = Rest(region.admin_url())("GET", LOOKUP)[1]["brokerUrl"]
    return next(at for at in range(2) if url == region.service_url(at))


def stands_still(process: Process, region: Region, load: Load) -> None:
    """Until the other one has the topic, and for longer than its lease; then it goes on, and believes itself the owner
    for a moment. Clients notice later.
    """
    here = int(process.name[-1])
    process.popen.send_signal(signal.SIGSTOP)
    try:
        end = time.monotonic() + BEYOND_THE_LEASE_S
        until(
            lambda: (
                Rest(region.admin_url(1 - here))("GET", LOOKUP)[1].get("brokerUrl") == region.service_url(1 - here)
                and time.monotonic() > end
            )
        )
    finally:
        process.popen.send_signal(signal.SIGCONT)


def dies(process: Process, region: Region, load: Load) -> None:
    process.kill()
    before = load.acked
    until(lambda: load.acked > before + 100)
    region.spawn(json.loads((region.folder / f"{process.name}.json").read_text())).wait_ready()


@pytest.mark.parametrize("fault", [dies, stands_still], ids=("killed", "stopped"))
def test_the_owner_goes_again_and_again(tmp_path: Path, fault: Callable[[Process, Region, Load], None]) -> None:
    with Region(tmp_path) as region:
        region.start(bookies=3, brokers=0)
        for broker in [region.broker(at, port=free_port()) for at in range(2)]:
            broker.wait_ready()
        rest = provision(region)
        quorums = {
            "bookkeeperEnsemble": 3,
            "bookkeeperWriteQuorum": 2,
            "bookkeeperAckQuorum": 2,
            "managedLedgerMaxMarkDeleteRate": 0.0,
        }
        assert rest("POST", "/admin/v2/namespaces/public/default/persistence", quorums)[0] == 204
        load = Load(f"{region.service_url(0)},{region.service_url(1).removeprefix('pulsar://')}", pause_s=0.002)
        owners = []
        try:
            for _ in range(TURNS):
                before = load.acked
                until(lambda before=before: load.acked > before + 200)  # type: ignore[misc]
                owners.append(owner_of(region))
                fault(region.processes[f"us-broker-{owners[-1]}"], region, load)
                until(
                    lambda: all(len(Rest(region.admin_url(at))("GET", "/admin/v2/brokers")[1]) == 2 for at in range(2))
                )
        finally:
            sent = load.stop()
        assert len(set(owners)) == 2, "each of them was the owner, and lost the topic"
        check(region.service_url(), sent)
