"""A typed layer over Toxiproxy's HTTP interface: the proxies of an instance's wide-area links, and what is done to
them.

Is: create, cut, heal, slow down, reset, for callers that may block (the supervisor's thread, tests). Isn't: the server;
`make setup` builds it.
A proxy stands for one direction of one link: its client side is the region that opened the connection. A latency toxic
does not limit throughput.
Source: Toxiproxy's server, version 2.5.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Literal

from heliograph.model.errors import ConfigError

Stream = Literal["upstream", "downstream"]


@dataclass(frozen=True, slots=True)
class Proxy:
    """`listen` and `upstream` are `host:port`."""

    name: str
    listen: str
    upstream: str
    enabled: bool


class Toxiproxy:
    """One Toxiproxy server at `host:port`. Raises ConfigError where it refuses, OSError where it is not there."""

    def __init__(self, address: str) -> None:
        self._base = f"http://{address}"

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise ConfigError(
                f"toxiproxy {method} {path}: {error.code} {error.read().decode(errors='replace').strip()}"
            ) from error
        return json.loads(text) if text else None

    def proxies(self) -> dict[str, Proxy]:
        return {
            name: Proxy(name, p["listen"], p["upstream"], p["enabled"])
            for name, p in self._call("GET", "/proxies").items()
        }

    def populate(self, proxies: list[Proxy]) -> None:
        """Creates all of them, or replaces those whose addresses differ."""
        rows = [{"name": p.name, "listen": p.listen, "upstream": p.upstream, "enabled": p.enabled} for p in proxies]
        request = urllib.request.Request(
            self._base + "/populate", json.dumps(rows).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        try:
            urllib.request.urlopen(request, timeout=30).close()
        except urllib.error.HTTPError as error:
            raise ConfigError(f"toxiproxy could not listen: {error.read().decode(errors='replace').strip()}") from error

    def delete(self, name: str) -> None:
        self._call("DELETE", f"/proxies/{name}")

    def set_upstream(self, name: str, upstream: str) -> None:
        self._call("POST", f"/proxies/{name}", {"upstream": upstream})

    def cut(self, name: str) -> None:
        """Closes the listener and every connection through it, until `heal`."""
        self._call("POST", f"/proxies/{name}", {"enabled": False})

    def heal(self, name: str) -> None:
        """Opens a cut proxy again, and takes a black hole or a reset away."""
        for toxic in self._call("GET", f"/proxies/{name}/toxics"):
            if not toxic["name"].startswith("latency"):
                self._call("DELETE", f"/proxies/{name}/toxics/{toxic['name']}")
        self._call("POST", f"/proxies/{name}", {"enabled": True})

    def latency(self, name: str, one_way_ms: int, jitter_ms: int) -> None:
        """Sets or changes the delay of both streams; live connections keep running."""
        streams: tuple[Stream, ...] = ("upstream", "downstream")
        present = {t["name"] for t in self._call("GET", f"/proxies/{name}/toxics")}
        for stream in streams:
            toxic = f"latency_{stream}"
            attributes = {"latency": one_way_ms, "jitter": jitter_ms}
            if toxic in present:
                self._call("POST", f"/proxies/{name}/toxics/{toxic}", {"attributes": attributes})
            else:
                self._call(
                    "POST",
                    f"/proxies/{name}/toxics",
                    {"name": toxic, "type": "latency", "stream": stream, "attributes": attributes},
                )

    def black_hole(self, name: str, stream: Stream) -> None:
        """Data of one stream goes nowhere, connections stay open: a one-way cut. `heal` ends it, and closes them."""
        self._call(
            "POST",
            f"/proxies/{name}/toxics",
            {"name": f"hole_{stream}", "type": "timeout", "stream": stream, "attributes": {"timeout": 0}},
        )

    def reset(self, name: str) -> None:
        """Connections opened from now on are reset at once, until `heal`; older ones are closed."""
        self._call(
            "POST",
            f"/proxies/{name}/toxics",
            {"name": "reset", "type": "reset_peer", "stream": "downstream", "attributes": {"timeout": 0}},
        )

    def bandwidth(self, name: str, kilobytes_per_s: int) -> None:
        self._call(
            "POST",
            f"/proxies/{name}/toxics",
            {"name": "rate", "type": "bandwidth", "stream": "upstream", "attributes": {"rate": kilobytes_per_s}},
        )
