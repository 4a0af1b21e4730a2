"""A region, or a witness, joins a running instance, or leaves it: the plan, and the steps in the global configuration.

Is: the next plan, and the calls that make its configuration node a voter, or take it out. Isn't: processes and
proxies (`supervisor`), or what a region replicates (an operator adds it to namespaces, and takes it out of them, as
ever).
Invariants: a name and a number are used once; the regions that an instance began with stay the first voters in every
node's settings; each step may be repeated, so that a command that was interrupted is given again; a region goes only
while no tenant and no namespace names it, and while the rest keeps a quorum.
Source: docs/operating.md, "A region joins, a region leaves".
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Awaitable, Callable
from dataclasses import replace

from global_config import keys
from global_config.admin import ConfigAdmin
from global_config.voters.forced_quorum import left_behind
from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.metadata_store import rows_under
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.model.errors import ConfigError, NotAllowed, NotFound
from heliograph.model.topic_names import check_name
from region_node.instance.plan.layout import (
    HOST,
    InstancePlan,
    check_witness,
    plan_links,
    plan_near,
    plan_region,
    plan_witness,
    reach,
    round_trips,
)
from region_node.instance.plan.loopback_ports import LoopbackPorts

CATCH_UP_S = 180.0
_POLL_S = 0.1

Progress = Callable[[str], None]


def with_region(plan: InstancePlan, name: str, *, brokers: int, bookies: int, voter: bool = True) -> InstancePlan:
    """The plan with one region more. Raises ConfigError."""
    try:
        check_name("region", name)
    except NotAllowed as error:
        raise ConfigError(str(error)) from error
    if plan.standalone or (len(plan.regions) == 1 and not plan.founders):
        raise ConfigError(
            "this instance was begun with one region, whose configuration no other can reach: begin one with "
            "`heliograph up --regions a,b`"
        )
    if name in plan.left_witnesses or (plan.witness is not None and name == plan.witness.region):
        raise ConfigError(f"{name!r} is, or was, the name of a witness: take another one")
    if name in plan.left:
        raise ConfigError(
            f"a region {name!r} left this instance, and its messages are known by that name: take another one"
        )
    if not 1 <= brokers <= 16 or not 2 <= bookies <= 16:
        raise ConfigError("a region has 1 to 16 brokers and 2 to 16 bookies")
    new = copy.deepcopy(plan)
    _remember_founders(new)
    new.numbers += 1
    with LoopbackPorts() as ports:
        ports.keep(plan.ports())
        clients = ports.free(), ports.free()
        region = plan_region(
            name, new.numbers, ports, brokers=brokers, bookies=bookies, clients=clients, linked=True, tls=plan.tls
        )
        region.voter = voter
        new.regions.append(region)
        if plan.wan != "none":
            plan_links(new, _trips_of(new, name), ports)
        plan_near(new, region, ports)
    return new


def without_region(plan: InstancePlan, name: str) -> InstancePlan:
    """The plan with one region less. Raises ConfigError."""
    left = [region for region in plan.regions if region is not plan.region(name)]
    if not left:
        raise ConfigError(f"{name!r} is the only region: `heliograph down` stops the instance")
    if plan.witness is not None and sum(region.voter for region in left) < 2:
        raise ConfigError(
            "one region that votes and a witness would both be needed for each write of the configuration: `heliograph "
            "witness leave` first"
        )
    new = copy.deepcopy(plan)
    _remember_founders(new)
    new.regions = [region for region in new.regions if region.name != name]
    new.links = [link for link in new.links if name not in (link.source, link.target)]
    new.left.append(name)
    return new


def with_witness(plan: InstancePlan, name: str) -> InstancePlan:
    """The plan with a witness. Raises ConfigError."""
    if plan.witness is not None:
        raise ConfigError(
            f"this instance has the witness {plan.witness.region!r}, and one is enough: `heliograph witness leave` "
            "first"
        )
    taken = (*plan.voters(), *plan.left, *plan.left_witnesses)
    check_witness(name, taken, sum(region.voter for region in plan.regions))
    new = copy.deepcopy(plan)
    _remember_founders(new)
    with LoopbackPorts() as ports:
        ports.keep(plan.ports())
        new = replace(new, witness=plan_witness(name, ports))
        if plan.wan != "none":
            plan_links(new, _trips_of(new, name), ports)
    return new


def without_witness(plan: InstancePlan) -> InstancePlan:
    """The plan without its witness. Raises ConfigError."""
    if plan.witness is None:
        raise ConfigError("this instance has no witness")
    name = plan.witness.region
    new = copy.deepcopy(plan)
    _remember_founders(new)
    links = [link for link in new.links if name not in (link.source, link.target)]
    return replace(new, witness=None, left_witnesses=[*new.left_witnesses, name], links=links)


def _trips_of(plan: InstancePlan, name: str) -> dict[tuple[str, str], tuple[int, int]]:
    return {pair: trip for pair, trip in round_trips(plan.wan, list(plan.voters())).items() if name in pair}


def _remember_founders(plan: InstancePlan) -> None:
    if not plan.founders:
        plan.founders = {name: node.ports["raft"] for name, node in plan.voters().items()}
        plan.numbers = max(region.number for region in plan.regions)


def address_of(plan: InstancePlan, name: str) -> str:
    """Where the others reach the configuration node of a region, or the witness, each by its own way."""
    node = plan.voters()[name]
    own = f"{HOST}:{node.ports['raft']}"
    ways = [(other, f"{HOST}:{reach(plan, other, 'config', node)}") for other in plan.voters() if other != name]
    return ",".join([*(f"{source}={way}" for source, way in ways if way != own), own])


async def admit(store: MetaClient, plan: InstancePlan, name: str, progress: Progress, *, voter: bool = True) -> None:
    """Makes the configuration node of a region, or the witness, which runs, a voter, or a learner. Raises ConfigError,
    HeliographError.
    """
    report, _ = await store.members()
    roles = {row["member"]: row["role"] for row in report["members"]}
    forced = await store.get(keys.FORCED)
    if name not in roles and forced is not None and name in left_behind(forced[0]):
        progress(f"{name} was left behind by a forced quorum: `heliograph config rejoin {name}` brings it back")
        return
    if name not in roles:
        progress(f"{name} receives the configuration")
        await _soon(lambda: store.members("add", name, address_of(plan, name)), "try again")
    if voter and roles.get(name) != "voter":
        await _soon(lambda: store.members("promote", name), "try again", "behind", "does not answer")


async def dismiss(store: MetaClient, region: str, others: list[str]) -> None:
    """Takes the region, or the witness, out of the configuration, and its node out of the voters. Raises NotAllowed
    with the reason, HeliographError.
    """
    await check_dismissal(store, region)
    with contextlib.suppress(NotFound):
        await ConfigAdmin(store).delete_region(region)
    report, _ = await store.members()
    if report["leader"] == region:
        await _soon(lambda: store.members("transfer", others[0]), "try again")
    await _soon(lambda: store.members("remove", region), "try again")


async def check_dismissal(store: MetaClient, region: str) -> None:
    """Raises NotAllowed with what names the region still, or with why its voter can't be spared."""
    for prefix, what in ((keys.NAMESPACES, "namespace"), (keys.TENANTS, "tenant")):
        for key, value, _ in await rows_under(store, prefix):
            regions = (
                NamespacePolicies.decode(value).regions
                if prefix == keys.NAMESPACES
                else TenantInfo.decode(value).allowed_regions
            )
            if region in regions:
                raise NotAllowed(
                    f"{what} {key.removeprefix(prefix)!r} is in region {region!r}: take it out there first "
                    "(set-clusters, allowed clusters)"
                )
    await _soon(lambda: store.members("dry-remove", region), "try again")


async def _soon(call: Callable[[], Awaitable[object]], *signs: str) -> None:
    """Repeats a call while its refusal is one that time ends."""
    deadline = asyncio.get_running_loop().time() + CATCH_UP_S
    while True:
        try:
            await call()
            return
        except NotAllowed as error:
            if asyncio.get_running_loop().time() > deadline or not any(sign in str(error) for sign in signs):
                raise
        await asyncio.sleep(_POLL_S)
