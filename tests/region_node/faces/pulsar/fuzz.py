"""Fuzzing of the listener: any bytes and any order of commands, beside a bystander who must not notice.

Is: the cases, and `python -m tests.region_node.faces.pulsar.fuzz --cases 100000 [--seed N]`, which runs them by the
thousand and prints the seed of what fails.
Isn't: assertions about answers (`connection/test_pulsar_connection.py`).
"""

from __future__ import annotations

import random
from typing import Any

from heliograph.wire.pulsar import pulsar_pb2 as pb
from tests.region_node.faces.fuzzing import PER_SEED, damaged, in_pieces, main
from tests.region_node.faces.pulsar.codec import FIELDS, command, entry, frame, send
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, Client, K, settle, with_broker
from tests.region_node.faces.pulsar.hostile import PulsarCases

TOPICS = [
    TOPIC,
    "persistent://public/default/u",
    "x",
    "persistent://no/such/t",
    "non-persistent://public/default/n",
    "://",
    "a/b",
    "é" * 50,
]
CLIENT_KINDS = [k for k in FIELDS if k not in (1, K.CONNECT)]


def value(rng: random.Random, field: Any) -> Any:
    if field.type == field.TYPE_MESSAGE:
        made = field.message_type._concrete_class()
        fill(rng, made)
        return made
    if field.type == field.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if field.type == field.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == field.TYPE_STRING:
        return rng.choice(TOPICS) if "topic" in field.name else rng.choice(["", "s", "r", "pulsar.x", "a/b", "x" * 300])
    if field.type == field.TYPE_BYTES:
        return rng.randbytes(rng.randrange(9))
    if field.type == field.TYPE_DOUBLE:
        return 1.5
    bits = (
        31
        if field.type in (field.TYPE_INT32,)
        else 32
        if field.type == field.TYPE_UINT32
        else 63
        if field.type == field.TYPE_INT64
        else 64
    )
    return rng.choice([0, 1, 1, 2, 2, 3, 10, (1 << bits) - 1, rng.getrandbits(bits)])


def fill(rng: random.Random, made: Any) -> None:
    for field in made.DESCRIPTOR.fields:
        if field.is_required or rng.random() < 0.4:
            if field.is_repeated:
                getattr(made, field.name).extend(value(rng, field) for _ in range(rng.randrange(3)))
            elif field.type == field.TYPE_MESSAGE:
                getattr(made, field.name).CopyFrom(value(rng, field))
            else:
                setattr(made, field.name, value(rng, field))


def any_frame(rng: random.Random) -> bytes:
    match rng.randrange(12):
        case 0:
            return frame(
                K.PRODUCER, topic=rng.choice(TOPICS[:3]), producer_id=rng.randrange(3), request_id=rng.randrange(9)
            )
        case 1:
            kind = rng.randrange(4)
            return frame(
                K.SUBSCRIBE,
                topic=TOPIC,
                subscription=rng.choice("sr"),
                subType=kind,
                consumer_id=rng.randrange(3),
                request_id=1,
            )
        case 2 | 3:
            return send(
                rng.randrange(3),
                rng.randrange(1000),
                entry(rng.randbytes(rng.randrange(60)), sequence=1),
                num_messages=rng.randrange(1, 5),
            )
        case 4:
            return frame(K.FLOW, consumer_id=rng.randrange(3), messagePermits=rng.randrange(100))
        case 5:
            ids = [pb.MessageIdData(ledgerId=10, entryId=rng.randrange(20)) for _ in range(rng.randrange(3))]
            return frame(K.ACK, consumer_id=rng.randrange(3), ack_type=rng.randrange(2), message_id=ids)
        case 6:
            return frame(
                K.SEEK,
                consumer_id=rng.randrange(3),
                request_id=5,
                message_id={"ledgerId": 10, "entryId": rng.randrange(20)},
            )
        case 7:
            return frame(rng.choice([K.CLOSE_PRODUCER]), producer_id=rng.randrange(3), request_id=4)
        case _:
            kind = rng.choice(CLIENT_KINDS)
            made = command(kind)
            fill(rng, getattr(made, FIELDS[kind]))
            body = made.SerializePartialToString()
            return (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body


def run(seed: int, cases: int = PER_SEED) -> None:
    """Raises AssertionError, or whatever escaped the listener."""

    async def test(broker: Broker) -> None:
        rng = random.Random(seed)
        quiet = "persistent://public/default/quiet"
        bystander = await broker.client()
        await bystander.producer(1, topic=quiet, producer_name="bystander")
        await bystander.subscribe(1, topic=quiet, name="bystander")
        await bystander.flow(1 << 20)
        for case in range(cases):
            client = Client(broker.listener, link=rng.random() < 0.1)
            data = (
                frame(K.CONNECT, client_version="f", protocol_version=rng.randrange(25)) if rng.random() < 0.95 else b""
            )
            data += b"".join(any_frame(rng) for _ in range(rng.randrange(1, 8)))
            data, _ = damaged(rng, data, 0.4)
            await in_pieces(rng, data, client.raw)
            if case % 20 == 0:
                came = await bystander.do(send(1, case, entry(b"%d" % case)))
                assert sorted(c.type for c, _ in came) == [K.SEND_RECEIPT, K.MESSAGE]
            if rng.random() < 0.7:
                client.protocol.close()
            await client.news()  # what came back is frames
        await settle()
        assert not bystander.transport.closing
        for connection in list(broker.listener.opened.all):
            if connection is not bystander.protocol:
                connection.close()
        await settle()
        assert list(broker.listener.opened.all) == [bystander.protocol]
        assert broker.listener.broker.budget.used == 0

    with_broker(test)


if __name__ == "__main__":
    main("tests.region_node.faces.pulsar.fuzz", __doc__.partition("\n\n")[0], run, PulsarCases)
