"""Consumers move from one region to another, with the official client: they go on at the exact message, and every
message keeps its coordinate.
"""

from __future__ import annotations

import json
import random
from itertools import count
from typing import Any

import pulsar
import pytest

from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from heliograph.model.errors import ConfigError

COUNT = 200


def publish(
    instance: Instance, region: str, topic: str, bodies: list[str], *, batching: bool = False
) -> dict[str, Any]:
    """Body -> message id in that region."""
    producer = instance.client(region).create_producer(
        topic, batching_enabled=batching, batching_max_messages=7, batching_max_publish_delay_ms=20
    )
    ids: dict[str, Any] = {}
    for body in bodies:
        if batching:
            producer.send_async(body.encode(), lambda _, message_id, body=body: ids.__setitem__(body, message_id))
        else:
            ids[body] = producer.send(body.encode())
    producer.flush()
    eventually(lambda: len(ids) == len(bodies), "all receipts")
    producer.close()
    return ids


def replication(instance: Instance, region: str, topic: str, subscription: str) -> dict[str, Any]:
    """Empty where the subscription has not come there yet."""
    path = topic.removeprefix("persistent://")
    try:
        answer: dict[str, Any] = rest(
            "GET", f"{instance.admin(region)}/heliograph/v1/topics/{path}/subscriptions/{subscription}/replication"
        )
    except ConfigError:
        return {}
    return answer


def subscribe(instance: Instance, region: str, topic: str) -> Any:
    return instance.client(region).subscribe(
        topic,
        "orders",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        replicate_subscription_state_enabled=True,
        batch_index_ack_enabled=True,
    )


def receive_all(consumer: Any, count: int, quiet_millis: int = 1500) -> list[str]:
    """`count` messages, however long they take, and what comes in the quiet behind them."""
    bodies: list[str] = []
    while True:
        try:
            message = consumer.receive(timeout_millis=60_000 if len(bodies) < count else quiet_millis)
        except pulsar.Timeout:
            return bodies
        bodies.append(message.data().decode())
        consumer.acknowledge(message)


def heard_all(instance: Instance, topic: str, *, counts: int = 0) -> bool:
    """Whether eu knows everything that was acknowledged in us, and `counts` redeliveries at least."""
    us, eu = (replication(instance, region, topic, "orders") for region in ("us", "eu"))
    if not (us and eu and us["in_step"] and eu["in_step"] and us["told"].get("eu") and us["parts"][1] >= counts):
        return False
    return bool(eu["heard"].get("us") == us["claims"] and eu["heard_parts"]["us"] == us["parts"])


