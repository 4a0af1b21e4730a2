"""WideArea: what of an instance on this machine goes through Toxiproxy: it delays links between regions, and cuts,
slows, resets, and heals what it is told to.

Is: its process, its proxies, made again whenever it was started again, and when a fault ends. Isn't: Toxiproxy's own
interface (`toxiproxy_api`), which proxies there are (the plan), or which toxics a fault is (`wan_faults`).
Invariants: a fault is nowhere but in Toxiproxy's process and in this one, and ends with either: the next one begins
with links as the plan has them. A fault with an end ends here, whoever gave the command. One change after another.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError
from heliograph.runtime.task_set import TaskSet
from region_node.instance.nodes import wan_faults
from region_node.instance.nodes.processes import Child, Processes, say
from region_node.instance.nodes.toxiproxy_api import STREAMS, Proxy, Toxiproxy
from region_node.instance.nodes.wan_faults import NetworkFault
from region_node.instance.plan.layout import HOST, InstancePlan, WanLink
from region_node.runtime.module_command import module_command

_ANSWER_TRIES = 1200
_ANSWER_POLL_S = 0.05
_AGAIN_S = 1.0
_CUT, _RESET = "cut", "reset"
Part = tuple[str, str]
"""A proxy's name, and what of it: a stream, `cut`, or `reset`."""


@dataclass(eq=False, slots=True)
class _Held:
    """One command's fault. until, next_reset: by the loop's clock; None: none."""

    until: float | None
    reset_after_s: float | None = None
    next_reset: float | None = None


