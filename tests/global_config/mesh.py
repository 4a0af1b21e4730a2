"""Mesh: ConfigTransport in memory, on virtual time: delay, and cuts of each direction."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable

from global_config.transport.config_transport import ForwardHandler
from heliograph.model.errors import MetadataUnavailable, OutcomeUnknown
from heliograph.raft.messages import Config


class Mesh:
    """All nodes of one group. A message is lost where its direction is cut when it leaves or when it arrives."""

    def __init__(self, rng: random.Random, *, delay_s: tuple[float, float] = (0.04, 0.1)) -> None:
        self.rng, self.delay_s = rng, delay_s
        self.cut: set[tuple[str, str]] = set()
        self.loss = 0.0
        """So many of all messages are lost."""
        self.nodes: dict[str, MeshTransport] = {}

    def isolate(self, name: str) -> None:
        for other in self.nodes:
            if other != name:
                self.cut |= {(name, other), (other, name)}

    def heal(self) -> None:
        self.cut.clear()

    def carry(self, sender: str, to: str, deliver: Callable[[MeshTransport], None]) -> None:
        """Calls `deliver(node)` after the delay, in the life of the node that is there then."""

        def arrive() -> None:
            node = self.nodes.get(to)
            if node is not None and (sender, to) not in self.cut:
                node.context.run(asyncio.get_running_loop().call_soon, deliver, node)

        if (sender, to) not in self.cut and not (self.loss and self.rng.random() < self.loss):
            neutral = contextvars.Context()
            asyncio.get_running_loop().call_later(self.rng.uniform(*self.delay_s), arrive, context=neutral)


class MeshTransport:
    """One node's way in; make it inside the node's life."""

    def __init__(self, mesh: Mesh, name: str) -> None:
        self._mesh, self.name = mesh, name
        self.context = contextvars.copy_context()
        self._callback: Callable[[str, bytes], None] = lambda sender, message: None
        self.handler: ForwardHandler | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def start(self) -> int:
        self._mesh.nodes[self.name] = self
        return 0

    async def stop(self) -> None:
        if self._mesh.nodes.get(self.name) is self:
            del self._mesh.nodes[self.name]

    def send(self, to: str, message: bytes) -> None:
        self._mesh.carry(self.name, to, lambda node: node._callback(self.name, message))

    def on_receive(self, callback: Callable[[str, bytes], None]) -> None:
        self._callback = callback

    def on_config(self, config: Config) -> None:
        """Every node of a simulation is known by its name."""

    def on_forward(self, handler: ForwardHandler) -> None:
        self.handler = handler

    async def forward(self, to: str, request: bytes, *, timeout_s: float) -> bytes:
        if to not in self._mesh.nodes:
            raise MetadataUnavailable("no connection")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(node: MeshTransport) -> None:
            assert node.handler is not None
            blob = await node.handler(request, (self.name,))
            self._mesh.carry(to, self.name, lambda _: None if answer.done() else answer.set_result(blob))

        def deliver(node: MeshTransport) -> None:
            task = asyncio.get_running_loop().create_task(serve(node))
            node._tasks[task] = None
            task.add_done_callback(lambda done: node._tasks.pop(done, None))

        self._mesh.carry(self.name, to, deliver)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise OutcomeUnknown(f"{to!r} gave no answer") from None
