"""A broker or a bookie more, or one less: what the plan becomes, and why one has to stay."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgpack
import pytest

from heliograph.kv.metadata_store import RANGE_LIMIT
from heliograph.model.errors import ConfigError
from heliograph.model.ledger_metadata import LedgerMetadata
from local_meta import keys
from region_node.commands.entry import _plan
from region_node.instance.nodes.processes import Child
from region_node.instance.nodes.resize import MOST, Instance, Resize, node_of, with_process, without_process
from region_node.instance.plan.layout import (
    InstancePlan,
    NodePlan,
    link_urls,
    load_plan,
    make_plan,
    node_settings,
    save_plan,
)
from region_node.instance.plan.loopback_ports import LoopbackPorts


def pair(wan: str = "default", *, bookies: int = 3, tls: bool = False) -> InstancePlan:
    return make_plan(["us", "eu"], brokers={"us": 1, "eu": 2}, bookies=bookies, wan=wan, tls=tls)


def listens(plan: InstancePlan, node: NodePlan) -> dict[str, int]:
    told: dict[str, int] = node_settings(Path("/d"), plan, node)["broker"]
    return told


# -- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [False, True])
def test_a_second_broker_shares_the_ports_that_clients_know_and_whoever_stays_serves_them(tls: bool) -> None:
    before = pair(tls=tls)
    plan, added = with_process(before, "us", "broker")
    region, was = plan.region("us"), before.region("us")
    assert added.name == "us-broker-1" and before.region("us").brokers[0].ports["service"] == region.service_port, (
        "the plan before is as it was"
    )
    for node in region.brokers:
        told = listens(plan, node)
        assert (
            told["shared_port"] == was.service_port != told["port"]
            and told["shared_admin_port"] == was.admin_port != told["admin_port"]
        )
        assert (
            told["shared_tls_port"] == was.service_tls_port
            and (told["tls_port"] > 0) == tls
            and (not tls or told["tls_port"] != was.service_tls_port)
        )
    own = [port for node in plan.nodes() for port in node.ports.values() if port] + [link.port for link in plan.links]
    own += [region.service_port, region.admin_port]
    shared_by_one = {plan.region("eu").service_port, plan.region("eu").admin_port} - set(own)
    assert len(own) == len(set(own)) and shared_by_one, "no port twice"
    for node in region.brokers:
        alone = without_process(plan, node)
        (left,) = alone.region("us").brokers
        assert listens(alone, left)["shared_port"] == was.service_port, "who is left listens there still"


def test_links_lead_to_a_new_broker_from_each_region_and_go_with_it() -> None:
    before = pair()
    plan, added = with_process(before, "us", "broker")
    assert plan.links[: len(before.links)] == before.links
    (link,) = plan.links[len(before.links) :]
    assert (link.kind, link.source, link.target, link.node, link.upstream) == (
        "link",
        "eu",
        "us",
        added.name,
        added.ports["link"],
    )
    assert listens(plan, added)["listeners"] == {"link-eu": f"pulsar+ssl://127.0.0.1:{link.port}"}  # type: ignore[comparison-overlap]
    assert len(link_urls(plan, plan.region("us"))["eu"]) == 2
    assert without_process(plan, added).links == before.links
    straight, near = with_process(pair("none"), "us", "broker")
    assert not straight.links and near.ports["link"], "without delays it is reached straight"
    assert not with_process(pair(), "us", "bookie")[0].links[len(before.links) :]


def test_names_are_given_once_and_the_plan_is_kept(tmp_path: Path) -> None:
    save_plan(tmp_path, pair())
    assert not {"begun", "named"} & set((tmp_path / "instance.json").read_text().split('"')), (
        "as earlier versions read it"
    )
    plan, third = with_process(pair(bookies=2), "us", "bookie")
    assert third.name == "us-bookie-2"
    plan = without_process(plan, third)
    plan, fourth = with_process(plan, "us", "bookie")
    assert fourth.name == "us-bookie-3", "what a removed one left behind is nobody's"
    assert node_of(plan, "us-bookie-3") == fourth and node_of(plan, "us-bookie-2") is None
    for name in ("us-bookie-9", "us-meta-0", "toxiproxy"):
        with pytest.raises(ConfigError, match=r"no broker or bookie .* there are us-broker-0"):
            node_of(plan, name)
    save_plan(tmp_path, plan)
    assert load_plan(tmp_path) == plan


def test_proxies_inside_a_region_follow_its_processes() -> None:
    """Also those of a lone broker, whose ports are the region's until another one comes."""
    before = make_plan(["us"], brokers={"us": 1}, bookies=2, wan="default", proxied=True)
    plan, _ = with_process(with_process(before, "us", "broker")[0], "us", "bookie")
    region, doors = plan.region("us"), {link.name: link for link in plan.links}
    assert doors["client.us"].upstream == region.service_port
    assert doors["client.us"].port == before.links[0].port, "where clients come stays"
    for node in (*region.brokers, *region.bookies):
        kinds = ("client",) if node.roles == ["broker"] else ("bookie", "bookie-http")
        listening = [node.ports["service"]] if node.roles == ["broker"] else [node.ports["bookie"], node.ports["http"]]
        assert [doors[f"{kind}.{node.name}"].upstream for kind in kinds] == listening
    left = without_process(plan, region.bookies[2])
    assert {link.name for link in plan.links} - {x.name for x in left.links} == {
        "bookie.us-bookie-2",
        "bookie-http.us-bookie-2",
    }


