"""What stock tools delete is deleted in both regions, and stays deleted: REST as pulsar-admin sends it, and Kafka's own
AdminClient, while links are whole, while they are cut, and while the configuration has no majority.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from geo_tests.wan.disaster import back, cut_off, dr
from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from geo_tests.wan.kafka_in_regions import kafka_address, send
from geo_tests.wan.kafka_support import DEADLINE_S, admin_module, ck
from heliograph.model.errors import ConfigError

NAMESPACE = "public/stock"


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """us and eu, near each other, with Kafka's listener; public/stock lies in both."""
    folder = tmp_path_factory.mktemp("stock")
    (folder / "wan.json").write_text(json.dumps({"us-eu": {"rtt_ms": 2}}))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PORT": "0", "NAMESPACE": NAMESPACE}.items():
            patch.setenv(f"HELIOGRAPH_BROKER__KAFKA__{name}", value)
        made = Instance(folder / "data", regions=("us", "eu"), wan=str(folder / "wan.json"))
    try:
        made.namespace(NAMESPACE, ["us", "eu"])
        yield made
    finally:
        made.down()


def url(instance: Instance, region: str, topic: str, behind: str = "") -> str:
    return f"{instance.admin(region)}/admin/v2/persistent/{NAMESPACE}/{topic}{behind}"


def refused(method: str, address: str) -> str:
    """Returns with which status and sentence."""
    with pytest.raises(ConfigError) as caught:
        rest(method, address)
    return str(caught.value).removeprefix(f"{method} {address}: ")


def publish(instance: Instance, topic: str) -> None:
    """A message that is in both regions when this returns."""
    full = f"persistent://{NAMESPACE}/{topic}"
    producer = instance.client("us").create_producer(full)
    producer.send(b"0")
    producer.close()
    eventually(lambda: back(instance, "eu", full) == ["0"], "it is in eu")


def kafka_admin(instance: Instance, region: str) -> Any:
    return admin_module.AdminClient({"bootstrap.servers": kafka_address(instance, region), "log_level": 0})


def delete_by_kafka(instance: Instance, topic: str) -> None:
    client = kafka_admin(instance, "us")
    for future in client.delete_topics([topic]).values():
        future.result(DEADLINE_S)


def make_by_kafka(instance: Instance, topic: str) -> None:
    client = kafka_admin(instance, "us")
    for future in client.create_topics([admin_module.NewTopic(topic, 2, 1)]).values():
        future.result(DEADLINE_S)


def kafka_topics(instance: Instance, region: str) -> set[str]:
    return set(kafka_admin(instance, region).list_topics(timeout=DEADLINE_S).topics)


def unusable(instance: Instance, region: str, topic: str) -> bool:
    try:
        instance.client(region).create_producer(f"persistent://{NAMESPACE}/{topic}", send_timeout_millis=3000).close()
    except pulsar.PulsarException:
        return f"persistent://{NAMESPACE}/{topic}" not in rest(
            "GET", f"{instance.admin(region)}/admin/v2/persistent/{NAMESPACE}"
        )
    return False


@pytest.mark.parametrize("links", ["whole", "cut"])
def test_pulsars_deletion_is_of_both_regions_whether_links_are_whole_or_cut(instance: Instance, links: str) -> None:
    topic, full = f"orders-{links}", f"persistent://{NAMESPACE}/orders-{links}"
    publish(instance, topic)
    cut_off(instance, "us", cut=links == "cut", kinds=("link",))
    try:
        rest("DELETE", url(instance, "us", topic))
        for region in ("us", "eu"):
            eventually(lambda region=region: unusable(instance, region, topic), f"nobody can use it in {region}")
        why = refused("PUT", url(instance, "us", topic))
        assert why.startswith("409 ") and "undelete" in why
        heliograph("dr", "undelete", full, "--admin", instance.admin("eu"))
        for region in ("us", "eu"):
            eventually(lambda region=region: back(instance, region, full) == ["0"], f"it is back in {region}")
        rest("POST", f"{instance.admin('us')}/admin/v2/namespaces/{NAMESPACE}/deletionGrace", 0)
        rest("DELETE", url(instance, "us", topic, "?force=true"))
        eventually(lambda: not dr(instance, "us", "deletions", NAMESPACE), "both regions have purged it")
    finally:
        cut_off(instance, "us", cut=False, kinds=("link",))
        rest("DELETE", f"{instance.admin('us')}/admin/v2/namespaces/{NAMESPACE}/deletionGrace")
    rest("PUT", url(instance, "us", topic))
    assert back(instance, "us", full) == [], "nothing of the old one came back over the link"


def test_kafkas_deletion_is_of_both_regions(instance: Instance) -> None:
    make_by_kafka(instance, "events")
    send(kafka_address(instance, "us"), "events", [b"a"])
    eventually(lambda: "events" in kafka_topics(instance, "eu"), "it is in eu")
    delete_by_kafka(instance, "events")
    for region in ("us", "eu"):
        eventually(lambda region=region: "events" not in kafka_topics(instance, region), f"{region} does not list it")
    with pytest.raises(ck.KafkaException) as caught:
        make_by_kafka(instance, "events")
    error = caught.value.args[0]
    assert error.code() == ck.KafkaError.TOPIC_ALREADY_EXISTS and "undelete" in error.str()
    dr(instance, "eu", "delete", f"persistent://{NAMESPACE}/events", "--yes", "--grace", "0")
    eventually(lambda: not dr(instance, "us", "deletions", NAMESPACE), "both regions have purged it")
    make_by_kafka(instance, "events")
    send(kafka_address(instance, "us"), "events", [b"b"])


def test_without_a_majority_of_the_configuration_nothing_is_deleted(instance: Instance) -> None:
    publish(instance, "kept")
    make_by_kafka(instance, "kept-events")
    cut_off(instance, "us", cut=True)
    try:
        assert "503 " in refused("DELETE", url(instance, "us", "kept", "?force=true"))
        with pytest.raises(ck.KafkaException):
            delete_by_kafka(instance, "kept-events")
    finally:
        cut_off(instance, "us", cut=False)
    for region in ("us", "eu"):
        eventually(lambda region=region: back(instance, region, f"persistent://{NAMESPACE}/kept") == ["0"], "it stays")
        eventually(lambda region=region: "kept-events" in kafka_topics(instance, region), "it stays")
