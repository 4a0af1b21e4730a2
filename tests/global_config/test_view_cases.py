"""One conformance suite over the view of the configuration and the fake that topics' tests have."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from global_config import keys
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.configuration.configuration_records import (
    NamespacePolicies,
    PartitionedTopic,
    TenantInfo,
    TopicPolicies,
)
from tests.region_node.topics.fake_storage import FakeView
from tests.storage.managed_ledger.ledger_cases import turns

TOPIC = "persistent://a/x/t"


class Real:
    def __init__(self) -> None:
        self.store = EmbeddedStore(KvMachine())
        self.view = ConfigView(self.store)

    async def put(self, key: str, record: Any) -> None:
        await self.store.put(key, record.encode())
        await turns()


class Fake:
    def __init__(self) -> None:
        self.view = FakeView()
        self.view.known.clear()

    async def put(self, key: str, record: Any) -> None:
        if isinstance(record, NamespacePolicies):
            self.view.set(key.removeprefix(keys.NAMESPACES), record)
        elif isinstance(record, TenantInfo):
            self.view.tenants[key.removeprefix(keys.TENANTS)] = record
        elif isinstance(record, PartitionedTopic):
            self.view.counts[key.removeprefix(keys.PARTITIONED)] = record.partitions
        else:
            self.view.topics[key.removeprefix(keys.TOPIC_POLICIES)] = record


@pytest.mark.parametrize("kind", [Real, Fake])
def test_views_answer_alike(kind: type[Real] | type[Fake]) -> None:
    async def main() -> None:
        bench = kind()
        view: Any = bench.view
        assert view.namespace("a/x") is view.tenant("a") is view.topic_policies(TOPIC) is None
        assert view.cluster("c") is view.migration("us") is view.resource_group("g") is view.tenant_quota("a") is None
        assert view.partitions(TOPIC) == 0 and view.partitioned("a/x") == view.namespaces("a") == []
        assert view.migrated_in("a/x") == ()
        heard: list[str] = []
        stop = view.on_change(heard.append)
        for name in ("a/y", "a/x", "ab/x"):
            await bench.put(keys.namespace(name), NamespacePolicies(regions=("us",)))
        assert heard == [keys.namespace(name) for name in ("a/y", "a/x", "ab/x")]
        assert view.namespaces("a") == ["a/x", "a/y"] and view.namespaces("ab") == ["ab/x"]
        assert view.namespace("a/x") == NamespacePolicies(regions=("us",))
        stop()
        stop()
        await bench.put(keys.namespace("a/x"), NamespacePolicies(regions=("us", "eu")))
        assert len(heard) == 3 and view.namespace("a/x").regions == ("us", "eu")
        await bench.put(keys.tenant("a"), TenantInfo())
        assert view.tenant("a") == TenantInfo()
        for topic in ("persistent://a/x/u", TOPIC, "persistent://a/xx/t"):
            await bench.put(keys.partitioned(topic), PartitionedTopic(partitions=3))
        assert view.partitions(TOPIC) == 3 and view.partitioned("a/x") == [TOPIC, "persistent://a/x/u"]
        await bench.put(keys.topic_policies(TOPIC), TopicPolicies(policies={"messageTTL": 1}))
        assert view.topic_policies(TOPIC) == TopicPolicies(policies={"messageTTL": 1})

    asyncio.run(main())