def test_up_goes_on_with_what_was_added_and_removed(tmp_path: Path) -> None:
    plan = with_process(with_process(pair(), "us", "broker")[0], "us", "bookie")[0]
    save_plan(tmp_path, plan)

    def up(us: int, bookies: int, *, proxied: bool = False) -> InstancePlan:
        return _plan(
            tmp_path,
            ["us", "eu"],
            {"brokers": {"us": us, "eu": 2}, "bookies": bookies, "wan": "default", "tls": False, "proxied": proxied},
            LoopbackPorts(),
        )

    assert up(1, 3) == plan, "the command that it was begun with"
    with pytest.raises(ConfigError, match="--brokers us=1,eu=2 --bookies 3"):
        up(3, 3)
    with pytest.raises(ConfigError, match="--bookies 3"):
        up(1, 5)
    with pytest.raises(ConfigError, match="--wan default: give the same"):
        up(1, 3, proxied=True)
    save_plan(tmp_path, grown := with_process(plan, "eu", "bookie")[0])
    assert up(2, 4) == grown, "or as it is"


def test_as_few_and_as_many_as_there_can_be() -> None:
    plan = pair(bookies=2)
    with pytest.raises(ConfigError, match=r"1 broker, and without one .*process add broker --region us"):
        without_process(plan, plan.region("us").brokers[0])
    with pytest.raises(
        ConfigError, match=r"2 bookies, and each entry is kept by two: .*process add bookie --region us"
    ):
        without_process(plan, plan.region("us").bookies[0])
    with pytest.raises(ConfigError, match="no region 'ap'"):
        with_process(plan, "ap", "broker")
    with pytest.raises(ConfigError, match="neither broker nor bookie"):
        with_process(plan, "us", "meta")
    while len(plan.region("eu").brokers) < MOST:
        plan, _ = with_process(plan, "eu", "broker")
    with pytest.raises(ConfigError, match=f"{MOST} at the most"):
        with_process(plan, "eu", "broker")


# -- the steps --------------------------------------------------------------------------------------------------------


