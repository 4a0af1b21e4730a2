"""A real Pulsar cluster and a region replicate topics to each other: messages, batches, schemas, partitions,
subscriptions, repetitions, each way.

The cluster deduplicates, and so does the region: what either side sends twice is stored once. The region is told of the
cluster by the command line. The cluster authenticates by tokens and authorises; the region's links come by TLS, as a
role that may do no more than it has to.
"""

from __future__ import annotations

import json
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from benchmarks.servers import Heliograph, Pulsar, Server, free_port, rest
from geo_tests.wan.instance import eventually, heliograph
from region_node.security.certificate_authority import ensure_certificates
from tests.region_node.security.authentication.issuer import SECRET, secret_token
from tests.region_node.security.authentication.issuer_server import Issuer

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

_SETTINGS = """
brokerDeduplicationEnabled=true
replicatedSubscriptionsSnapshotFrequencyMillis=300
allowAutoTopicCreation=true
authenticationEnabled=true
authorizationEnabled=true
authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken,org.apache.pulsar.broker.authentication.AuthenticationProviderTls
tokenSecretKey=file://@FOLDER@/secret
superUserRoles=operator
brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
brokerClientAuthenticationParameters=file://@FOLDER@/operator
brokerServicePortTls=@PORT_TLS@
webServicePortTls=@WEB_TLS@
tlsCertificateFilePath=@FOLDER@/ca/broker.cloud.pem
tlsKeyFilePath=@FOLDER@/ca/broker.cloud.key
tlsTrustCertsFilePath=@FOLDER@/ca/ca.pem
"""
REGION, CLUSTER = "standalone", "cloud"
BY_CERTIFICATE, BY_ISSUER = f"replicator.{REGION}", "issued"
"""Roles of the region there: the name in its certificate, and the subject of the tokens that an issuer gives it."""


class Side:
    """One of the two, as a client and an operator see it."""

    def __init__(self, server: Server, name: str, token: str = "") -> None:
        service, web = server.regions[name]
        self.server, self.name, self.token = server, name, token
        self.folder = Path()
        self.service, self.web = f"pulsar://127.0.0.1:{service}", f"http://127.0.0.1:{web}"
        self.client = pulsar.Client(
            self.service,
            authentication=pulsar.AuthenticationToken(token) if token else None,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            operation_timeout_seconds=90,
        )

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        return rest(method, f"{self.web}/admin/v2/{path}", body, token=self.token)

    def read_all(self, topic: str) -> list[str]:
        reader = self.client.create_reader(topic, pulsar.MessageId.earliest)
        try:
            found = []
            while reader.has_message_available():
                found.append(reader.read_next(timeout_millis=60_000).data().decode())
            return found
        finally:
            reader.close()

    def backlog(self, topic: str, subscription: str) -> int:
        stats = self.rest("GET", f"{topic.replace('://', '/')}/stats")
        return int(stats["subscriptions"][subscription]["msgBacklog"])


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """(the region, the cluster), namespace public/both replicated between them."""
    with pytest.MonkeyPatch.context() as environment:
        yield from _sides(tmp_path_factory, environment)


