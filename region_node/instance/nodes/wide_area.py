"""WideArea: the wide-area links of an instance on this machine: a Toxiproxy that delays them, and cuts and heals them
when it is told to.

Is: its process, its proxies, made again whenever it was started again (it remembers nothing). Isn't: Toxiproxy's own
interface (`toxiproxy_api`), or which links there are (the plan).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from heliograph.model.errors import ConfigError
from region_node.instance.nodes.processes import Child, Processes
from region_node.instance.nodes.toxiproxy_api import Proxy, Toxiproxy
from region_node.instance.plan.layout import HOST, InstancePlan, WanLink
from region_node.runtime.module_command import module_command

_ANSWER_TRIES = 1200
_ANSWER_POLL_S = 0.05


class WideArea:
    """plan: the present one. program: Toxiproxy's server, where there is one."""

    def __init__(self, plan: Callable[[], InstancePlan], processes: Processes, program: Path | None) -> None:
        self._plan, self._processes, self._program = plan, processes, program

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

    async def open(self, links: list[WanLink]) -> None:
        """Makes the proxies of these, with their delays. Raises ConfigError, OSError."""
        await asyncio.to_thread(_bend, self._client(), links)

    async def close(self, links: list[WanLink]) -> None:
        """Takes the proxies of these away. Raises ConfigError, OSError."""
        for link in links:
            await asyncio.to_thread(self._client().delete, link.name)

    async def switch(self, verb: str, source: str, target: str, *, both: bool) -> list[str]:
        """Cuts or heals what `source` opens to `target` (both: and the other way); returns the proxies' names. Raises
        ConfigError, OSError.
        """
        for name in (source, target):
            if name not in self._plan().voters():
                self._plan().region(name)  # which says what is there
        client = self._client()
        pairs = {(source, target), (target, source)} if both else {(source, target)}
        names = [x.name for x in self._plan().links if (x.source, x.target) in pairs]
        for name in names:
            await asyncio.to_thread(client.cut if verb == "cut" else client.heal, name)
        return names

    async def _make_proxies(self, child: Child) -> None:
        """Waits for Toxiproxy to answer, and gives it all links."""
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
        await self.open(self._plan().links)
        child.ready.set()

    def _client(self) -> Toxiproxy:
        if not self._plan().toxiproxy_port:
            raise ConfigError("this instance was started without wide-area links (--wan none)")
        return Toxiproxy(f"{HOST}:{self._plan().toxiproxy_port}")


def _bend(client: Toxiproxy, links: list[WanLink]) -> None:
    client.populate([Proxy(x.name, x.listen, f"{HOST}:{x.upstream}", True) for x in links])
    for link in links:
        client.latency(link.name, link.round_trip_ms // 2, link.jitter_ms // 2)
