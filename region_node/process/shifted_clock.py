"""ShiftedClock: the machine's wall clock made wrong for one process, so that tests of real processes see wrong clocks.

Is: what HELIOGRAPH_TEST_CLOCKS does, which names a folder. A process reads its file there, of the name of its node:
eight bytes, how many ms its wall clock is ahead (little-endian, signed); where there is none it makes one of 0. It
maps the file: who writes to it sets the clock of the running process at once. Isn't: a setting. One that listens on
other addresses than this machine's own refuses to start with it. The monotonic clock stays right, as with a time
service that sets the wall clock.
"""

from __future__ import annotations

import logging
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path

from heliograph.model.errors import ConfigError
from heliograph.runtime.clock import Clock, SystemClock
from region_node.process.settings import LOOPBACK, ProcessSettings

log = logging.getLogger("region_node.process")

VARIABLE = "HELIOGRAPH_TEST_CLOCKS"
_AHEAD_MS = struct.Struct("<q")


class ShiftedClock:
    """A `Clock` whose wall is ahead of the machine's by what stands in a file."""

    def __init__(self, path: Path) -> None:
        """Makes the file where it is not there. Raises OSError."""
        self._machine = SystemClock()
        path.touch(0o600)
        with path.open("r+b") as file:
            if len(file.read()) < _AHEAD_MS.size:
                file.seek(0)
                file.write(_AHEAD_MS.pack(0))
                file.flush()
            self._map = mmap.mmap(file.fileno(), _AHEAD_MS.size)

    def monotonic(self) -> float:
        return self._machine.monotonic()

    def wall_ms(self) -> int:
        ahead_ms: int = _AHEAD_MS.unpack_from(self._map)[0]
        return self._machine.wall_ms() + ahead_ms


def set_ahead(folder: Path, node: str, ahead_ms: int) -> None:
    """Sets the clock of a node's process, whether it runs or not. Raises OSError."""
    path = folder / node
    path.touch(0o600)
    with path.open("r+b") as file:
        file.write(_AHEAD_MS.pack(ahead_ms))


def clock_of(settings: ProcessSettings, environment: Mapping[str, str]) -> Clock:
    """The clock of a process: the machine's, unless a test shifts it. Raises ConfigError where that is refused."""
    folder = environment.get(VARIABLE, "")
    if not folder:
        return SystemClock()
    if settings.bind not in LOOPBACK:
        raise ConfigError(
            f"{VARIABLE} makes the wall clock wrong, for tests: a process that listens on {settings.bind}, and not on "
            "127.0.0.1 alone, does not start with it; unset it"
        )
    try:
        clock = ShiftedClock(Path(folder) / settings.node_id)
    except OSError as error:
        raise ConfigError(f"{VARIABLE}: {folder} is no folder to write to ({error.strerror}); unset it") from error
    log.warning("process.shifted_clock", extra={"node": settings.node_id, "folder": folder})
    return clock
