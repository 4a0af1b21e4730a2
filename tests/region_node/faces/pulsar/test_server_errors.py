"""What is refused on the wire, and by which code: the same as by a real Pulsar where it refuses it too."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.wire.pulsar import pulsar_pb2 as pb
from tests.region_node.live import until
from tests.region_node.rest_client import Rest
from tests.region_node.transactions.frame_client import SHARED, K, Refused, WireClient

pytestmark = [pytest.mark.wan, pytest.mark.slow]


@pytest.mark.either
def test_what_is_not_encrypted_where_it_has_to_be(region: Any, rest: Rest, cluster: str) -> None:
    space, topic = "/admin/v2/namespaces/public/sealed", "persistent://public/sealed/t"
    assert rest("PUT", space, {"replication_clusters": [cluster]})[0] == 204
    assert rest("POST", f"{space}/encryptionRequired", True)[0] == 204
    until(lambda: rest("GET", f"{space}/encryptionRequired") == (200, True))
    with WireClient(region.service_url()) as client:
        client.look_up(topic)
        with pytest.raises(Refused) as refused:
            client.ask(K.PRODUCER, topic=topic, producer_id=1)
        assert refused.value.code == pb.MetadataError and "Encryption is required in" in str(refused.value)
        producer = client.producer(topic, encrypted=True)  # who says so, and sends a plain message all the same
        with pytest.raises(Refused) as refused:
            client.publish(producer, b"plain")
        assert refused.value.code == pb.MetadataError and "Messages must be encrypted" in str(refused.value)


def test_names_that_are_too_long_harm_nobody(region: Any, rest: Rest) -> None:
    topic, long = "persistent://public/default/names", "n" * 6000
    with WireClient(region.service_url()) as client:
        producer = client.producer(topic)
        with pytest.raises(Refused) as refused:
            client.subscribe(topic, long, SHARED)
        assert refused.value.code == pb.NotAllowedError and "at most 1000" in str(refused.value)
        with pytest.raises(Refused) as refused:
            client.ask(K.PRODUCER, topic=topic, producer_id=70, producer_name=long)
        assert refused.value.code == pb.NotAllowedError and "at most 1000" in str(refused.value)
        with pytest.raises(Refused):
            client.ask(K.PRODUCER, topic=topic, producer_id=71, initial_subscription_name=long)
        properties = [pb.KeyValue(key="k", value="v" * (1 << 19))]  # a command of more than 1 MiB ends its connection
        with pytest.raises(Refused) as refused:
            client.ask(
                K.SUBSCRIBE,
                topic=topic,
                consumer_id=72,
                subscription="s",
                subType=SHARED,
                subscription_properties=properties,
            )
        assert refused.value.code == pb.NotAllowedError
        assert rest("PUT", f"/admin/v2/persistent/public/default/names/subscription/{long}")[0] in (400, 412)
        client.publish(producer, b"it goes on")
    with WireClient(region.service_url()) as client:
        consumer = client.subscribe(topic, "n" * 1000, SHARED)
        assert client.payloads(consumer, 1) == [b"it goes on"]
