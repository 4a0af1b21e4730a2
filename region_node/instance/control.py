"""The supervisor's door: status, stop, cut and heal links, kill and start processes, by whoever can read the data
folder.

Is: both ends of one JSON line each way over loopback. Isn't: for other machines; the address and its token lie in the
data folder. What a verb does is the supervisor's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError

_HOST = "127.0.0.1"
_REQUEST_S = 30.0
STARTED_S = 600.0
"""Longer than the supervisor waits for whatever it starts."""


def call(data: Path, verb: str, *, timeout_s: float = 90.0, **fields: Any) -> dict[str, Any]:
    """Returns the answer. Raises ConfigError where nothing runs there, where the supervisor refuses, or where it is
    silent.
    """
    try:
        where = json.loads(_path(data).read_text())
        with socket.create_connection((_HOST, where["port"]), timeout=timeout_s) as connection:
            connection.sendall(json.dumps({"token": where["token"], "verb": verb, **fields}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(connection.makefile().readline())
    except TimeoutError as error:
        log = data / "logs" / "supervisor.log"
        raise ConfigError(
            f"the supervisor of {data} has not answered within {timeout_s:.0f} s; it may be at it still: `heliograph "
            f"status`, {log}"
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"nothing runs on the data folder {data}; start it with `heliograph up --data {data}` (or `standalone`)"
        ) from error
    if "error" in answer:
        raise ConfigError(str(answer["error"]))
    return answer


class ControlPort:
    """The supervisor's end. act: what a request becomes; the token keeps other users of the machine out."""

    def __init__(self, data: Path, act: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
        self._data, self._act, self._token = data, act, secrets.token_hex(16)
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, _HOST, 0)
        path = _path(self._data)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(
                {"port": self._server.sockets[0].getsockname()[1], "token": self._token, "pid": os.getpid()}, file
            )

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(OSError):
                _path(self._data).unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await asyncio.wait_for(reader.readline(), _REQUEST_S))
            if not secrets.compare_digest(str(request.pop("token", "")), self._token):
                answer: dict[str, Any] = {"error": "wrong token"}
            else:
                answer = await self._act(request)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (ValueError, OSError, TimeoutError):
            pass
        finally:
            writer.close()


def _path(data: Path) -> Path:
    return data / "control.json"
