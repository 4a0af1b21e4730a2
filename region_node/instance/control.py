"""Talks to the supervisor of a data folder: status, stop, cut and heal links, kill and start processes.

Is: one JSON line each way over loopback. Isn't: for other machines; the address and its token lie in the data folder.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError


def call(data: Path, verb: str, *, timeout_s: float = 90.0, **fields: Any) -> dict[str, Any]:
    """Returns the answer. Raises ConfigError where nothing runs there, or where the supervisor refuses."""
    try:
        where = json.loads((data / "control.json").read_text())
        with socket.create_connection(("127.0.0.1", where["port"]), timeout=timeout_s) as connection:
            connection.sendall(json.dumps({"token": where["token"], "verb": verb, **fields}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(connection.makefile().readline())
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"nothing runs on the data folder {data}; start it with `heliograph up --data {data}` (or `standalone`)") from error
    if "error" in answer:
        raise ConfigError(str(answer["error"]))
    return answer
