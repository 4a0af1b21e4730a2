"""A typed layer over Toxiproxy's HTTP interface: the proxies of an instance's wide-area links, and what is done to
them.

Is: create, cut, heal, slow down, reset, for callers that may block (the supervisor's thread, tests). Isn't: the server;
`heliograph wan install` builds it.
A proxy stands for one direction of one link: its client side is the region that opened the connection. A latency toxic
does not limit throughput.
Source: Toxiproxy's server, version 2.5.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from heliograph.model.errors import ConfigError

Stream = Literal["upstream", "downstream"]
STREAMS: tuple[Stream, Stream] = ("upstream", "downstream")
LINGER = "linger"
"""A toxic that does nothing to data: connections that are opened while it is there end by a reset, not by a close."""


@dataclass(frozen=True, slots=True)
class Toxic:
    """type, attributes: as Toxiproxy names them."""

    name: str
    type: str
    stream: Stream
    attributes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Proxy:
    """`listen` and `upstream` are `host:port`."""

    name: str
    listen: str
    upstream: str
    enabled: bool
    toxics: tuple[Toxic, ...] = ()
    """In the order in which data meets them, by stream. Only told, by `proxies`."""


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
            name: Proxy(name, p["listen"], p["upstream"], p["enabled"], tuple(map(_toxic, p.get("toxics", ()))))
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

    def arrange(self, proxy: Proxy, stream: Stream, wanted: Sequence[Toxic]) -> None:
        """Makes one stream have these toxics, in this order, and no others but LINGER; live connections keep running.

        proxy: as `proxies` has just told it.
        """
        kept: list[Toxic] = []
        for toxic in proxy.toxics:
            if toxic.stream != stream or toxic.name == LINGER:
                continue
            if len(kept) < len(wanted) and toxic.name == wanted[len(kept)].name:
                kept.append(toxic)
            else:
                self._call("DELETE", f"/proxies/{proxy.name}/toxics/{toxic.name}")
        for toxic, there in zip(wanted, kept, strict=False):
            if toxic.attributes != there.attributes:
                self._call("POST", f"/proxies/{proxy.name}/toxics/{toxic.name}", {"attributes": toxic.attributes})
        for toxic in wanted[len(kept) :]:
            self._add(proxy.name, toxic)

    def arm_resets(self, proxy: Proxy, armed: bool) -> None:
        """armed: connections that are opened from now on end by a reset (RST) when they are cut; else as before. proxy:
        as `proxies` has just told it.
        """
        there = any(toxic.name == LINGER for toxic in proxy.toxics)
        if armed and not there:
            self._add(proxy.name, Toxic(LINGER, "reset_peer", "upstream", {"timeout": 0}), toxicity=0.0)
        elif there and not armed:
            self._call("DELETE", f"/proxies/{proxy.name}/toxics/{LINGER}")

    def _add(self, name: str, toxic: Toxic, toxicity: float = 1.0) -> None:
        body = {"name": toxic.name, "type": toxic.type, "stream": toxic.stream, "attributes": toxic.attributes}
        self._call("POST", f"/proxies/{name}/toxics", {**body, "toxicity": toxicity})

    def delete(self, name: str) -> None:
        self._call("DELETE", f"/proxies/{name}")

    def set_upstream(self, name: str, upstream: str) -> None:
        self._call("POST", f"/proxies/{name}", {"upstream": upstream})

    def cut(self, name: str) -> None:
        """Closes the listener and every connection through it, until `heal`."""
        self._call("POST", f"/proxies/{name}", {"enabled": False})

    def switch_on(self, name: str) -> None:
        """Opens a cut proxy again, and leaves its toxics as they are."""
        self._call("POST", f"/proxies/{name}", {"enabled": True})

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


def _toxic(told: dict[str, Any]) -> Toxic:
    return Toxic(told["name"], told["type"], told["stream"], told["attributes"])