class WideArea:
    """plan: the present one. program: Toxiproxy's server, where there is one."""

    def __init__(self, plan: Callable[[], InstancePlan], processes: Processes, program: Path | None) -> None:
        self._plan, self._processes, self._program = plan, processes, program
        self._held: dict[Part, _Held] = {}
        self._changing = asyncio.Lock()
        self._tasks = TaskSet("the end of a fault on a way has failed")

    async def start(self) -> None:
        """Starts Toxiproxy and makes its proxies. Raises ConfigError where its program is not here."""
        if self._program is None or not self._program.exists():
            raise ConfigError(
                f"Toxiproxy's server is not {'here' if self._program is None else self._program}: `heliograph wan "
                "install` builds it, or start with --wan none"
            )
        port = self._plan().toxiproxy_port
        command = module_command(
            sys.executable,
            "region_node.instance.child",
            "--exec",
            str(self._program),
            "-host",
            HOST,
            "-port",
            str(port),
        )
        child = Child("toxiproxy", "", ["toxiproxy"], command, {"toxiproxy": port})
        child.revived = lambda: self._make_proxies(child)
        self._processes.children[child.name] = child
        await self._processes.spawn(child)
        await self._make_proxies(child)

    async def end(self) -> None:
        """Nothing ends by itself any more."""
        await self._tasks.close()

    async def open(self, links: list[WanLink]) -> None:
        """Makes the proxies of these, with their delays; one that is there already stays as it is. Raises ConfigError,
        OSError.
        """
        async with self._changing:
            await asyncio.to_thread(_bend, self._client(), links)

    async def close(self, links: list[WanLink]) -> None:
        """Takes the proxies of these away. Raises ConfigError, OSError."""
        for link in links:
            await asyncio.to_thread(self._client().delete, link.name)

    # -- commands -----------------------------------------------------------------------------------------------------

    async def act(self, request: dict[str, Any]) -> dict[str, Any]:
        """What `cut`, `heal`, `wan set`, and `wan show` become. Raises ConfigError, KeyError."""
        source, target = str(request.get("source", "")), str(request.get("target", ""))
        only, ends = not request.get("both", True), request.get("ends_in_s")
        try:
            match request["verb"]:
                case "cut":
                    return {"ok": True, "proxies": await self.cut(source, target, only=only, ends_in_s=ends)}
                case "heal":
                    return {"ok": True, "proxies": await self.heal(source, target, only=only)}
                case "wan set":
                    fault = NetworkFault(**request["fault"])
                    return {"ok": True, "proxies": await self.set(source, target, fault, one_way=only, ends_in_s=ends)}
            return {"ok": True, "sides": await self.show()}
        except OSError as error:
            raise ConfigError(
                f"Toxiproxy does not answer ({error}); where it died it is started again by itself: give the command "
                "again in a second. Where it hangs: `heliograph process kill toxiproxy`, `heliograph process start "
                "toxiproxy`; every fault ends with it"
            ) from error

    async def cut(self, source: str, target: str, *, only: bool, ends_in_s: float | None = None) -> list[str]:
        """Closes what either end opens to the other, and lets nothing new in. only: what `source` opens. Returns the
        proxies' names. Raises ConfigError, OSError.
        """
        names = wan_faults.opened(wan_faults.way(self._plan(), source, target), source, one_way=only)
        async with self._changing:
            self._hold(_Held(self._after(ends_in_s)), [(name, _CUT) for name in names])
            for name in names:
                await asyncio.to_thread(self._client().cut, name)
        return names

    async def heal(self, source: str, target: str, *, only: bool) -> list[str]:
        """Makes a way as the plan has it, whatever was wrong with it; without ends: all. only: the connections that
        `source` opens. Returns the proxies' names. Raises ConfigError, OSError.
        """
        links = wan_faults.way(self._plan(), source, target) if source or target else list(self._plan().links)
        names = [link.name for link in links if not only or link.source == source]
        async with self._changing:
            await self._clear([(name, part) for name in names for part in (*STREAMS, _RESET, _CUT)])
        return names

    async def set(
        self, source: str, target: str, fault: NetworkFault, *, one_way: bool, ends_in_s: float | None = None
    ) -> list[str]:
        """In the place of what was set there before. one_way: for bytes from `source` to `target`, and connections that
        `source` opens. Returns the proxies' names. Raises ConfigError, OSError; then nothing of it is set.
        """
        links = wan_faults.way(self._plan(), source, target)
        by_name = {link.name: link for link in links}
        sides = wan_faults.sides(links, source, one_way=one_way)
        wanted = {side: wan_faults.toxics(by_name[side[0]], side[1], fault, one_way=one_way) for side in sides}
        opened = wan_faults.opened(links, source, one_way=one_way)
        resets = [] if fault.reset_after_ms is None else opened
        held = _Held(self._after(ends_in_s), None if fault.reset_after_ms is None else fault.reset_after_ms / 1000)
        parts: list[Part] = [*sides, *((name, _RESET) for name in resets)]
        async with self._changing:
            client = self._client()
            proxies = await asyncio.to_thread(client.proxies)
            try:
                await self._clear([(name, _RESET) for name in opened if name not in resets])
                held.next_reset = self._after(held.reset_after_s)
                self._hold(held, parts)
                for (name, stream), toxics in wanted.items():
                    await asyncio.to_thread(client.arrange, _there(proxies, name), stream, toxics)
                for name in resets:
                    await asyncio.to_thread(client.arm_resets, _there(proxies, name), True)
            except (ConfigError, OSError):
                await self._clear(parts)
                raise
        return sorted({name for name, _ in parts})

    async def show(self) -> list[dict[str, Any]]:
        """Each side of each proxy, as Toxiproxy has it. Raises ConfigError, OSError."""
        proxies, now = await asyncio.to_thread(self._client().proxies), asyncio.get_running_loop().time()
        rows = []
        for link in self._plan().links:
            for stream in STREAMS:
                held = [self._held[key] for part in (stream, _RESET, _CUT) if (key := (link.name, part)) in self._held]
                reset = next((one.reset_after_s for one in held if self._held.get((link.name, _RESET)) is one), None)
                ends = [one.until - now for one in held if one.until is not None]
                rows.append(
                    wan_faults.row(
                        link,
                        stream,
                        _there(proxies, link.name),
                        None if reset is None else round(reset * 1000),
                        round(max(0.0, min(ends)), 1) if ends else None,
                    )
                )
        return rows

    # -- what ends, and what comes again ------------------------------------------------------------------------------

    def _hold(self, held: _Held, parts: Iterable[Part]) -> None:
        """These are held by this command from now on, and by none before it."""
        self._held.update(dict.fromkeys(parts, held))
        if held.until is not None or held.reset_after_s is not None:
            self._tasks.spawn(self._follow(held))

    async def _follow(self, held: _Held) -> None:
        """Resets and ends what a command has set, until another one, or the death of Toxiproxy, has ended it."""
        loop = asyncio.get_running_loop()
        while any(one is held for one in self._held.values()):
            due = [at for at in (held.until, held.next_reset) if at is not None]
            await asyncio.sleep(max(0.0, min(due) - loop.time()))
            try:
                async with self._changing:
                    mine = [part for part, one in self._held.items() if one is held]
                    if held.until is not None and loop.time() >= held.until:
                        await self._clear(mine)
                    elif held.reset_after_s is not None:
                        held.next_reset = self._after(held.reset_after_s)
                        await asyncio.to_thread(_reset, self._client(), [name for name, part in mine if part == _RESET])
            except (ConfigError, OSError) as error:  # it is being started again, and has no fault then
                say("wan.not_changed", error=str(error))
                await asyncio.sleep(_AGAIN_S)

    async def _clear(self, parts: Iterable[Part]) -> None:
        """Makes these as the plan has them. Raises ConfigError, OSError; those that were not reached are held still."""
        links, client = {link.name: link for link in self._plan().links}, self._client()
        proxies = await asyncio.to_thread(client.proxies)
        for name, part in parts:
            if name in links:  # else its region has left meanwhile
                proxy = _there(proxies, name)
                if part == _CUT:
                    await asyncio.to_thread(client.switch_on, name)
                elif part == _RESET:
                    await asyncio.to_thread(client.arm_resets, proxy, False)
                else:
                    stream = STREAMS[STREAMS.index(part)]
                    await asyncio.to_thread(client.arrange, proxy, stream, wan_faults.usual(links[name], stream))
            self._held.pop((name, part), None)

    @staticmethod
    def _after(seconds: float | None) -> float | None:
        return None if seconds is None else asyncio.get_running_loop().time() + seconds

    async def _make_proxies(self, child: Child) -> None:
        """Waits for Toxiproxy to answer, and gives it all links, with nothing wrong with them."""
        client = self._client()
        for _ in range(_ANSWER_TRIES):
            try:
                await asyncio.to_thread(client.proxies)
                break
            except OSError:
                await asyncio.sleep(_ANSWER_POLL_S)
        else:
            raise ConfigError(
                f"Toxiproxy did not answer on port {self._plan().toxiproxy_port}: {self._processes.last_words(child)}"
            )
        if self._held:
            say("wan.faults_gone", parts=len(self._held))
            self._held.clear()
        await self.open(self._plan().links)
        child.ready.set()

    def _client(self) -> Toxiproxy:
        if not self._plan().toxiproxy_port:
            raise ConfigError(
                "nothing of this instance goes through Toxiproxy (--wan none, or one region): begin one with "
                "`heliograph up --wan default` in a folder of its own (--data)"
            )
        return Toxiproxy(f"{HOST}:{self._plan().toxiproxy_port}")


def _there(proxies: dict[str, Proxy], name: str) -> Proxy:
    try:
        return proxies[name]
    except KeyError as error:
        raise ConfigError(
            f"Toxiproxy has no proxy {name} at this moment: it was started again, and gets it: try again"
        ) from error


def _reset(client: Toxiproxy, names: list[str]) -> None:
    """Ends every connection through these; one that is cut stays cut."""
    proxies = client.proxies()
    for name in names:
        if _there(proxies, name).enabled:
            client.cut(name)
            client.switch_on(name)


def _bend(client: Toxiproxy, links: list[WanLink]) -> None:
    before = client.proxies()
    client.populate([Proxy(x.name, x.listen, f"{HOST}:{x.upstream}", True) for x in links])
    now = client.proxies()
    for link in links:
        if link.name not in before or before[link.name].upstream != now[link.name].upstream:
            for stream in STREAMS:
                client.arrange(now[link.name], stream, wan_faults.usual(link, stream))
