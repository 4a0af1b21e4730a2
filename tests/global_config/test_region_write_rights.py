"""WriteRights: what tells of one region's state is written by that region alone, whoever leads the configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from geo_tests.sim.simulation import Simulation
from global_config import keys
from global_config.admin import ConfigAdmin
from global_config.deferred_edits import CONFLICTS, MERGED
from global_config.region_write_rights import GONE_MS, IDS_MAX, WriteRights
from heliograph.kv.machine_commands import CommandKind, MalformedCommand, command, open_answer, pack, txn_fields
from heliograph.kv.metadata_store import ABSENT, Check, Delete, Op, Put
from heliograph.kv.state_machine import KvMachine
from heliograph.model.configuration.configuration_records import (
    NamespacePolicies,
    PulsarCluster,
    RegionInfo,
    TenantInfo,
)
from heliograph.model.configuration.kafka_brokers import kafka_broker
from heliograph.model.configuration.leadership import writer
from heliograph.model.configuration.revocations import Revocation
from heliograph.model.configuration.tombstones import Tombstone, tombstone
from heliograph.model.errors import MetadataUnavailable, NotAllowed
from heliograph.wire.metadata_frames import Frame
from tests.global_config.config_instance import Instance, simulate

US = RegionInfo(name="us", number=1, epoch=2, metadata_instance="m", feature_level=3, service_url="pulsar://us:6650")


class Table:
    """A table that holds `us` and `eu`, and what it refuses."""

    def __init__(self) -> None:
        self.machine, self._index = KvMachine(), 0
        self.now_ms = 1_000_000
        self.rights = WriteRights(self.machine, lambda: self.now_ms)
        self.apply([Put(keys.region("us"), US.encode()), Put(keys.region_number(1), b"us")])
        self.apply([Put(keys.region("eu"), RegionInfo(name="eu", number=2).encode())])

    def run(self, kind: CommandKind, fields: list[Any]) -> list[Any]:
        self._index += 1
        return open_answer(self.machine.apply(self._index, command(kind, fields)))

    def apply(self, ops: list[Op]) -> None:
        self.run(CommandKind.TXN, txn_fields(ops))

    def ask(self, region: str, *ops: Op) -> None:
        self.rights.check((region,), Frame.COMMAND, command(CommandKind.TXN, txn_fields(ops)))

    def refuses(self, region: str, *ops: Op, why: str = "may not write") -> None:
        with pytest.raises(NotAllowed, match=why) as refused:
            self.ask(region, *ops)
        assert f"region {region} may not write /" in str(refused.value)

    def version(self, key: str) -> int:
        found = self.machine.get(key)
        return ABSENT if found is None else found[1]


OWN = (
    writer("us", "b0", 7),
    kafka_broker("us", "b0", 7),
    keys.data_key("us", "acme"),
    f"{keys.REPORT_KEYS}us/ab12",
    f"{keys.SILENCES}us/us-0.7",
    f"{MERGED}us",
)


@pytest.mark.parametrize("key", OWN)
def test_what_is_a_regions_own_is_written_and_taken_away_by_it_alone(key: str) -> None:
    table = Table()
    table.apply([Put(key, b"1")])
    for op in (Put(key, b"2"), Put(key, b"2", ABSENT), Delete(key)):
        table.ask("us", op)
        table.refuses("eu", op, why="only us writes it: ask a broker there")
        table.refuses("u", op)
    table.ask("eu", Check(key, 1))
    table.refuses("eu", Put("/free", b""), Delete(key))


def test_a_conflict_is_told_by_its_region_and_resolved_by_any() -> None:
    table, key = Table(), f"{CONFLICTS}us/{1:020d}.0"
    table.ask("us", Put(key, b"", ABSENT))
    table.refuses("eu", Put(key, b"", ABSENT), why="only us writes it")
    table.ask("eu", Delete(key))


def test_a_number_is_given_once() -> None:
    table, one, three = Table(), keys.region_number(1), keys.region_number(3)
    for op in (Put(one, b"eu"), Put(one, b"eu", table.version(one)), Delete(one), Delete(one, table.version(one))):
        for region in ("us", "eu"):
            table.refuses(region, op, why="given once")
    ap = RegionInfo(name="ap", number=3)
    made = Put(keys.region("ap"), ap.encode(), ABSENT)
    table.ask("eu", made, Put(three, b"ap", ABSENT))
    for wrong in ((made,), (made, Put(three, b"eu", ABSENT)), (made, Put(keys.region_number(4), b"ap", ABSENT))):
        table.refuses("eu", *wrong, why="a number of its own")
    table.refuses("eu", Put(keys.region("ap"), replace(ap, name="us").encode(), ABSENT), Put(three, b"ap", ABSENT))


def test_a_regions_state_is_told_by_it_alone_and_its_addresses_by_any() -> None:
    table, key = Table(), keys.region("us")
    version = table.version(key)

    def put(**changes: Any) -> Put:
        return Put(key, replace(US, **changes).encode(), version)

    addresses = {"service_url": "pulsar://new:6650", "admin_url": "https://new", "link_urls": {"eu": ["pulsar://n:1"]}}
    for region in ("us", "eu"):
        table.ask(region, put(**addresses))
        table.refuses(region, put(number=2), why="its number stay")
        table.refuses(region, put(name="eu"), why="its number stay")
        table.refuses(region, put(epoch=1), why="never falls")
        table.refuses(region, put(feature_level=2), why="never fall")
        table.refuses(region, Put(key, US.encode()), why="name the version")
        table.refuses(region, Put(key, b"{}", version))
        table.ask(region, replace(put(number=2), expected=version - 1))  # that one will not be written
        with pytest.raises(MetadataUnavailable, match="just begun to lead"):
            table.ask(region, replace(put(number=2), expected=version + 1))
    for state in ({"epoch": 3}, {"feature_level": 4}, {"metadata_instance": "n"}):
        table.ask("us", put(**state))
        table.refuses("eu", put(**state), why="only us changes its epoch")


@pytest.mark.parametrize(
    ("key", "value", "user"),
    (
        (keys.namespace("a/b"), NamespacePolicies(regions=("eu", "us")).encode(), "namespace a/b still names us"),
        (keys.namespace("a/b"), b"unreadable", "namespace a/b still names us"),
        (keys.tenant("a"), TenantInfo(admin_roles=(), allowed_regions=("us",)).encode(), "tenant a still names us"),
        (keys.cluster("c"), PulsarCluster(name="c", gateway="us").encode(), "cluster c still names us"),
    ),
)
def test_another_region_is_taken_away_only_where_nothing_names_it(key: str, value: bytes, user: str) -> None:
    table, gone = Table(), Delete(keys.region("us"))
    table.ask("eu", gone)  # it is lost, and an operator takes it away elsewhere
    table.apply([Put(key, value)])
    table.refuses("eu", gone, why=user)
    table.ask("us", gone)


def test_what_is_purged_in_a_region_that_region_says() -> None:
    table, key = Table(), tombstone("a/b")
    dead = Tombstone(topic="a/b", regions=("us", "eu"), since_ms=1, until_ms=2)
    table.ask("eu", Put(key, dead.encode(), ABSENT))
    for name in ("purging", "purged"):
        table.refuses("eu", Put(key, replace(dead, **{name: ("us",)}).encode(), ABSENT), why="only us says")
    table.apply([Put(key, replace(dead, purging=("us",)).encode())])
    version = table.version(key)
    later = replace(dead, purging=("us", "eu"))
    table.ask("eu", Put(key, later.encode(), version))
    table.refuses("eu", Put(key, replace(later, purged=("us",)).encode(), version), why="only us says")
    table.refuses("eu", Put(key, later.encode()), why="name the version")
    table.ask("eu", Put(key, replace(dead, sure=True).encode(), version))  # deleted again
    table.ask("eu", Delete(key, version))  # brought back


def test_a_lease_is_renewed_and_ended_by_whoever_may_write_what_lies_under_it() -> None:
    table = Table()
    (lease,) = table.run(CommandKind.GRANT, [3000])
    end = command(CommandKind.REVOKE, [lease])
    for region in ("us", "eu"):
        table.rights.check((region,), Frame.COMMAND, end)
        table.rights.check((region,), Frame.RENEW, msgpack.packb([lease]))
    table.apply([Put(writer("us", "b0", lease), b"", None, lease)])
    table.rights.check(("us",), Frame.COMMAND, end)
    table.rights.check(("us",), Frame.RENEW, msgpack.packb([lease]))
    for kind, payload in ((Frame.COMMAND, end), (Frame.RENEW, msgpack.packb([lease]))):
        with pytest.raises(NotAllowed, match="only us writes it"):
            table.rights.check(("eu",), kind, payload)


def test_counters_do_not_jump() -> None:
    table = Table()

    def take(count: int, at_least: int) -> None:
        table.rights.check(("eu",), Frame.COMMAND, command(CommandKind.NEXT_IDS, [keys.NUMBERS, count, at_least]))

    take(1, 1)
    take(IDS_MAX, 0)
    for count, at_least in ((IDS_MAX + 1, 0), (1, 1 << 31)):
        with pytest.raises(NotAllowed, match="the next ones"):
            take(count, at_least)


def test_a_certificate_of_two_regions_writes_for_both_and_all_else_is_anybodys() -> None:
    table = Table()
    payload = command(CommandKind.TXN, txn_fields([Put(writer("us", "b0", 1), b""), Put(writer("eu", "b0", 1), b"")]))
    table.rights.check(("us", "eu"), Frame.COMMAND, payload)
    table.ask(
        "eu", Put(keys.tenant("a"), b""), Delete(keys.namespace("a/b")), Put("/leadership/a/b", b""), Put("/new/x", b"")
    )


@pytest.mark.parametrize(
    "payload",
    (
        pack([int(CommandKind.TXN), 0]),
        pack([int(CommandKind.TXN), 0, 0, 0]),
        pack([int(CommandKind.TXN), 0, 0, 0, None]),
        pack([int(CommandKind.TXN), 0, 0, 0, [[0, 7, b"", None, 0]]]),
        pack([int(CommandKind.REVOKE), 0, 0, 0, [1]]),
        pack([int(CommandKind.NEXT_IDS), 0, 0, 0, "n", "1", 0]),
        b"\x02",
    ),
)
def test_what_is_malformed_is_refused_as_such(payload: bytes) -> None:
    with pytest.raises(MalformedCommand):
        Table().rights.check(("eu",), Frame.COMMAND, payload)


def test_whoever_leads_asks_whoever_writes() -> None:
    """Passed on, or by the leader's own clients."""

    async def main(sim: Simulation, instance: Instance) -> None:
        us = instance.clients["us"]
        admins = {name: ConfigAdmin(client, rng=sim.rng(name)) for name, client in instance.clients.items()}
        for name, admin in admins.items():
            await admin.create_region(name)
            await admin.begin_metadata(name, f"metadata of {name}")
        lease = await us.grant(60_000)
        key = writer("us", "b0", lease)
        await us.put(key, b"", lease=lease)
        for leader in ("ap", "eu", "us"):
            await us.members("transfer", leader)
            for name in ("ap", "eu"):
                client = instance.clients[name]
                for refused in (
                    client.delete(key),
                    client.put(keys.data_key("us", "a"), b""),
                    client.revoke(lease),
                    admins[name].raise_epoch("us", 1),
                ):
                    with pytest.raises(NotAllowed, match="only us"):
                        await refused
                await admins[name].update_region(
                    "us", lambda old, url=f"https://{name}-{leader}": replace(old, admin_url=url)
                )
            await us.put(key, b"again", lease=lease)
        assert await us.get(key) is not None and (await region_of(us)).epoch == 1

    async def region_of(client: Any) -> RegionInfo:
        found = await client.get(keys.region("us"))
        return RegionInfo.decode(found[0])

    simulate(main)


