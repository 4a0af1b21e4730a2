"""A consumer group moves to another region, and goes on at the right message, whatever its offset is there."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from geo_tests.wan.disaster import cut_off, dr
from geo_tests.wan.instance import PROGRAM, Instance, eventually, heliograph, rest
from geo_tests.wan.kafka_in_regions import consumer, kafka_address, send
from geo_tests.wan.kafka_support import DEADLINE_S, ck, take
from heliograph.client.block_reader import BlockReader
from heliograph.model.coordinates import Coordinate
from heliograph.wire.run import FLAG_HIDDEN
from replicator.log.replicated_entries import as_published

pytestmark = pytest.mark.wan


def nothing(reader: Any) -> bool:
    """Whether it gets no message within a second; that it cannot, it may be told."""
    message = reader.poll(1.0)
    return message is None or message.error() is not None


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """us (two brokers) and eu, near each other; public/moving lies in both."""
    folder = tmp_path_factory.mktemp("kafka-regions")
    (folder / "wan.json").write_text(json.dumps({"us-eu": {"rtt_ms": 2}}))
    fields = {"PORT": "0", "NAMESPACE": "public/moving", "REBALANCE_DELAY_MS": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in fields.items():
            patch.setenv(f"HELIOGRAPH_BROKER__KAFKA__{name}", value)
        patch.setenv("HELIOGRAPH_BROKER__TRANSACTIONS__TOPICS_WAIT_S", "600")
        made = Instance(folder / "data", regions=("us", "eu"), wan=str(folder / "wan.json"), brokers="us=2,eu=1")
    try:
        made.namespace("public/moving", ["us", "eu"], deduplication=False)
        yield made
    finally:
        made.down()


def committed(address: str, group: str, topic: str) -> int:
    other = ck.Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 0})
    try:
        return int(other.committed([ck.TopicPartition(topic, 0)], timeout=DEADLINE_S)[0].offset)
    finally:
        other.close()


def watermark(address: str, topic: str, **settings: Any) -> int:
    """The end of what may be read: of what is committed, unless `settings` say otherwise."""
    other = ck.Consumer({"bootstrap.servers": address, "group.id": "nobody", "log_level": 0, **settings})
    try:
        return int(other.get_watermark_offsets(ck.TopicPartition(topic, 0), timeout=DEADLINE_S)[1])
    finally:
        other.close()


def metric(instance: Instance, region: str, name: str, *labels: str) -> float:
    """The sum of what has these labels."""
    text = urllib.request.urlopen(f"{instance.admin(region)}/metrics", timeout=DEADLINE_S).read().decode()
    lines = [
        line for line in text.splitlines() if line.startswith(f"{name}{{") and all(label in line for label in labels)
    ]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_group_goes_on_in_another_region(instance: Instance) -> None:
    us, eu = kafka_address(instance, "us"), kafka_address(instance, "eu")
    send(eu, "orders", [b"eu-%d" % i for i in range(30)])  # so that offsets of the two regions are not the same
    first = consumer(us, "arrived", "orders")
    take(first, 30)
    first.close()
    send(us, "orders", [b"us-%d" % i for i in range(400)], **{"linger.ms": 50})
    reader = consumer(us, "group/one", "orders")
    done = {m.value() for m in take(reader, 257)}
    position = reader.position([ck.TopicPartition("orders", 0)])[0].offset
    reader.commit(asynchronous=False)
    reader.close()
    assert position == 257
    eventually(lambda: committed(eu, "group/one", "orders") == 257, "the group's position in eu")
    there = consumer(eu, "group/one", "orders")
    rest = take(there, 430 - 257)
    there.close()
    values = {b"eu-%d" % i for i in range(30)} | {b"us-%d" % i for i in range(400)}
    assert done | {m.value() for m in rest} == values and not done & {m.value() for m in rest}, (
        "each message once, by one of the two"
    )


def test_a_group_works_in_one_region_at_a_time(instance: Instance) -> None:
    us, eu, name = kafka_address(instance, "us"), kafka_address(instance, "eu"), "persistent://public/moving/turns"
    send(us, "turns", [b"%d" % i for i in range(100)])
    dr(instance, "us", "subscription-set", name, "kafka.one", "--active", "us")
    first, second = consumer(us, "one", "turns"), consumer(eu, "one", "turns")
    try:
        got = [m.value() for m in take(first, 100)]
        first.commit(asynchronous=False)
        assert nothing(second)
        (row,) = dr(instance, "eu", "subscriptions", "public/moving")
        assert row["waiting"] == "it is active in region us" and row["active"] == "us"
        send(us, "turns", [b"%d" % i for i in range(100, 150)])
        command = [
            PROGRAM,
            "dr",
            "subscription-move",
            name,
            "kafka.one",
            "--to",
            "eu",
            "--drain",
            "120",
            "--admin",
            instance.admin("us"),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as moving:
            try:
                while moving.poll() is None:
                    if (message := first.poll(0.2)) is not None and not message.error():
                        got.append(message.value())
                        first.commit(message, asynchronous=False)
            finally:  # else the `with` waits for one that hangs
                moving.kill()
            assert moving.returncode == 0, moving.communicate()[0]
        done = len(got)
        send(us, "turns", [b"%d" % i for i in range(150, 200)])
        rest = [m.value() for m in take(second, 200 - done)]
        assert [*got, *rest] == [b"%d" % i for i in range(200)], "each message once, by one of the two"
        assert nothing(first), "it waits where it is"
    finally:
        first.close()
        second.close()
    heliograph("dr", "subscription-unset", name, "kafka.one", "--admin", instance.admin("us"))


def test_where_both_regions_publish_the_repeats_are_counted(instance: Instance) -> None:
    """eu has written first what us cannot see; a group that reads all of us and goes to eu begins at that, and reads
    the rest again.
    """
    us, eu = kafka_address(instance, "us"), kafka_address(instance, "eu")
    send(us, "mixed", [b"first"])
    warm = consumer(eu, "warm", "mixed")
    take(warm, 1)
    warm.close()
    cut = instance.proxies("link", "eu", "us")
    for proxy in cut:
        instance.toxiproxy.cut(proxy.name)
    send(eu, "mixed", [b"eu-%d" % i for i in range(20)])
    send(us, "mixed", [b"us-%d" % i for i in range(50)], **{"linger.ms": 50})
    reader = consumer(us, "wanderers", "mixed")
    done = [m.value() for m in take(reader, 51)]
    reader.commit(asynchronous=False)
    reader.close()
    eventually(
        lambda: metric(instance, "eu", "heliograph_kafka_group_behind_repeats", 'group="wanderers"') == 50,
        "50 messages that would come again",
    )
    assert committed(eu, "wanderers", "mixed") == 1
    there = consumer(eu, "wanderers", "mixed")
    rest = [m.value() for m in take(there, 70)]
    there.commit(asynchronous=False)
    there.close()
    for proxy in cut:
        instance.toxiproxy.heal(proxy.name)
    assert rest == [b"eu-%d" % i for i in range(20)] + [b"us-%d" % i for i in range(50)] and done == [
        b"first",
        *rest[20:],
    ]
    eventually(
        lambda: metric(instance, "eu", "heliograph_kafka_group_repeats_total") == 50, "50 messages that came again"
    )


def spread(instance: Instance, region: str, topics: Sequence[str]) -> None:
    """Has both brokers of the region own some of these topics of public/moving: one may have all of their bundles."""
    admin = instance.admin(region)

    def owned() -> dict[str, str]:
        path = "lookup/v2/topic/persistent/public/moving"
        return {topic: rest("GET", f"{admin}/{path}/{topic}")["httpUrl"].removeprefix("http://") for topic in topics}

    if len({*owned().values()}) == 1:
        bundles = sorted({rest("GET", f"{admin}/lookup/v2/topic/persistent/public/moving/{t}/bundle") for t in topics})
        assert len(bundles) > 1
        (taken,) = {*owned().values()}
        (free,) = {*rest("GET", f"{admin}/admin/v2/brokers")} - {taken}
        rest("PUT", f"{admin}/admin/v2/namespaces/public/moving/{bundles[0]}/unload?destinationBroker={free}")
    eventually(lambda: len({*owned().values()}) == 2, "both brokers have some of them")


def test_a_transaction_over_several_topics_is_shown_in_all_of_them_at_once(instance: Instance) -> None:
    """The links to one of the brokers of us are cut: what has arrived at the other one waits for the rest of its
    transaction.
    """
    us, eu = kafka_address(instance, "us"), kafka_address(instance, "eu")
    topics = [f"ledger-{n}" for n in range(8)]
    for topic in topics:
        send(eu, topic, [b"before"])
    eventually(lambda: all(watermark(us, topic) == 1 for topic in topics), "the topics are in us")
    spread(instance, "us", [f"{topic}-partition-0" for topic in topics])
    proxies = instance.proxies("link", "eu", "us")
    assert len(proxies) == 2
    instance.toxiproxy.cut(proxies[0].name)
    made = ck.Producer({"bootstrap.servers": eu, "transactional.id": "both", "log_level": 0})
    made.init_transactions(DEADLINE_S)
    made.begin_transaction()
    for topic in topics:
        for n in range(3):
            made.produce(topic, b"%d" % n)
    made.commit_transaction(DEADLINE_S)
    send(eu, topics[0], [b"after"])
    send(eu, topics[-1], [b"after"])

    def held() -> dict[str, list[str]]:
        """By topic, what its part of the transaction waits for."""
        path = f"{instance.admin('us')}/admin/v3/transactions/transactionBufferStats/public/moving"
        rows = {topic: rest("GET", f"{path}/{topic}-partition-0")["heliograph"]["held"] for topic in topics}
        return {topic: row[0]["waitsFor"] for topic, row in rows.items() if row}

    some = eventually(
        lambda: (
            found if (found := held()) and all(len(w) == len(topics) - len(found) for w in found.values()) else None
        ),
        "what has arrived",
    )
    assert 0 < len(some) < len(topics), "some have their part, and know whom they wait for"
    assert all(watermark(us, topic) == 1 for topic in topics), "and nobody shows anything of it"
    uncommitted = {topic: watermark(us, topic, **{"isolation.level": "read_uncommitted"}) for topic in topics}
    assert all((uncommitted[topic] > 3) == (topic in some) for topic in topics), "though it is there"
    instance.toxiproxy.heal(proxies[0].name)
    eventually(lambda: all(watermark(us, topic) > 3 for topic in topics), "all of them show it")
    for topic in topics:
        reader = consumer(us, f"reads-{topic}", topic)
        after = [b"after"] if topic in (topics[0], topics[-1]) else []
        assert [m.value() for m in take(reader, 4 + len(after))] == [b"before", b"0", b"1", b"2", *after]
        reader.close()
    assert not held()


def entries(instance: Instance, region: str, topic: str) -> dict[Coordinate, bytes]:
    """By coordinate, every entry that readers may see there, as its client wrote it."""
    reader = BlockReader(instance.admin(region))
    try:
        snapshot = reader.snapshot(topic)
        found: dict[Coordinate, bytes] = {}
        for _, ledger, first, run in reader.runs(
            [(topic, number, 0, count - 1) for number, count, _ in snapshot.ledgers if count]
        ):
            if run.flags is not None and run.flags[0] & FLAG_HIDDEN:
                continue
            if run.origin is None:
                found |= {
                    (snapshot.origin_at((ledger, first)), (ledger, first + i)): bytes(part)
                    for i, part in enumerate(run.parts)
                }
            else:
                found |= {
                    (run.origin, run.coordinate(i)): bytes(part) for i, part in enumerate(as_published(run).parts)
                }
        return found
    finally:
        reader.close()


def test_every_kind_of_message_goes_through_one_link_byte_for_byte(instance: Instance, tmp_path: Path) -> None:
    """Single, batched, chunked, delayed, encrypted, transactional ones and those of a compacted topic, through a link
    that is cut on the way.
    """
    eu, topic = kafka_address(instance, "eu"), "persistent://public/moving/kinds-partition-0"
    send(eu, "kinds", [b"of kafka"])
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    secret, public = tmp_path / "secret.pem", tmp_path / "public.pem"
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    keys = pulsar.CryptoKeyReader(str(public), str(secret))
    client = instance.client("eu")

    def producer(name: str, **settings: Any) -> Any:
        return client.create_producer(topic, name, **{"batching_enabled": False, **settings})

    single, chunked = producer("single"), producer("chunked", chunking_enabled=True)
    batched = producer(
        "batched",
        batching_enabled=True,
        batching_max_publish_delay_ms=200,
        compression_type=pulsar.CompressionType.ZSTD,
    )
    sealed = producer("sealed", encryption_key="k", crypto_key_reader=keys)
    sealed_batches = producer(
        "sealed batches",
        batching_enabled=True,
        batching_max_publish_delay_ms=200,
        encryption_key="k",
        crypto_key_reader=keys,
    )
    large = random.Random(3).randbytes(11 << 20)
    for n in range(3):
        single.send(b"value %d" % n, partition_key="same", properties={"n": str(n)})
    cut = instance.proxies("link", "eu", "us")
    for proxy in cut:
        instance.toxiproxy.cut(proxy.name)
    chunked.send(large)
    for made in (batched, sealed_batches):
        for n in range(50):
            made.send_async(b"%d" % n, None, partition_key=f"k{n % 5}")
        made.flush()
    sealed.send(b"sealed")
    single.send(b"delayed", deliver_after=timedelta(seconds=3))
    for commit in (True, False, True):
        made = ck.Producer({"bootstrap.servers": eu, "transactional.id": "kinds", "log_level": 0})
        made.init_transactions(DEADLINE_S)
        made.begin_transaction()
        made.produce("kinds", b"transactional %d" % commit)
        made.flush(DEADLINE_S)
        made.commit_transaction(DEADLINE_S) if commit else made.abort_transaction(DEADLINE_S)
    rest("PUT", f"{instance.admin('eu')}/admin/v2/persistent/public/moving/kinds-partition-0/compaction")
    single.send(b"the last one", partition_key="same")
    for proxy in cut:
        instance.toxiproxy.heal(proxy.name)
    published = entries(instance, "eu", topic)
    eventually(lambda: len(entries(instance, "us", topic)) == len(published), "us has all of them")
    assert entries(instance, "us", topic) == published, "the same bytes under the same coordinates"
    shared = pulsar.ConsumerType.Shared
    consumer = instance.client("us").subscribe(
        topic,
        "kinds",
        shared,
        initial_position=pulsar.InitialPosition.Earliest,
        crypto_key_reader=keys,
        max_pending_chunked_message=10,
    )
    bodies = Counter(bytes(consumer.receive(timeout_millis=120_000).data()) for _ in range(110))
    consumer.close()
    assert (
        bodies[large]
        == bodies[b"sealed"]
        == bodies[b"delayed"]
        == bodies[b"the last one"]
        == bodies[b"of kafka"]
        == bodies[b"value 1"]
        == 1
    )
    assert (
        all(bodies[b"%d" % n] == 2 for n in range(50))
        and bodies[b"transactional 1"] == 2
        and not bodies[b"transactional 0"]
    )


TORN = 40
"""Messages of a transaction whose end does not arrive."""


def foreign(instance: Instance) -> list[dict[str, Any]]:
    """What stands open in eu of topic "torn"."""
    found: list[dict[str, Any]] = rest(
        "GET", f"{instance.admin('eu')}/heliograph/v1/topics/public/moving/torn-partition-0/transactions/foreign"
    )
    return found


def settle(instance: Instance, *, check: bool = True) -> str:
    command = (
        "transactions",
        "settle",
        "--from",
        "us",
        "--commit",
        "--namespace",
        "public/moving",
        "--admin",
        instance.admin("eu"),
    )
    done = heliograph(*command, check=check)
    return done.stdout + done.stderr


def tear(instance: Instance, us: str, eu: str) -> None:
    """A transaction that us has committed is on its way to eu, slowly: some of it is there, and its end is not."""
    send(us, "torn", [b"before"])
    eventually(lambda: watermark(eu, "torn") == 1, "the topic is in eu")
    for proxy in instance.proxies("link", "us", "eu"):
        proxy.add_toxic(name="narrow", type="bandwidth", stream="upstream", attributes={"rate": 60})
    rng = random.Random(3)
    made = ck.Producer({"bootstrap.servers": us, "transactional.id": "torn", "linger.ms": 0, "log_level": 0})
    made.init_transactions(DEADLINE_S)
    made.begin_transaction()
    for n in range(TORN):
        made.produce("torn", b"%02d" % n + rng.randbytes(100_000))
    made.commit_transaction(DEADLINE_S)
    eventually(lambda: foreign(instance), "some of it is in eu")
    assert "connected" in settle(instance, check=False), "us is not lost"


def test_a_region_is_killed_under_load(instance: Instance) -> None:
    """Its group goes on in the other at the exact message of one of its commits; what is there is read without a gap; a
    transaction whose end has not come is ended there by an operator. It comes last: us is gone.
    """
    us, eu = kafka_address(instance, "us"), kafka_address(instance, "eu")
    send(eu, "load", [b"before-%d" % i for i in range(7)])  # so that offsets of the two regions are not the same
    reader = consumer(us, "loaded", "load")
    assert len(take(reader, 7)) == 7
    reader.commit(asynchronous=False)
    made = ck.Producer({"bootstrap.servers": us, "acks": "all", "linger.ms": 5, "log_level": 0})
    count, begins = 0, {0}

    def write(more: int) -> None:
        nonlocal count
        for _ in range(more):
            made.produce("load", b"%d" % count)
            count += 1
        made.poll(0)

    while len(begins) < 12 or committed(eu, "loaded", "load") <= 300:
        write(50)
        messages = [m for m in reader.consume(70, 1.0) if m.error() is None]
        if messages:
            reader.commit(asynchronous=False)
            begins.add(int(messages[-1].value()) + 1)
    read = max(begins)
    write(2000)
    eventually(lambda: watermark(eu, "load") > 7 + read, "something that the group has not read")
    tear(instance, us, eu)
    cut_off(instance, "us", cut=True)  # what the supervisor starts again is heard by nobody
    for row in instance.status()["regions"]["us"]["processes"]:
        if row["pid"]:
            os.kill(row["pid"], signal.SIGKILL)
    reader.close()
    there = consumer(eu, "loaded", "load")
    found: list[int] = []
    deadline = time.monotonic() + DEADLINE_S
    end = watermark(eu, "load") - 7
    while time.monotonic() < deadline and (not found or found[-1] < end - 1):
        found += [int(m.value()) for m in there.consume(500, 0.5) if m.error() is None]
    there.close()
    assert found[0] in begins, "where one of its commits was"
    assert found[0] >= 290 and found == list(range(found[0], end)), "from there on all that eu has, once, in order"
    (torn,) = foreign(instance)
    assert torn["region"] == "us" and 0 < torn["messages"] < TORN and watermark(eu, "torn") == 1, (
        "readers stand before it"
    )
    for row in instance.status()["regions"]["us"]["processes"]:
        heliograph("process", "kill", row["name"], "--data", str(instance.data), check=False)
    eventually(
        lambda: "committed in persistent://public/moving/torn" in settle(instance, check=False),
        "us answers no more, and an operator decides",
    )
    shown = consumer(eu, "reads-torn", "torn")
    assert [m.value()[:2] for m in take(shown, 1 + torn["messages"])] == [
        b"be",
        *(b"%02d" % n for n in range(torn["messages"])),
    ]
    shown.close()
    assert foreign(instance) == []
