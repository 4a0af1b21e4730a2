"""The namespace policies `persistence` and `bookieAffinity` reach the managed ledger, also where they change on a
loaded topic.
"""

from __future__ import annotations

from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.ledger_metadata import ANYWHERE, Affinity
from heliograph.model.topic_names import TopicName
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, with_broker

NAMESPACE = TopicName.parse(TOPIC).namespace


def test_where_the_copies_lie_follows_the_policies() -> None:
    async def test(broker: Broker) -> None:
        await broker.topics.get(TOPIC, create=True)
        ledger = broker.ledger(TOPIC)
        assert ledger.affinity == ANYWHERE
        affinity = {"bookkeeperAffinityGroupPrimary": "fast, faster", "bookkeeperAffinityGroupSecondary": "slow"}
        persistence = {
            "bookkeeperEnsemble": 5,
            "bookkeeperWriteQuorum": 3,
            "bookkeeperAckQuorum": 2,
            "managedLedgerMaxMarkDeleteRate": 0.0,
        }
        broker.view.set(
            NAMESPACE,
            NamespacePolicies(regions=("us",), policies={"bookieAffinity": affinity, "persistence": persistence}),
        )
        assert ledger.affinity == Affinity(("fast", "faster"), ("slow",)) and ledger.quorums == (5, 3, 2)

    with_broker(test)
