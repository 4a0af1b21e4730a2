"""ConfigAdmin and ConfigView over a store in this process: validation, references that hold, numbers that are never
used again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from global_config import keys
from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from global_config.write_retries import PATIENCE_S, PAUSE_MAX_S
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import OPS_MAX, Op, Put
from heliograph.model.configuration.configuration_records import (
    FORMAT,
    ClusterMigration,
    NamespacePolicies,
    PulsarCluster,
    RegionInfo,
    ResourceGroup,
    TenantInfo,
    TenantQuota,
    TopicPolicies,
)
from heliograph.model.configuration.policy_table import POLICIES_BYTES_MAX, checked
from heliograph.model.errors import (
    AlreadyExists,
    CorruptData,
    HeliographError,
    MetadataUnavailable,
    NotAllowed,
    NotFound,
    VersionConflict,
)
from heliograph.model.feature_levels import SEALED_TENANTS
from local_meta import keys as region_keys
from region_node.topics.policies.policy_book import PolicyBook
from tests.region_node.topics.fake_storage import FakeView


def run(main: Callable[[EmbeddedStore, ConfigAdmin], Coroutine[Any, Any, None]]) -> None:
    async def outer() -> None:
        store = EmbeddedStore()
        await main(store, ConfigAdmin(store))

    asyncio.run(outer())


async def provision(admin: ConfigAdmin) -> None:
    for name in ("us", "eu", "ap"):
        await admin.create_region(name)
    await admin.create_tenant("t", TenantInfo(allowed_regions=("us", "eu")))
    await admin.create_namespace("t/n", NamespacePolicies(regions=("us", "eu")))


async def refused(kind: type[HeliographError], text: str, call: Awaitable[object]) -> None:
    with pytest.raises(kind, match=text):
        await call


def test_peers_exist_and_stay_while_they_are_named() -> None:
    async def main(store: EmbeddedStore, admin: ConfigAdmin) -> None:
        view = ConfigView(store)
        await provision(admin)
        await admin.create_cluster(PulsarCluster(name="old", gateway="us"))
        assert (await admin.peers.set("ap", ["old", "eu", "eu"])).names == ("eu", "old")
        await asyncio.sleep(0.01)
        assert view.peers("ap") == ("eu", "old") and view.peers("us") == ()
        await refused(NotAllowed, "peer of itself", admin.peers.set("ap", ["ap"]))
        await refused(NotAllowed, "Peer cluster nowhere does not exist", admin.peers.set("ap", ["eu", "nowhere"]))
        await refused(NotFound, "Cluster nowhere does not exist", admin.peers.set("nowhere", ["eu"]))
        await refused(NotAllowed, "cluster ap, as its peer", admin.delete_cluster("old"))
        await admin.delete_region("ap")  # its peers go with it, and are free
        await admin.delete_cluster("old")
        await admin.create_region("ap")
        await asyncio.sleep(0.01)
        assert view.peers("ap") == () and await store.get(keys.peers("ap")) is None
        await admin.peers.set("ap", ["eu"])
        await admin.peers.set("ap", [])
        assert await store.get(keys.peers("ap")) is None
        view.close()

    run(main)


def test_region_numbers_are_never_used_again() -> None:
    async def main(store: EmbeddedStore, admin: ConfigAdmin) -> None:
        assert (await admin.create_region("us")).number == 1
        assert (await admin.create_region("eu", number=2)).number == 2
        assert (await admin.create_region("ap")).number == 3
        await admin.delete_region("eu")
        await admin.delete_region("ap")
        assert (await admin.create_region("eu")).number == 4
        await refused(NotAllowed, "number 2 was used before", admin.create_region("sa", number=2))
        await refused(NotAllowed, "number 3 was used before", admin.ensure_region(RegionInfo(name="ap", number=3)))
        await refused(AlreadyExists, "'us'", admin.create_region("us"))
        await refused(NotAllowed, "1 to", admin.create_region("sa", number=-1))
        await refused(NotAllowed, "may hold only", admin.create_region("s/a"))
        assert (await admin.create_region("sa", number=100)).number == 100
        assert (await admin.create_region("af")).number == 5

    run(main)


def test_ensure_region_creates_updates_and_repeats() -> None:
    async def main(store: EmbeddedStore, admin: ConfigAdmin) -> None:
        info = RegionInfo(name="us", number=7, service_url="pulsar://a:1", link_urls={"eu": ["pulsar+ssl://b:2"]})
        assert await admin.ensure_region(info) == info
        index = store.machine.index
        assert await admin.ensure_region(info) == info
        assert store.machine.index == index
        assert await admin.raise_epoch("us", 1) == 2
        moved = replace(info, service_url="pulsar://c:3")
        assert await admin.ensure_region(moved) == replace(moved, epoch=2)
        await refused(NotAllowed, "has number 7", admin.ensure_region(replace(info, number=8)))
        await refused(NotAllowed, "cannot fall", admin.update_region("us", lambda _: info))
        await refused(NotAllowed, "its epoch is 2", admin.raise_epoch("us", 1))
        await refused(NotFound, "'eu'", admin.update_region("eu", lambda old: old))
        assert (await admin.ensure_region(RegionInfo(name="eu", number=9, epoch=3))).epoch == 3

    run(main)


def test_a_regions_change_is_made_over_what_stands_there_and_its_level_never_falls() -> None:
    async def main(store: EmbeddedStore, admin: ConfigAdmin) -> None:
        await admin.create_region("us", feature_level=2)
        await asyncio.gather(
            admin.update_region("us", lambda old: replace(old, service_url="pulsar://a:1")),
            admin.update_region("us", lambda old: replace(old, admin_url="http://a:2")),
            admin.raise_level("us", 5),
        )
        after = await admin.update_region("us", lambda old: replace(old, feature_level=1))
        assert (after.service_url, after.admin_url, after.feature_level) == ("pulsar://a:1", "http://a:2", 5)

    run(main)


def test_bounds_and_rates_are_changed_over_what_stands_there() -> None:
    async def main(store: EmbeddedStore, admin: ConfigAdmin) -> None:
        await provision(admin)
        await asyncio.gather(
            *(
                admin.change_tenant_quota("t", lambda old, one=one: replace(old or TenantQuota(), **{one: 3}))
                for one in ("max_topics", "max_namespaces", "max_storage_bytes")
            ),
            *(
                admin.change_resource_group("g", lambda old, one=one: replace(old or ResourceGroup(), **{one: 3}))
                for one in ("publish_messages", "publish_bytes", "dispatch_messages", "dispatch_bytes")
            ),
        )
        quota = TenantQuota(max_topics=3, max_namespaces=3, max_storage_bytes=3)
        group = ResourceGroup(publish_messages=3, publish_bytes=3, dispatch_messages=3, dispatch_bytes=3)
        assert await admin.change_tenant_quota("t", lambda old: old) == (quota, quota)
        assert await admin.change_resource_group("g", lambda old: old or ResourceGroup()) == (group, group)
        assert await admin.change_tenant_quota("t", lambda _: None) == (quota, None)
        assert await admin.change_tenant_quota("t", lambda _: None) == (None, None)
        await refused(NotFound, "'nobody'", admin.change_tenant_quota("nobody", lambda _: quota))

    run(main)


def test_a_migration_goes_with_what_is_migrated() -> None:
    async def main(store: EmbeddedStore, admin: ConfigAdmin) -> None:
        view = ConfigView(store)
        await provision(admin)
        wanted = ClusterMigration(migrated=True, broker_service_url="pulsar://green:6650")
        await refused(NotFound, "Cluster nowhere does not exist", admin.migrations.set("nowhere", wanted))
        await refused(NotFound, "namespace 't/x'", admin.migrations.set_namespace("t/x", "us", True))
        await admin.migrations.set("ap", wanted)
        await asyncio.gather(*(admin.migrations.set_namespace("t/n", region, True) for region in ("us", "eu")))
        await asyncio.sleep(0.01)
        assert (
            view.migration("ap") == wanted and view.migration("us") is None and view.migrated_in("t/n") == ("eu", "us")
        )
        await admin.migrations.set_namespace("t/n", "us", False)
        await admin.delete_region("ap")
        await admin.create_region("ap")
        await asyncio.sleep(0.01)
        assert view.migration("ap") is None and view.migrated_in("t/n") == ("eu",)
        await admin.delete_namespace("t/n")
        await admin.create_namespace("t/n", NamespacePolicies(regions=("us", "eu")))
        await asyncio.sleep(0.01)
        assert view.migrated_in("t/n") == () and await store.get(keys.migrated("t/n")) is None
        await admin.migrations.set_namespace("t/n", "us", False)
        assert await store.get(keys.migrated("t/n")) is None
        view.close()

    run(main)


def test_what_is_named_must_exist_and_cannot_be_deleted() -> None:
    async def main(store: EmbeddedStore, admin: ConfigAdmin) -> None:
        await provision(admin)
        await refused(NotFound, "region 'mars'", admin.create_tenant("u", TenantInfo(allowed_regions=("mars",))))
        await refused(AlreadyExists, "tenant 't'", admin.create_tenant("t", TenantInfo()))
        await refused(NotFound, "tenant 'u'", admin.create_namespace("u/n", NamespacePolicies(regions=("us",))))
        await refused(
            NotAllowed,
            "'ap' is not allowed to tenant 't'",
            admin.create_namespace("t/m", NamespacePolicies(regions=("ap",))),
        )
        await refused(NotAllowed, "at least one region", admin.create_namespace("t/m", NamespacePolicies()))
        await refused(NotAllowed, "tenant/namespace", admin.create_namespace("t", NamespacePolicies(regions=("us",))))
        await refused(NotAllowed, "may hold only", admin.create_namespace("t/a/b", NamespacePolicies(regions=("us",))))
        await refused(
            AlreadyExists, "namespace 't/n'", admin.create_namespace("t/n", NamespacePolicies(regions=("us",)))
        )
        await refused(NotAllowed, "used by namespace t/n", admin.delete_region("us"))
        await refused(
            NotAllowed,
            "namespace t/n is in region 'eu'",
            _reworded(admin.update_tenant("t", TenantInfo(allowed_regions=("us",)))),
        )
        await refused(NotAllowed, "used by namespace t/n", admin.delete_tenant("t"))
        await admin.delete_namespace("t/n")
        await refused(NotAllowed, "used by tenant t", admin.delete_region("us"))
        await admin.update_tenant("t", TenantInfo(admin_roles=("r",), allowed_regions=("us",)))
        await admin.delete_region("eu")
        await admin.delete_tenant("t")
        await admin.delete_region("us")
        for missing in (
            admin.delete_region("us"),
            admin.delete_tenant("t"),
            admin.delete_namespace("t/n"),
            admin.update_tenant("t", TenantInfo()),
        ):
            await refused(NotFound, "does not exist", missing)

    run(main)


async def _reworded(call: Awaitable[object]) -> None:
    try:
        await call
    except NotAllowed as error:
        raise NotAllowed(str(error).replace("its ", "")) from error


def test_policies_change_by_compare_and_set() -> None:
    async def main(store: EmbeddedStore, admin: ConfigAdmin) -> None:
        await provision(admin)
        changes: list[Callable[[NamespacePolicies], NamespacePolicies]] = [
            lambda p: replace(p, policies=p.policies | {"maxProducers": p.policies.get("maxProducers", 0) + 1}),
            lambda p: replace(p, policies=p.policies | {"maxConsumers": p.policies.get("maxConsumers", 0) + 1}),
        ]
        await asyncio.gather(*(admin.update_namespace("t/n", changes[n % 2]) for n in range(8)))
        found = await store.get(keys.namespace("t/n"))
        assert found is not None
        policies = NamespacePolicies.decode(found[0])
        assert policies.policies == {"maxProducers": 4, "maxConsumers": 4}
        await refused(
            NotAllowed, "bundles is 4 and cannot", admin.update_namespace("t/n", lambda p: replace(p, bundles=8))
        )
        await refused(NotAllowed, "not allowed", admin.update_namespace("t/n", lambda p: replace(p, regions=("ap",))))
        wrong = {"persistence": {"bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 2, "bookkeeperEnsemble": 2}}
        await refused(NotAllowed, "ack quorum", admin.update_namespace("t/n", lambda p: replace(p, policies=wrong)))
        await refused(NotFound, "t/x", admin.update_namespace("t/x", lambda p: p))

    run(main)


def test_policies_above_their_bound_can_be_taken_back_piece_by_piece() -> None:
    topic = "persistent://t/n/x"
    one = checked({"dispatchRateOfSubscriptions": {"s": {}}})["dispatchRateOfSubscriptions"]["s"]

    def rates(count: int) -> dict[str, Any]:
        return {"dispatchRateOfSubscriptions": {f"s{number}": one for number in range(count)}}

    async def main(store: EmbeddedStore, admin: ConfigAdmin) -> None:
        await provision(admin)

        async def at_topic(wanted: dict[str, Any]) -> None:
            await admin.change_topic_policies(topic, lambda p: replace(p, policies=wanted))

        async def at_namespace(wanted: dict[str, Any]) -> None:
            await admin.update_namespace("t/n", lambda p: replace(p, policies=wanted))

        book = PolicyBook(store, FakeView(), {})

        async def in_region(wanted: dict[str, Any]) -> None:
            await book.change_topic(topic, lambda p: replace(p, policies=wanted))

        count = POLICIES_BYTES_MAX // len(json.dumps(one)) + 1
        few, many = rates(count), rates(count + 1)
        for change, key, earlier in (
            (at_topic, keys.topic_policies(topic), TopicPolicies(policies=many)),
            (at_namespace, keys.namespace("t/n"), NamespacePolicies(regions=("us", "eu"), policies=many)),
            (in_region, region_keys.topic_policies(topic), TopicPolicies(policies=many)),
        ):
            await refused(NotAllowed, "unset some", change(many))
            await store.put(key, earlier.encode())
            await change(few)
            await refused(NotAllowed, "unset some", change(many))

    run(main)


def test_partitioned_topics() -> None:
    async def main(store: EmbeddedStore, admin: ConfigAdmin) -> None:
        await provision(admin)
        topic = "persistent://t/n/x"
        await admin.create_partitioned(topic, 3)
        await refused(AlreadyExists, "exists already", admin.create_partitioned(topic, 3))
        await refused(NotAllowed, "only grow", admin.update_partitioned(topic, 2))
        await admin.update_partitioned(topic, 5)
        await refused(NotAllowed, "1 to 4096", admin.update_partitioned(topic, 5000))
        await refused(NotAllowed, "1 to 4096", admin.create_partitioned("persistent://t/n/y", 0))
        await refused(NotAllowed, "is a partition", admin.create_partitioned(topic + "-partition-1", 2))
        await refused(NotFound, "namespace 't/m'", admin.create_partitioned("persistent://t/m/x", 2))
        await admin.delete_partitioned(topic)
        await refused(NotFound, "does not exist", admin.delete_partitioned(topic))
        await admin.create_partitioned(topic, 3)
        await admin.delete_namespace("t/n")
        assert await store.get(keys.partitioned(topic)) is None

    run(main)


def test_a_namespace_goes_with_as_many_partitioned_topics_as_fit_in_one_transaction() -> None:
    async def main(store: EmbeddedStore, admin: ConfigAdmin) -> None:
        await provision(admin)
        topics = [f"persistent://t/n/{number}" for number in range(OPS_MAX - 5)]
        await store.txn([Put(keys.partitioned(topic), b"") for topic in topics])
        await refused(NotAllowed, "delete them first", admin.delete_namespace("t/n"))
        await store.delete(keys.partitioned(topics[0]))
        await admin.delete_namespace("t/n")
        assert await store.get(keys.partitioned(topics[-1])) is None

    run(main)


class Meddling(EmbeddedStore):
    """Lets another writer act just before a transaction, once."""

    before: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def txn(self, ops: Sequence[Op]) -> int:
        before, self.before = self.before, None
        if before is not None:
            await before()
        return await super().txn(ops)


@pytest.mark.parametrize(
    ("first", "meanwhile"),
    [
        (
            lambda a: a.delete_region("ap"),
            lambda a: a.update_tenant("t", TenantInfo(allowed_regions=("us", "eu", "ap"))),
        ),
        (
            lambda a: a.delete_tenant("empty"),
            lambda a: a.create_namespace("empty/n", NamespacePolicies(regions=("us",))),
        ),
        (
            lambda a: a.create_namespace("empty/n", NamespacePolicies(regions=("us",))),
            lambda a: a.delete_tenant("empty"),
        ),
        (
            lambda a: a.create_namespace("empty/n", NamespacePolicies(regions=("us",))),
            lambda a: a.update_tenant("empty", TenantInfo()),
        ),
        (
            lambda a: a.update_tenant("empty", TenantInfo()),
            lambda a: a.create_namespace("empty/n", NamespacePolicies(regions=("us",))),
        ),
        (lambda a: a.create_tenant("new", TenantInfo(allowed_regions=("ap",))), lambda a: a.delete_region("ap")),
        (lambda a: a.create_partitioned("persistent://t/n/x", 2), lambda a: a.delete_namespace("t/n")),
        (lambda a: a.create_region("sa"), lambda a: a.create_region("sa")),
        (lambda a: a.create_region("sa", number=50), lambda a: a.create_region("af", number=50)),
    ],
)
def test_no_reference_dangles_whoever_is_faster(first: Any, meanwhile: Any) -> None:
    """The second of two writes that exclude each other is refused, although it looked before the first one
    committed.
    """

    async def main() -> None:
        store = Meddling()
        admin, other = ConfigAdmin(store), ConfigAdmin(EmbeddedStore(store.machine))
        await provision(admin)
        await admin.create_tenant("empty", TenantInfo(allowed_regions=("us",)))
        store.before = lambda: meanwhile(other)
        with pytest.raises((NotAllowed, NotFound, AlreadyExists)):
            await first(admin)

    asyncio.run(main())


def test_a_tenant_has_to_be_encrypted_where_every_region_of_it_obeys_and_whoever_changes_it_meanwhile() -> None:
    async def main() -> None:
        store = Meddling()
        admin, other = ConfigAdmin(store), ConfigAdmin(EmbeddedStore(store.machine))
        await provision(admin)
        regions = ("us", "eu")
        await admin.raise_level("us", SEALED_TENANTS)
        await refused(NotAllowed, "region 'eu' is at feature level 1", admin.require_encryption("t", on=True))
        await admin.raise_level("eu", SEALED_TENANTS)
        store.before = lambda: _reworded(
            other.update_tenant("t", TenantInfo(admin_roles=("boss",), allowed_regions=regions))
        )
        wanted = TenantInfo(admin_roles=("boss",), allowed_regions=regions, encryption_at_rest=True)
        assert await admin.require_encryption("t", on=True) == wanted, (
            "what another one wrote just before is there, too"
        )
        assert await admin.update_tenant("t", TenantInfo(allowed_regions=regions)) == replace(wanted, admin_roles=()), (
            "who does not know of it leaves it"
        )
        joins = admin.update_tenant("t", TenantInfo(allowed_regions=(*regions, "ap")))
        sentence = "region 'ap' is at feature level 1, which cannot read that: upgrade that region first"
        await refused(NotAllowed, sentence, _reworded(joins))
        restored = TenantInfo(allowed_regions=("us", "ap"), encryption_at_rest=True)
        await refused(NotAllowed, sentence, admin.create_tenant("restored", restored))
        await admin.create_tenant("restored", replace(restored, allowed_regions=regions))
        assert not (await admin.require_encryption("t", on=False)).encryption_at_rest
        await admin.update_tenant("t", TenantInfo(allowed_regions=(*regions, "ap")))
        await refused(NotFound, "tenant 'nobody'", admin.require_encryption("nobody", on=True))

    asyncio.run(main())


class OfFormatOne(EmbeddedStore):
    """The store as a version finds it that reads no format above 1: each value is of one as far above what is read."""

    async def get(self, key: str) -> tuple[bytes, int] | None:
        found = await super().get(key)
        if found is None or not found[0]:
            return found
        fields = json.loads(found[0])
        return json.dumps({**fields, "format": fields["format"] + FORMAT - 1}).encode(), found[1]


def test_a_region_of_an_earlier_version_cannot_take_the_duty_off() -> None:
    """It is none of the tenant's regions, so that nobody asks for its level; it would write the tenant without the
    field that it does not know.
    """

    async def main() -> None:
        store = EmbeddedStore()
        admin = ConfigAdmin(store)
        await provision(admin)
        view = ConfigView(store)
        for region in ("us", "eu"):
            await admin.raise_level(region, SEALED_TENANTS)
        earlier = TenantInfo(allowed_regions=("us", "eu"), encryption_at_rest=True)
        await store.put(keys.tenant("t"), json.dumps({**json.loads(earlier.encode()), "format": 1}).encode())
        assert await admin.require_encryption("t", on=True) == earlier, "it is written anew"
        older = ConfigAdmin(OfFormatOne(store.machine))
        await refused(
            CorruptData,
            "TenantInfo: written by a newer version",
            _reworded(older.update_tenant("t", TenantInfo(allowed_regions=("us", "eu")))),
        )
        await refused(
            CorruptData,
            "TenantInfo: written by a newer version",
            older.create_namespace("t/another", NamespacePolicies(regions=("us",))),
        )
        await view.ready()
        assert view.tenant("t") == earlier
        await admin.require_encryption("t", on=False)
        await older.update_tenant("t", TenantInfo(admin_roles=("boss",), allowed_regions=("us", "eu")))

    asyncio.run(main())


def test_a_namespace_takes_its_partitioned_topics_along_also_the_newest() -> None:
    async def main() -> None:
        store = Meddling()
        admin = ConfigAdmin(store)
        await provision(admin)
        store.before = lambda: ConfigAdmin(EmbeddedStore(store.machine)).create_partitioned("persistent://t/n/late", 2)
        await admin.delete_namespace("t/n")
        assert await store.range(keys.PARTITIONED, keys.PARTITIONED + "~") == []

    asyncio.run(main())


class Crowded(EmbeddedStore):
    """Somebody else is faster, `times` in a row."""

    times = 0
    tried: list[float]

    async def txn(self, ops: Sequence[Op]) -> int:
        self.tried.append(asyncio.get_running_loop().time())
        if len(self.tried) <= self.times:
            raise VersionConflict(keys.GUARD, 1, 2)
        return await super().txn(ops)


@pytest.mark.parametrize(("times", "good"), [(0, True), (1, True), (40, True), (1000, False)])
def test_a_write_that_loses_against_others_is_tried_again_until_time_is_up(times: int, good: bool) -> None:
    with Simulation(3) as sim:

        async def main() -> None:
            store = Crowded()
            store.tried = []
            admin = ConfigAdmin(store, rng=sim.rng("tries"))
            await admin.create_region("us")
            store.times, store.tried = times, []
            began = sim.now()
            if good:
                await admin.create_tenant("t", TenantInfo(allowed_regions=("us",)))
                assert len(store.tried) == times + 1 and sim.now() - began < PATIENCE_S
            else:
                await refused(
                    MetadataUnavailable,
                    "all the time: try again",
                    admin.create_tenant("t", TenantInfo(allowed_regions=("us",))),
                )
                assert PATIENCE_S <= sim.now() - began <= PATIENCE_S + PAUSE_MAX_S
            pauses = [b - a for a, b in pairwise(store.tried)]
            assert all(pause == 0 for pause in pauses[:1]), "the first repeat comes at once"
            assert all(0 < pause <= PAUSE_MAX_S for pause in pauses[1:]) and len(set(pauses[1:])) == len(pauses[1:]), (
                "spread by chance"
            )

        sim.run(main(), limit_s=60)


def test_a_number_that_cannot_be_read_hides_nothing_else() -> None:
    async def main(store: EmbeddedStore, admin: ConfigAdmin) -> None:
        await provision(admin)
        view = ConfigView(store)
        await view.ready()
        for key, value in ((f"{keys.REGION_NUMBERS}many", b"sa"), (keys.region_number(77), b"\xff\xfe")):
            await store.put(key, value)
        async with asyncio.timeout(60):
            heard = asyncio.Event()
            view.on_change(lambda _: heard.set())
            await admin.create_region("af")
            await heard.wait()
        assert len(view.broken) == 2 and 77 not in view.region_numbers and "af" in view.region_numbers.values()

    run(main)


def test_the_view_is_what_the_watch_told() -> None:
    async def main(store: EmbeddedStore, admin: ConfigAdmin) -> None:
        await provision(admin)
        view = ConfigView(store)
        assert view.regions() == []
        await view.ready()
        heard: list[str] = []
        stop = view.on_change(heard.append)
        assert [region.name for region in view.regions()] == ["ap", "eu", "us"]
        assert view.region("us") == RegionInfo(name="us", number=1) and view.region("mars") is None
        assert view.tenants() == ["t"] and view.tenant("t") == TenantInfo(allowed_regions=("us", "eu"))
        assert view.namespaces("t") == ["t/n"] and view.namespaces("u") == []
        assert view.namespace("t/n") == NamespacePolicies(regions=("us", "eu"))
        await admin.create_partitioned("persistent://t/n/x", 3)
        await asyncio.sleep(0)
        assert view.partitions("persistent://t/n/x") == 3 and view.partitions("persistent://t/n/y") == 0
        assert heard == ["/partitioned/persistent://t/n/x"]
        await admin.delete_namespace("t/n")
        await asyncio.sleep(0)
        assert (
            view.namespaces("t") == [] and view.namespace("t/n") is None and view.partitions("persistent://t/n/x") == 0
        )
        stop()
        await store.put(keys.tenant("t"), b'{"format": 99}')
        await asyncio.sleep(0)
        assert (
            view.tenant("t") == TenantInfo(allowed_regions=("us", "eu"))
            and "newer version" in view.broken[keys.tenant("t")]
        )
        await store.delete(keys.tenant("t"))
        await asyncio.sleep(0)
        assert view.tenant("t") is None and view.broken == {}
        assert len(heard) == 3 and view.stale_s() == 0
        view.close()
        await admin.create_tenant("u", TenantInfo())
        await asyncio.sleep(0)
        assert view.tenants() == []
        view = ConfigView(store)
        await view.ready()
        numbers = {region.number: region.name for region in view.regions()}
        await store.delete(keys.region("ap"))
        await asyncio.sleep(0)
        assert len(view.regions()) == 2 and view.region_numbers == numbers and "ap" in numbers.values(), (
            "a number that was given is never forgotten"
        )
        view.close()

    run(main)
