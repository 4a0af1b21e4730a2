"""A reader's subscriptions: where they stand, whoever says so, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pulsar
import pytest

from heliograph.client.blocks import BlockReader
from tests.live import provisioned

pytestmark = [pytest.mark.wan, pytest.mark.slow]

TOPIC = "persistent://public/default/read"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with provisioned(tmp_path_factory.mktemp("reading")) as region:
        with closing(pulsar.Client(region.service_url())) as client:
            producer = client.create_producer(TOPIC)
            for number in range(10):
                producer.send(b"%d" % number)
        yield region.admin_url(0)


def test_a_subscription_is_moved_on_and_never_back(url: str) -> None:
    reader = BlockReader(url)
    ledger = reader.snapshot(TOPIC).last[0]
    stands = []
    for entry in (3, 7, 2, 7, 8):
        reader.hold("query", {TOPIC: (ledger, entry)})
        stands.append(reader.held("query", [TOPIC])[TOPIC])
    assert stands == [(ledger, entry) for entry in (3, 7, 7, 7, 8)], "what a runner says that was stopped for a while moves nothing"
