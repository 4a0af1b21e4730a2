"""Regions: what the load and the checkers need of an instance, whoever has started it.

Is: a port; `make chaos` gives it by the instance that it starts. Isn't: a server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from heliograph.cli.rest import Rest
from heliograph.model.errors import ConfigError, HeliographError

PATIENCE_S = 120.0
"""For what takes a second on a machine with nothing else to do."""
_POLL_S = 0.05


class NotInTime(HeliographError):
    """What had to come about by itself did not, within the patience."""


class Regions(Protocol):
    """An instance, by its regions' names."""

    def rest(self, region: str) -> Rest:
        """The admin interface of a broker of the region."""
        ...

    def client(self, region: str) -> Any:
        """An official client of Pulsar's (`pulsar.Client`), which whoever made the regions closes."""
        ...

    def read_on(self, region: str, topic: str, after: Any) -> Iterator[Any]:
        """Yields the messages behind `after` (a `pulsar.MessageId`), up to the end of the topic."""
        ...


def eventually(good: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """The first true answer of `good`. It asks again and again, because the other side is another process; what is not
    there yet, or is refused, is asked for again. Raises NotInTime.
    """
    deadline, pause = time.monotonic() + patience_s, threading.Event()
    while True:
        missing: Exception | None = None
        try:
            if answer := good():
                return answer
        except (LookupError, ConfigError) as error:
            missing = error
        if time.monotonic() > deadline:
            raise NotInTime(f"not within {patience_s:.0f} s: {what}") from missing
        pause.wait(_POLL_S)
