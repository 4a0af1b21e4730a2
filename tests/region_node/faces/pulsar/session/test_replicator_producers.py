"""Replicators of Pulsar clusters as producers: receipts by position, deduplication's keys, markers in their order, and
who may.
"""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import PulsarCluster
from heliograph.model.errors import CorruptData
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.geo_replication import MARKER_RECEIPT, SOURCE_POSITION, Marker, request
from region_node.faces.pulsar.session import replicator_producers
from region_node.faces.pulsar.session.replicator_producers import cluster_of
from region_node.security.authentication.principal import Principal
from region_node.security.authorization.security_service import open_security
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import Broker, Client, K, with_broker

NAME = "pulsar.repl.cloud-->us"


class OneCluster:
    """One cluster, `cloud`, behind this region."""

    def __init__(self, broker: Broker) -> None:
        self.known = PulsarCluster(name="cloud", gateway="us")
        self.broker = broker
        self.markers: list[tuple[str, str, int, bytes, int]] = []
        self.fail = False

    def cluster(self, name: str) -> PulsarCluster | None:
        return self.known if name == self.known.name else None

    async def marker(self, topic: str, cluster: str, kind: int, payload: Any) -> None:
        self.markers.append((topic, cluster, kind, bytes(payload), len(self.broker.ledger().positions())))
        if self.fail:
            raise CorruptData("a marker that nobody can read")


def part(body: bytes, ledger: int, number: int, **more: Any) -> bytes:
    properties = [pb.KeyValue(key=SOURCE_POSITION, value=f"{ledger}:{number}")]
    return entry(body, replicated_from="cloud", properties=properties, **more)


def marker(sequence: int, payload: bytes, kind: int = Marker.SNAPSHOT_REQUEST) -> bytes:
    return send(1, sequence, entry(payload, replicated_from="cloud", marker_type=kind), marker=True)


async def replicator(broker: Broker, *, by_position: bool = True, name: str = NAME) -> tuple[Client, OneCluster]:
    clusters = broker.listener.broker.clusters = OneCluster(broker)
    client = Client(broker.listener)
    features = {"supports_repl_dedup_by_lid_and_eid": by_position}
    (answer,) = await client.do(frame(K.CONNECT, client_version="Pulsar", protocol_version=21, feature_flags=features))
    assert answer[0].connected.feature_flags.supports_repl_dedup_by_lid_and_eid
    await client.producer(producer_name=name)
    return client, clusters


def receipts(came: list[tuple[pb.BaseCommand, bytes]]) -> list[tuple[int, int, int, int]]:
    """(sequence, highest, ledger, entry) each."""
    return [
        (r.sequence_id, r.highest_sequence_id, r.message_id.ledgerId, r.message_id.entryId)
        for r in (command.send_receipt for command, _ in came if command.type == K.SEND_RECEIPT)
    ]


def test_receipts_name_positions_at_the_source_and_repetitions_go_by_them() -> None:
    async def run(broker: Broker) -> None:
        client, _ = await replicator(broker)
        came = await client.do(
            send(1, 4, part(b"a", 7, 0, producer="x")), send(1, 2, part(b"b", 7, 1, producer="y", sequence=5))
        )
        ledger = broker.ledger()
        (found,) = ledger.runs
        assert receipts(came) == [(7, 0, found[0], 0), (7, 1, found[0], 1)]
        assert [(name, count) for name, count, _, _ in found[2].producers] == [(NAME, 2)], "whoever published"
        first = found[2].producers[0][2]
        await client.do(send(1, 3, part(b"c", 8, 0)))
        assert ledger.runs[1][2].producers[0][2] > first + 1, "a later ledger lies behind every entry of the one before"

    with_broker(run)


def test_a_replicator_that_connects_again_hears_of_no_sequence() -> None:
    """The cluster would take the key for one, and its markers for repetitions."""

    async def run(broker: Broker) -> None:
        client, _ = await replicator(broker)
        next(iter(broker.topics.loaded.values())).log.deduplication = True
        await client.do(send(1, 0, part(b"a", 7, 0)))
        await client.do(frame(K.CLOSE_PRODUCER, producer_id=1, request_id=9))
        assert (await client.producer(producer_name=NAME)).last_sequence_id == -1

    with_broker(run)


def test_an_older_cluster_is_judged_by_who_published() -> None:
    async def run(broker: Broker) -> None:
        client, _ = await replicator(broker, by_position=False, name="pulsar.repl.cloud")
        came = await client.do(
            send(1, 0, entry(b"a", producer="x", sequence=3, replicated_from="cloud")),
            send(1, 1, entry(b"b" * 18, producer="x", sequence=4, batch=3, replicated_from="cloud"), num_messages=3),
            send(1, 2, entry(b"c", producer="y", sequence=9, replicated_from="cloud")),
        )
        assert [r[:2] for r in receipts(came)] == [(0, 0), (1, 0), (2, 0)]
        (found,) = broker.ledger().runs
        assert found[2].counts == [1, 3, 1]
        assert [(name, count) for name, count, _, _ in found[2].producers] == [("x", 2), ("y", 1)]
        assert found[2].producers[0][3] == ((3, 3), (4, 6))

    with_broker(run)


