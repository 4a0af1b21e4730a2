"""Usage of a tenant: what clients send and get, added once a run, over the connections' whole life."""

from __future__ import annotations

from region_node.usage.tenant_usage import TenantUsage, Usage, added, samples
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, K, with_broker


def test_messages_and_bytes_in_and_out() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        stored = [entry(b"x" * 100, sequence=i, batch=3) for i in range(4)]
        await client.do(*(send(1, i, data, num_messages=3) for i, data in enumerate(stored)))
        usage = broker.listener.broker.usage.of("public")
        size = sum(map(len, stored))
        assert (usage.messages_in, usage.bytes_in, usage.messages_out) == (12, size, 0)
        for consumer, name in ((1, "a"), (2, "b")):
            await client.subscribe(consumer, name=name, kind=1, initialPosition=1)
            assert len(await client.flow(100, consumer)) == 4
        assert (usage.messages_out, usage.bytes_out) == (24, 2 * size)
        await client.do(
            frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=70), frame(K.CLOSE_PRODUCER, producer_id=1, request_id=71)
        )
        client.transport.abort()
        await broker.topics.unload(TOPIC)
        assert (usage.messages_in, usage.messages_out) == (12, 24)

    with_broker(test)


def test_sums_by_tenant_and_of_several_brokers() -> None:
    usage = Usage()
    usage.of("a").messages_in += 5
    usage.stored({"a": 101, "b": 7})
    usage.stored({"a": 10, "b": 7})
    assert usage.of("a") == TenantUsage(messages_in=5, storage_bytes=10)
    assert added([usage.rows(), {"a": {"messages_in": 2}, "c": {"bytes_out": 1}}, {}]) == {
        "a": {"messages_in": 7, "bytes_in": 0, "messages_out": 0, "bytes_out": 0, "storage_bytes": 10},
        "b": {"messages_in": 0, "bytes_in": 0, "messages_out": 0, "bytes_out": 0, "storage_bytes": 7},
        "c": {"messages_in": 0, "bytes_in": 0, "messages_out": 0, "bytes_out": 1, "storage_bytes": 0},
    }
    found = {(name, labels["tenant"]): value for name, _, labels, value in samples("us", usage)}
    assert found["heliograph_tenant_in_messages_total", "a"] == 5 and found["heliograph_tenant_storage_bytes", "b"] == 7
