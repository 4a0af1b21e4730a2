"""The rest of the admin interface against two real brokers: messages, partitions, subscriptions, settings, groups, the
audit log.

What a real Pulsar can pass is marked `either`: there, both brokers are the one that it has.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.region_node.either import ORACLE, Either, either
from tests.region_node.live import TOPICS, until
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.wan, pytest.mark.slow]

SHARED, EARLIEST = pulsar.ConsumerType.Shared, pulsar.InitialPosition.Earliest
NAMESPACES = "/admin/v2/namespaces"


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory, pulsar_server: Either | None) -> Iterator[Either]:
    quick = {"report_s": 1, "cycle_s": 1, "shedding": {"moves_per_minute": 0}}
    with either(
        tmp_path_factory.mktemp("calls"), pulsar_server, brokers=2, policies={"maxConsumers": 77}, balance=quick
    ) as region:
        yield region


@pytest.fixture(scope="module")
def other(region: Either) -> Rest:
    return Rest(region.admin_url(1))


def raw(rest: Rest, path: str) -> tuple[bytes, dict[str, str]]:
    with urllib.request.urlopen(rest.base + path, timeout=60) as answer:
        return answer.read(), dict(answer.headers)


def backlog(rest: Rest, topic: str, subscription: str, kind: str = "stats") -> int:
    return int(rest("GET", f"{TOPICS}/{topic}/{kind}")[1]["subscriptions"][subscription]["msgBacklog"])


def make(namespace: str, rest: Rest, other: Rest, **fields: Any) -> None:
    """Made by one broker, and known to the other."""
    assert rest("PUT", f"{NAMESPACES}/{namespace}", fields)[0] == 204
    until(lambda: other("GET", f"{NAMESPACES}/{namespace}")[0] == 200)


def test_pages_of_other_sites_change_nothing(region: Either) -> None:
    """Nobody is authenticated here, as in a test's or a laptop's standalone: a browser may ask whatever a page says."""
    path, body = f"{region.admin_url()}/admin/v2/tenants/taken", b'{"adminRoles":["mallory"],"allowedClusters":["us"]}'

    def asked(method: str, data: bytes | None, **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            request = urllib.request.Request(path, data, named, method=method)
            return int(urllib.request.urlopen(request, timeout=60).status)
        except urllib.error.HTTPError as error:
            return error.code

    json_body = {"Content_Type": "application/json"}
    assert asked("PUT", body, Content_Type="text/plain") == 415
    assert asked("PUT", body, **json_body, Origin="http://evil.example") == 403
    assert asked("PUT", body, **json_body, Host="evil.example:8080", Origin="http://evil.example:8080") == 403
    assert asked("GET", None, Host="evil.example:8080") == 403
    assert asked("GET", None) == 404, "nothing was done"
    assert asked("PUT", body, **json_body, Origin=region.admin_url()) == 204
    assert asked("DELETE", None, Origin=region.admin_url()) == 204


@pytest.mark.either
def test_single_messages_are_peeked_skipped_and_expired(client: pulsar.Client, rest: Rest, other: Rest) -> None:
    one = f"{TOPICS}/single"
    assert rest("PUT", f"{one}/subscription/s", {"ledgerId": -1, "entryId": -1})[0] == 204
    producer = client.create_producer("single", batching_enabled=False, compression_type=pulsar.CompressionType.ZLib)
    sent = [producer.send(b"message-%d" % n, properties={"n": str(n)}, partition_key="k") for n in range(10)]
    data, headers = raw(rest, f"{one}/subscription/s/position/3")
    assert data == b"message-2" and headers["X-Pulsar-Message-ID"] == f"{sent[2].ledger_id()}:{sent[2].entry_id()}"
    assert json.loads(headers["X-Pulsar-PROPERTY"]) == {"n": "2"} and headers["X-Pulsar-partition-key"] == "k"
    assert raw(other, f"{one}/ledger/{sent[7].ledger_id()}/entry/{sent[7].entry_id()}")[0] == b"message-7"
    assert raw(rest, f"{one}/examinemessage?initialPosition=earliest&messagePosition=2")[0] == b"message-1"
    assert raw(rest, f"{one}/examinemessage?initialPosition=latest&messagePosition=1")[0] == b"message-9"
    assert rest("GET", f"{one}/subscription/s/position/11")[0] == 404
    assert rest("GET", f"{one}/ledger/{sent[0].ledger_id()}/entry/99")[0] == (500 if ORACLE else 404)
    assert other("POST", f"{one}/subscription/s/skip/4")[0] == 204
    assert backlog(rest, "single", "s") == 6 and raw(rest, f"{one}/subscription/s/position/1")[0] == b"message-4"
    position = {"ledgerId": sent[5].ledger_id(), "entryId": sent[5].entry_id()}
    assert rest("POST", f"{one}/subscription/s/expireMessages", position)[0] == 204
    until(lambda: backlog(rest, "single", "s") == 4)
    found = rest("POST", f"{one}/subscription/s/analyzeBacklog", {})[1]
    assert (found["entries"], found["messages"], found["aborted"]) == ((10, 10, False) if ORACLE else (4, 4, False)), (
        "Pulsar's is from the beginning on"
    )
    assert rest("PUT", f"{one}/backlogSize", position)[1] > 0
    assert rest("PUT", f"{one}/subscription/s/properties", {"a": "b"})[0] == 204
    assert other("GET", f"{one}/subscription/s/properties") == (200, {"a": "b"})
    assert rest("POST", f"{one}/subscription/s/replicatedSubscriptionStatus", True)[0] == 204
    assert rest("GET", f"{one}/subscription/s/replicatedSubscriptionStatus") == (
        200,
        {"persistent://public/default/single": True},
    )
    internal = rest("GET", f"{one}/internalStats")[1]
    assert internal["numberOfEntries"] == 10
    assert internal["cursors"]["s"]["numberOfEntriesSinceFirstNotAckedMessage"] == (1 if ORACLE else 4), (
        "Pulsar's ends where it has read to"
    )
    # it stores a cursor while nobody consumes only when its ledger is closed, and its other backlog is of topics that
    # are not loaded
    if not ORACLE:
        assert rest("GET", f"{one}/internal-info")[1]["cursors"]["s"]["markDelete"] == position
        assert rest("GET", f"{one}/backlog")[1]["messageBacklog"] == 4
    stats = rest("GET", f"{one}/stats?getEarliestTimeInBacklog=true&excludePublishers=true")[1]
    assert (
        stats["publishers"] == []
        and abs(stats["subscriptions"]["s"]["earliestMsgPublishTimeInBacklog"] / 1000 - time.time()) < 60
    )
    assert rest("DELETE", f"{one}/truncate")[0] == 204
    assert backlog(rest, "single", "s") == 0
    if not ORACLE:  # its ledgers go later
        until(lambda: rest("GET", f"{one}/internalStats")[1]["numberOfEntries"] == 0)
    producer.send(b"goes on")
    assert backlog(rest, "single", "s") == 1
    producer.close()


@pytest.mark.either
def test_a_partitioned_topic_is_handled_as_a_whole_and_grows_under_its_clients(
    client: pulsar.Client, rest: Rest, other: Rest, region: Either
) -> None:
    one = f"{TOPICS}/wide"
    assert rest("PUT", f"{one}/partitions", 3)[0] == 204
    until(lambda: other("GET", f"{one}/partitions") == (200, {"partitions": 3, "deleted": False}))
    assert rest("PUT", f"{one}/subscription/s", {"ledgerId": -1, "entryId": -1})[0] == 204
    assert other("GET", f"{one}/subscriptions") == (200, ["s"])
    fresh = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = fresh.create_producer("wide", batching_enabled=False)
    for n in range(12):
        producer.send(b"%d" % n)
    assert backlog(other, "wide", "s", "partitioned-stats") == 12
    assert (
        other("GET", f"{one}/partitioned-stats")[1]["publishers"]
        and len(rest("GET", f"{one}/partitioned-internalStats")[1]["partitions"]) == 3
    )
    assert other("POST", f"{one}/subscription/s/skip_all")[0] == 204
    assert backlog(rest, "wide", "s", "partitioned-stats") == 0
    assert rest("POST", f"{one}/subscription/s/resetcursor/0")[0] == 204
    assert backlog(rest, "wide", "s", "partitioned-stats") == 12
    everything = (
        f"{one}/subscription/s/skip_all" if ORACLE else f"{one}/all_subscription/expireMessages/0"
    )  # which does nothing there
    assert other("POST", everything)[0] == 204
    assert backlog(rest, "wide", "s", "partitioned-stats") == 0
    assert rest("POST", f"{one}/subscription/none/skip_all")[0] == 404
    assert rest("POST", f"{one}/subscription/s/skip/1")[0] == 405
    assert rest("POST", f"{one}/partitions", 5)[0] == 204
    until(lambda: other("GET", f"{one}/partitions") == (200, {"partitions": 5, "deleted": False}))
    assert rest("POST", f"{one}/createMissedPartitions")[0] == 204
    assert sum("/wide-partition-" in name for name in rest("GET", f"{NAMESPACES}/public/default/topics")[1]) == 5
    assert rest("POST", f"{TOPICS}/wide/maxProducers", 9)[0] == 204
    until(lambda: rest("GET", f"{TOPICS}/wide{'' if ORACLE else '-partition-2'}/maxProducers?applied=true") == (200, 9))
    rate = f"{TOPICS}/wide/s/dispatchRate"
    assert rest("POST", rate, {"dispatchThrottlingRateInMsg": 5})[0] == 204
    until(lambda: (rest("GET", rate)[1] or {}).get("dispatchThrottlingRateInMsg") == 5)
    assert rest("DELETE", rate) == (204, None)
    until(lambda: not rest("GET", rate)[1])
    assert (
        rest("PUT", f"{one}/properties", {"team": "x"})[0] == 204
        and rest("PUT", f"{one}/properties", {"tier": "1"})[0] == 204
    )
    assert other("DELETE", f"{one}/properties?key=team")[0] == 204
    until(lambda: rest("GET", f"{one}/properties") == (200, {"tier": "1"}))
    assert rest("DELETE", f"{one}/subscription/s")[0] == 204
    assert rest("GET", f"{one}/subscriptions") == (200, [])
    assert len(rest("POST", f"{one}/terminate/partitions")[1]) == 5
    with contextlib.suppress(pulsar.AlreadyClosed):  # its producer may have heard first that the topic has ended
        fresh.close()
    assert rest("DELETE", f"{one}/partitions?force=true")[0] == 204
    assert rest("GET", f"{TOPICS}/wide/maxProducers")[0] == 404


@pytest.mark.either
def test_whole_namespaces(client: pulsar.Client, rest: Rest, other: Rest, cluster: str) -> None:
    assert rest("PUT", "/admin/v2/tenants/t1", {"allowedClusters": [cluster]})[0] == 204
    rate = {cluster: {"publishThrottlingRateInMsg": 7}}
    make("t1/n", rest, other, bundles={"numBundles": 4}, max_producers_per_topic=5, publishMaxMessageRate=rate)
    found = rest("GET", f"{NAMESPACES}/t1/n")[1]
    assert (
        found["max_producers_per_topic"] == 5
        and found["publishMaxMessageRate"][cluster]["publishThrottlingRateInMsg"] == 7
    )
    for index in range(6):
        assert (
            rest("PUT", f"/admin/v2/persistent/t1/n/t{index}/subscription/s", {"ledgerId": -1, "entryId": -1})[0] == 204
        )
        producer = client.create_producer(f"persistent://t1/n/t{index}")
        producer.send(b"x")
        producer.close()

    def backlogs() -> int:
        return sum(
            rest("GET", f"/admin/v2/persistent/t1/n/t{i}/stats")[1]["subscriptions"]["s"]["msgBacklog"]
            for i in range(6)
        )

    assert backlogs() == 6
    bundle = rest("GET", "/lookup/v2/topic/persistent/t1/n/t0/bundle")[1]
    positions = rest("GET", f"{NAMESPACES}/t1/n/{bundle}/topicHashPositions")[1]["topicHashPositions"]
    low, high = (int(edge, 16) for edge in bundle.split("_"))
    assert (
        low <= positions["persistent://t1/n/t0"] <= high
        and sorted(positions) == other("GET", f"/admin/v2/persistent/t1/n?bundle={bundle}")[1]
    )
    assert other("POST", f"{NAMESPACES}/t1/n/{bundle}/clearBacklog/s")[0] == 204
    assert backlogs() == 6 - len(positions)
    assert rest("POST", f"{NAMESPACES}/t1/n/clearBacklog")[0] == 204
    assert backlogs() == 0
    assert rest("POST", f"{NAMESPACES}/t1/n/unsubscribe/s")[0] == 204
    assert rest("GET", "/admin/v2/persistent/t1/n/t3/subscriptions") == (200, [])
    assert rest("POST", f"{NAMESPACES}/t1/n/antiAffinity", "g")[0] == 204
    assert rest("GET", f"{NAMESPACES}/{cluster}/antiAffinity/g?tenant=t1") == (200, [] if ORACLE else ["t1/n"])
    assert rest("PUT", f"{NAMESPACES}/t1/n/property/color/red")[0] == 204
    assert rest("GET", f"{NAMESPACES}/t1/n/property/color") == (200, "red") and rest(
        "GET", f"{NAMESPACES}/t1/n/properties"
    ) == (200, {"color": "red"})
    assert rest("DELETE", f"{NAMESPACES}/t1/n/property/color") == (200, "red") and rest(
        "GET", f"{NAMESPACES}/t1/n/property/color"
    ) == (200, None)
    if ORACLE:  # what follows shows other defaults there, or wants a setting
        return
    assert rest("PUT", f"{NAMESPACES}/t1/n/offloadThreshold", 1000)[0] == 204
    assert rest("GET", f"{NAMESPACES}/t1/n/offloadPolicies")[1] == {"managedLedgerOffloadThresholdInBytes": 1000}
    assert rest("DELETE", "/admin/v2/tenants/t1")[0] == 409
    assert rest("DELETE", "/admin/v2/tenants/t1?force=true")[0] == 204
    assert rest("GET", "/admin/v2/tenants/t1")[0] == 404 and rest("GET", f"{NAMESPACES}/t1/n")[0] == 404


def test_settings_of_brokers_groups_and_what_is_not_there(rest: Rest, other: Rest) -> None:
    assert rest("PUT", f"{TOPICS}/plain")[0] == 204
    assert rest("GET", f"{TOPICS}/plain/maxConsumers?applied=true") == (200, 77)  # of the settings file
    assert "maxConsumersPerTopic" in rest("GET", "/admin/v2/brokers/configuration")[1]
    assert rest("POST", "/admin/v2/brokers/configuration/maxConsumersPerTopic/5")[0] == 204
    until(lambda: other("GET", f"{TOPICS}/plain/maxConsumers?applied=true") == (200, 5))
    assert rest("GET", "/admin/v2/brokers/configuration/values") == (200, {"maxConsumersPerTopic": "5"})
    assert rest("POST", "/admin/v2/brokers/configuration/maxConsumersPerTopic/many")[0] == 400
    assert rest("POST", "/admin/v2/brokers/configuration/clusterName/x")[0] == 412
    assert rest("DELETE", "/admin/v2/brokers/configuration/maxConsumersPerTopic")[0] == 204
    assert rest("GET", "/admin/v2/brokers/configuration/runtime")[1]["maxConsumersPerTopic"] == "77"
    assert rest("POST", f"{TOPICS}/plain/maxConsumers?isGlobal=true", 3)[0] == 204
    until(lambda: other("GET", f"{TOPICS}/plain/maxConsumers?applied=true") == (200, 3))
    assert rest("GET", f"{TOPICS}/plain/maxConsumers") == (200, None) and rest(
        "GET", f"{TOPICS}/plain/maxConsumers?isGlobal=true"
    ) == (200, 3)
    assert (
        rest("POST", f"{TOPICS}/plain/maxConsumers", -1)[0] == 412
        and rest("POST", f"{TOPICS}/nowhere/maxConsumers", 1)[0] == 404
    )

    assert rest("PUT", "/admin/v2/resourcegroups/g", {"publishRateInMsgs": 5})[0] == 204
    assert rest("GET", "/admin/v2/resourcegroups/g")[1]["publishRateInMsgs"] == 5
    assert rest("POST", f"{NAMESPACES}/public/default/resourcegroup/none")[0] == 412
    assert rest("POST", f"{NAMESPACES}/public/default/resourcegroup/g")[0] == 204
    assert rest("DELETE", "/admin/v2/resourcegroups/g")[0] == 412
    assert rest("DELETE", f"{NAMESPACES}/public/default/resourcegroup")[0] == 204
    assert rest("DELETE", "/admin/v2/resourcegroups/g")[0] == 204 and rest("GET", "/admin/v2/resourcegroups") == (
        200,
        [],
    )

    for method, path in (
        ("POST", "/admin/v3/functions/public/default/f"),
        ("GET", "/admin/v3/sinks/public/default"),
        ("GET", "/admin/v2/worker/cluster"),
    ):
        status, refusal = rest(method, path)
        assert status == 501 and "client of its own" in refusal["reason"]
    assert [row["bookieId"] for row in rest("GET", "/admin/v2/bookies/all")[1]["bookies"]] == [
        "us-bookie-0",
        "us-bookie-1",
    ]
    assert "us-bookie-0" in rest("GET", "/admin/v2/bookies/racks-info")[1]["default"]
    report = rest("GET", "/admin/v2/broker-stats/load-report")[1]
    assert report["loadReportType"] == "LocalBrokerData" and report["numBundles"] == len(report["bundles"])
    assert any(
        "pulsar_broker_topics_count" in row["metrics"] for row in rest("GET", "/admin/v2/broker-stats/metrics")[1]
    )
    assert (
        rest("GET", "/admin/v2/clusters/us/failureDomains") == (200, {})
        and rest("GET", "/admin/v2/brokers/backlog-quota-check")[0] == 204
    )


def test_bundles_are_split_by_command_and_nobody_is_disconnected(
    client: pulsar.Client, rest: Rest, other: Rest
) -> None:
    namespace, bundles = "public/parted", f"{NAMESPACES}/public/parted/bundles"
    make(namespace, rest, other, bundles={"numBundles": 1})
    topics = [f"persistent://{namespace}/t{index}" for index in range(8)]
    producers = {topic: client.create_producer(topic) for topic in topics}
    created = {
        topic: rest("GET", f"{topic_path(topic)}/stats")[1]["publishers"][0]["connectedSince"] for topic in topics
    }

    def split(bundle: str, way: str, positions: list[int] | None = None, at: Rest = rest) -> tuple[int, Any]:
        answer: tuple[int, Any] = at(
            "PUT", f"{NAMESPACES}/{namespace}/{bundle}/split?splitAlgorithmName={way}", positions
        )
        return answer

    assert split("0x00000000_0xffffffff", "range_equally_divide")[0] == 204
    two = {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}
    assert rest("GET", bundles)[1] == two
    until(lambda: other("GET", bundles)[1] == two)
    assert split("0x80000000_0xffffffff", "specified_positions_divide", [0xC0000000, 0xE0000000, 7], other)[0] == 204
    assert split("LARGEST", "topic_count_equally_divide", at=other)[0] == 204
    assert other("GET", bundles)[1]["numBundles"] == 5
    until(lambda: rest("GET", bundles)[1]["numBundles"] == 5)
    for bundle, way, code, word in (
        ("0x00000000_0xffffffff", "range_equally_divide", 412, "is no bundle"),
        ("LARGEST", "by_colour", 412, "there are range_equally_divide"),
        ("LARGEST", "specified_positions_divide", 412, "splitBoundaries"),
    ):
        status, said = split(bundle, way)
        assert status == code and word in said["reason"]
    for topic, producer in producers.items():
        producer.send(b"goes on")
        assert rest("GET", f"{topic_path(topic)}/stats")[1]["publishers"][0]["connectedSince"] == created[topic], (
            "the producer is still the first one"
        )
        assert rest("GET", f"/lookup/v2/topic/persistent/{namespace}/{topic.rpartition('/')[2]}/bundle")[0] == 200

    named = "_".join(rest("GET", bundles)[1]["boundaries"][1:3])
    quota, one = "/admin/v2/resource-quotas", f"/admin/v2/resource-quotas/{namespace}/{named}"
    usual = rest("GET", quota)[1]
    assert usual["dynamic"] is True and rest("GET", one) == (200, usual)
    assert rest("POST", one, {**usual, "bandwidthIn": 4e8, "dynamic": False})[0] == 204
    until(lambda: rest("GET", one)[1]["bandwidthIn"] == other("GET", one)[1]["bandwidthIn"] == 4e8)
    until(
        lambda: any(
            h["load"] >= 0.4
            for broker in rest("GET", "/heliograph/v1/balance")[1]["brokers"]
            for h in broker["heaviest"]
        )
    )
    assert rest("POST", one, {"bandwidthIn": -1})[0] == 412 and rest("POST", one, {"colour": 1})[0] == 412
    assert rest("DELETE", one)[0] == 204
    until(lambda: rest("GET", one) == (200, usual))
    for producer in producers.values():
        producer.close()


def topic_path(topic: str) -> str:
    return f"/admin/v2/{topic.replace('://', '/')}"


def group_shares(rest: Rest, kind: str) -> dict[str, float]:
    """Of each group, what one broker may have of it."""
    lines = raw(rest, "/metrics")[0].decode().splitlines()
    rows = [line for line in lines if line.startswith("heliograph_resource_group_share{") and f'kind="{kind}"' in line]
    return {line.partition('resource_group="')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in rows}


def test_the_rates_of_a_resource_group_hold_over_both_brokers(region: Either, rest: Rest, other: Rest) -> None:
    rate, namespace = 40, "public/grouped"
    assert (
        rest("PUT", "/admin/v2/resourcegroups/both", {"publishRateInMsgs": rate, "dispatchRateInMsgs": rate})[0] == 204
    )
    make(namespace, rest, other, bundles={"numBundles": 2})
    assert rest("POST", f"{NAMESPACES}/{namespace}/resourcegroup/both")[0] == 204
    at: dict[str, str] = {}
    for index in range(64):
        at.setdefault(
            rest("GET", f"/lookup/v2/topic/persistent/{namespace}/t{index}/bundle")[1],
            f"persistent://{namespace}/t{index}",
        )
    for bundle, broker in zip(
        sorted(at),
        sorted(rest("GET", "/heliograph/v1/status")[1]["brokers"], key=lambda broker: str(broker["id"])),
        strict=True,
    ):
        rest("GET", f"/lookup/v2/topic/{at[bundle].replace('://', '/')}")  # somebody has it
        assert rest("PUT", f"{NAMESPACES}/{namespace}/{bundle}/unload?destinationBroker={broker['id']}")[0] in (
            204,
            412,
        ), "412: it is there already"
    own = pulsar.Client(
        region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )  # its connections wait for the rates: nobody else's do
    producers = [
        own.create_producer(topic, batching_enabled=False, max_pending_messages=10_000) for topic in at.values()
    ]
    consumers = [own.subscribe(topic, "s", SHARED, initial_position=EARLIEST) for topic in at.values()]
    for producer in producers:
        for _ in range(60 * rate):
            producer.send_async(b"x", None)

    def halved() -> bool:
        kinds = ("publish_messages", "dispatch_messages")
        return all(group_shares(broker, kind).get("both") == rate / 2 for kind in kinds for broker in (rest, other))

    def given() -> int:
        """How many messages the brokers have sent to consumers: what waits in a client is in it."""
        return sum(int(rest("GET", f"{topic_path(topic)}/stats")[1]["msgOutCounter"]) for topic in at.values())

    until(halved, 60)  # both want more than there is: each is given half of it
    began, first = time.monotonic(), given()
    until(lambda: given() >= first + 4 * rate, 60)
    took = time.monotonic() - began
    assert given() - first <= rate * (time.monotonic() - began + 2.0), (
        f"{given() - first} messages in {took:.1f} s; a bucket holds a second's worth"
    )
    received = [consumer.receive(60_000) for consumer in consumers for _ in range(2 * rate)]
    assert len(received) == 4 * rate
    assert rest("DELETE", f"{NAMESPACES}/{namespace}/resourcegroup")[0] == 204
    for producer in producers:  # nothing holds them any more
        producer.flush()
    own.close()
    assert rest("DELETE", "/admin/v2/resourcegroups/both")[0] == 204
    until(lambda: "both" not in group_shares(rest, "publish_messages") | group_shares(other, "publish_messages"))


def test_changes_are_in_the_audit_log_and_the_interface_describes_itself(rest: Rest, other: Rest) -> None:
    make("public/watched", other, rest)
    assert rest("POST", f"{NAMESPACES}/public/watched/maxProducersPerTopic", 3)[0] == 204
    assert rest("POST", f"{NAMESPACES}/public/watched/maxProducersPerTopic", 4)[0] == 204
    assert rest("POST", f"{NAMESPACES}/public/watched/maxProducersPerTopic", -4)[0] == 412
    secret: dict[str, Any] = {
        "managedLedgerOffloadDriver": "aws-s3",
        "s3ManagedLedgerOffloadCredentialSecret": "do-not-tell",
    }
    assert rest("POST", f"{NAMESPACES}/public/watched/offloadPolicies", secret)[0] == 204
    changes = [c for c in rest("GET", "/heliograph/v1/audit?all=true")[1]["changes"] if "public/watched" in c["path"]]
    assert [c["method"] for c in changes] == ["PUT", "POST", "POST", "POST", "POST"] and changes[0]["status"] == 204
    assert (
        changes[2]["before"] == {"maxProducers": 3}
        and changes[2]["after"] == {"maxProducers": 4}
        and changes[2]["role"]
        and changes[2]["address"]
    )
    assert changes[3]["status"] == 412 and "maxProducers must be" in changes[3]["reason"]
    assert changes[4]["after"]["offloadPolicies"][
        "s3ManagedLedgerOffloadCredentialSecret"
    ] == "***" and "do-not-tell" not in str(changes)
    described = rest("GET", "/openapi.json")[1]
    assert (
        described["openapi"].startswith("3.")
        and "post" in described["paths"]["/admin/v2/namespaces/{tenant}/{namespace}/maxProducersPerTopic"]
    )


def test_the_audit_log_says_what_was_granted_moved_and_asked_for(rest: Rest, other: Rest) -> None:
    make("public/told", other, rest)
    space, topic = f"{NAMESPACES}/public/told", "/admin/v2/persistent/public/told/t"
    assert rest("POST", f"{space}/permissions/clerk", ["produce", "consume"])[0] == 204
    assert rest("POST", f"{space}/permissions/subscription/s", ["clerk"])[0] == 204
    assert rest("DELETE", f"{space}/permissions/clerk")[0] == 204
    assert rest("PUT", f"{topic}/partitions", 2)[0] == 204
    assert rest("POST", f"{topic}/partitions", 3)[0] == 204
    assert rest("PUT", f"{topic}-partition-0/subscription/s")[0] == 204
    assert rest("POST", f"{topic}-partition-0/subscription/s/skip_all")[0] == 204
    assert rest("POST", f"{topic}-partition-0/terminate")[0] == 200
    assert rest("POST", "/topics/persistent/public/told/other", {"messages": [{"payload": "not to be told"}]})[0] == 200
    changes = {
        (c["method"], c["path"].removeprefix(space).removeprefix(topic)): c
        for broker in (rest, other)
        for c in broker("GET", "/heliograph/v1/audit")[1]["changes"]
        if "public/told" in c["path"] and c["status"] < 300
    }
    granted = changes["POST", "/permissions/clerk"]
    assert granted["before"] == {"permissions": {}} and granted["after"] == {
        "permissions": {"clerk": ["consume", "produce"]}
    }
    assert changes["POST", "/permissions/subscription/s"]["after"] == {"subscription_permissions": {"s": ["clerk"]}}
    assert changes["DELETE", "/permissions/clerk"]["after"] == {"permissions": {}}
    assert changes["PUT", "/partitions"]["given"] == 2
    assert changes["POST", "/partitions"]["before"] == {"partitions": 2} and changes["POST", "/partitions"][
        "after"
    ] == {"partitions": 3}
    made = changes["PUT", "-partition-0/subscription/s"]["after"]["persistent://public/told/t-partition-0"]
    assert made["properties"] == {} and ":" in made["markDelete"]
    assert list(changes["POST", "-partition-0/subscription/s/skip_all"]["after"]) == [
        "persistent://public/told/t-partition-0 s"
    ]
    assert "ledgerId" in changes["POST", "-partition-0/terminate"]["after"]["terminated"]
    assert "not to be told" not in str(changes)


def test_isolation_policies_are_kept_and_bundles_follow_them(client: pulsar.Client, rest: Rest, other: Rest) -> None:
    policies, namespace = "/admin/v2/clusters/us/namespaceIsolationPolicies", "public/apart"
    first, second = sorted(rest("GET", "/heliograph/v1/status")[1]["brokers"], key=lambda broker: str(broker["id"]))

    def policy(primary: str) -> dict[str, Any]:
        failover = {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}}
        return {"namespaces": ["public/apart"], "primary": [primary], "secondary": [], "auto_failover_policy": failover}

    assert rest("GET", policies) == (200, {}) and rest("GET", f"{policies}/apart")[0] == 404
    assert rest("POST", f"{policies}/apart", policy(second["id"])) == (204, None)
    assert rest("GET", f"{policies}/apart") == (200, policy(second["id"])) and rest("GET", policies) == (
        200,
        {"apart": policy(second["id"])},
    )
    until(lambda: other("GET", f"{policies}/apart")[0] == 200)
    address = str(second["admin_url"]).partition("://")[2]
    shown = {"brokerName": address, "policyName": "apart", "isPrimary": True, "namespaceRegex": ["public/apart"]}
    assert rest("GET", f"{policies}/brokers/{address}") == (200, shown)
    assert shown in rest("GET", f"{policies}/brokers")[1] and len(rest("GET", f"{policies}/brokers")[1]) == 2
    for wrong, code in (
        ({"primary": ["("]}, 412),
        ({"primary": []}, 412),
        ({"namespaces": "x"}, 400),
        ({"auto_failover_policy": {}}, 400),
    ):
        assert rest("POST", f"{policies}/wrong", policy("x") | wrong)[0] == code
    assert rest("GET", "/admin/v2/clusters/eu/namespaceIsolationPolicies")[0] == 404

    make(namespace, rest, other, bundles={"numBundles": 2})
    topics = [f"persistent://{namespace}/t{index}" for index in range(6)]
    producers = [client.create_producer(topic) for topic in topics]

    def served_by() -> set[str]:
        return {rest("GET", f"/lookup/v2/topic/persistent/{namespace}/t{index}")[1]["httpUrl"] for index in range(6)}

    assert served_by() == {second["admin_url"]}
    status, said = rest("PUT", f"{NAMESPACES}/{namespace}/0x00000000_0x80000000/unload?destinationBroker={first['id']}")
    assert status == 412 and f"broker {first['id']} may not serve bundle {namespace}/0" in said["reason"]
    assert other("POST", f"{policies}/apart", policy(first["id"]))[0] == 204
    until(lambda: served_by() == {first["admin_url"]}, 60)
    for producer in producers:
        producer.send(b"goes on")
        producer.close()
    assert rest("DELETE", f"{policies}/apart") == (204, None) and rest("GET", policies) == (200, {})


def test_namespaces_of_an_anti_affinity_group_are_on_brokers_of_different_domains(
    client: pulsar.Client, rest: Rest, other: Rest
) -> None:
    domains = "/admin/v2/clusters/us/failureDomains"
    first, second = (str(broker["id"]) for broker in rest("GET", "/heliograph/v1/status")[1]["brokers"])
    assert rest("POST", f"{domains}/east", {"brokers": [first]}) == (204, None)
    assert rest("POST", f"{domains}/west", {"brokers": [second, first]})[0] == 409
    assert (
        rest("POST", f"{domains}/west", {"brokers": [second]})[0] == 204
        and rest("POST", f"{domains}/west", {"brokers": "x"})[0] == 400
    )
    assert rest("GET", domains) == (200, {"east": {"brokers": [first]}, "west": {"brokers": [second]}})
    assert rest("GET", f"{domains}/east") == (200, {"brokers": [first]}) and rest("GET", f"{domains}/north")[0] == 404

    def served_by(namespace: str) -> set[str]:
        return {
            rest("GET", f"/lookup/v2/topic/persistent/public/{namespace}/t{index}")[1]["httpUrl"] for index in range(6)
        }

    for namespace in ("one", "two"):
        make(f"public/{namespace}", rest, other, bundles={"numBundles": 4})
    producers = [
        client.create_producer(f"persistent://public/{namespace}/t{index}")
        for namespace in ("one", "two")
        for index in range(6)
    ]
    for namespace in ("one", "two"):
        assert rest("POST", f"{NAMESPACES}/public/{namespace}/antiAffinity", "pair")[0] == 204
    until(
        lambda: (
            [len(served_by(namespace)) for namespace in ("one", "two")] == [1, 1]
            and served_by("one") != served_by("two")
        ),
        60,
    )
    for producer in producers:
        producer.send(b"goes on")
        producer.close()
    for domain in ("east", "west"):
        assert other("DELETE", f"{domains}/{domain}")[0] == 204
    until(lambda: rest("GET", domains) == (200, {}))
    assert rest("DELETE", f"{domains}/east")[0] == 404


def test_a_pulsar_cluster_is_given_as_pulsar_admin_gives_it(rest: Rest) -> None:
    path, tokens = "/admin/v2/clusters/cloud", "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    given = {
        "gateway": "us",
        "serviceUrl": "http://127.0.0.1:1",
        "serviceUrlTls": "https://127.0.0.1:2",
        "brokerServiceUrl": "pulsar://127.0.0.1:3",
        "brokerServiceUrlTls": "pulsar+ssl://127.0.0.1:4",
        "brokerClientTlsEnabled": True,
        "brokerClientTrustCertsFilePath": "ca.pem",
        "authenticationPlugin": tokens,
        "authenticationParameters": "file:///gateway",
    }
    for wrong in (
        {"authenticationParameters": "token:abc.def"},
        {"authenticationParameters": "file:///etc/heliograph/broker.key"},
        {"authenticationPlugin": "org.example.Mine"},
        {"brokerServiceUrlTls": "http://x:1"},
    ):
        status, said = rest("PUT", path, given | wrong)
        assert status in (400, 412) and "abc.def" not in str(said) and rest("GET", path)[0] == 404
    assert rest("PUT", path, given)[0] == 204
    shown = rest("GET", path)[1]
    assert {name: shown[name] for name in given if "Url" not in name} == {
        name: given[name] for name in given if "Url" not in name
    }
    assert shown["brokerServiceUrl"] == shown["brokerServiceUrlTls"] == given["brokerServiceUrlTls"], (
        "links go by TLS alone"
    )
    assert shown["serviceUrl"] == shown["serviceUrlTls"] == given["serviceUrlTls"] and shown["tokenFile"] == "gateway"
    assert rest("POST", path, shown)[0] == 204 and rest("GET", path)[1] == shown, "what is shown may be given back"
    assert rest("POST", path, {"brokerClientTlsEnabled": False, "brokerServiceUrl": "pulsar://127.0.0.1:3"})[0] == 204
    assert "brokerServiceUrlTls" not in rest("GET", path)[1] and rest("GET", path)[1]["tokenFile"] == "gateway", (
        "the rest stays"
    )
    assert rest("DELETE", path)[0] == 204
