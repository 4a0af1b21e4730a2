"""What a region does of the shadows of drills: by whom they are counted, and how they go."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from global_config.view import ConfigView
from heliograph.client.pulsar_connection import Address
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.model.configuration.drill_shadows import mark
from heliograph.model.errors import NotAllowed
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.dr import drills
from region_node.security.allowed_urls import UrlList
from storage.managed_ledger.append_counts import FINE_S, NAMESPACES_MAX, Appends
from tests.region_node.faces.admin.old_view import OldView

NS, SHADOW = "t/n", "t/n-drill-1"


class Here:
    """One broker `b1` of region us, and topics of a shadow by name; whoever lists them may find more each time."""

    async def start(self, *regions: str, **policies: Any) -> Here:
        self.old = await OldView().start()
        for region in regions[1:]:
            await self.old.config.create_region(region, feature_level=2)
        await self.old.config.create_tenant("t", TenantInfo(allowed_regions=regions))
        await self.old.config.create_namespace(
            SHADOW, NamespacePolicies(regions=regions, policies={**policies, "properties": mark(SHADOW)})
        )
        self.there, self.coming = set[str](), list[str]()
        self.record: Any = SimpleNamespace(broker="b1", listeners={})
        self.brokers, self.called = [self.record], list[tuple[str, str, str]]()
        self.admin = self.old.admin
        self.admin.view = ConfigView(self.old.store)
        await self.admin.view.ready()
        self.admin.policies, self.admin.seen = self._policies, self._seen
        self.admin.topics = SimpleNamespace(topics=self._topics, delete_topic=self._delete, loaded={})
        self.admin.ownership = SimpleNamespace(record=self.record, owner=self._owner, brokers=lambda: self.brokers)
        self.admin.call, self.admin.drill_clients, self.admin.appends = self._call, None, None
        return self

    def _policies(self, namespace: str) -> NamespacePolicies:
        found = self.admin.view.namespace(namespace)
        assert isinstance(found, NamespacePolicies)
        return found

    async def _seen(self, present: Callable[[], bool]) -> None:
        for _ in range(100):
            if present():
                return
            await asyncio.sleep(0.01)

    async def _topics(self, namespace: str) -> list[str]:
        return sorted(self.there)

    async def _delete(self, topic: str, *, force: bool) -> None:
        self.there.remove(topic)
        self.there.update(self.coming)
        self.coming.clear()

    async def _owner(self, topic: str) -> Any:
        return self.record

    async def _call(self, record: Any, method: str, path: str, given: Any = None) -> Any:
        self.called.append((record.broker, method, path))
        return {}


def test_a_shadow_of_more_partitioned_topics_than_a_transaction_holds_goes_some_at_a_time() -> None:
    async def main() -> None:
        here = await Here().start("us")
        for number in range(1100):
            await here.old.config.create_partitioned(f"persistent://{SHADOW}/of-1-{number}", 1)
        said = list[int]()
        while (left := (await drills.drop(here.admin, SHADOW))["left"]) or not said:
            assert here.admin.view.namespace(SHADOW) is not None
            said.append(left)
        assert said[0] == 1050 and said[-1] == 50 and here.admin.view.namespace(SHADOW) is None

    run_alone(main())


def test_a_broker_that_counts_many_namespaces_tells_zeros_of_one_that_it_has_nothing_of() -> None:
    async def main() -> None:
        here = await Here().start("us")
        here.admin.appends = appends = Appends()
        for number in range(NAMESPACES_MAX + 1):
            appends.of(f"persistent://t/n{number}/a").confirmed(1, 1, 1, 0.0)
        found = await drills.latencies(here.admin, NS, local=True)
        assert found == {"b1": [0] * (len(FINE_S) + 1)}
        here.admin.topics.loaded["x"] = SimpleNamespace(
            name=TopicName.parse(f"persistent://{NS}/x"), volatile=False, closed=False
        )
        assert await drills.latencies(here.admin, NS, local=True) == {"b1": []}, "they are among others'"
        assert sum((await drills.latencies(here.admin, "t/n7", local=True))["b1"]) == 1

    run_alone(main())


def token(**claims: Any) -> str:
    return ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims, "s"))


def test_a_drills_client_goes_to_listed_hosts_alone_and_shows_a_token_that_is_for_the_region() -> None:
    async def main() -> None:
        here = await Here().start("us", "eu")
        here.admin.urls, here.admin.audiences = UrlList(("*.good",)), {"eu": "of-eu"}
        own = Address.parse("pulsar+ssl://b1.inside:6651")
        check, all_regions, of_eu = drills.led_to(here.admin, "eu", {own}), token(sub="root"), token(aud="of-eu")
        check(own, all_regions)
        check(Address.parse("pulsar+ssl://eu.good:6651"), of_eu)
        with pytest.raises(NotAllowed, match="allowed_urls"):
            check(Address.parse("pulsar+ssl://evil.example:6651"), of_eu)
        with pytest.raises(NotAllowed, match="region_audiences"):
            check(Address.parse("pulsar+ssl://eu.good:6651"), all_regions)

    run_alone(main())


def test_clients_end_at_all_brokers_and_what_they_have_made_meanwhile_keeps_the_region_in_the_shadow() -> None:
    async def main() -> None:
        here = await Here().start("us")
        here.brokers.append(SimpleNamespace(broker="b2", listeners={}))
        here.there = {f"persistent://{SHADOW}/a"}
        here.coming = [f"persistent://{SHADOW}/made-meanwhile"]
        assert await drills.drop(here.admin, SHADOW) == {"left": 1}
        assert [(broker, method) for broker, method, _ in here.called] == [("b2", "DELETE")]
        assert here.called[0][2].endswith("/clients?local=true")
        assert here.admin.view.namespace(SHADOW) is not None
        assert await drills.drop(here.admin, SHADOW) == {"left": 0}
        assert not here.there and here.admin.view.namespace(SHADOW) is None

    run_alone(main())
