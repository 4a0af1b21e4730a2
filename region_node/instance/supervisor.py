"""The supervisor: owns the processes of one instance on this machine, from their start to their end.

Is: starting them, restarting what dies (with backoff, unless told otherwise), provisioning regions once, answering `status` and `down`.
Isn't: on the path of any message; if it dies, its processes end with it, and a new start continues from the data folder.
Invariants: one supervisor a data folder (a lock); what it started is ended by it, by process id, and by nothing else's id.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import signal
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import aiohttp

from global_config.admin import ConfigAdmin
from heliograph.model.errors import AlreadyExists, ConfigError, HeliographError
from heliograph.model.policies import NamespacePolicies, RegionInfo, TenantInfo
from heliograph.raft.client import MetaClient
from heliograph.runtime.clock import SystemClock, system_rng
from region_node.instance.ca import ensure_certificates
from region_node.instance.credentials import SupervisorTokens
from region_node.instance.growth import admit, check_dismissal, dismiss, with_region, without_region
from region_node.instance.layout import HOST, InstancePlan, NodePlan, RegionPlan, WanLink, check_ports, link_urls, node_settings, save_plan
from region_node.instance.toxiproxy import Proxy, Toxiproxy
from region_node.tls import client_context, only

READY_S = 60.0
STOP_S = 20.0
_BACKOFF_S = (0.2, 1.0, 2.0, 5.0, 10.0)
_STEADY_S = 30.0
_LOG_TAIL_LINES = 6

Progress = Callable[[str], None]


class InstanceLock:
    """The lock of a data folder. Raises ConfigError where another supervisor has it."""

    def __init__(self, data: Path) -> None:
        try:
            data.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = (data / "lock").open("a+")
        except OSError as error:
            raise ConfigError(f"the data folder {data} cannot be used ({error.strerror}); choose another with --data") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ConfigError(f"the data folder {data} is in use by a running instance: `heliograph down --data {data}` stops it") from error

    def release(self) -> None:
        self._file.close()


@dataclass(slots=True)
class Child:
    """One process: what it is, and how it is doing."""

    name: str
    region: str
    roles: list[str]
    command: list[str]
    ports: dict[str, int]
    process: asyncio.subprocess.Process | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    vital: bool = True
    """The instance does not start without it; of one that joined later, others do not depend."""
    held: bool = False
    """Not restarted when it dies: somebody wants it down."""
    deaths: int = 0
    restarts: int = 0
    started_at: float = 0.0

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.returncode is None else None


class Supervisor:
    """All processes of one instance. `run` returns when it was told to stop; raises ConfigError where the start failed."""

    def __init__(self, data: Path, plan: InstancePlan, *, toxiproxy: Path | None, progress: Progress, restart: bool = True) -> None:
        self._data, self._plan, self._toxiproxy, self._progress, self._restart = data, plan, toxiproxy, progress, restart
        self._children: dict[str, Child] = {}
        self._stopping = asyncio.Event()
        self._watchers: set[asyncio.Task[None]] = set()
        self._failure: ConfigError | None = None
        self._growing = asyncio.Lock()
        self._tokens = SupervisorTokens(self._metadata)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], Awaitable[None]]) -> None:
        """Starts all, calls `ready`, serves until `stop`, ends all; whatever happens, nothing it started stays."""
        server: asyncio.Server | None = None
        stopped = asyncio.ensure_future(self._stopping.wait())
        start = asyncio.ensure_future(self._start())
        try:
            await asyncio.wait({start, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                return
            await start
            server = await self._serve_control()
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
            if server is not None:
                server.close()
                with contextlib.suppress(OSError):
                    (self._data / "control.json").unlink()
            await self._end_all()

    def stop(self) -> None:
        self._stopping.set()

    async def _start(self) -> None:
        check_ports(self._plan)
        if len(self._plan.regions) > 1 or self._plan.tls:
            ensure_certificates(self._data / "tls", [r.name for r in self._plan.regions])
        (self._data / "logs").mkdir(exist_ok=True)
        if self._plan.links:
            await self._start_wan()
        for node in self._plan.nodes():
            self._children[node.name] = self._child(node)
        total = len(self._children)
        self._progress(f"starting {total} processes")
        for child in self._children.values():
            if child.process is None:
                await self._spawn(child)
        waiting = [asyncio.ensure_future(c.ready.wait()) for c in self._children.values()]
        failed = asyncio.ensure_future(self._stopping.wait())
        try:
            everything = asyncio.ensure_future(asyncio.wait(waiting))
            provision = asyncio.ensure_future(self._provision())
            done, _ = await asyncio.wait({everything, failed}, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
            if everything not in done:
                late = [c.name for c in self._children.values() if not c.ready.is_set()]
                raise self._failure or ConfigError(f"not ready within {READY_S:.0f} s: {', '.join(late)}; their logs are in {self._data / 'logs'}")
            self._progress("provisioning")
            await provision
        finally:
            failed.cancel()
            for task in waiting:
                task.cancel()
        self._progress("ready")

    async def _end_all(self) -> None:
        self._stopping.set()
        await self._end(list(self._children.values()))
        for watcher in list(self._watchers):
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)

    async def _end(self, children: list[Child]) -> None:
        """Brokers first, so that they close their ledgers; then the rest; whoever does not end in time is killed."""
        for child in children:
            child.held = True
        order = [("broker",), ("bookie",), ("meta", "config"), ("toxiproxy",)]
        for roles in order:
            group = [c for c in children if c.roles[0] in roles and c.pid is not None]
            for child in group:
                _send(child, signal.SIGTERM)
            exits = [asyncio.ensure_future(c.process.wait()) for c in group if c.process is not None]
            if exits:
                _, late = await asyncio.wait(exits, timeout=STOP_S)
                if late:
                    for child in group:
                        _send(child, signal.SIGKILL)
                    await asyncio.wait(late)

    # -- processes ----------------------------------------------------------------------------------------------------

    def _child(self, node: NodePlan) -> Child:
        folder = self._data / "settings"
        folder.mkdir(exist_ok=True)
        path = folder / f"{node.name}.json"
        path.write_text(json.dumps(node_settings(self._data, self._plan, node), indent=1))
        command = [sys.executable, "-m", "region_node.instance.child", "--role", ",".join(node.roles), "--settings", str(path)]
        return Child(node.name, node.region, node.roles, command, {k: v for k, v in node.ports.items() if v})

    async def _spawn(self, child: Child) -> None:
        child.ready.clear()
        child.started_at = time.monotonic()
        with (self._data / "logs" / f"{child.name}.log").open("ab") as log:
            spawning = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *child.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                    cwd=self._data,
                    env={"GRPC_VERBOSITY": "ERROR", **os.environ},
                )
            )
            try:
                child.process = await asyncio.shield(spawning)
            except asyncio.CancelledError:  # never in the middle of it: the process would be nobody's, and the loop would wait for it for ever
                child.process = await spawning
                raise
        watcher = asyncio.ensure_future(self._watch(child, child.process))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _watch(self, child: Child, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if b'"ready"' in line:
                child.ready.set()
        code = await process.wait()
        if self._stopping.is_set() or child.held or child.process is not process:
            return
        if child.vital and not child.ready.is_set() and child.deaths == 0 and code == 2:
            self._failure = ConfigError(f"{child.name} could not start: {self._log_tail(child)}")
            self._stopping.set()
            return
        if time.monotonic() - child.started_at > _STEADY_S:
            child.deaths = 0
        if not self._restart:
            _log("process.died", name=child.name, code=code)
            return
        delay = _BACKOFF_S[min(child.deaths, len(_BACKOFF_S) - 1)]
        child.deaths += 1
        _log("process.died", name=child.name, code=code, restart_in_s=delay)
        await asyncio.sleep(delay)
        if not self._stopping.is_set() and not child.held:
            child.restarts += 1
            await self._spawn(child)
            if child.roles == ["toxiproxy"]:
                await self._make_proxies(child)

    def _log_tail(self, child: Child) -> str:
        try:
            lines = (self._data / "logs" / f"{child.name}.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return " / ".join(lines[-1:]) or "it said nothing"

    # -- wide-area links ----------------------------------------------------------------------------------------------

    async def _start_wan(self) -> None:
        if self._toxiproxy is None or not self._toxiproxy.exists():
            raise ConfigError("Toxiproxy's server is not here: run `make setup` in the checkout, or start with --wan none")
        self._progress("starting the wide-area links")
        port = self._plan.toxiproxy_port
        child = Child("toxiproxy", "", ["toxiproxy"], [str(self._toxiproxy), "-host", HOST, "-port", str(port)], {"toxiproxy": port})
        child.command = [sys.executable, "-m", "region_node.instance.child", "--exec", *child.command]
        self._children[child.name] = child
        await self._spawn(child)
        await self._make_proxies(child)

    async def _make_proxies(self, child: Child) -> None:
        """Waits for Toxiproxy to answer, and gives it all links; also after it was restarted, for it remembers nothing."""
        client = self._wan_client()
        for _ in range(200):
            try:
                await asyncio.to_thread(client.proxies)
                break
            except OSError:
                await asyncio.sleep(0.05)
        else:
            raise ConfigError(f"Toxiproxy did not answer on port {self._plan.toxiproxy_port}: {self._log_tail(child)}")
        await asyncio.to_thread(self._bend, client, self._plan.links)
        child.ready.set()

    def _bend(self, client: Toxiproxy, links: list[WanLink]) -> None:
        client.populate([Proxy(x.name, f"{HOST}:{x.port}", f"{HOST}:{x.upstream}", True) for x in links])
        for link in links:
            client.latency(link.name, link.round_trip_ms // 2, link.jitter_ms // 2)

    def _wan_client(self) -> Toxiproxy:
        if not self._plan.links:
            raise ConfigError("this instance was started without wide-area links (--wan none)")
        return Toxiproxy(f"{HOST}:{self._plan.toxiproxy_port}")

    def _wan(self, verb: str, source: str, target: str, both: bool) -> list[str]:
        """Cuts or heals what `source` opens to `target` (and the other way); returns the proxies' names."""
        for name in (source, target):
            self._plan.region(name)
        client = self._wan_client()
        pairs = {(source, target), (target, source)} if both else {(source, target)}
        names = [x.name for x in self._plan.links if (x.source, x.target) in pairs]
        for name in names:
            (client.cut if verb == "cut" else client.heal)(name)
        return names

    # -- provisioning -------------------------------------------------------------------------------------------------

    async def _provision(self) -> None:
        """Writes the regions, and `public/default`, into the global configuration; repeated starts change only what differs."""
        home = self._home()
        await self._children[home.metadata.name].ready.wait()
        store = self._config_of(home)
        try:
            admin = ConfigAdmin(store)
            for region in self._plan.regions:
                if self._plan.founders:  # maybe its joining, or its leaving, was interrupted
                    await self._children[region.metadata.name].ready.wait()
                    await admit(store, self._plan, region, lambda text: _log("region.joining", what=text))
            for region in self._plan.regions:
                await admin.ensure_region(self._region_info(region))
            names = tuple(r.name for r in self._plan.regions)
            with contextlib.suppress(AlreadyExists):
                await admin.create_tenant("public", TenantInfo(admin_roles=(), allowed_regions=names))
            with contextlib.suppress(AlreadyExists):
                await admin.create_namespace("public/default", NamespacePolicies(regions=names))
        finally:
            store.close()

    def _home(self, but: str = "") -> RegionPlan:
        """A region whose configuration node runs, through which the instance is changed; the first where none does."""
        regions = [region for region in self._plan.regions if region.name != but]
        return next((region for region in regions if self._children[region.metadata.name].pid is not None), regions[0])

    def _config_of(self, region: RegionPlan) -> MetaClient:
        return MetaClient([f"{HOST}:{region.metadata.ports['config']}"], clock=SystemClock(), rng=system_rng(), ssl=self._inside(region.name))

    def _inside(self, region: str, own: str = "config", peer: str = "config") -> ssl.SSLContext | None:
        if not self._plan.tls:
            return None
        folder = self._data / "tls"
        cert, key = (str(folder / f"{own}.{region}.{end}") for end in ("pem", "key"))
        return only(client_context(str(folder / "ca.pem"), cert, key), (peer,), region)

    def _metadata(self, region: str) -> tuple[str, ssl.SSLContext | None]:
        return f"{HOST}:{self._plan.region(region).metadata.ports['meta']}", self._inside(region, "broker", "meta")

    async def _ask(self, http: aiohttp.ClientSession, region: str, url: str) -> dict[str, Any] | None:
        """A broker's answer; with credentials where it wants some."""
        headers: dict[str, str] = {}
        try:
            for _ in range(2):
                async with http.get(url, headers=headers) as answer:
                    if answer.status == 200:
                        body: dict[str, Any] = await answer.json()
                        return body
                if answer.status != 401 or headers or not (headers := await self._tokens.header(region)):
                    return None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            pass
        return None

    def _region_info(self, region: RegionPlan) -> RegionInfo:
        return RegionInfo(
            name=region.name,
            number=region.number,
            service_url=f"pulsar://{HOST}:{region.service_port}",
            admin_url=f"http://{HOST}:{region.admin_port}",
            link_urls=link_urls(self._plan, region),
        )

    # -- growing and shrinking ----------------------------------------------------------------------------------------

    async def _join(self, name: str, *, brokers: int, bookies: int, voter: bool, dry_run: bool) -> dict[str, Any]:
        """Starts a region, and makes it one of this instance. Given again for a region whose joining was interrupted, it goes on."""
        async with self._growing:
            present = any(region.name == name for region in self._plan.regions)
            plan = self._plan if present else with_region(self._plan, name, brokers=brokers, bookies=bookies, voter=voter)
            region = plan.region(name)
            nodes = [region.metadata, *region.bookies, *region.brokers]
            if dry_run:
                return {"ok": True, "would_start": [] if present else [node.name for node in nodes]}
            ensure_certificates(self._data / "tls", [name])
            save_plan(self._data, plan)
            self._plan = plan
            for node in plan.nodes():
                child = self._child(node)  # writes the settings of all: the others know it when they start again
                if node.name not in self._children:
                    self._children[node.name], child.vital = child, False
            if plan.links:
                await asyncio.to_thread(self._bend, self._wan_client(), [x for x in plan.links if name in (x.source, x.target)])
            for node in nodes:
                if self._children[node.name].pid is None:
                    await self._spawn(self._children[node.name])
            await asyncio.wait_for(self._children[region.metadata.name].ready.wait(), READY_S)
            await self._provision()
            await asyncio.wait_for(asyncio.gather(*(self._children[node.name].ready.wait() for node in nodes)), READY_S)
            return {"ok": True, "service_url": f"pulsar://{HOST}:{region.service_port}", "admin_url": f"http://{HOST}:{region.admin_port}"}

    async def _leave(self, name: str, dry_run: bool) -> dict[str, Any]:
        """Takes a region out of the instance and ends its processes; its data stays. Refused while something names it, or the quorum would be lost."""
        async with self._growing:
            if name in self._plan.left:  # the command is given again
                return {"ok": True, "would_stop": [], "data": str(self._data / name)}
            plan = without_region(self._plan, name)
            gone = self._plan.region(name)
            store = self._config_of(self._home(name))
            try:
                if dry_run:
                    await check_dismissal(store, name)
                    return {"ok": True, "would_stop": [node.name for node in (gone.metadata, *gone.bookies, *gone.brokers)]}
                await dismiss(store, name, [region.name for region in plan.regions])
            finally:
                store.close()
            save_plan(self._data, plan)
            links = [x.name for x in self._plan.links if name in (x.source, x.target)]
            self._plan = plan
            await self._provision()
            await self._end([child for child in self._children.values() if child.region == name])
            self._children = {key: child for key, child in self._children.items() if child.region != name}
            for node in plan.nodes():
                self._child(node)
            for link in links:
                await asyncio.to_thread(Toxiproxy(f"{HOST}:{self._plan.toxiproxy_port}").delete, link)
            return {"ok": True, "data": str(self._data / name)}

    # -- control ------------------------------------------------------------------------------------------------------

    async def _serve_control(self) -> asyncio.Server:
        """A loopback port that takes one JSON line and answers one; the token keeps other users of the machine out."""
        token = secrets.token_hex(16)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                request = json.loads(await asyncio.wait_for(reader.readline(), 5))
                if not secrets.compare_digest(str(request.pop("token", "")), token):
                    answer: dict[str, Any] = {"error": "wrong token"}
                else:
                    answer = await self._control(request)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
            except (ValueError, OSError, TimeoutError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(serve, HOST, 0)
        path = self._data / "control.json"
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"port": server.sockets[0].getsockname()[1], "token": token, "pid": os.getpid()}, file)
        return server

    async def _control(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            match request.get("verb"):
                case "status":
                    return await self.status()
                case "stop":
                    self.stop()
                    return {"ok": True}
                case "cut" | "heal" as verb:
                    names = await asyncio.to_thread(self._wan, verb, str(request["source"]), str(request["target"]), bool(request.get("both", True)))
                    return {"ok": True, "proxies": names}
                case "join":
                    counts = {"brokers": int(request["brokers"]), "bookies": int(request["bookies"])}
                    return await self._join(str(request["region"]), **counts, voter=bool(request["voter"]), dry_run=bool(request["dry_run"]))
                case "leave":
                    return await self._leave(str(request["region"]), bool(request["dry_run"]))
                case "kill":
                    child = self._find(request)
                    child.held, pid = True, child.pid
                    _send(child, signal.SIGKILL)
                    return {"ok": True, "pid": pid}
                case "restart":
                    child = self._find(request)
                    await self._restart_child(child, str(request.get("python", "")))
                    return {"ok": True, "pid": child.pid}
                case "start":
                    child = self._find(request)
                    child.held = False
                    if child.pid is None:
                        child.restarts += 1
                        await self._spawn(child)
                        await asyncio.wait_for(child.ready.wait(), READY_S)
                    return {"ok": True, "pid": child.pid}
                case other:
                    return {"error": f"no verb {other!r}"}
        except (HeliographError, KeyError, TimeoutError, OSError) as error:
            return {"error": str(error) or type(error).__name__}

    async def _restart_child(self, child: Child, python: str) -> None:
        """Drains it, waits until it has ended, and starts it again. python: another interpreter, from now on."""
        child.held = True
        try:
            _send(child, signal.SIGTERM)
            if child.process is not None:
                try:
                    await asyncio.wait_for(child.process.wait(), 2 * STOP_S)
                except TimeoutError:
                    _log("process.did_not_drain", name=child.name)
                    _send(child, signal.SIGKILL)
                    await child.process.wait()
            if python:
                child.command[0] = python
        finally:
            await self._spawn(child)
            child.held = False
        child.restarts += 1
        await asyncio.wait_for(child.ready.wait(), READY_S)

    def _find(self, request: dict[str, Any]) -> Child:
        try:
            return self._children[str(request["process"])]
        except KeyError as error:
            raise ConfigError(f"no process {request.get('process')!r}; there are {', '.join(self._children)}") from error

    async def status(self) -> dict[str, Any]:
        """What `heliograph status --json` prints."""
        regions: dict[str, Any] = {}
        links: list[dict[str, Any]] = []
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
            asked = [(r, n) for r in self._plan.regions for n in r.brokers if self._children.get(n.name) and self._children[n.name].pid]
            paths = ("/heliograph/v1/status", "/heliograph/v1/config/members?here=true")
            found = await asyncio.gather(*(self._ask(http, r.name, f"http://{HOST}:{n.ports['admin']}{path}") for path in paths for r, n in asked))
        answers, configs = found[: len(asked)], [config for config in found[len(asked) :] if config is not None]
        for region in self._plan.regions:
            regions[region.name] = {
                "service_url": f"pulsar://{HOST}:{region.service_port}",
                "health_url": f"pulsar://{HOST}:{region.health_port}" if region.health_port else "",
                "admin_url": f"http://{HOST}:{region.admin_port}",
                **({"service_tls_url": f"pulsar+ssl://{HOST}:{region.service_tls_port}"} if self._plan.tls else {}),
                "processes": [self._process_row(n) for n in (region.metadata, *region.bookies, *region.brokers)],
            }
        for answer in answers:
            links += (answer or {}).get("links", [])
        proxies = {f"{x.source}-{x.target}": f"{HOST}:{x.port}" for x in self._plan.links if x.kind == "link"}
        toxiproxy = self._children.get("toxiproxy")
        wan = {"toxiproxy": f"{HOST}:{self._plan.toxiproxy_port}", "pid": toxiproxy.pid, "links": proxies} if toxiproxy is not None else None
        config = next((c for c in configs if c["node"] == c["leader"]), next((c for c in configs if c["leader"] is not None), None))
        return {"regions": regions, "links": links, "config": config, "wan": wan, "supervisor": {"pid": os.getpid(), "data": str(self._data)}}

    def _process_row(self, node: NodePlan) -> dict[str, Any]:
        child = self._children[node.name]
        return {
            "role": "+".join(node.roles),
            "name": node.name,
            "pid": child.pid,
            "port": next(iter(child.ports.values())),
            "ports": child.ports,
            "ready": child.ready.is_set() and child.pid is not None,
            "restarts": child.restarts,
        }


def _send(child: Child, number: signal.Signals) -> None:
    if child.process is not None and child.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(number)


def _log(event: str, **fields: object) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(json.dumps({"at": stamp, "event": event, **fields}), file=sys.stderr, flush=True)
