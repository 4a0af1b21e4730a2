"""A client of the admin interface for tests: a status and what it answered, whatever it answered."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any


class Rest:
    """JSON over HTTP; follows redirects, also of PUT, POST, and DELETE, as admin clients do."""

    def __init__(self, base: str) -> None:
        self.base = base

    def __call__(self, method: str, path: str, body: Any = None, *, hops: int = 3) -> tuple[int, Any]:
        url = path if path.startswith("http") else self.base + path
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, method=method, data=data, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=60) as answer:
                return answer.status, _parsed(answer.read())
        except urllib.error.HTTPError as error:
            if error.code == 307 and hops:
                return self(method, error.headers["Location"], body, hops=hops - 1)
            return error.code, _parsed(error.read())


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text.decode()