@pytest.mark.parametrize("batching", (False, True), ids=("entries", "batches"))
def test_a_consumer_goes_on_in_the_other_region_at_the_exact_message(pair: Instance, batching: bool) -> None:
    topic = f"persistent://public/geo/failover-{'batches' if batching else 'entries'}"
    consumer = subscribe(pair, "us", topic)
    bodies = [f"{region}-{n}" for region in ("us", "eu") for n in range(COUNT)]
    for region in ("us", "eu"):
        publish(pair, region, topic, [b for b in bodies if b.startswith(region)], batching=batching)
    messages = {m.data().decode(): m for m in (consumer.receive(timeout_millis=60_000) for _ in bodies)}
    assert set(messages) == set(bodies)
    chosen = random.Random(7).sample(bodies, len(bodies) // 2)
    for body in chosen:
        consumer.acknowledge(messages[body])
    backlog = f"{pair.admin('us')}/admin/v2/persistent/{topic.removeprefix('persistent://')}/stats"
    eventually(
        lambda: rest("GET", backlog)["subscriptions"]["orders"]["isReplicated"], "switched on by the client's flag"
    )
    consumer.close()  # which sends the acknowledgements that it has gathered
    eventually(lambda: heard_all(pair, topic), "eu was told")
    cut = [p for way in (("us", "eu"), ("eu", "us")) for p in pair.proxies("link", *way)]
    wanted = set(bodies) - set(chosen)
    for proxy in cut:
        pair.toxiproxy.cut(proxy.name)
    try:
        taking_over = subscribe(pair, "eu", topic)
        received = receive_all(taking_over, len(wanted))
        assert sorted(received) == sorted(wanted), "exactly what was not acknowledged in us"
        taking_over.close()
    finally:
        for proxy in cut:
            pair.toxiproxy.heal(proxy.name)
    eventually(lambda: settled(pair, topic, 0, "us"), "us hears of it once the links are back")
    back = subscribe(pair, "us", topic)
    assert receive_all(back, 0, 500) == []
    back.close()


def test_how_often_a_message_came_again_is_known_in_the_other_region(pair: Instance) -> None:
    topic = "persistent://public/geo/redelivered"
    consumer = subscribe(pair, "us", topic)
    publish(pair, "us", topic, ["poison", "good"])
    for _ in range(4):  # three times it comes back
        messages = {m.data(): m for m in (consumer.receive(timeout_millis=60_000) for _ in range(2))}
        consumer.redeliver_unacknowledged_messages()
    most = max(messages[b"poison"].redelivery_count(), 3)
    eventually(lambda: heard_all(pair, topic, counts=2 * most), "eu was told of both")
    consumer.close()
    taking_over = subscribe(pair, "eu", topic)
    again = {m.data(): m.redelivery_count() for m in (taking_over.receive(timeout_millis=60_000) for _ in range(2))}
    assert set(again) == {b"poison", b"good"} and all(count >= most for count in again.values()), (
        "a dead-letter policy goes on counting where it was"
    )
    taking_over.close()


def settled(instance: Instance, topic: str, backlog: int, region: str) -> bool:
    found = rest("GET", f"{instance.admin(region)}/admin/v2/persistent/{topic.removeprefix('persistent://')}/stats")[
        "subscriptions"
    ]["orders"]
    return bool(found["msgBacklog"] == backlog)


def test_used_in_both_regions_before_it_is_replicated_what_each_acknowledged_counts(pair: Instance) -> None:
    topic, path = "persistent://public/geo/used", "persistent/public/geo/used"
    bodies = [f"m{n}" for n in range(10)]
    publish(pair, "us", topic, bodies)
    eventually(lambda: len(pair.read_all("eu", topic)) == 10, "eu has them")
    for region, taken in (("us", 6), ("eu", 3)):
        consumer = pair.client(region).subscribe(topic, "both", initial_position=pulsar.InitialPosition.Earliest)
        for _ in range(taken):
            consumer.acknowledge(consumer.receive(timeout_millis=60_000))
        consumer.close()
    for region in ("us", "eu"):
        rest("POST", f"{pair.admin(region)}/admin/v2/{path}/subscription/both/replicatedSubscriptionStatus", True)
    for region in ("us", "eu"):
        stats = f"{pair.admin(region)}/admin/v2/{path}/stats"
        eventually(
            lambda stats=stats: rest("GET", stats)["subscriptions"]["both"]["msgBacklog"] == 4,
            f"{region} knows what either has acknowledged",
        )
        assert rest("GET", stats)["subscriptions"]["both"]["subscriptionProperties"] == {}, (
            "where it began is the broker's affair"
        )
    consumer = pair.client("eu").subscribe(topic, "both")
    assert receive_all(consumer, 4) == bodies[6:]
    consumer.close()


def test_switched_on_and_off_by_rest(pair: Instance) -> None:
    topic, path = "persistent://public/geo/by-rest", "public/geo/by-rest/subscription/late/replicatedSubscriptionStatus"
    publish(pair, "us", topic, ["a", "b"])
    consumer = pair.client("us").subscribe(topic, "late", initial_position=pulsar.InitialPosition.Earliest)
    consumer.acknowledge(consumer.receive(timeout_millis=60_000))
    rest("POST", f"{pair.admin('us')}/admin/v2/persistent/{path}", True)
    eventually(lambda: replication(pair, "eu", topic, "late").get("replicated"), "eu has made it")
    stats = f"{pair.admin('eu')}/admin/v2/persistent/public/geo/by-rest/stats"
    eventually(
        lambda: rest("GET", stats)["subscriptions"]["late"]["msgBacklog"] == 1,
        "eu heard of the acknowledgement, which the client gathers",
    )
    taking_over = pair.client("eu").subscribe(topic, "late")
    assert taking_over.receive(timeout_millis=60_000).data() == b"b", "it begins in eu where it stood in us"
    taking_over.close()
    rest("POST", f"{pair.admin('eu')}/admin/v2/persistent/{path}", False)
    consumer.acknowledge_cumulative(consumer.receive(timeout_millis=60_000))
    eventually(lambda: replication(pair, "us", topic, "late")["claims"]["origins"], "us has something to tell")
    assert replication(pair, "eu", topic, "late") == {"topic": topic, "subscription": "late", "replicated": False}
    consumer.close()


def test_consumers_see_where_a_message_comes_from_where_the_namespace_asks(pair: Instance) -> None:
    namespace, topic = "public/origins", "persistent://public/origins/orders"
    pair.namespace(namespace, ["us", "eu"])
    client = pair.client("us")
    ids: dict[str, Any] = {}
    plain = client.create_producer(topic, "plain", batching_enabled=False)
    batched = client.create_producer(
        topic,
        "batched",
        batching_enabled=True,
        compression_type=pulsar.CompressionType.ZSTD,
        batching_max_publish_delay_ms=100,
    )
    for n in range(3):
        ids[f"plain-{n}"] = plain.send(b"plain-%d" % n, properties={"n": str(n)})
    for n in range(20):
        batched.send_async(
            b"batched-%d" % n, lambda _, made, n=n: ids.update({f"batched-{n}": made}), properties={"n": str(n)}
        )
    batched.flush()
    eventually(lambda: len(ids) == 23 == len(pair.read_all("eu", topic)), "all are in both regions")

    def seen(region: str, name: str) -> dict[str, dict[str, str]]:
        consumer = pair.client(region).subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest)
        try:
            return {(m := consumer.receive(timeout_millis=60_000)).data().decode(): m.properties() for _ in range(23)}
        finally:
            consumer.close()

    assert all(set(properties) == {"n"} for properties in seen("eu", "before").values()), "nobody asked"
    heliograph("namespaces", "set", namespace, "originProperty", "true", "--admin", pair.admin("us"))
    numbers = count()

    def asked(region: str) -> dict[str, dict[str, str]] | None:
        got = seen(region, f"asks-{next(numbers)}")
        return got if all("heliograph.origin" in properties for properties in got.values()) else None

    for region in ("eu", "us"):
        found = eventually(lambda region=region: asked(region), f"the policy is in {region}")
        for body, at in ids.items():
            path = f"{pair.admin('us')}/heliograph/v1/topics/{namespace}/orders/coordinates/{at.ledger_id()}:{at.entry_id()}"  # noqa: E501
            assert found[body] == {"n": body.rpartition("-")[2], "heliograph.origin": rest("GET", path)["coordinate"]}


