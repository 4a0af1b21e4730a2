"""Quotas of tenants, set by an operator: namespaces, topics, stored bytes, and a group of rates."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pulsar
import pytest

from geo_tests.sim.loop import run_alone
from global_config import keys
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo, TenantQuota
from heliograph.model.configuration.drill_shadows import MARK, mark
from heliograph.model.configuration.policy_table import BY_NAME
from heliograph.model.errors import NotAllowed, NotFound
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL
from region_node.faces.admin.calls.call_rights import CallAccess
from region_node.faces.admin.tenancy import tenant_quotas
from region_node.faces.admin.tenancy.policy_routes import check_value
from region_node.faces.admin.tenancy.tenant_quotas import Bounds
from tests.region_node.faces.admin.old_view import OldView
from tests.region_node.live import FOR_EVER, TOPICS, provisioned, until
from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

QUOTA = "/heliograph/v1/tenants/public/quota"


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    with provisioned(tmp_path_factory.mktemp("quotas"), usage={"quota_s": 0.2}) as made:
        rest = Rest(made.admin_url())
        assert rest("PUT", "/admin/v2/tenants/other", {"allowedClusters": ["us"]})[0] == 204
        assert rest("PUT", "/admin/v2/namespaces/other/default", {"retention_policies": FOR_EVER})[0] == 204
        yield made


@pytest.fixture
def rest(region: Region) -> Iterator[Rest]:
    asked = Rest(region.admin_url())
    yield asked
    asked("DELETE", QUOTA)


@pytest.fixture
def client(region: Region) -> Iterator[Any]:
    made = pulsar.Client(
        region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=5
    )
    yield made
    made.close()


def metrics(region: Region) -> list[str]:
    with urllib.request.urlopen(f"{region.admin_url()}/metrics/", timeout=60) as answer:
        return list(answer.read().decode().splitlines())


def test_an_operator_alone_sets_them() -> None:
    assert {row.method: row.access for row in tenant_quotas.ROUTES} == {
        "GET": CallAccess.TENANT,
        "PUT": CallAccess.SUPER,
        "DELETE": CallAccess.SUPER,
    }


def test_bounds_are_changed_over_what_is_stored_whatever_this_broker_knows_yet() -> None:
    async def main() -> None:
        asked: Any = None
        old = await OldView().start()
        await old.config.create_tenant("t", TenantInfo(allowed_regions=("us",)))
        await old.look()
        assert await tenant_quotas.put(old.admin, asked, "t", Bounds(max_topics=3))
        after = await tenant_quotas.put(old.admin, asked, "t", Bounds(max_namespaces=2))
        assert after == TenantQuota(max_namespaces=2, max_topics=3)
        assert await old.stored(keys.tenant_quota("t"), TenantQuota) == TenantQuota(max_topics=3, max_namespaces=2)
        await tenant_quotas.delete(old.admin, asked, "t")
        one, two = TenantQuota(max_topics=3), TenantQuota(max_topics=3, max_namespaces=2)
        shown = [None if quota is None else tenant_quotas._shown(quota) for quota in (None, one, two, None)]
        assert old.audited == [*pairwise(shown)], "what stood there is told"
        await old.config.delete_tenant("t")
        with pytest.raises(NotFound, match="tenant 't'"):  # else the next one of that name had it
            await tenant_quotas.put(old.admin, asked, "t", Bounds(max_topics=3))

    run_alone(main())


def test_the_shadow_of_a_drill_is_no_namespace_of_the_quota_and_nobody_else_makes_one() -> None:
    async def main() -> None:
        old = await OldView().start()
        await old.config.create_tenant("t", TenantInfo(allowed_regions=("us",)))
        await old.config.change_tenant_quota("t", lambda _: TenantQuota(max_namespaces=2))
        await old.config.create_namespace("t/n", NamespacePolicies(regions=("us",)))
        shadow = NamespacePolicies(regions=("us",), policies={"properties": mark("t/n-drill-1")})
        await old.config.create_namespace("t/n-drill-1", shadow)
        await old.look()
        tenant_quotas.check_namespaces(old.admin, "t")
        await old.config.create_namespace("t/n-drill-2", shadow)
        await old.look()
        with pytest.raises(NotAllowed, match="has 2 namespaces"):
            tenant_quotas.check_namespaces(old.admin, "t")
        with pytest.raises(NotAllowed, match="take another name"):
            check_value(old.admin, {PRINCIPAL: None}, BY_NAME["properties"], {"a": "b", MARK: "t/n-drill-2"})  # type: ignore[arg-type]
        check_value(old.admin, {PRINCIPAL: None}, BY_NAME["properties"], {"a": "b"})  # type: ignore[arg-type]

    run_alone(main())


@pytest.mark.wan
@pytest.mark.slow
def test_namespaces_and_topics_are_counted(rest: Rest, client: Any) -> None:
    assert rest("PUT", QUOTA, {"max_namespaces": 1, "max_topics": 3})[0] == 200
    status, told = rest("PUT", "/admin/v2/namespaces/public/second")
    assert status == 412 and "may have 1" in str(told)
    assert rest("PUT", f"{TOPICS}/one")[0] == 204
    client.create_producer("two").close()
    client.create_producer("three").close()
    assert rest("PUT", f"{TOPICS}/four")[0] == 409
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("four")
    client.create_producer("persistent://other/default/four").close()
    assert rest("GET", QUOTA)[1]["used"]["topics"] == 3
    assert rest("PUT", QUOTA, {"max_topics": 4, "max_namespaces": 0})[0] == 200
    client.create_producer("four").close()
    assert rest("PUT", "/admin/v2/namespaces/public/second")[0] == 204


@pytest.mark.wan
@pytest.mark.slow
def test_who_stores_as_much_as_it_may_publishes_nothing_more(rest: Rest, client: Any, region: Region) -> None:
    producer = client.create_producer("full", batching_enabled=False)
    for _ in range(20):
        producer.send(b"x" * 10_000)
    assert (
        rest("PUT", f"{TOPICS}/full/unload")[0] == 204
    )  # most of it is in a closed ledger then, of a topic that nobody has loaded
    client.create_producer("later").send(b"x")
    assert rest("PUT", QUOTA, {"max_storage_bytes": 150_000})[0] == 200
    until(lambda: rest("GET", QUOTA)[1]["full"])
    until(lambda: 'heliograph_tenant_full{cluster="us",tenant="public"} 1' in metrics(region))
    assert rest("GET", QUOTA)[1]["used"]["storage_bytes"] >= 200_000
    for topic in ("full", "later", "new"):
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(topic, send_timeout_millis=2000)
    until(lambda: rest("GET", f"{TOPICS}/later/stats")[1]["publishers"] == [])
    client.create_producer("persistent://other/default/t").send(b"others go on")
    reader = client.create_reader("full", pulsar.MessageId.earliest)
    assert len(reader.read_next(60_000).data()) == 10_000, "what is there is read"
    reader.close()
    usage = rest("GET", "/heliograph/v1/usage/public?all=true")[1]
    assert usage["storage_bytes"] >= 200_000, "also of topics that nobody has loaded"
    assert rest("DELETE", f"{TOPICS}/full?force=true")[0] == 204
    until(lambda: not rest("GET", QUOTA)[1]["full"])
    client.create_producer("later").send(b"again")


@pytest.mark.wan
@pytest.mark.slow
def test_its_group_of_rates_holds_whatever_its_namespaces_say(rest: Rest, client: Any, region: Region) -> None:
    assert rest("PUT", QUOTA, {"resource_group": "absent"})[0] == 412
    assert rest("PUT", QUOTA, {"colour": 1})[0] == 400
    assert rest("PUT", "/admin/v2/resourcegroups/small", {"publishRateInMsgs": 5})[0] == 204
    assert rest("PUT", QUOTA, {"resource_group": "small"})[0] == 200
    producer = client.create_producer("slowed", batching_enabled=False, send_timeout_millis=60_000)
    for _ in range(20):
        producer.send_async(b"x", None)
    producer.flush()
    start = 'heliograph_resource_group_share{cluster="us",resource_group="small",kind="publish_messages"}'
    until(lambda: any(line.startswith(start) for line in metrics(region)))  # no namespace was put into it