class World:
    """What the supervisor lends, with no process behind it. `done`: what was done, in order. `left`: ledgers of a
    bookie, look by look; -1: nobody answers.
    """

    def __init__(self, plan: InstancePlan) -> None:
        self.present, self.done, self.left = plan, list[str](), [0]
        self.kept: dict[str, bytes] = {}
        self.children: dict[str, Child] = {}
        self.fails, self.range_limit = False, RANGE_LIMIT
        for node in plan.nodes():
            self.children[node.name] = self.child(node)
        region = plan.region("us")
        for prefix, nodes in ((keys.BROKERS, region.brokers), (keys.BOOKIES, region.bookies)):
            self.kept |= {f"{prefix}{node.name}": cast(bytes, msgpack.packb({})) for node in nodes}

    def resize(self, monkeypatch: pytest.MonkeyPatch) -> Resize:
        @contextlib.asynccontextmanager
        async def metadata(_: Resize, region: str) -> AsyncIterator[World]:
            yield self

        monkeypatch.setattr(Resize, "_metadata", metadata)
        this: Any = self
        return Resize(Instance(Path("/nowhere"), lambda: self.present, self.adopt, self.child, this, this, this, this))

    # what it lends
    def adopt(self, plan: InstancePlan) -> None:
        self.present = plan
        self.done.append("plan")

    def child(self, node: NodePlan) -> Child:
        return Child(node.name, node.region, node.roles, [], {what: port for what, port in node.ports.items() if port})

    async def spawn(self, child: Child) -> None:
        self.done.append(f"start {child.name}")
        role = keys.BROKERS if child.roles == ["broker"] else keys.BOOKIES
        self.kept[f"{role}{child.name}"] = cast(bytes, msgpack.packb({}))

    async def until_ready(self, child: Child) -> None:
        if self.fails:
            raise ConfigError(f"{child.name} ended: no room")

    async def restart(self, child: Child, python: str) -> None:
        self.done.append(f"restart {child.name} on {child.ports['service']}")

    async def retire(self, child: Child) -> None:
        self.done.append(f"end {child.name}")
        child.gone = True
        for prefix in (keys.BROKERS, keys.BOOKIES):
            self.kept.pop(f"{prefix}{child.name}", None)

    async def open(self, links: list[Any]) -> None:
        self.done.append(f"open {len(links)}")

    async def close(self, links: list[Any]) -> None:
        self.done.append(f"close {len(links)}")

    async def write(self) -> None:
        self.done.append("regions")

    async def write_quorum(self, region: str) -> tuple[int, str]:
        return 2, "each entry is kept by two"

    async def ask(self, region: str, path: str) -> dict[str, Any] | None:
        left = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if left < 0:  # no broker answers
            return None
        return {
            "ledgers_left": left,
            "open_ledgers_left": 0,
            "bytes_left": left * 100,
            "done": not left,
            "bookie": path,
        }

    # a region's metadata
    async def range(self, start: str, end: str, *, limit: int = 1000) -> list[tuple[str, bytes, int]]:
        return [(key, self.kept[key], 0) for key in sorted(self.kept) if start <= key < end][:limit]

    async def get(self, key: str) -> tuple[bytes, int] | None:
        return (self.kept[key], 0) if key in self.kept else None

    async def put(self, key: str, value: bytes) -> None:
        self.kept[key] = value
        self.done.append("mark")

    async def delete(self, key: str) -> None:
        del self.kept[key]
        self.done.append("unmark")


def test_a_broker_is_in_the_plan_before_it_starts_and_out_of_it_once_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(pair())
    resize = world.resize(monkeypatch)
    answer = asyncio.run(resize.add("us", "broker", ""))
    own = world.present.region("us").brokers[0].ports["service"]
    assert (
        answer["process"] == "us-broker-1" and answer["count"] == 2 and own != world.present.region("us").service_port
    )
    assert world.done == ["plan", f"restart us-broker-0 on {own}", "open 1", "start us-broker-1", "regions"]
    world.done.clear()
    assert asyncio.run(resize.remove("us-broker-1"))["done"]
    assert world.done == ["end us-broker-1", "plan", "close 1", "regions"] and "us-broker-1" not in world.children
    assert asyncio.run(resize.remove("us-broker-1"))["done"], "a second time it is gone already"


def test_one_that_did_not_start_is_meant_by_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(pair())
    resize = world.resize(monkeypatch)
    world.fails = True
    with pytest.raises(ConfigError, match="no room"):
        asyncio.run(resize.add("us", "bookie", resize.under_way("us", "bookie")))
    assert resize.under_way("us", "bookie") == "us-bookie-3" and resize.under_way("us", "broker") == ""
    world.fails = False
    answer = asyncio.run(resize.add("us", "bookie", resize.under_way("us", "bookie")))
    assert (
        answer["process"] == "us-bookie-3" and world.done.count("plan") == 1 and resize.under_way("us", "bookie") == ""
    )


