"""A client of the admin interface without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

from region_node.faces.admin.server.http_connections import AdminConnection


class Peer(asyncio.Transport):
    def __init__(self, protocol: AdminConnection, address: str) -> None:
        super().__init__()
        self.protocol, self.address, self.written, self.closed = protocol, address, b"", False
        self.unsent = 0
        protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.address, 4242) if name == "peername" else default

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.protocol.connection_lost(None)

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)
