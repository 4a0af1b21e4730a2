"""A client of a bookie's HTTP pages that says what it likes."""

from __future__ import annotations

import asyncio
import json
from ssl import SSLContext
from typing import Any


async def ask(port: int, request: str, *headers: str) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([request, "Host: bookie", *headers, "", ""]).encode())
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head:
        return 0, None
    kind = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Type"))
    return int(head.split(b" ")[1]), json.loads(body) if b"json" in kind else body.decode()


async def status_of(port: int, request: str, *headers: str, ssl: SSLContext | None) -> int:
    """0: the connection ended without an answer."""
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=ssl, server_hostname="localhost" if ssl else None
        )
        writer.write("\r\n".join([request, "Host: bookie", *headers, "", ""]).encode())
        answer = await reader.read()
        writer.close()
    except OSError:
        return 0
    return int(answer.split(b" ")[1]) if answer else 0