def test_coordinates_lead_to_the_same_message_in_both_regions(pair: Instance) -> None:
    topic = "persistent://public/geo/coordinates"
    rng = random.Random(5)
    ids = {region: publish(pair, region, topic, [f"{region}-{n}" for n in range(60)]) for region in ("us", "eu")}
    eventually(lambda: all(len(pair.read_all(region, topic)) == 120 for region in ("us", "eu")), "both have everything")

    def ask(region: str, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = rest("GET", f"{pair.admin(region)}/heliograph/v1/topics/public/geo/coordinates/{path}")
        return answer

    for source, target in (("us", "eu"), ("eu", "us")):
        for body in rng.sample(sorted(ids[source]), 3):
            here = ids[source][body]
            told = ask(source, f"coordinates/{here.ledger_id()}:{here.entry_id()}")
            assert told["status"] == "here" and told["region"] == source
            there = ask(target, f"positions/{told['coordinate']}")
            assert there["status"] == "here"
            assert (
                ask(target, "coordinates/" + ":".join(map(str, there["position"])))["coordinate"] == told["coordinate"]
            )
            pair.client(target).subscribe(topic, f"at-{body}").close()
            rest(
                "POST",
                f"{pair.admin(target)}/heliograph/v1/topics/public/geo/coordinates/subscriptions/at-{body}/seek",
                {"coordinate": told["coordinate"]},
            )
            reader = pair.client(target).subscribe(topic, f"at-{body}")
            assert reader.receive(timeout_millis=60_000).data().decode() == body
            reader.close()
    last = ids["us"]["us-59"]
    coordinate = ask("us", f"coordinates/{last.ledger_id()}:{last.entry_id()}")["coordinate"]
    assert ask("eu", f"positions/{coordinate.rpartition(':')[0]}:{last.entry_id() + 1000}")["status"] == "awaited"
    shown = json.loads(
        heliograph("topics", "position", topic, coordinate, "--admin", pair.admin("eu"), "--json").stdout
    )
    assert shown == ask("eu", f"positions/{coordinate}")
    vectors = json.loads(heliograph("topics", "vector", topic, "--admin", pair.admin("eu"), "--json").stdout)["regions"]
    assert set(vectors) == {"us", "eu"} and len(vectors["eu"]["origins"]) == 2