REVOKED = Revocation(
    kind="subject", name="app", since_ms=1000, before_ms=900, until_ms=10**12, by="root", regions=("us",)
)


def test_what_another_region_has_revoked_is_neither_lifted_nor_shortened() -> None:
    table = Table()
    table.ask("eu", Put(REVOKED.key, REVOKED.encode(), ABSENT))  # an older configuration lacks it
    table.apply([Put(REVOKED.key, REVOKED.encode())])
    version = table.version(REVOKED.key)

    def put(**changed: Any) -> Put:
        return Put(REVOKED.key, replace(REVOKED, since_ms=2000, **changed).encode(), version)

    for weaker in ({"lifted_ms": 2000}, {"before_ms": 899}, {"until_ms": 10**12 - 1}):
        table.refuses("eu", put(**weaker), why="us revoked it: lift it there")
        table.ask("us", put(**weaker))
    for regions in ((), ("eu",), ("ap", "us")):
        table.refuses("eu", put(regions=regions), why="says what was revoked there")
    both = put(before_ms=0, until_ms=0, regions=("eu", "us"))
    table.ask("eu", both)
    table.apply([both])
    version = table.version(REVOKED.key)
    table.refuses("us", put(lifted_ms=3000), why="eu revoked it")
    table.ask("us", put(before_ms=0, until_ms=0, regions=("eu",)))  # it takes its own word back


