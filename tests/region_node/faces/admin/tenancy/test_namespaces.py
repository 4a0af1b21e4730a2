"""A namespace is deleted where no region of it has topics, or by force."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from aiohttp import web

from geo_tests.sim.loop import run_alone
from global_config import keys
from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.model.errors import HeliographError, MetadataUnavailable, NotAllowed, NotFound
from region_node.faces.admin.calls import region_facts
from region_node.faces.admin.calls.call_parameters import called
from region_node.faces.admin.dr import disaster_recovery
from region_node.faces.admin.tenancy import namespaces

REGIONS = ("us", "eu", "ap")


class World:
    """A namespace in three regions; `stored`: the topics of each, or why it does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stored: dict[str, list[str] | HeliographError] = {name: [] for name in REGIONS}
        self.unaware: set[str] = set()
        """Regions whose copy of the configuration does not have the namespace yet."""
        self.asked: list[str] = []
        self.without_schemas: list[str] = []
        monkeypatch.setattr(region_facts, "elsewhere", self.elsewhere)

    async def start(self) -> World:
        self.store = EmbeddedStore()
        self.config = ConfigAdmin(self.store)
        for name in REGIONS:
            await self.config.create_region(name)
            await self.config.begin_metadata(name, f"made in {name}")
        await self.config.create_tenant("t", TenantInfo(allowed_regions=REGIONS))
        await self.config.create_namespace("t/n", NamespacePolicies(regions=REGIONS))
        self.view = ConfigView(self.store)
        await self.view.ready()
        return self

    def admin(self, region: str) -> Any:
        async def topics(namespace: str) -> list[str]:
            found = self.stored[region]
            if isinstance(found, HeliographError):
                raise found
            return found

        async def delete_schemas(namespace: str) -> None:
            self.without_schemas.append(namespace)

        def policies(namespace: str) -> Any:
            if region in self.unaware:
                raise NotFound(namespace)
            return self.view.namespace(namespace)

        return SimpleNamespace(
            region=region,
            config=self.config,
            view=self.view,
            leases=None,
            tombstones=None,
            topics=SimpleNamespace(
                topics=topics,
                stored=topics,
                undeleted=topics,
                everywhere=None,
                policies=SimpleNamespace(forget_namespace=_nothing),
                schemas=SimpleNamespace(delete_namespace=delete_schemas),
            ),
            namespace=lambda request: "t/n",
            policies=policies,
            table=lambda namespace: SimpleNamespace(count=1, boundaries=list),
            changed=lambda *_: None,
            seen=_nothing,
        )

    async def elsewhere(self, admin: Any, request: Any, region: str, method: str, path: str) -> Any:
        url = urlsplit(path)
        assert (method, url.path) == ("GET", "/heliograph/v1/dr/t/n/facts")
        self.asked.append(region)
        told: Any = SimpleNamespace(query=dict(parse_qsl(url.query)))
        return json.loads(json.dumps(await called(disaster_recovery.region_facts, self.admin(region), told)))

    async def delete(self, **query: str) -> bool:
        """Whether the namespace is gone then."""
        await called(namespaces.delete, self.admin("us"), SimpleNamespace(query=query))  # type: ignore[arg-type]
        return not await self.there()

    async def there(self) -> bool:
        return await self.store.get(keys.namespace("t/n")) is not None


async def _nothing(*_: Any) -> None: ...


def test_a_namespace_stays_while_another_region_has_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = await World(monkeypatch).start()
        world.stored |= {"eu": ["persistent://t/n/a", "persistent://t/n/b"], "ap": MetadataUnavailable("ap is away")}
        with pytest.raises(web.HTTPConflict) as refused:
            await world.delete()
        assert refused.value.reason == "Cannot delete non empty namespace: t/n has 2 topics in eu"
        world.stored["ap"] = ["persistent://t/n/a"]
        with pytest.raises(web.HTTPConflict, match="2 topics in eu, 1 topics in ap"):
            await world.delete()
        assert await world.there()
        world.stored |= {"eu": [], "ap": []}
        assert not world.without_schemas and await world.delete() and world.without_schemas == ["t/n"]

    run_alone(main())


def test_what_is_made_here_while_other_regions_are_asked_keeps_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = await World(monkeypatch).start()
        ask = world.elsewhere

        async def slowly(*about: Any) -> Any:
            world.stored["us"] = ["persistent://t/n/new"]
            return await ask(*about)

        monkeypatch.setattr(region_facts, "elsewhere", slowly)
        with pytest.raises(web.HTTPConflict, match="t/n has 1 topics"):
            await world.delete()
        assert await world.there() and not world.without_schemas

    run_alone(main())


def test_a_namespace_stays_while_a_region_that_has_left_it_has_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be another one's of its name."""

    async def main() -> None:
        world = await World(monkeypatch).start()
        left = await world.config.update_namespace("t/n", lambda old: replace(old, regions=("us", "ap")))
        await asyncio.sleep(1.0)
        assert world.view.namespace("t/n") == left
        world.stored["eu"] = ["persistent://t/n/a"]
        with pytest.raises(web.HTTPConflict, match="1 topics in eu"):
            await world.delete()
        world.stored["eu"] = []
        assert await world.delete()

    run_alone(main())


def test_a_region_that_cannot_be_asked_keeps_a_namespace_unless_it_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = await World(monkeypatch).start()
        for kind, why in ((MetadataUnavailable, "region ap does not answer"), (NotAllowed, "region ap is not https")):
            world.stored["ap"] = kind(why)
            with pytest.raises(kind, match=f"^{why}; .*force deletes the namespace without asking ap") as refused:
                await world.delete()
            assert "stay there" in str(refused.value) and await world.there()
            assert ("try again" in str(refused.value)) == (kind is MetadataUnavailable)
        world.asked.clear()
        assert await world.delete(force="true")
        assert not world.asked

    run_alone(main())


def test_a_region_that_has_not_heard_of_the_namespace_tells_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = await World(monkeypatch).start()
        world.unaware.add("eu")
        world.stored["eu"] = ["persistent://t/n/of-an-earlier-one"]
        with pytest.raises(web.HTTPConflict, match="1 topics in eu"):
            await world.delete()
        world.stored["eu"] = []
        assert await world.delete()

    run_alone(main())


def test_a_region_of_an_earlier_version_tells_everything_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = await World(monkeypatch).start()

        async def earlier(*_: Any) -> Any:
            return {"region": "eu", "topics": {"persistent://t/n/a": {}}, "missing": ["persistent://t/n/b"]}

        monkeypatch.setattr(region_facts, "elsewhere", earlier)
        with pytest.raises(web.HTTPConflict, match="2 topics in eu"):
            await world.delete()

    run_alone(main())
