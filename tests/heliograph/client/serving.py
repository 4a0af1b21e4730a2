"""HTTP servers that stand for the processes of a region, in tests of what reads from them.

Is: servers of one handler, each on a port of its own, in threads. Isn't: what they answer.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Silent, and with answers of JSON."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Servers:
    """To be closed."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], count: int) -> None:
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(count)]
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def number(self, server: Any) -> int:
        """Which of them a handler's `server` is."""
        return self._servers.index(server)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{server.server_port}" for server in self._servers)

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