def test_a_region_that_is_gone_keeps_nothing_revoked() -> None:
    table = Table()
    gone = replace(REVOKED, regions=("ap",))
    table.apply([Put(gone.key, gone.encode())])
    table.ask("eu", Put(gone.key, replace(gone, lifted_ms=2000).encode(), table.version(gone.key)))


def test_a_revocation_is_taken_away_by_nobody_before_it_has_been_over_for_long() -> None:
    table = Table()
    table.apply([Put(REVOKED.key, REVOKED.encode())])
    for region in ("us", "eu"):
        table.refuses(region, Delete(REVOKED.key), why="name the version")
        table.refuses(region, Delete(REVOKED.key, table.version(REVOKED.key)), why="it has been over for a month")
        table.refuses(region, Put(replace(REVOKED, name="b").key, REVOKED.encode(), ABSENT), why="another name")
    table.now_ms = REVOKED.until_ms + GONE_MS
    table.ask("eu", Delete(REVOKED.key, table.version(REVOKED.key)))


def test_nothing_that_is_judged_by_what_it_says_goes_with_a_lease() -> None:
    """Whoever may write what lies under a lease ends it."""
    table = Table()
    (lease,) = table.run(CommandKind.GRANT, [3000])
    key = keys.region("us")
    table.refuses("eu", Put(key, US.encode(), table.version(key), lease), why="go with its lease")
    stronger = replace(REVOKED, since_ms=2000)
    table.refuses("eu", Put(REVOKED.key, stronger.encode(), ABSENT, lease), why="go with its lease")


