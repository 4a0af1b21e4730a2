"""Shadow topics with the official client: what they read, what they refuse, and what becomes of them when their source
or their broker goes.

What a real Pulsar can pass is marked `either`; there, a source has to be told of its shadows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.region_node.either import ORACLE, Either, either
from tests.region_node.faces.admin.topics.official_names import EARLIEST, SHARED
from tests.region_node.live import TOPICS, until
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.wan, pytest.mark.slow]

SOURCE = "PULSAR.SHADOW_SOURCE"
LOOKUP = "/lookup/v2/topic/persistent/public/default"


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory, pulsar_server: Either | None) -> Iterator[Either]:
    with either(
        tmp_path_factory.mktemp("shadows"), pulsar_server, brokers=2, namespace={"bundles": {"numBundles": 16}}
    ) as region:
        yield region


def name(topic: str) -> str:
    return f"persistent://public/default/{topic}"


def owner(rest: Rest, topic: str) -> str:
    status, answer = rest("GET", f"{LOOKUP}/{topic}")
    assert status == 200
    return str(answer["brokerUrl"])


def shadow_of(rest: Rest, source: str, *, elsewhere: bool = True) -> str:
    """A new shadow, at another broker than its source, or at the same one."""
    for index in range(200):
        shadow = f"{source}-shadow-{index}"
        if (owner(rest, shadow) != owner(rest, source)) == elsewhere:
            assert rest("PUT", f"{TOPICS}/{shadow}", {SOURCE: name(source)})[0] == 204
            if ORACLE:
                assert rest("PUT", f"{TOPICS}/{source}/shadowTopics", [name(shadow)])[0] == 204
            return shadow
    raise AssertionError("all bundles are at one broker")


def ids(messages: list[Any]) -> list[tuple[int, int, bytes]]:
    return [(m.message_id().ledger_id(), m.message_id().entry_id(), m.data()) for m in messages]


def read(client: pulsar.Client, topic: str, count: int, subscription: str = "s") -> list[tuple[int, int, bytes]]:
    consumer = client.subscribe(topic, subscription, initial_position=EARLIEST)
    messages = [consumer.receive(60_000) for _ in range(count)]
    for message in messages:
        consumer.acknowledge(message)
    consumer.close()
    return ids(messages)


@pytest.mark.parametrize("elsewhere", [True, pytest.param(False, marks=pytest.mark.either)])
def test_a_shadow_has_the_messages_of_its_source_under_their_ids(
    client: pulsar.Client, rest: Rest, elsewhere: bool
) -> None:
    source = f"source-{elsewhere}"
    producer = client.create_producer(source)
    kept = client.subscribe(source, "kept")
    for index in range(5):
        producer.send(b"early %d" % index)
    shadow = shadow_of(rest, source, elsewhere=elsewhere)
    consumer = client.subscribe(shadow, "live", SHARED, initial_position=EARLIEST)
    for index in range(5):
        producer.send(b"late %d" % index)  # into the ledger that is open
    got = [consumer.receive(60_000) for _ in range(10)]
    assert ids(got) == ids([kept.receive(60_000) for _ in range(10)])
    if ORACLE:  # the backlog of its shadows is right at times only
        for one in (producer, kept, consumer):
            one.close()
        return
    for message in got[:7]:
        consumer.acknowledge(message)
    until(lambda: rest("GET", f"{TOPICS}/{shadow}/stats")[1]["subscriptions"]["live"]["msgBacklog"] == 3)
    assert rest("GET", f"{TOPICS}/{source}/stats")[1]["subscriptions"].keys() == {"kept"}
    assert rest("GET", f"{TOPICS}/{shadow}/lastMessageId")[1]["entryId"] == got[-1].message_id().entry_id()
    consumer.close()
    for topic in (shadow, source):  # what was acknowledged is kept, and a ledger that was closed is gone on from
        assert rest("PUT", f"{TOPICS}/{topic}/unload")[0] == 204
    producer.send(b"after")
    assert [data for *_, data in read(client, shadow, 4, "live")] == [b"late 2", b"late 3", b"late 4", b"after"]
    for one in (producer, kept):
        one.close()


def test_a_shadow_takes_nothing(client: pulsar.Client, rest: Rest) -> None:
    client.create_producer("read-only").send(b"x")
    shadow = shadow_of(rest, "read-only")
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(shadow)
    status, answer = rest(
        "POST", f"/topics/persistent/public/default/{shadow}", {"producerName": "me", "messages": [{"payload": "one"}]}
    )
    assert status != 200 or answer["messagePublishResults"][0]["errorCode"] != 0
    assert rest("POST", f"{TOPICS}/{shadow}/terminate")[0] == 412
    assert rest("DELETE", f"{TOPICS}/{shadow}/truncate")[0] == 412
    assert rest("PUT", f"{TOPICS}/{shadow}/compaction")[0] == 412
    client.subscribe("read-only", "s").close()
    assert read(client, shadow, 1)[0][2] == b"x"


def test_what_may_be_a_shadow(client: pulsar.Client, rest: Rest) -> None:
    client.create_producer("origin").send(b"x")
    assert rest("PUT", f"{TOPICS}/nobodys", {SOURCE: "nothing"})[0] == 404
    assert rest("PUT", f"{TOPICS}/foreign", {SOURCE: "persistent://other/default/origin"})[0] == 412
    shadow = shadow_of(rest, "origin")
    assert rest("GET", f"{TOPICS}/{shadow}/properties")[1] == {SOURCE: name("origin")}
    assert rest("PUT", f"{TOPICS}/{shadow}", {SOURCE: "origin"})[0] == 409
    assert rest("PUT", f"{TOPICS}/third", {SOURCE: shadow})[0] == 412
    assert rest("PUT", f"{TOPICS}/many/partitions", {"partitions": 2, "properties": {SOURCE: "origin"}})[0] == 412
    assert rest("DELETE", f"{TOPICS}/{shadow}/properties?key={SOURCE}")[0] == 412
    assert rest("PUT", f"{TOPICS}/origin/properties", {SOURCE: "kept"})[0] == 412
    path = f"{TOPICS}/origin/shadowTopics"
    assert rest("GET", path) == (200, [])
    assert (rest("PUT", path, [])[0], rest("PUT", path, [name("origin")])[0]) == (412, 412)
    assert rest("PUT", path, [name(shadow)])[0] == 204
    assert rest("GET", path) == (200, [name(shadow)])
    assert (rest("DELETE", path)[0], rest("GET", path)) == (204, (200, []))


def test_a_shadow_that_is_deleted_takes_nothing_with_it(client: pulsar.Client, rest: Rest) -> None:
    client.subscribe("whole", "kept").close()
    client.create_producer("whole").send(b"x")
    shadow = shadow_of(rest, "whole")
    assert read(client, shadow, 1) == read(client, shadow, 1, "again")
    assert rest("DELETE", f"{TOPICS}/{shadow}?force=true")[0] == 204
    assert rest("GET", f"{TOPICS}/{shadow}/stats")[0] == 404
    assert rest("PUT", f"{TOPICS}/whole/unload")[0] == 204
    assert read(client, "whole", 1, "kept")[0][2] == b"x"


def test_what_the_source_lets_go_is_gone(client: pulsar.Client, rest: Rest) -> None:
    producer = client.create_producer("short")
    kept = client.subscribe("short", "kept")
    for index in range(3):
        producer.send(b"%d" % index)
    shadow = shadow_of(rest, "short")
    client.subscribe(shadow, "s", initial_position=EARLIEST).close()
    until(lambda: rest("GET", f"{TOPICS}/{shadow}/stats")[1]["subscriptions"]["s"]["msgBacklog"] == 3)
    assert rest("DELETE", f"{TOPICS}/short/truncate")[0] == 204
    producer.send(b"new")
    until(lambda: rest("GET", f"{TOPICS}/{shadow}/stats")[1]["subscriptions"]["s"]["msgBacklog"] == 1)
    assert read(client, shadow, 1)[0][2] == b"new"
    for one in (producer, kept):
        one.close()


def test_a_source_that_ends_ends_its_shadow(client: pulsar.Client, rest: Rest) -> None:
    client.create_producer("ending").send(b"last")
    client.subscribe("ending", "kept", initial_position=EARLIEST).close()
    shadow = shadow_of(rest, "ending")
    assert read(client, shadow, 1)[0][2] == b"last"
    assert rest("POST", f"{TOPICS}/ending/terminate")[0] == 200
    until(lambda: "terminatedPosition" in rest("GET", f"{TOPICS}/{shadow}/internal-info")[1])
    assert rest("DELETE", f"{TOPICS}/ending?force=true")[0] == 204
    assert rest("DELETE", f"{TOPICS}/{shadow}?force=true")[0] == 204


def test_a_partitioned_source_has_a_partitioned_shadow(client: pulsar.Client, rest: Rest) -> None:
    assert rest("PUT", f"{TOPICS}/wide/partitions", 3)[0] == 204
    producer = client.create_producer("wide")
    for index in range(30):
        producer.send(b"%d" % index, partition_key=str(index))
    shadow = {"partitions": 3, "properties": {SOURCE: name("wide")}}
    assert rest("PUT", f"{TOPICS}/narrow/partitions", {**shadow, "partitions": 2})[0] == 412
    assert rest("PUT", f"{TOPICS}/narrow", {SOURCE: name("wide")})[0] == 412
    assert rest("PUT", f"{TOPICS}/also-wide/partitions", shadow)[0] == 204
    consumer = client.subscribe("also-wide", "s", SHARED, initial_position=EARLIEST)
    got = [consumer.receive(60_000) for _ in range(30)]
    assert sorted(int(m.data()) for m in got) == list(range(30))
    source = client.subscribe("wide", "s", SHARED, initial_position=EARLIEST)
    there = [source.receive(60_000) for _ in range(30)]

    def places(messages: list[Any]) -> list[tuple[int, int, int, bytes]]:
        return sorted(
            (m.message_id().partition(), m.message_id().ledger_id(), m.message_id().entry_id(), m.data())
            for m in messages
        )

    assert places(got) == places(there)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("also-wide")
    assert rest("POST", f"{TOPICS}/also-wide/partitions", 4)[0] == 412
    assert (
        rest("POST", f"{TOPICS}/wide/partitions", 4)[0] == 204
        and rest("POST", f"{TOPICS}/also-wide/partitions", 4)[0] == 204
    )
    late = client.create_producer("wide-partition-3")
    late.send(b"grown")
    reader = client.create_reader("also-wide-partition-3", pulsar.MessageId.earliest)
    assert reader.read_next(60_000).data() == b"grown"
    for one in (producer, late, consumer, source, reader):
        one.close()
    assert rest("DELETE", f"{TOPICS}/also-wide/partitions?force=true")[0] == 204
    assert rest("GET", f"{TOPICS}/wide/partitioned-stats")[1]["msgInCounter"] == 31