def _sides(tmp_path_factory: pytest.TempPathFactory, environment: pytest.MonkeyPatch) -> Iterator[tuple[Side, Side]]:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("a real Pulsar needs Maven and a JDK, which are absent here")
    folder = secured(tmp_path_factory.mktemp("interop"))
    environment.setenv("HELIOGRAPH_SECURITY__CLUSTER_FILES", str(folder / "shown"))
    environment.setenv("HELIOGRAPH_SECURITY__ALLOWED_URLS", '["127.0.0.1", "localhost"]')
    ports = {"@PORT_TLS@": str(free_port()), "@WEB_TLS@": str(free_port()), "@FOLDER@": str(folder)}
    settings = _SETTINGS
    for name, value in ports.items():
        settings = settings.replace(name, value)
    operator = (folder / "operator").read_text()
    servers: list[Server] = []
    made: list[Side] = []
    try:
        servers.append(Heliograph(folder / "ours"))
        servers.append(Pulsar(folder / "theirs", CLUSTER, settings, operator))
        made = [Side(servers[0], REGION), Side(servers[1], CLUSTER, operator)]
        ours, theirs = made
        theirs.folder = folder
        addresses = (
            "--url",
            f"https://127.0.0.1:{ports['@WEB_TLS@']}",
            "--broker-url",
            f"pulsar+ssl://127.0.0.1:{ports['@PORT_TLS@']}",
        )
        proofs = ("--token-file", "gateway", "--trust-file", "ca.pem")
        heliograph("clusters", "create", CLUSTER, *addresses, *proofs, "--gateway", REGION, "--admin", ours.web)
        theirs.rest("PUT", f"clusters/{REGION}", {"serviceUrl": ours.web, "brokerServiceUrl": ours.service})
        tenant = theirs.rest("GET", "tenants/public")
        theirs.rest(
            "POST", "tenants/public", {**tenant, "adminRoles": ["gateway"], "allowedClusters": [CLUSTER, REGION]}
        )
        for side in made:
            side.rest(
                "PUT",
                "namespaces/public/both",
                {"replication_clusters": [side.name, CLUSTER if side is ours else REGION]},
            )
            side.rest(
                "POST", "namespaces/public/both/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            )
        for role in ("gateway", BY_CERTIFICATE, BY_ISSUER):
            theirs.rest("POST", f"namespaces/public/both/permissions/{role}", ["produce", "consume"])
        ours.rest("POST", "namespaces/public/both/deduplication", True)
        yield ours, theirs
    finally:
        for side in made:
            side.client.close()
        for server in servers:
            server.stop()


def secured(folder: Path) -> Path:
    """Certificates, the secret of tokens, and the tokens of three roles, one of which may do nothing. The region reads
    what is in `shown`.
    """
    ensure_certificates(folder / "ca", [CLUSTER, REGION])
    (folder / "secret").write_bytes(SECRET)
    (folder / "operator").write_bytes(secret_token(sub="operator"))
    shown = folder / "shown"
    shown.mkdir()
    for role in ("gateway", "nobody"):
        (shown / role).write_bytes(secret_token(sub=role))
    for name in ("ca.pem", f"replicator.{REGION}.pem", f"replicator.{REGION}.key"):
        shutil.copy(folder / "ca" / name, shown / name)
    return folder


def link(ours: Side, topic: str) -> dict[str, Any]:
    """The link of `topic` to the cluster, as the region tells it."""
    found = rest("GET", f"{ours.web}/heliograph/v1/topics/{topic.removeprefix('persistent://')}/links")
    return dict(next(row for row in found["links"] if row["target"] == CLUSTER))


def both_have(sides: tuple[Side, Side], topic: str, wanted: dict[str, list[str]]) -> None:
    """wanted: first letter of the bodies -> all of them, in order. Nothing else is there, on either side."""
    every = {body for bodies in wanted.values() for body in bodies}
    count = len(every)
    for side in sides:
        copy: list[str] = []

        def whole(side: Side = side) -> list[str] | None:
            nonlocal copy
            copy = side.read_all(topic)
            return copy if len(copy) >= count else None

        try:
            eventually(whole, f"{count} messages in {side.name}")
        except AssertionError as late:
            lost = sorted(every.difference(copy), key=lambda body: (body[0], int(body[1:])))
            raise AssertionError(
                f"{late}; it lacks {len(lost)}, {lost[:3]} to {lost[-1]}; the link: {link(sides[0], topic)}"
            ) from late
        assert len(copy) == count, (side.name, len(copy), count)
        for letter, bodies in wanted.items():
            assert [body for body in copy if body.startswith(letter)] == bodies, (side.name, letter)


def test_messages_and_batches_cross_both_ways(sides: tuple[Side, Side]) -> None:
    topic = "persistent://public/both/plain"
    wanted: dict[str, list[str]] = {}
    for side, letter in zip(sides, "uc", strict=True):
        lone = side.client.create_producer(topic, f"lone-{side.name}", batching_enabled=False)
        batched = side.client.create_producer(
            topic, f"batched-{side.name}", batching_enabled=True, batching_max_publish_delay_ms=5
        )
        wanted[letter] = [f"{letter}{n}" for n in range(200)]
        wanted[letter.upper()] = [f"{letter.upper()}{n}" for n in range(200)]
        for one, many in zip(wanted[letter], wanted[letter.upper()], strict=True):
            lone.send_async(one.encode(), None, partition_key="k", properties={"from": side.name})
            batched.send_async(many.encode(), None)
        lone.flush()
        batched.flush()
    both_have(sides, topic, wanted)
    for side in sides:
        reader = side.client.create_reader(topic, pulsar.MessageId.earliest)
        message = reader.read_next(timeout_millis=60_000)
        while message.data() not in (b"u0", b"c0"):
            message = reader.read_next(timeout_millis=60_000)
        assert message.partition_key() == "k" and message.properties()["from"]
        reader.close()


def test_nothing_is_stored_twice_when_connections_break(sides: tuple[Side, Side]) -> None:
    """Topics are unloaded on both sides while messages go on: both replicators send again what was not confirmed.
    Markers go between the messages.
    """
    topic = "persistent://public/both/broken"
    ended = threading.Event()
    wanted: dict[str, list[str]] = {"u": [], "c": []}
    failed: list[BaseException] = []

    def publish(side: Side, letter: str) -> None:
        try:
            producer = side.client.create_producer(
                topic, f"busy-{side.name}", batching_enabled=False, send_timeout_millis=0
            )
            while not ended.is_set():
                for _ in range(20):
                    wanted[letter].append(f"{letter}{len(wanted[letter])}")
                    producer.send_async(wanted[letter][-1].encode(), None)
                producer.flush()
            producer.close()
        except BaseException as error:
            failed.append(error)

    for side in sides:
        side.client.subscribe(topic, "marked", replicate_subscription_state_enabled=True).close()
    threads = [threading.Thread(target=publish, args=(side, letter)) for side, letter in zip(sides, "uc", strict=True)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            for side in sides:
                eventually(lambda: min(map(len, wanted.values())) > 20, "messages on their way")
                side.rest("PUT", f"{topic.replace('://', '/')}/unload")
                before = {letter: len(bodies) for letter, bodies in wanted.items()}
                eventually(
                    lambda before=before: all(len(wanted[letter]) > before[letter] + 20 for letter in before),
                    "more messages",
                )
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)
    assert not failed, failed
    both_have(sides, topic, wanted)


def test_partitions_are_made_on_the_other_side(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    ours.rest("PUT", "persistent/public/both/parted/partitions", 3)
    topic = "persistent://public/both/parted"
    producer = ours.client.create_producer(
        topic,
        "parted",
        batching_enabled=False,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )
    for n in range(30):
        producer.send(b"p%d" % n)

    def made() -> bool:
        try:
            return bool(theirs.rest("GET", "persistent/public/both/parted/partitions")["partitions"] == 3)
        except urllib.error.HTTPError:
            return False  # it is not there yet

    eventually(made, "three partitions in the cluster")
    consumer = theirs.client.subscribe(topic, "all", initial_position=pulsar.InitialPosition.Earliest)
    got = {consumer.receive(timeout_millis=60_000).data() for _ in range(30)}
    assert got == {b"p%d" % n for n in range(30)}


class Order(pulsar.schema.Record):  # type: ignore[misc]
    item = pulsar.schema.String()
    count = pulsar.schema.Integer()


def test_schemas_go_under_the_versions_of_each_side(sides: tuple[Side, Side]) -> None:
    topic = "persistent://public/both/orders"
    schema = pulsar.schema.AvroSchema(Order)
    for side in sides:
        producer = side.client.create_producer(topic, f"avro-{side.name}", schema=schema)
        for n in range(5):
            producer.send(Order(item=side.name, count=n))
    for side in sides:
        consumer = side.client.subscribe(
            topic, f"read-{side.name}", schema=schema, initial_position=pulsar.InitialPosition.Earliest
        )
        rows = sorted(
            (m.value().item, m.value().count) for m in (consumer.receive(timeout_millis=60_000) for _ in range(10))
        )
        assert rows == sorted((other.name, n) for other in sides for n in range(5))
        assert len(side.rest("GET", "schemas/public/both/orders/schemas")["getSchemaResponses"]) == 1


def test_a_replicated_subscription_goes_on_at_either_side(sides: tuple[Side, Side]) -> None:
    """By Pulsar's own markers, in both directions; no marker is ever delivered, or counted here."""
    topic = "persistent://public/both/jobs"
    ours, theirs = sides
    consumers = [
        side.client.subscribe(
            topic, "work", initial_position=pulsar.InitialPosition.Earliest, replicate_subscription_state_enabled=True
        )
        for side in sides
    ]
    producers = [side.client.create_producer(topic, f"jobs-{side.name}", batching_enabled=False) for side in sides]
    sent = 0
    for acking, other in ((1, ours), (0, theirs)):
        for producer in producers:
            for _ in range(20):
                producer.send(b"job")
                sent += 1

        def followed(acking: int = acking, other: Side = other) -> bool:
            producers[0].send(b"job")
            acknowledge(consumers[acking])
            return other.backlog(topic, "work") <= 8

        eventually(followed, f"acknowledgements in {other.name}")
    bodies = ours.read_all(topic)
    assert set(bodies) == {"job"} and len(bodies) >= sent


def acknowledge(consumer: Any) -> None:
    """Everything that is there now."""
    try:
        while True:
            message = consumer.receive(timeout_millis=300)
            assert message.data() == b"job", "a marker reached a consumer"
            consumer.acknowledge(message)
    except pulsar.Timeout:
        return


def test_what_is_addressed_elsewhere_stays(sides: tuple[Side, Side]) -> None:
    topic = "persistent://public/both/local"
    for side, letter in zip(sides, "uc", strict=True):
        producer = side.client.create_producer(topic, f"local-{side.name}", batching_enabled=False)
        producer.send(f"-{letter}".encode(), disable_replication=True)
        producer.send(letter.encode())
    for side, own, other in ((sides[0], "u", "c"), (sides[1], "c", "u")):
        eventually(lambda side=side, other=other: other in side.read_all(topic), f"{other} in {side.name}")
        assert sorted(side.read_all(topic)) == sorted([f"-{own}", own, other])


def test_the_link_says_how_it_is(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    topic = "persistent://public/both/said"
    ours.client.create_producer(topic, "said", batching_enabled=False).send(b"said")

    def caught_up() -> bool:
        found = ours.rest("GET", f"{topic.replace('://', '/')}/stats")["replication"].get(CLUSTER)
        return (
            found is not None and found["connected"] and found["cause"] == "none" and found["replicationBacklog"] == 0
        )

    eventually(caught_up, "the link says that it has nothing left")
    assert theirs.read_all(topic) == ["said"]
    assert heliograph("clusters", "get", CLUSTER, "--admin", ours.web).stdout.count(REGION) >= 1


@pytest.mark.parametrize("start", ["latest", ""])
def test_a_link_that_is_switched_on_later_begins_where_the_policy_says(sides: tuple[Side, Side], start: str) -> None:
    """ "": without one it begins with everything that is kept, where Pulsar itself begins at the end."""
    ours, theirs = sides
    namespace = f"public/later-{start or 'all'}"
    topic = f"persistent://{namespace}/orders"
    for side in sides:
        side.rest("PUT", f"namespaces/{namespace}", {"replication_clusters": [side.name]})
        side.rest("POST", f"namespaces/{namespace}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    theirs.rest("POST", f"namespaces/{namespace}/permissions/gateway", ["produce", "consume"])
    producer = ours.client.create_producer(topic, "later", batching_enabled=False)
    for n in range(10):
        producer.send(b"l%d" % n)
    if start:
        heliograph(
            "namespaces", "set", namespace, "replicationStart", json.dumps({"position": start}), "--admin", ours.web
        )
    heliograph("namespaces", "clusters", namespace, f"{REGION},{CLUSTER}", "--admin", ours.web)

    def open_there() -> bool:
        found = ours.rest("GET", f"{topic.replace('://', '/')}/stats")["replication"].get(CLUSTER)
        return bool(found and found["connected"])

    eventually(open_there, "the link is there")
    for n in range(10, 15):
        producer.send(b"l%d" % n)
    wanted = [f"l{n}" for n in range(10 if start else 0, 15)]
    eventually(lambda: wanted[-1:] == theirs.read_all(topic)[-1:], "what is published since arrives")
    assert theirs.read_all(topic) == wanted, "and of what was published before all, or nothing"


def test_a_token_that_is_refused_is_said_and_another_registration_is_followed(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    topic = "persistent://public/both/token"
    producer = ours.client.create_producer(topic, "token", batching_enabled=False)
    wanted = {"t": [f"t{n}" for n in range(60)]}
    before = heliograph("clusters", "get", CLUSTER, "--json", "--admin", ours.web).stdout
    for body in wanted["t"][:20]:
        producer.send(body.encode())
    eventually(lambda: len(theirs.read_all(topic)) == 20, "the first are there")
    heliograph("clusters", "update", CLUSTER, "--token-file", "nobody", "--admin", ours.web)
    eventually(lambda: link(ours, topic)["cause"] == "unauthorized", "the link says what is wrong")
    for body in wanted["t"][20:40]:
        producer.send(body.encode())
    assert len(theirs.read_all(topic)) == 20 and "token" in link(ours, topic)["remedy"]
    plain = ("--broker-url", theirs.service, "--token-file", "gateway")  # and to another address
    heliograph("clusters", "update", CLUSTER, *plain, "--admin", ours.web)
    for body in wanted["t"][40:]:
        producer.send(body.encode())
    both_have(sides, topic, wanted)
    rest("POST", f"{ours.web}/admin/v2/clusters/{CLUSTER}", json.loads(before))  # as ClusterData of Pulsar names it
    assert json.loads(heliograph("clusters", "get", CLUSTER, "--json", "--admin", ours.web).stdout) == json.loads(
        before
    )


def test_a_certificate_or_an_issuer_s_token_proves_who_the_region_is(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    topic = "persistent://public/both/proof"
    producer = ours.client.create_producer(topic, "proof", batching_enabled=False)
    wanted = {"p": [f"p{n}" for n in range(30)]}
    before = heliograph("clusters", "get", CLUSTER, "--json", "--admin", ours.web).stdout
    issuer = Issuer()
    issuer.mint = lambda: secret_token(sub=BY_ISSUER)
    client = theirs.folder / "shown" / "client.json"
    client.write_text(json.dumps({"issuer_url": issuer.url, "client_id": "us", "client_secret": "right"}))
    pair = [f"replicator.{REGION}.{end}" for end in ("pem", "key")]

    try:
        for body in wanted["p"][:10]:
            producer.send(body.encode())
        eventually(lambda: len(theirs.read_all(topic)) == 10, "the first are there, by the token")
        update = ("clusters", "update", CLUSTER, "--admin", ours.web)
        heliograph(*update, "--token-file", "", "--certificate-file", pair[0], "--key-file", pair[1])
        theirs.rest("DELETE", "namespaces/public/both/permissions/gateway")
        for body in wanted["p"][10:20]:
            producer.send(body.encode())
        eventually(lambda: len(theirs.read_all(topic)) == 20, "as the role of the certificate")
        theirs.rest("DELETE", f"namespaces/public/both/permissions/{BY_CERTIFICATE}")
        heliograph(*update, "--certificate-file", "", "--key-file", "", "--oauth-file", client.name)
        for body in wanted["p"][20:]:
            producer.send(body.encode())
        both_have(sides, topic, wanted)
        assert issuer.given
    finally:
        issuer.close()
        for role in ("gateway", BY_CERTIFICATE):
            theirs.rest("POST", f"namespaces/public/both/permissions/{role}", ["produce", "consume"])
        rest("POST", f"{ours.web}/admin/v2/clusters/{CLUSTER}", json.loads(before))


def test_a_link_whose_schema_is_refused_is_parked_until_somebody_decides(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    topic = "persistent://public/both/refused"
    for name in (topic, f"{topic}-not"):
        ours.client.create_producer(name, "first", batching_enabled=False).send(b"plain")
        eventually(lambda name=name: theirs.read_all(name) == ["plain"], "the topic is there")
    theirs.rest("POST", "schemas/public/both/refused/schema", {"type": "STRING", "schema": "", "properties": {}})
    producer = ours.client.create_producer(topic, "avro", schema=pulsar.schema.AvroSchema(Order))
    producer.send(Order(item="x", count=1))

    def parked() -> bool:
        return link(ours, topic)["state"] == "parked"

    eventually(parked, "it is parked")
    found = link(ours, topic)
    assert (
        found["cause"] == "schema-refused"
        and "delete the schema there" in found["remedy"]
        and found["parked"]["since_ms"] > 0
    )
    with urllib.request.urlopen(f"{ours.web}/metrics/") as answer:
        assert (
            'heliograph_replication_parked_links{cluster="standalone",remote_cluster="cloud",cause="schema-refused"} 1'
            in answer.read().decode()
        )
    eventually(lambda: link(ours, f"{topic}-not")["state"] == "open", "no other link waits for it")
    refused = heliograph(
        "topics", "unpark", topic, "--region", CLUSTER, "--take", "ours", "--admin", ours.web, check=False
    )
    assert refused.returncode and "Pulsar cluster" in refused.stdout + refused.stderr
    theirs.rest("DELETE", "schemas/public/both/refused/schema?force=true")
    heliograph("topics", "unpark", topic, "--region", CLUSTER, "--take", "retry", "--admin", ours.web)
    eventually(lambda: len(theirs.read_all(topic)) == 2 and not parked(), "it goes on")


def test_another_gateway_and_back_loses_and_doubles_nothing(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    topic = "persistent://public/both/gateway"
    producer = ours.client.create_producer(topic, "gateway", batching_enabled=False)
    wanted = {"g": [f"g{n}" for n in range(30)]}
    for body in wanted["g"][:10]:
        producer.send(body.encode())
    eventually(lambda: len(theirs.read_all(topic)) == 10, "the first are there")
    heliograph("clusters", "create", "elsewhere", "--url", ours.web, "--broker-url", ours.service, "--admin", ours.web)
    heliograph("clusters", "update", CLUSTER, "--gateway", "elsewhere", "--admin", ours.web)
    stats = topic.replace("://", "/") + "/stats"
    eventually(
        lambda: CLUSTER not in ours.rest("GET", stats)["replication"], "this region has no link with it any more"
    )
    for body in wanted["g"][10:20]:
        producer.send(body.encode())
    heliograph("clusters", "update", CLUSTER, "--gateway", REGION, "--admin", ours.web)
    for body in wanted["g"][20:]:
        producer.send(body.encode())
    both_have(sides, topic, wanted)