def test_when_the_configuration_was_restored_never_goes_back_and_a_forced_quorum_is_its_leaders_word() -> None:
    """An earlier time than regions know, or one that cannot be read, would have every leadership ask."""
    table = Table()
    table.ask("us", Put(keys.RESTORED, b"1000", ABSENT))
    table.apply([Put(keys.RESTORED, b"1000")])
    table.ask("eu", Put(keys.RESTORED, b"1001", 4))
    for value in (b"1000", b"999", b"x", b"", b"-1", b"1001 ", b"9" * 17, b"9" * 16, b"87400001"):
        table.refuses("eu", Put(keys.RESTORED, value, 4))
    table.refuses("eu", Put(keys.RESTORED, b"1001"))
    table.refuses("eu", Put(keys.RESTORED, b"1001", 4, lease=1))
    table.refuses("eu", Delete(keys.RESTORED))
    table.apply([Put(keys.RESTORED, b"of a tool")])
    table.ask("eu", Put(keys.RESTORED, b"5", 5))
    table.ask("eu", Put(keys.RESTORED, b"87400000", 5))
    table.apply([Put(keys.RESTORED, b"9" * 16)])
    table.ask("eu", Put(keys.RESTORED, b"1000000", 6))
    for key in (keys.FORCED, keys.FORCING):
        table.refuses("us", Put(key, b"{}"))
        table.refuses("us", Delete(key))