def test_a_marker_is_handled_behind_what_came_before_it_and_is_not_stored() -> None:
    async def run(broker: Broker) -> None:
        client, clusters = await replicator(broker)
        broker.ledger().hold = True
        payload = request("id", "cloud")
        assert not receipts(
            await client.do(send(1, 0, part(b"a", 7, 0)), marker(1, payload), send(1, 1, part(b"b", 7, 1)))
        )
        assert not clusters.markers
        broker.ledger().release(1)
        came = await client.news()
        assert [r[:2] for r in receipts(came)] == [(7, 0), (1, MARKER_RECEIPT)]
        assert clusters.markers == [("persistent://public/default/t", "cloud", Marker.SNAPSHOT_REQUEST, payload, 1)]
        broker.ledger().release()
        assert [r[:2] for r in receipts(await client.news())] == [(7, 1)]
        assert len(broker.ledger().positions()) == 2

    with_broker(run)


def test_a_marker_is_answered_before_anything_behind_it() -> None:
    """A sender that gets a later receipt first waits for ever."""

    async def run(broker: Broker) -> None:
        client, _ = await replicator(broker)
        frames = [
            send(1, 0, part(b"a", 7, 0)),
            marker(0, request("id", "cloud")),
            send(1, 0, part(b"b", 7, 2)),
            marker(0, request("id", "cloud")),
        ]
        came = await client.do(*frames)
        assert [r[:2] for r in receipts(came)] == [(7, 0), (0, MARKER_RECEIPT), (7, 2), (0, MARKER_RECEIPT)]

    with_broker(run)


def test_a_marker_that_cannot_be_read_harms_nothing() -> None:
    async def run(broker: Broker) -> None:
        client, clusters = await replicator(broker)
        clusters.fail = True
        came = await client.do(marker(1, b"\xff\xff"), send(1, 0, part(b"a", 7, 0)))
        assert sorted(r[:2] for r in receipts(came)) == [(1, MARKER_RECEIPT), (7, 0)]

    with_broker(run)


def test_a_position_that_is_none_ends_the_producer_and_nothing_else() -> None:
    async def run(broker: Broker) -> None:
        client, _ = await replicator(broker)
        bad = entry(b"a", replicated_from="cloud", properties=[pb.KeyValue(key=SOURCE_POSITION, value="7:x")])
        came = await client.do(send(1, 0, part(b"a", 7, 0)), send(1, 1, bad), send(1, 2, part(b"b", 7, 2)))
        assert receipts(came) and [c.send_error.message for c, _ in came if c.type == K.SEND_ERROR]
        assert len(broker.ledger().positions()) == 1 and not client.protocol.closed

    with_broker(run)


def test_nobody_else_may_use_the_name() -> None:
    async def run(broker: Broker) -> None:
        _, clusters = await replicator(broker)
        other = await Client(broker.listener).connect()
        clusters.known = PulsarCluster(name="elsewhere", gateway="us")
        await other.producer(producer_name="pulsar.repl.cloud")
        came = await other.do(send(1, 0, entry(b"a", replicated_from="cloud")))
        assert [c.send_error.error for c, _ in came if c.type == K.SEND_ERROR] == [pb.NotAllowedError]

    with_broker(run)


def test_only_the_role_of_the_cluster_may_replicate() -> None:
    """A stub of who proves to be whom: the rules are tested where they live."""

    async def run(broker: Broker) -> None:
        _, clusters = await replicator(broker)
        clusters.known = PulsarCluster(name="cloud", gateway="us", role="cloud-replicator")

        class Closed:
            open = False

        class Rights:
            def is_super(self, principal: Principal) -> bool:
                return principal.role == "root"

        class Security:
            authentication, rights = Closed(), Rights()

        broker.listener.broker.security = Security()  # type: ignore[assignment]
        outcomes = {}
        for role in ("cloud-replicator", "someone", "root"):
            try:
                outcomes[role] = cluster_of(broker.listener.broker, Principal(role=role), NAME)
            except Exception as error:
                outcomes[role] = type(error).__name__
        assert outcomes == {"cloud-replicator": "cloud", "someone": "Unauthorized", "root": "Unauthorized"}
        clusters.known = PulsarCluster(name="cloud", gateway="us")
        assert cluster_of(broker.listener.broker, Principal(role=role), NAME) == "cloud", (
            "without a role of its own a superuser is trusted"
        )
        broker.listener.broker.security = open_security()

    with_broker(run)


def test_positions_of_any_ledger_have_numbers_in_their_order() -> None:
    """Ledgers of a Pulsar cluster are counted from 0, those of another Heliograph begin at the wall clock, in ms."""
    small, today, late = (1 << 34) - 1, 1_795_566_790_744, (1 << 42) - 1
    positions = [
        *((0, 0), (0, 1), (0, (1 << 28) - 1), (1, 0), (small, 0), (small, (1 << 28) - 1)),
        *((small + 1, 0), (today, 0), (today, 1), (today, (1 << 20) - 1), (today + 1, 0), (late, (1 << 20) - 1)),
    ]
    numbers = [replicator_producers._number_of(*position) for position in positions]
    assert numbers == sorted(set(numbers)) and numbers[0] == 0 and numbers[-1] < 1 << 63
    for position in ((0, 1 << 28), (today, 1 << 20), (late + 1, 0)):
        with pytest.raises(CorruptData, match="beyond what can be told apart"):
            replicator_producers._number_of(*position)
