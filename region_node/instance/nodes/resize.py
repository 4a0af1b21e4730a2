"""A region of a running instance gets a broker or a bookie more, or has one less: the plan, and the steps.

Is: the next plan; start, registration, drain, decommission, in an order that any crash leaves sane. Isn't: moving of
copies or bundles (the brokers do that), or a region's joining (`region_node.instance.plan.region_growth`).
Invariants: a name is used once; the plan is durable before a process that it adds is started, and loses one only after
that has ended; a bookie ends only while no ledger names it, and is not begun to be emptied where too few would be left;
what is under way is found again by the same command, for a bookie also by another supervisor: its mark lies in the
region's metadata.
Source: docs/operating/scaling.md, "A broker or a bookie more, or one less".
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.metadata_store import prefix_end, rows_under
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import ConfigError
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.runtime.clock import SystemClock, system_rng
from local_meta import keys
from region_node.instance.nodes.processes import READY_S, Child, Processes
from region_node.instance.nodes.provisioning import Provisioning
from region_node.instance.nodes.status import InstanceStatus
from region_node.instance.nodes.wide_area import WideArea
from region_node.instance.plan.layout import (
    BROKERS,
    CLIENTS,
    InstancePlan,
    NodePlan,
    RegionPlan,
    data_of,
    plan_bookie,
    plan_broker,
    plan_links,
    plan_near,
    round_trips,
)
from region_node.instance.plan.loopback_ports import LoopbackPorts

MOST = 16
_LEAST = {"broker": 1, "bookie": 2}
_POLL_S = 0.1
_PAGE = 1000


# -- the plan ---------------------------------------------------------------------------------------------------------


def with_process(plan: InstancePlan, region: str, role: str) -> tuple[InstancePlan, NodePlan]:
    """The plan with one broker or bookie more, and which. A broker that was alone gets ports of its own: the region's
    are shared from now on.

    Raises ConfigError.
    """
    new = copy.deepcopy(plan)
    there = new.region(region)
    nodes = _nodes(there, role)
    if len(nodes) >= MOST:
        raise ConfigError(
            f"region {region} has {len(nodes)} {role}s, and an instance on one machine has {MOST} at the most: spread "
            "it over hosts"
        )
    _remember(there)
    number = there.named[role]
    there.named[role] += 1
    with LoopbackPorts() as ports:
        ports.keep(plan.ports())
        if role == "bookie":
            node = plan_bookie(region, number, ports)
        else:
            linked = any(broker.ports["link"] for broker in there.brokers)
            node = plan_broker(region, number, ports, clients=None, linked=linked, tls=plan.tls)
            for alone in there.brokers:
                _own_ports(there, alone, ports)
        nodes.append(node)
        plan_near(new, there, ports)
        if role == "broker" and plan.wan != "none":
            plan_links(
                new,
                {
                    pair: trip
                    for pair, trip in round_trips(plan.wan, [r.name for r in new.regions]).items()
                    if region in pair
                },
                ports,
                only=node,
            )
    return new, node


def without_process(plan: InstancePlan, node: NodePlan) -> InstancePlan:
    """The plan with one broker or bookie less. Raises ConfigError."""
    role = node.roles[0]
    new = copy.deepcopy(plan)
    region = new.region(node.region)
    nodes = _nodes(region, role)
    if len(nodes) <= _LEAST[role]:
        why = "each entry is kept by two" if role == "bookie" else "without one it serves nobody"
        some = f"{len(nodes)} {role}{'s' if len(nodes) > 1 else ''}"
        raise ConfigError(
            f"region {region.name} has {some}, and {why}: `heliograph process add {role} --region {region.name}` first"
        )
    _remember(region)
    nodes[:] = [other for other in nodes if other.name != node.name]
    new.links = [link for link in new.links if link.node != node.name]
    return new


def node_of(plan: InstancePlan, name: str) -> NodePlan | None:
    """None of one that was removed. Raises ConfigError where it is no broker or bookie of this instance."""
    for region in plan.regions:
        for node in (*region.brokers, *region.bookies):
            if node.name == name:
                return node
        for role, given in region.named.items():
            if name in (f"{region.name}-{role}-{number}" for number in range(given)):
                return None
    there = ", ".join(node.name for region in plan.regions for node in (*region.brokers, *region.bookies))
    raise ConfigError(f"no broker or bookie {name!r} here; there are {there}")


def _nodes(region: RegionPlan, role: str) -> list[NodePlan]:
    if role not in _LEAST:
        raise ConfigError(f"{role!r} is neither broker nor bookie: those can be added and removed")
    return region.brokers if role == "broker" else region.bookies


def _remember(region: RegionPlan) -> None:
    """What it began with, for `up` is given that, and which names were given."""
    if not region.begun:
        region.begun = [len(region.brokers), len(region.bookies)]
        region.named = {"broker": len(region.brokers), "bookie": len(region.bookies)}


def _own_ports(region: RegionPlan, broker: NodePlan, ports: LoopbackPorts) -> None:
    shared = {"service": region.service_port, "admin": region.admin_port, "service_tls": region.service_tls_port}
    for what, port in shared.items():
        if port and broker.ports.get(what) == port:
            broker.ports[what] = ports.free()


# -- the steps --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Instance:
    """What the supervisor lends. plan: the present one. adopt: makes another the present one, durably. child: writes
    what a process is told, too.
    """

    data: Path
    plan: Callable[[], InstancePlan]
    adopt: Callable[[InstancePlan], None]
    child: Callable[[NodePlan], Child]
    processes: Processes
    wan: WideArea
    provisioning: Provisioning
    status: InstanceStatus


class Resize:
    """One step at a time: `add` and `remove` are called under the supervisor's lock of changes."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._adding: dict[tuple[str, str], str] = {}

    def under_way(self, region: str, role: str) -> str:
        """Who is being added there, or was, and did not start; "": nobody."""
        return self._adding.get((region, role), "")

    async def add(self, region: str, role: str, going_on: str) -> dict[str, Any]:
        """Returns once it is registered. going_on: who was being added when the command came: then that one is meant.

        Raises ConfigError with why it is not there, HeliographError, OSError.
        """
        it = self._instance
        node = node_of(it.plan(), going_on) if going_on else None
        if node is None:
            plan, node = with_process(it.plan(), region, role)
            it.adopt(plan)
            self._adding[region, role] = node.name
        children = it.processes.children
        if node.name not in children:
            children[node.name] = it.child(node)
            children[node.name].vital = False
        await self._share_ports(region)
        near = (CLIENTS, BROKERS)  # a broker that was alone has another port by now
        there = [x for x in it.plan().links if x.node == node.name or (x.target == region and x.source in near)]
        if there:
            await it.wan.open(there)
        await self._start(children[node.name])
        await self._registered(children[node.name])
        if role == "broker":
            await it.provisioning.write()
        self._adding.pop((region, role), None)
        count = len(_nodes(it.plan().region(region), role))
        return {
            "ok": True,
            "process": node.name,
            "pid": children[node.name].pid,
            "ports": children[node.name].ports,
            "count": count,
        }

    async def remove(self, name: str, *, dry_run: bool = False) -> dict[str, Any]:
        """One look, and what can be done by now: `done` says whether that was all. Of a bookie that is being emptied:
        `ledgers_left`, `bytes_left`.

        Raises ConfigError with why it must stay, HeliographError, OSError.
        """
        node = node_of(self._instance.plan(), name)
        if node is None:
            region, role = name.rsplit("-", 2)[:2]
            if not dry_run:  # what follows the plan may have failed
                await (self._forget(region, name) if role == "bookie" else self._instance.provisioning.write())
            return self._gone(region, name)
        return await (
            self._remove_bookie(node, dry_run) if node.roles == ["bookie"] else self._remove_broker(node, dry_run)
        )

    async def _remove_broker(self, node: NodePlan, dry_run: bool) -> dict[str, Any]:
        it = self._instance
        without_process(it.plan(), node)
        async with self._metadata(node.region) as meta:
            others = await _ids(meta, keys.BROKERS) - {node.name}
        if not others:
            raise ConfigError(
                f"none of the other brokers of {node.region} is registered, so nobody would take its bundles: start "
                "one (`heliograph status`)"
            )
        if dry_run:
            return {"ok": True, "done": False, "process": node.name}
        await self._end(node)
        await self._take_out(node)
        await it.provisioning.write()
        return self._gone(node.region, node.name)

    async def _remove_bookie(self, node: NodePlan, dry_run: bool) -> dict[str, Any]:
        it = self._instance
        without_process(it.plan(), node)
        async with self._metadata(node.region) as meta:
            if await meta.get(keys.decommission(node.name)) is None:
                await self._suffices(meta, node)
                if not dry_run:
                    await meta.put(keys.decommission(node.name), msgpack.packb({"by": "supervisor"}))
        if dry_run:
            return {"ok": True, "done": False, "process": node.name}
        progress = await self._emptying(node)
        if progress["done"]:
            await self._end(node)
            progress = await self._emptying(node)  # a writer may have had it in hand when the brokers heard of the mark
        if not progress["done"]:
            ended = it.processes.children.get(node.name)
            if ended is not None and ended.gone:  # now, or by an earlier command that could not look again
                child = it.processes.children[node.name] = it.child(node)
                child.vital = False
                await self._start(child)
            return {"ok": True, "process": node.name, **progress}
        await self._take_out(node)
        await self._forget(node.region, node.name)
        return self._gone(node.region, node.name)

    async def _suffices(self, meta: MetaClient, node: NodePlan) -> None:
        """Raises ConfigError where the bookies that are left are fewer than what is stored or will be stored wants."""
        registered = {keys.id_of(key): msgpack.unpackb(value) for key, value, _ in await rows_under(meta, keys.BOOKIES)}
        drained = await _ids(meta, keys.DECOMMISSIONS)
        takers = sorted(
            b for b, row in registered.items() if row.get("writable", True) and b != node.name and b not in drained
        )
        wanted, why = await self._instance.provisioning.write_quorum(node.region)
        start = keys.LEDGERS
        while page := await meta.range(start, prefix_end(keys.LEDGERS), limit=_PAGE):
            for key, blob, _ in page:
                if (ledger := readable(LedgerMetadata.decode, key, blob)) is None:
                    continue
                width = max((len(ensemble) for _, ensemble in ledger.fragments if node.name in ensemble), default=0)
                if width > wanted:
                    wanted, why = width, f"ledger {ledger.ledger} lies on {width}, {node.name} among them"
            start = page[-1][0] + "\0"
        if len(takers) < wanted:
            left = (
                f"only {len(takers)} of the bookies of {node.region} would take writes ({', '.join(takers) or 'none'})"
            )
            add = f"`heliograph process add bookie --region {node.region}` first"
            raise ConfigError(
                f"without {node.name} {left}, and {wanted} are needed: {why}. {add}, or start those that are down"
            )

    async def _emptying(self, node: NodePlan) -> dict[str, Any]:
        found = await self._instance.status.ask(node.region, f"/heliograph/v1/bookies/{node.name}/decommission")
        if found is None:
            raise ConfigError(
                f"no broker of {node.region} answers, and they move what {node.name} has: start one (`heliograph "
                "status`), then again"
            )
        return {name: found[name] for name in ("ledgers_left", "open_ledgers_left", "bytes_left", "done")}

    async def _share_ports(self, region: str) -> None:
        """A broker that listens where the region's clients connect, as it was alone, is started again: it shares that
        port from now on.
        """
        it = self._instance
        for node in it.plan().region(region).brokers:
            child = it.processes.children.get(node.name)
            wanted = {what: port for what, port in node.ports.items() if port}
            if child is not None and child.ports != wanted:
                child.ports = it.child(node).ports
                await it.processes.restart(child, "")

    async def _registered(self, child: Child) -> None:
        prefix, clock, name = (keys.BROKERS if child.roles == ["broker"] else keys.BOOKIES), SystemClock(), child.name
        deadline = clock.monotonic() + READY_S
        async with self._metadata(child.region) as meta:
            while name not in await _ids(meta, prefix):
                if clock.monotonic() > deadline:
                    raise ConfigError(
                        f"{name} runs, and did not register within {READY_S:.0f} s: its log is "
                        f"{self._instance.processes.log_of(child)}"
                    )
                await asyncio.sleep(_POLL_S)

    async def _start(self, child: Child) -> None:
        if child.process is None:
            await self._instance.processes.spawn(child)
        else:  # an earlier command began it
            await self._instance.processes.start(child)
        await self._instance.processes.until_ready(child)

    async def _end(self, node: NodePlan) -> None:
        """It drains, and ends for good; one that is not there any more has."""
        processes = self._instance.processes
        if node.name in processes.children:
            await processes.retire(processes.children[node.name])

    async def _take_out(self, node: NodePlan) -> None:
        it = self._instance
        links = [link for link in it.plan().links if link.node == node.name]
        it.adopt(without_process(it.plan(), node))
        it.processes.children.pop(node.name, None)
        self._adding = {where: name for where, name in self._adding.items() if name != node.name}
        with contextlib.suppress(OSError):
            (it.data / "settings" / f"{node.name}.json").unlink()
        if links:
            await it.wan.close(links)

    async def _forget(self, region: str, bookie: str) -> None:
        """The mark of an emptied bookie goes once it is not registered any more: before, it would be written to."""
        clock = SystemClock()
        deadline = clock.monotonic() + READY_S
        async with self._metadata(region) as meta:
            while bookie in await _ids(meta, keys.BOOKIES):
                if clock.monotonic() > deadline:
                    raise ConfigError(
                        f"{bookie} has ended, and is still registered: somebody else runs it; stop that, then give "
                        "the command again"
                    )
                await asyncio.sleep(_POLL_S)
            if await meta.get(keys.decommission(bookie)) is not None:
                await meta.delete(keys.decommission(bookie))

    def _gone(self, region: str, name: str) -> dict[str, Any]:
        folder = data_of(self._instance.data, region, name)
        return {"ok": True, "done": True, "process": name, "data": str(folder) if folder.is_dir() else ""}

    @contextlib.asynccontextmanager
    async def _metadata(self, region: str) -> AsyncIterator[MetaClient]:
        address, tls = self._instance.provisioning.metadata(region)
        with contextlib.closing(MetaClient([address], clock=SystemClock(), rng=system_rng(), ssl=tls)) as meta:
            yield meta


async def _ids(meta: MetaClient, prefix: str) -> set[str]:
    return {keys.id_of(key) for key, _, _ in await rows_under(meta, prefix)}