def test_a_bookie_ends_only_once_no_ledger_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(pair())
    resize, mark = world.resize(monkeypatch), keys.decommission("us-bookie-0")
    world.left = [7, 0, 1, 0]  # the third look is after its end: a writer had it in hand
    first = asyncio.run(resize.remove("us-bookie-0"))
    assert (
        (first["done"], first["ledgers_left"], first["bytes_left"]) == (False, 7, 700)
        and world.done == ["mark"]
        and mark in world.kept
    )
    again = asyncio.run(
        world.resize(monkeypatch).remove("us-bookie-0")
    )  # by another supervisor: the mark is in the metadata
    assert (
        not again["done"]
        and world.done == ["mark", "end us-bookie-0", "start us-bookie-0"]
        and "us-bookie-0" in world.children
    )
    assert asyncio.run(resize.remove("us-bookie-0"))["done"]
    assert world.done[3:] == ["end us-bookie-0", "plan", "unmark"] and mark not in world.kept
    world.kept[mark] = b""  # a supervisor that died before the last step
    assert asyncio.run(resize.remove("us-bookie-0"))["done"] and mark not in world.kept


def test_a_bookie_that_ended_and_was_not_looked_at_again_is_started_where_a_ledger_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(pair())
    resize = world.resize(monkeypatch)
    world.left = [0, -1, 1, 0]
    with pytest.raises(ConfigError, match="no broker of us answers"):
        asyncio.run(resize.remove("us-bookie-0"))
    assert world.done == ["mark", "end us-bookie-0"]
    assert not asyncio.run(resize.remove("us-bookie-0"))["done"]
    assert world.done[2:] == ["start us-bookie-0"] and not world.children["us-bookie-0"].gone
    assert asyncio.run(resize.remove("us-bookie-0"))["done"]


def test_other_regions_forget_a_removed_broker_although_its_removal_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(with_process(pair(), "us", "broker")[0])
    resize = world.resize(monkeypatch)

    async def refused(_: list[Any]) -> None:
        raise OSError("Toxiproxy does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(world, "close", refused)
        with pytest.raises(OSError, match="Toxiproxy"):
            asyncio.run(resize.remove("us-broker-1"))
    assert world.done == ["end us-broker-1", "plan"]
    assert asyncio.run(resize.remove("us-broker-1", dry_run=True))["done"] and "regions" not in world.done
    assert asyncio.run(resize.remove("us-broker-1"))["done"] and world.done[-1] == "regions"


def refusal(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        asyncio.run(world.resize(monkeypatch).remove(name))
    assert world.done == [], "and nothing was done"
    return str(caught.value)


def test_what_has_to_stay_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    full = World(pair())
    full.kept[f"{keys.BOOKIES}us-bookie-1"] = cast(bytes, msgpack.packb({"writable": False}))
    assert (
        "without us-bookie-0 only 1 of the bookies of us would take writes (us-bookie-2), and 2 are needed"
        in refusal(full, monkeypatch, "us-bookie-0")
    )
    other = World(pair())
    other.kept[keys.decommission("us-bookie-2")] = b""
    assert "process add bookie --region us" in refusal(other, monkeypatch, "us-bookie-0")

    wide = World(pair())
    ledger = LedgerMetadata(7, 2, 2, ((0, ("us-bookie-0", "us-bookie-1", "us-bookie-2")),), topic="t", owner=1)
    wide.kept[keys.ledger(7)] = ledger.encode()
    assert "3 are needed: ledger 7 lies on 3" in refusal(wide, monkeypatch, "us-bookie-0"), (
        "its copies could go nowhere"
    )

    down = World(with_process(pair(), "us", "broker")[0])
    del down.kept[f"{keys.BROKERS}us-broker-1"]
    assert "none of the other brokers of us is registered" in refusal(down, monkeypatch, "us-broker-0")

    tried = World(pair())
    assert (
        asyncio.run(tried.resize(monkeypatch).remove("us-bookie-0", dry_run=True))["done"] is False and tried.done == []
    )
