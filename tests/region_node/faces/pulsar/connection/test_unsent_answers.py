"""Answers that a client does not take: what is made of them, and when the client is closed."""

from __future__ import annotations

from typing import Any

from heliograph.wire.pulsar import pulsar_pb2 as pb
from local_meta import keys
from tests.region_node.faces.pulsar.codec import frame
from tests.region_node.faces.pulsar.harness import Broker, Client, FakeTransport, K, settle, with_broker

NAMES = [f"persistent://public/default/topic-{n}" for n in range(10)]
ANSWER_BYTES = 10 * len(NAMES[0])
"""At least."""
MOST = 5 * ANSWER_BYTES


class Untaken(FakeTransport):
    """Its peer takes nothing until `take`."""

    unsent = 0
    aborted = False

    def write(self, data: Any) -> None:
        super().write(data)
        before, self.unsent = self.unsent, self.unsent + len(data)
        if before == 0:
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def take(self, most: int) -> None:
        self.unsent -= min(most, self.unsent)
        if not self.unsent:
            self.protocol.resume_writing()

    def abort(self) -> None:
        self.aborted = True
        super().abort()


async def untaken(broker: Broker) -> tuple[Client, Untaken]:
    maker = await broker.client()
    for n, name in enumerate(NAMES):
        await maker.producer(n, name)
    maker.transport.close()
    client = await broker.client()
    transport = Untaken(client.protocol)
    client.transport = client.protocol._transport = transport
    return client, transport


def lists(count: int) -> bytes:
    return b"".join(frame(K.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=n) for n in range(count))


def test_what_is_not_taken_is_bounded_and_all_is_answered_in_the_end() -> None:
    async def test(broker: Broker) -> None:
        client, transport = await untaken(broker)
        client.raw(lists(100))
        await settle(400)
        assert MOST < transport.unsent < 2 * MOST and not transport.reading
        for _ in range(100):
            transport.take(transport.unsent)
            await settle(200)
        assert transport.reading and not transport.aborted
        came = await client.news()
        assert [command.getTopicsOfNamespaceResponse.request_id for command, _ in came] == list(range(100))

    with_broker(test, unsent_bytes_max=MOST)


def test_who_takes_nothing_is_closed_and_who_takes_slowly_is_not() -> None:
    async def test(broker: Broker) -> None:
        (stuck, _), (slow, little) = [await untaken(broker) for _ in range(2)]
        for client in (stuck, slow):
            client.raw(lists(100))
            await settle(400)
        for _ in range(20):
            little.take(1)
            broker.clock.now += 10.0
            for client in (stuck, slow):
                client.protocol.tick(broker.clock.now)
            await settle()
        assert stuck.protocol.closed and not slow.protocol.closed and not little.reading

    with_broker(test, unsent_bytes_max=MOST, keep_alive_s=30.0)


def test_what_nobody_asks_for_is_bounded_too() -> None:
    async def test(broker: Broker) -> None:
        client, transport = await untaken(broker)
        await client.do(
            frame(K.WATCH_TOPIC_LIST, request_id=1, watcher_id=1, namespace="public/default", topics_pattern=".*")
        )
        written = 0
        for n in range(1000):
            await broker.meta.put(keys.managed_ledger(f"persistent://public/default/new-{n}"), b"x")
            await settle(3)
            written = max(written, transport.unsent)
            if client.protocol.closed:
                break
        assert transport.aborted and 4 * MOST < written < 5 * MOST and not broker.topics.lists._namespaces

    with_broker(test, unsent_bytes_max=MOST)


def test_other_requests_wait_as_well() -> None:
    async def test(broker: Broker) -> None:
        client, transport = await untaken(broker)
        client.raw(lists(10))
        await settle(400)
        client.raw(frame(K.PARTITIONED_METADATA, topic=NAMES[0], request_id=77))
        await settle(100)
        kinds = [command.type for command, _ in await client.news()]
        assert pb.BaseCommand.PARTITIONED_METADATA_RESPONSE not in kinds
        while transport.unsent:
            transport.take(transport.unsent)
            await settle(200)
            kinds += [command.type for command, _ in await client.news()]
        assert kinds.count(pb.BaseCommand.PARTITIONED_METADATA_RESPONSE) == 1

    with_broker(test, unsent_bytes_max=MOST)


def test_schemas_of_one_read_are_not_made_answers_of_faster_than_they_are_taken() -> None:
    async def test(broker: Broker) -> None:
        client, transport = await untaken(broker)
        definition = b'{"type":"record","name":"%s","fields":[]}' % (b"S" * MOST)
        schema = {"name": "s", "schema_data": definition, "type": pb.Schema.Json}
        await client.do(frame(K.GET_OR_CREATE_SCHEMA, topic=NAMES[0], request_id=1, schema=schema))
        transport.take(transport.unsent)
        client.raw(b"".join(frame(K.GET_SCHEMA, topic=NAMES[0], request_id=n) for n in range(50)))
        await settle(100)
        assert MOST < transport.unsent < 4 * MOST and not transport.aborted
        for _ in range(60):
            transport.take(transport.unsent)
            await settle(50)
        came = [command.getSchemaResponse.request_id for command, _ in await client.news()]
        assert came == list(range(50)) and not transport.aborted

    with_broker(test, unsent_bytes_max=MOST)
