"""ConfigTransport: the port through which the configuration's nodes of all regions talk.

Is: the protocol that gRPC (`global_config.transport.grpc_transport`) and the simulator implement, and what stands for
it where there is one region only.
Isn't: reliable for Raft messages (they may be lost, repeated, reordered); a forwarded request has one answer or an
error in bounded time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from heliograph.model.errors import MetadataUnavailable
from heliograph.raft.messages import Config

ForwardHandler = Callable[[bytes, Sequence[str]], Awaitable[bytes]]
"""(request, the nodes that whoever passed it on proves to be; none: nobody proves anything) -> answer."""


class ConfigTransport(Protocol):
    """One node's way to the others. Node ids are region names."""

    async def start(self) -> int:
        """Begins to listen; returns the port (0 where there is none)."""
        ...

    async def stop(self) -> None: ...

    def send(self, to: str, message: bytes) -> None:
        """A Raft message. Never blocks, never raises; bounded: drops what it cannot keep."""
        ...

    def on_receive(self, callback: Callable[[str, bytes], None]) -> None:
        """callback(sender, message). The transport vouches for the sender's name."""
        ...

    def on_config(self, config: Config) -> None:
        """Another configuration of the group, with the addresses of the nodes that joined later."""
        ...

    async def forward(self, to: str, request: bytes, *, timeout_s: float) -> bytes:
        """A request to the leader. Raises MetadataUnavailable where it was surely not sent (MemberRefused: it was, and
        is refused), OutcomeUnknown where it may have been done.
        """
        ...

    def on_forward(self, handler: ForwardHandler) -> None:
        """The handler may raise PeerError for a malformed request."""
        ...


class MemberRefused(MetadataUnavailable):
    """The other one is there, and does nothing with the request: it takes the sender for nobody, or is of another
    version.
    """


class AloneTransport:
    """Is the transport of a group of one: what is sent goes nowhere, and forwarding raises MetadataUnavailable."""

    async def start(self) -> int:
        return 0

    async def stop(self) -> None:
        pass

    def send(self, to: str, message: bytes) -> None:
        pass

    def on_receive(self, callback: Callable[[str, bytes], None]) -> None:
        pass

    def on_config(self, config: Config) -> None:
        pass

    async def forward(self, to: str, request: bytes, *, timeout_s: float) -> bytes:
        raise MetadataUnavailable("there is no other configuration node")

    def on_forward(self, handler: ForwardHandler) -> None:
        pass
