"""LoopbackPorts: free loopback ports, each kept from everybody else for as long as whoever asked for it lives.

Is: finding them, and keeping them. Isn't: who listens there (`layout`), or a check of other machines' addresses.
Why they are kept: a port that was looked up and let go may be given again before its server listens, or while that is
down: to another instance that looks for one, or to a connection that somebody opens. So it stays bound here, without
listening. With SO_REUSEADDR on both sides, which servers set, Linux lets a server listen there all the same, and gives
the port to nobody who wants any. While an instance is down nobody keeps its ports: so they are none of those that
connections get, and HELIOGRAPH_PORTS=FROM-TO gives several that share a machine ranges of their own.
Source: bind(2), tcp(7), ip(7).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from heliograph.model.errors import ConfigError

HOST = "127.0.0.1"
RANGE_VARIABLE = "HELIOGRAPH_PORTS"
_LOWEST, _TRIES = 10_000, 1000
_HIGHEST = 65_535
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class LoopbackPorts:
    """Those that are kept here; `close` lets them all go."""

    def __init__(self) -> None:
        self._kept: dict[int, socket.socket] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def free(self) -> int:
        """Returns a port that nobody has, and that no connection is given, and keeps it. Raises ConfigError where there
        is none, or HELIOGRAPH_PORTS is no range.
        """
        lowest, above = _chosen_range() or (_LOWEST, _connections_from())
        for _ in range(_TRIES):
            port = lowest + secrets.randbelow(above - lowest)
            try:
                _bound(port, kept=False).close()
                self._kept[port] = _bound(port)
            except OSError:
                continue
            return port
        raise ConfigError(
            f"no free port was found from {lowest} to {above - 1}: name others with {RANGE_VARIABLE}=FROM-TO, or more "
            "of them; a region of one broker and three bookies wants some 15"
        )

    def claim(self, port: int, what: str, option: str) -> int:
        """This one. Raises ConfigError where somebody listens there, or it is kept here already. option: by which
        another one is chosen.
        """
        if port in self._kept:
            raise ConfigError(f"port {port} would be used twice; give {what} another one with {option}")
        try:
            self._kept[port] = _bound(port)
        except OSError as error:
            raise ConfigError(
                f"port {port} ({what}) is taken: stop what listens there, or choose another with {option}"
            ) from error
        return port

    def keep(self, ports: Iterable[int]) -> None:
        """These, as far as they are free; where somebody listens, the process that wants the port will say so itself. 0
        is none.
        """
        for port in ports:
            if port and port not in self._kept:
                with contextlib.suppress(OSError):
                    self._kept[port] = _bound(port)

    def close(self) -> None:
        for kept in self._kept.values():
            kept.close()
        self._kept = {}


def _chosen_range() -> tuple[int, int] | None:
    """From HELIOGRAPH_PORTS: the first port, and the one behind the last."""
    text = os.environ.get(RANGE_VARIABLE, "")
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    lowest, highest = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 0 < lowest <= highest <= _HIGHEST:
        raise ConfigError(f"{RANGE_VARIABLE}={text}: expected two ports, such as 20000-20999")
    return lowest, highest + 1


def _connections_from() -> int:
    """The lowest port that the system gives to connections; all above it may be given."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # no Linux
        return max(int(_RANGE.read_text().split()[0]), _LOWEST + _TRIES)
    return 32_768


def _bound(port: int, *, kept: bool = True) -> socket.socket:
    """kept: also where somebody else keeps it."""
    made = socket.socket()
    try:
        if kept:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((HOST, port))
    except OSError:
        made.close()
        raise
    return made
