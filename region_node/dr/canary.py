"""Canary: whether this broker can do what clients want of it: store a message with its ack quorum, and read it back.

Is: a message every two seconds to a topic of its own, that is read back and compared; where others own every bundle
that such a topic could be in, what the owner says of its own messages; a verdict with hysteresis; a port that clients
of their own failover look at, open only while the verdict is good.
Isn't: a look at other regions, or a reason to move anything.
Invariants: a connection that is merely accepted says nothing about the rest, so the port is closed where the rest does
not work; one bad try changes nothing, and neither does one good one.
Source: docs/operating/disaster-recovery.md, "Clients with a failover of their own".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn

import crc32c

from heliograph.model.errors import HeliographError, reason_of
from heliograph.runtime.clock import Clock
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from heliograph.wire.pulsar.pulsar_pb2 import MessageMetadata
from region_node.dr.canary_settings import CanarySettings
from region_node.topics.round_trip import round_trip
from region_node.transactions.coordinators.coordinator_topics import NAMESPACE

if TYPE_CHECKING:
    from region_node.topics.serving.topic_service import TopicService

log = logging.getLogger("region_node.dr")

_NAMES = 64
_PRODUCER = "heliograph-canary"


class CanaryVerdict:
    """A core: tries in a row decide."""

    def __init__(self, settings: CanarySettings) -> None:
        self._settings = settings
        self.good = False
        self.reason = "nothing was tried yet"
        self.latency_ms = 0.0
        self.tries = self.failures = 0
        self._same = 0

    def tried(self, reason: str, latency_ms: float) -> bool:
        """reason: "" where it went well. Returns whether the verdict has changed."""
        well = not reason
        self.tries += 1
        self.failures += not well
        self.reason, self.latency_ms = reason, latency_ms if well else self.latency_ms
        if well is self.good:
            self._same = 0
            return False
        self._same += 1
        first = self.tries == 1 and well
        if not first and self._same < (self._settings.good_after if well else self._settings.bad_after):
            return False
        self.good, self._same = well, 0
        return True

    def status(self) -> dict[str, Any]:
        return {
            "healthy": self.good,
            "reason": self.reason,
            "latency_ms": self.latency_ms,
            "tries": self.tries,
            "failures": self.failures,
        }


class Canary:
    """One broker's. `open_port`, `close_port`: of the health port; called as the verdict changes."""

    def __init__(
        self,
        *,
        broker: str,
        topics: TopicService,
        owns: Callable[[str], Awaitable[bool]],
        clock: Clock,
        settings: CanarySettings,
        open_port: Callable[[], Awaitable[None]],
        close_port: Callable[[], Awaitable[None]],
        ask_owner: Callable[[str], Awaitable[None]],
    ) -> None:
        """ask_owner: asks the owner of that topic whether it is well; raises HeliographError where it is not, or does
        not answer.
        """
        self._ask_owner = ask_owner
        self.settings, self.verdict = settings, CanaryVerdict(settings)
        self._broker, self._topics, self._owns, self._clock = broker, topics, owns, clock
        self._open, self._close = open_port, close_port
        self._tasks = TaskSet("the canary has ended")
        self._task: asyncio.Task[NoReturn] | None = None
        self._count = 0
        self._topic = ""
        self._asking = asyncio.Lock()
        self._fresh_until = float("-inf")

    def start(self) -> None:
        """Where there is a port to open, or its settings say so. Else it tries when it is asked (`once`), and keeps no
        topic alive for nobody.
        """
        if not self.settings.port and not self.settings.by_itself:
            return
        self._task = self._tasks.spawn(every(self.settings.interval_s, self._round, first_s=0))

    async def stop(self) -> None:
        await self._tasks.close()

    async def once(self) -> CanaryVerdict:
        """The verdict; where nothing runs by itself, of a try that is at most `interval_s` old: anybody may ask, as
        often as they like.
        """
        if self._task is None:
            async with self._asking:
                if self._clock.monotonic() >= self._fresh_until:
                    reason, latency_ms = await self._timed()
                    self.verdict = CanaryVerdict(self.settings)
                    self.verdict.tried(reason, latency_ms)
                    self._fresh_until = self._clock.monotonic() + self.settings.interval_s
        return self.verdict

    async def _timed(self) -> tuple[str, float]:
        """(why not, or "", how long it took in ms)."""
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                reason = await self._try()
        except TimeoutError:
            reason = f"no answer within {self.settings.timeout_s:g} s"
        except HeliographError as error:
            reason = reason_of(error)
        if reason:
            self._topic = ""
        return reason, (self._clock.monotonic() - began) * 1000

    async def _round(self) -> None:
        reason, latency_ms = await self._timed()
        if self.verdict.tried(reason, latency_ms):
            log.warning("canary.changed", extra={"healthy": self.verdict.good, "reason": reason})
            try:
                await (self._open() if self.verdict.good else self._close())
            except (HeliographError, OSError) as error:  # somebody else has the port
                log.error("canary.port", extra={"error": str(error)})

    async def _try(self) -> str:
        """ "" or why not. Raises HeliographError."""
        name = self._topic or await self._own_topic()
        if not name:  # others own every bundle of the region's own namespace, and try for it
            await self._ask_owner(self._named(0))
            return ""
        topic = await self._topics.get(name, create=True)
        self._count += 1
        body = f"{self._broker} {self._count}".encode()
        entry = entry_of(_PRODUCER, body, self._count, self._clock.wall_ms())
        at, whole = await round_trip(topic, entry)
        if not whole:
            return f"what was stored at {at[0]}:{at[1]} did not come back as it was"
        self._topic = name
        return ""

    async def _own_topic(self) -> str:
        for index in range(_NAMES):
            if await self._owns(name := self._named(index)):
                return name
        return ""

    def _named(self, index: int) -> str:
        return f"persistent://{NAMESPACE}/canary-{self._broker}-{index}"


def entry_of(producer: str, body: bytes, sequence: int, now_ms: int) -> bytes:
    """A message of its own, as a client would write it."""
    metadata = MessageMetadata(producer_name=producer, sequence_id=sequence, publish_time=now_ms).SerializeToString()
    rest = len(metadata).to_bytes(4, "big") + metadata + body
    return b"\x0e\x01" + crc32c.crc32c(rest).to_bytes(4, "big") + rest
