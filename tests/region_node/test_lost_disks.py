"""Two bookies whose folders were emptied, and that were granted new lives: what is gone is named to its readers."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pulsar
import pytest

from heliograph.client.block_reader import BlockReader
from heliograph.model.errors import EntriesLost
from tests.region_node.live import provisioned, until
from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.wan, pytest.mark.slow]

TOPIC, TOPICS = "persistent://public/default/emptied", "/admin/v2/persistent/public/default/emptied"
DYNAMIC = "/admin/v2/brokers/configuration/autoSkipNonRecoverableData"


def emptied(region: Region) -> None:
    """Both bookies, while they are stopped; the broker, which may remember entries, is another one."""
    names = [name for name in region.processes if "-bookie-" in name]
    for name in names:
        region.processes[name].kill()
    region.processes["us-broker-0"].kill()
    for name in names:
        shutil.rmtree(region.folder / name)
        node = name.removeprefix("us-")
        ports = {"port": 0, "http_port": 0}
        region.spawn(region.settings(node, ["bookie"], **region.addresses, bookie=ports)).wait_ready()
    region.broker(0).wait_ready()


def granted(rest: Rest, bookie: str) -> bool:
    status, answer = rest("POST", f"/heliograph/v1/bookies/{bookie}/new-life?force=true")
    return status < 300 and answer["state"] in ("granted", "filling", "whole")


def test_what_both_emptied_bookies_had_is_named_and_all_else_goes_on(tmp_path: Path) -> None:
    with provisioned(tmp_path) as region:
        rest = Rest(region.admin_url())
        with closing(pulsar.Client(region.service_url())) as client:
            producer = client.create_producer(TOPIC)
            client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
            for number in range(10):
                producer.send(b"%d" % number)
        assert rest("PUT", f"{TOPICS}/unload")[0] == 204
        snapshot = BlockReader(region.admin_url()).snapshot(TOPIC)
        ledger, last = snapshot.last
        emptied(region)
        rest = Rest(region.admin_url())
        for bookie in ("us-bookie-0", "us-bookie-1"):
            until(lambda: granted(rest, bookie))  # noqa: B023
        with closing(pulsar.Client(region.service_url())) as client:
            producer = until(lambda: _producer(client))
            producer.send(b"new")
            reader = BlockReader(region.admin_url())
            with pytest.raises(EntriesLost) as told:
                list(reader.runs([(TOPIC, ledger, 0, last)], may_lose=False))
            assert (told.value.ledger, told.value.first, told.value.last) == (ledger, 0, last)
            with pytest.raises(pulsar.NotAllowedError):
                client.subscribe(TOPIC, "s")
            with pytest.raises(pulsar.NotAllowedError):
                client.create_reader(TOPIC, pulsar.MessageId.earliest)
            assert rest("POST", f"{DYNAMIC}/true")[0] == 204
            consumer = until(lambda: _consumer(client))
            message = consumer.receive(timeout_millis=60_000)
            assert message.data() == b"new"
            consumer.acknowledge(message)


def _producer(client: pulsar.Client) -> pulsar.Producer | None:
    try:
        return client.create_producer(TOPIC)
    except pulsar.PulsarException:
        return None


def _consumer(client: pulsar.Client) -> pulsar.Consumer | None:
    try:
        return client.subscribe(TOPIC, "s")
    except pulsar.NotAllowedError:
        return None
