"""Whole regions beside records that this version cannot read: no task of any process ends by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from geo_tests.sim.region import NAMESPACE
from geo_tests.sim.region_stories import TOPIC, Story, given
from global_config import deferred_edits
from global_config import keys as config_keys
from heliograph.kv.machine_commands import CommandKind, command, txn_fields
from heliograph.kv.metadata_store import Put
from heliograph.model.configuration import leadership
from heliograph.model.configuration.kafka_brokers import KAFKA_BROKERS
from heliograph.model.configuration.kafka_users import KAFKA_USERS
from heliograph.model.configuration.revocations import REVOCATIONS
from heliograph.model.configuration.tombstones import TOMBSTONES
from local_meta import keys
from region_node.dr.operations.automatic_policy import HOLDS
from region_node.dr.operations.drill_schedule import SCHEDULES
from region_node.dr.operations.operation import history_prefix, operation_key, reports_prefix
from region_node.process.composition import ConfigRole, MetaRole

UNREADABLE = (b"\xffno record", b"7", b"[]", b'{"format": 99}', b"")
OTHER = "sim/other"
OF_THE_CONFIGURATION = (
    config_keys.RESTORED,
    config_keys.GUARD,
    config_keys.FORCED,
    config_keys.FORCING,
    leadership.FLOOR,
    leadership.DELETED,
    leadership.ENDED + OTHER,
    leadership.LEADERSHIP + OTHER,
    f"{leadership.SUBSCRIPTIONS}{TOPIC}/s",
    leadership.WRITERS + "eu/eu-broker-0.77",
    KAFKA_BROKERS + "eu/eu-broker-0.77",
    KAFKA_USERS + "u",
    deferred_edits.MERGED + "us",
    deferred_edits.CONFLICTS + "us/x",
    REVOCATIONS + "token/x",
    f"{TOMBSTONES}{TOPIC}-gone",
    SCHEDULES + OTHER,
    HOLDS + "/" + OTHER,
    operation_key(OTHER),
    history_prefix(OTHER) + "1",
    reports_prefix(OTHER) + "1",
    config_keys.seen_by("us"),
    *(
        prefix + "x"
        for prefix in (
            config_keys.REGIONS,
            config_keys.CLUSTERS,
            config_keys.PEERS,
            config_keys.MIGRATIONS,
            config_keys.MIGRATED,
            config_keys.TENANTS,
            config_keys.RESOURCE_GROUPS,
            config_keys.TENANT_QUOTAS,
            config_keys.ACLS,
            config_keys.DATA_KEYS,
            config_keys.REPORT_KEYS,
            config_keys.AUTOMATIC,
            config_keys.SILENCES,
        )
    ),
    config_keys.REGION_NUMBERS + "9",
    config_keys.NAMESPACES + OTHER,
    config_keys.PARTITIONED + f"{TOPIC}-parts",
    config_keys.TOPIC_POLICIES + f"{TOPIC}-other",
)
OF_THE_REGION = (
    keys.CONFIGURATION_SEEN,
    keys.BALANCE_PAUSED,
    keys.QUOTA_DEFAULT,
    keys.COPIES_CHECKED,
    keys.BROKER_POLICIES,
    keys.PASSED_OVER,
    keys.REVOKED + "token/x",
    keys.REVOKED + "token/y",
    f"{deferred_edits.EDITS}{1:020d}",
    deferred_edits.LAST,
    keys.bookie("x"),
    keys.broker("x"),
    keys.metadata_node("x"),
    keys.load("x"),
    keys.group_use("x"),
    keys.isolation("x"),
    keys.failure_domain("x"),
    keys.quota(NAMESPACE, 0, 1 << 31),
    keys.ledger(7),
    keys.located(8),
    keys.underreplicated(7),
    keys.replicating(7),
    keys.bookie_labels("x"),
    keys.bookie_cookie("x"),
    keys.bookie_whole("x"),
    keys.decommission("x"),
    keys.owner(NAMESPACE, 9),
    keys.bundles(OTHER),
    keys.managed_ledger(f"{TOPIC}-other"),
    keys.ledger_page(f"{TOPIC}-other", 7),
    keys.cursor(f"{TOPIC}-other", "s"),
    keys.topic_policies(f"{TOPIC}-other"),
    keys.tier_claim(f"{TOPIC}-other"),
    keys.reseal("sim"),
    keys.READ_KEYS + "x",
    "/usage/stored/sim",
    "/usage/days/sim/1",
    "/schemas/x",
    "/topic-ids/x",
    "/transactions/open/0/1",
    "/transactions/coordinators/0",
)


@pytest.mark.slow
@pytest.mark.parametrize("value", UNREADABLE)
def test_no_task_ends_by_a_record_that_cannot_be_read(value: bytes) -> None:
    """A record of the configuration or of a region's metadata that this version cannot read is skipped and reported:
    no task ends by it, nothing else is held up, and processes start beside it. An error that a task did not expect
    ends the story.
    """
    read: list[bytes] = []

    async def put(role: MetaRole | ConfigRole, names: Sequence[str]) -> None:
        """Beneath what says who may write what, as a later version, a tool, or a leader may."""
        assert role.node is not None
        for name in names:
            await role.node.raft.propose(command(CommandKind.TXN, txn_fields([Put(name, value)])), timeout_s=5.0)

    async def spoil(story: Story) -> None:
        nodes = [region.metadata for region in story.regions.values()]
        for node in nodes:
            for role in node.roles:
                assert isinstance(role, MetaRole | ConfigRole) and role.node is not None
                if role.node.raft.is_leader:
                    names = OF_THE_REGION if isinstance(role, MetaRole) else OF_THE_CONFIGURATION
                    await story.sim.call(node.name, put, role, names)

    async def tell(story: Story) -> None:
        await story.publish("us", TOPIC, [b"before"])
        await spoil(story)
        await asyncio.sleep(30)
        await story.publish("us", TOPIC, [b"beside"])
        us = story.regions["us"]
        for node in us.nodes:
            node.kill()
        await story.begin_anew(us.nodes)
        await story.publish("us", TOPIC, [b"behind"])
        await asyncio.sleep(30)
        read.extend(await story.bodies("eu", TOPIC))

    Story.play(tell, "us", "eu")
    with given():
        assert read
    assert read == [b"before", b"beside", b"behind"]
