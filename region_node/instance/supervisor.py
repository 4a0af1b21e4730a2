"""The supervisor: owns one instance on this machine, from its start to its end: its plan, and what is done to it while
it runs.

Is: the order of a start and of an end, joining and leaving of regions, and what each verb of `control` becomes. Isn't:
on the path of any message; if it dies, its processes end with it, and a new start continues from the data folder.
Processes, wide-area links, provisioning, and status have modules of their own.
Invariants: one supervisor a data folder (`lock`); whatever happens, nothing it started stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError, HeliographError, reason_of
from region_node.instance.control import ControlPort
from region_node.instance.nodes.broker_credentials import SupervisorTokens
from region_node.instance.nodes.processes import READY_S, Child, Processes, interpreter_of
from region_node.instance.nodes.provisioning import Provisioning
from region_node.instance.nodes.resize import Instance, Resize
from region_node.instance.nodes.status import InstanceStatus
from region_node.instance.nodes.wide_area import WideArea
from region_node.instance.nodes.witness import WitnessSteps
from region_node.instance.plan.layout import HOST, InstancePlan, NodePlan, check_ports, door, node_settings, save_plan
from region_node.instance.plan.loopback_ports import LoopbackPorts
from region_node.instance.plan.region_growth import with_region, without_region
from region_node.runtime.module_command import module_command
from region_node.security.certificate_authority import ensure_certificates

Progress = Callable[[str], None]


class Supervisor:
    """All processes of one instance. `run` returns when it was told to stop; raises ConfigError where the start
    failed.
    """

    def __init__(
        self, data: Path, plan: InstancePlan, *, toxiproxy: Path | None, progress: Progress, restart: bool = True
    ) -> None:
        self._data, self._plan, self._progress = data, plan, progress
        self._stopping = asyncio.Event()
        self._failure: ConfigError | None = None
        self._growing = asyncio.Lock()
        self._ports = LoopbackPorts()
        self._processes = Processes(data, self._stopping, restart=restart, on_fatal=self._fail)
        self._wan = WideArea(lambda: self._plan, self._processes, toxiproxy)
        self._provisioning = Provisioning(data, lambda: self._plan, self._processes)
        self._status = InstanceStatus(
            data, lambda: self._plan, self._processes, SupervisorTokens(self._provisioning.metadata)
        )
        lent = Instance(
            data,
            lambda: self._plan,
            self._adopt,
            self._child,
            self._processes,
            self._wan,
            self._provisioning,
            self._status,
        )
        self._resize, self._witness = Resize(lent), WitnessSteps(lent)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], Awaitable[None]]) -> None:
        """Starts all, calls `ready`, serves until `stop`, ends all; whatever happens, nothing it started stays."""
        control = ControlPort(self._data, self._act)
        stopped = asyncio.ensure_future(self._stopping.wait())
        start = asyncio.ensure_future(self._start())
        try:
            await asyncio.wait({start, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                if self._failure is not None:
                    raise self._failure
                return
            await start
            await control.open()
            await ready()
            await stopped
            if self._failure is not None:
                raise self._failure
        finally:
            stopped.cancel()
            if not start.done():  # also where this very task was cancelled: what it spawns then is ended below
                start.cancel()
                with contextlib.suppress(asyncio.CancelledError, HeliographError):
                    await start
            control.close()
            self._stopping.set()
            await self._wan.end()
            await self._processes.end_all()
            self._ports.close()

    def stop(self) -> None:
        self._stopping.set()

    def _fail(self, error: ConfigError) -> None:
        self._failure = error
        self._stopping.set()

    async def _start(self) -> None:
        check_ports(self._plan)
        self._ports.keep(self._plan.ports())
        if len(self._plan.regions) > 1 or self._plan.tls:
            witnesses = [self._plan.witness.region] if self._plan.witness is not None else []
            ensure_certificates(self._data / "tls", [r.name for r in self._plan.regions], witnesses=witnesses)
        (self._data / "logs").mkdir(exist_ok=True)
        if self._plan.links:
            self._progress("starting the wide-area links")
            await self._wan.start()
        children = self._processes.children
        for node in self._plan.nodes():
            children[node.name] = self._child(node)
        self._progress(f"starting {len(children)} processes")
        for child in children.values():
            if child.process is None:
                await self._processes.spawn(child)
        waiting = {asyncio.ensure_future(c.ready.wait()) for c in children.values()}
        failed = asyncio.ensure_future(self._stopping.wait())
        provision = asyncio.ensure_future(self._provisioning.write())
        try:
            while late := {task for task in waiting if not task.done()}:
                done, _ = await asyncio.wait({*late, failed}, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
                if not done or failed in done:
                    names = ", ".join(c.name for c in children.values() if not c.ready.is_set())
                    raise self._failure or ConfigError(
                        f"no process has become ready for {READY_S:.0f} s: {names}; their logs are in "
                        f"{self._data / 'logs'}"
                    )
            self._progress("provisioning")
            await provision
        finally:
            for task in (failed, provision, *waiting):
                task.cancel()
        self._processes.all_started()
        for child in children.values():
            child.vital = False  # from here on one that does not start is no reason to end the others
        self._progress("ready")

    def _child(self, node: NodePlan) -> Child:
        """Writes what the process is told, too."""
        folder = self._data / "settings"
        folder.mkdir(exist_ok=True)
        path = folder / f"{node.name}.json"
        path.write_text(json.dumps(node_settings(self._data, self._plan, node), indent=1))
        interpreter = interpreter_of(node, self._processes.children.values(), sys.executable)
        command = module_command(
            interpreter, "region_node.instance.child", "--role", ",".join(node.roles), "--settings", str(path)
        )
        return Child(node.name, node.region, node.roles, command, {k: v for k, v in node.ports.items() if v})

    # -- growing and shrinking ----------------------------------------------------------------------------------------

    def _adopt(self, plan: InstancePlan) -> None:
        """Makes it the present plan, durably. Raises OSError; the one before holds then."""
        self._ports.keep(plan.ports())
        save_plan(self._data, plan)
        self._plan = plan

    async def _add(self, region: str, role: str) -> dict[str, Any]:
        going_on = self._resize.under_way(region, role)
        async with self._growing:
            return await self._resize.add(region, role, going_on)

    async def _remove(self, name: str, dry_run: bool) -> dict[str, Any]:
        async with self._growing:
            return await self._resize.remove(name, dry_run=dry_run)

    async def _join(self, name: str, *, brokers: int, bookies: int, voter: bool, dry_run: bool) -> dict[str, Any]:
        """Starts a region, and makes it one of this instance. Given again for a region whose joining was interrupted,
        it goes on.
        """
        async with self._growing:
            present = any(region.name == name for region in self._plan.regions)
            plan = (
                self._plan if present else with_region(self._plan, name, brokers=brokers, bookies=bookies, voter=voter)
            )
            region, children = plan.region(name), self._processes.children
            nodes = [region.metadata, *region.bookies, *region.brokers]
            if dry_run:
                return {"ok": True, "would_start": [] if present else [node.name for node in nodes]}
            ensure_certificates(self._data / "tls", [name])
            self._adopt(plan)
            for node in plan.nodes():
                child = self._child(node)  # writes the settings of all: the others know it when they start again
                if node.name not in children:
                    children[node.name], child.vital = child, False
            if plan.links:
                await self._wan.open([x for x in plan.links if name in (x.source, x.target)])
            for node in nodes:
                await self._processes.spawn(children[node.name])
            await self._processes.until_ready(children[region.metadata.name])
            await self._provisioning.write()
            await asyncio.gather(*(self._processes.until_ready(children[node.name]) for node in nodes))
            return {
                "ok": True,
                "service_url": f"pulsar://{HOST}:{door(plan, region.name, region.service_port)}",
                "admin_url": f"http://{HOST}:{region.admin_port}",
            }

    async def _leave(self, name: str, dry_run: bool) -> dict[str, Any]:
        """Takes a region out of the instance and ends its processes; its data stays. Refused while something names it,
        or the quorum would be lost.
        """
        async with self._growing:
            if name in self._plan.left:  # the command is given again
                return {"ok": True, "would_stop": [], "data": str(self._data / name)}
            plan = without_region(self._plan, name)
            gone = self._plan.region(name)
            if dry_run:
                await self._provisioning.check_dismissal(name)
                return {"ok": True, "would_stop": [node.name for node in (gone.metadata, *gone.bookies, *gone.brokers)]}
            await self._provisioning.dismiss(name, [region.name for region in plan.regions])
            save_plan(self._data, plan)
            links = [x for x in self._plan.links if name in (x.source, x.target)]
            self._plan = plan
            await self._provisioning.write()
            children = self._processes.children
            leaving = [child for child in children.values() if child.region == name]
            await self._processes.end(leaving)
            for child in leaving:
                del children[child.name]
            for node in plan.nodes():
                self._child(node)
            await self._wan.close(links)
            return {"ok": True, "data": str(self._data / name)}

    # -- control ------------------------------------------------------------------------------------------------------

    async def _act(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            match request.get("verb"):
                case "status":
                    return await self._status.show()
                case "stop":
                    self.stop()
                    return {"ok": True}
                case "cut" | "heal" | "wan set" | "wan show":
                    return await self._wan.act(request)
                case "join":
                    counts = {"brokers": int(request["brokers"]), "bookies": int(request["bookies"])}
                    return await self._join(
                        str(request["region"]), **counts, voter=bool(request["voter"]), dry_run=bool(request["dry_run"])
                    )
                case "leave":
                    return await self._leave(str(request["region"]), bool(request["dry_run"]))
                case "witness join" | "witness leave" as verb:
                    async with self._growing:
                        dry_run = bool(request["dry_run"])
                        if verb == "witness join":
                            return await self._witness.join(str(request["witness"]), dry_run=dry_run)
                        return await self._witness.leave(dry_run=dry_run)
                case "add":
                    return await self._add(str(request["region"]), str(request["role"]))
                case "remove":
                    return await self._remove(str(request["process"]), bool(request["dry_run"]))
                case "kill" | "restart" | "start" as verb:
                    return {
                        "ok": True,
                        "pid": await self._act_on(
                            verb, self._processes.find(str(request.get("process"))), str(request.get("python", ""))
                        ),
                    }
                case other:
                    return {"error": f"no verb {other!r}"}
        except (HeliographError, KeyError, TimeoutError, OSError) as error:
            return {"error": reason_of(error)}

    async def _act_on(self, verb: str, child: Child, python: str) -> int | None:
        """Returns the process id: of who was killed, or of who runs now."""
        if verb == "kill":
            return self._processes.kill(child)
        await (self._processes.restart(child, python) if verb == "restart" else self._processes.start(child))
        return child.pid
