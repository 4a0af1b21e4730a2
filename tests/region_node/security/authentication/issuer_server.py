"""An issuer over HTTP, as far as a broker asks one: what it says of itself, its keys, and a token for whoever has its
secret.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.region_node.security.authentication.issuer import RSA, token


class Issuer:
    """Discovery, keys, and tokens for whoever asks with the secret; `pages`: path -> (status, body) beside them."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.given = 0
        """Tokens."""
        self.content_type = "application/json"
        self.mint: Callable[[], bytes] = lambda: token(
            RSA, "RS256", sub="oauth", iss=self.url, aud="heliograph", exp=int(time.time()) + 300
        )
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                status, body = outer.pages.get(self.path, (404, b"{}"))
                self._answer(status, body)

            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"]))
                good = b"client_secret=right" in form and b"grant_type=client_credentials" in form
                outer.given += good
                answer = {"access_token": outer.mint().decode(), "token_type": "Bearer", "expires_in": 300}
                self._answer(200 if good else 401, json.dumps(answer if good else {"error": "invalid_client"}).encode())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/keys")
                self.send_header("Content-Type", outer.content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        discovery = {"issuer": self.url, "jwks_uri": f"{self.url}/keys", "token_endpoint": f"{self.url}/token"}
        self.pages["/.well-known/openid-configuration"] = (200, json.dumps(discovery).encode())
        self.pages["/keys"] = (200, json.dumps({"keys": [RSA.as_dict(private=False)]}).encode())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
