"""A tenant, or a namespace, that is deleted leaves nothing for the next one of its name, whatever fails on the way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import (
    NamespacePolicies,
    TenantInfo,
    TenantQuota,
    TopicPolicies,
)
from heliograph.model.configuration.leadership import subscription_name
from heliograph.model.configuration.policy_table import BY_NAME
from heliograph.model.errors import MetadataUnavailable, NotAllowed
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.operations.drill_schedule import Schedule, schedule
from region_node.dr.operations.operation import history_prefix, operation_key
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL
from region_node.faces.admin.calls.call_parameters import called
from region_node.faces.admin.tenancy import namespaces, policy_routes, tenants
from tests.region_node.faces.pulsar.harness import settle

TOPIC = "persistent://t/n/x"


class World:
    """A tenant with a quota, and a namespace of it with one of everything that can be said of one."""

    async def start(self) -> World:
        self.store = store = EmbeddedStore()
        self.config, self.view = ConfigAdmin(store), ConfigView(store)
        await self.view.ready()
        await self.config.create_region("us")
        await self.config.create_tenant("t", TenantInfo(allowed_regions=("us",)))
        await self.config.change_tenant_quota("t", lambda _: TenantQuota(max_topics=3))
        await self.config.create_namespace("t/n", NamespacePolicies(regions=("us",)))
        for topic in (TOPIC, f"non-{TOPIC}"):
            await self.config.change_topic_policies(topic, lambda _: TopicPolicies(policies={"maxConsumers": 3}))
        switching = Switching(store, lambda: 0)
        for name in ("t/n", subscription_name(TOPIC, "s")):
            await switching.begin(name, "us", {})
        for key in (operation_key("t/n"), f"{history_prefix('t/n')}00000001"):
            await store.put(key, b"{}")
        await store.put(schedule("t/n"), Schedule(every_s=60, next_ms=0, to="us").encode())
        self.tombstones: dict[str, Any] = {}

        async def topics(namespace: str) -> list[str]:
            return []

        self.admin: Any = SimpleNamespace(
            region="us",
            config=self.config,
            view=self.view,
            leases=SimpleNamespace(store=store),
            clock=SimpleNamespace(wall_ms=lambda: 0),
            tombstones=SimpleNamespace(known=self.tombstones),
            topics=SimpleNamespace(
                topics=topics,
                everywhere=None,
                policies=SimpleNamespace(forget_namespace=_nothing),
                schemas=SimpleNamespace(delete_namespace=_nothing),
            ),
            tenant=lambda request: "t",
            namespace=lambda request: "t/n",
            policies=self.view.namespace,
            table=lambda namespace: SimpleNamespace(count=1, boundaries=list),
            changed=lambda *_: None,
            seen=_nothing,
        )
        await settle(20)
        return self

    def left(self) -> list[str]:
        return [key for key, _, _ in self.store.machine.under("/") if "t/n" in key or key.endswith("/t")]

    def lose(self, write: int) -> None:
        """The write of that number does not go through, counted from now."""

        def counted(given: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def written(*args: Any, **kwargs: Any) -> Any:
                nonlocal write
                write -= 1
                if write == -1:
                    raise MetadataUnavailable("no majority")
                return await given(*args, **kwargs)

            return written

        for name in ("txn", "delete"):
            setattr(self.store, name, counted(getattr(self.store, name)))


async def _nothing(*_: Any) -> None: ...


@pytest.mark.parametrize(("wanted", "allowed"), [(["us"], True), (["eu"], False), (["us", "eu"], False), ([], True)])
def test_a_topic_is_replicated_only_where_its_tenant_may_be(
    monkeypatch: pytest.MonkeyPatch, wanted: list[str], allowed: bool
) -> None:
    async def main() -> None:
        world, written = await World().start(), list[dict[str, Any]]()
        await world.config.create_region("eu")
        await settle(20)
        world.admin.regions = partial(Admin.regions, world.admin)
        world.admin.parted = partial(Admin.parted, world.admin)

        async def given(_: Any) -> list[str]:
            return wanted

        async def write(_: Any, __: Any, change: policy_routes.Change) -> None:
            written.append(change({}))

        monkeypatch.setattr(policy_routes, "body", given)
        level: Any = SimpleNamespace(write=write)
        request: Any = {PRINCIPAL: None}
        setting = policy_routes._set(level, BY_NAME["replication"])(world.admin, request)
        if allowed:
            await setting
        else:
            with pytest.raises(NotAllowed, match=r"region 'eu' is not allowed to tenant 't' \(allowed: us\)"):
                await setting
        assert written == [{"replication": wanted}] * allowed

    run_alone(main())


@pytest.mark.parametrize("handler", [tenants.delete, namespaces.delete])
def test_what_fails_on_the_way_is_given_again_and_leaves_nothing(handler: Callable[..., Awaitable[None]]) -> None:
    request: Any = SimpleNamespace(query={"force": "true"})

    async def one(lost: int) -> bool:
        """Whether there was such a write."""
        world = await World().start()
        assert len(world.left()) == 10
        world.lose(lost)
        try:
            await called(handler, world.admin, request)
        except MetadataUnavailable:
            await settle(20)
            await called(handler, world.admin, request)
            found = True
        else:
            found = False
        rest = [] if handler is tenants.delete else ["/tenant-quotas/t", "/tenants/t"]
        assert sorted(world.left()) == rest, lost
        return found

    async def main() -> None:
        lost = 0
        while await one(lost):
            lost += 1
        assert lost >= 7

    run_alone(main())


def test_a_tenant_stays_while_something_of_it_can_be_brought_back() -> None:
    async def main() -> None:
        world = await World().start()
        world.tombstones["x"] = (SimpleNamespace(topic=TOPIC), 1)
        before = world.left()
        with pytest.raises(NotAllowed, match="undelete"):
            await called(tenants.delete, world.admin, SimpleNamespace(query={"force": "true"}))  # type: ignore[arg-type]
        assert world.left() == before

    run_alone(main())
