"""What a subscription of the load is given, while something is broken.

Is: the history of one subscription, and its consumers, each on a thread of its own. Isn't: a verdict (`judge`).
A message that comes again from where it was before is a redelivery: what was not acknowledged when a connection ended
comes again, by any at-least-once protocol; it is counted. The same number from another place was stored twice.
"""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from heliograph.cli.messaging.produce_consume import official
from region_node.chaos.regions import Regions
from region_node.chaos.streams import numbered

_RECEIVE_MS = 200
_JOIN_S = 10.0


class ReadHistory:
    """Numbers in the order in which they came first from each place, of the sources whose names begin with `ours`.
    `again`: redeliveries. It may be told by several threads; what is of one key comes to one of them at a time. A
    message takes 16 bytes of memory.
    """

    def __init__(self, ours: str = "") -> None:
        self.again = 0
        self._ours = ours
        self._order: dict[str, array[int]] = {}
        self._first: dict[str, array[int]] = {}
        """Source -> by number, the hash of the place from which it came first; 0: it did not come."""
        self._counts: dict[str, int] = {}
        self._others: dict[str, set[tuple[int, int]]] = {}
        self._lock = threading.Lock()

    def came(self, source: str, number: int, place: str) -> bool:
        """place: a message id, or a partition and an offset. Returns whether it is one of ours, and no redelivery."""
        if number < 0 or not source.startswith(self._ours):
            return False
        with self._lock:
            at, first = hash(place) or 1, self._first.setdefault(source, array("q"))
            others = self._others.setdefault(source, set())
            first.extend([0] * (number + 1 - len(first)))
            if first[number] == at or (number, at) in others:
                self.again += 1
                return False
            if first[number]:
                others.add((number, at))
            else:
                first[number] = at
                self._counts[source] = self._counts.get(source, 0) + 1
            self._order.setdefault(source, array("q")).append(number)
            return True

    def numbers(self, source: str) -> Sequence[int]:
        with self._lock:
            return self._order.get(source, array("q"))[:]

    def count(self, source: str) -> int:
        """How many different messages of it came."""
        with self._lock:
            return self._counts.get(source, 0)


class LoadSubscription:
    """One subscription in one region, of as many consumers; with several it is Key_Shared. Made before anything is
    published: it begins behind what is in the topic, whose last message id is `began`.

    ours: how names of sources begin. came: is called with each message's source when it comes first. Raises ConfigError
    where it is refused.
    """

    def __init__(
        self,
        regions: Regions,
        region: str,
        topic: str,
        name: str,
        *,
        consumers: int = 1,
        ours: str = "",
        came: Callable[[str], None] = lambda _: None,
    ) -> None:
        pulsar = official()
        self.region, self.name, self.history = region, name, ReadHistory(ours)
        self._regions, self._topic, self._came, self._consumers = regions, topic, came, consumers
        self._timeout, self._refused = pulsar.Timeout, pulsar.PulsarException
        self._kind = pulsar.ConsumerType.KeyShared if consumers > 1 else pulsar.ConsumerType.Failover
        self._open: list[Any] = [self._subscribe() for _ in range(consumers)]
        self.began = self._open[0].get_last_message_id()
        self._end = threading.Event()
        self._threads = self._started()

    def _subscribe(self) -> Any:
        return self._regions.client(self.region).subscribe(self._topic, self.name, consumer_type=self._kind)

    def _started(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._run, args=(consumer,), daemon=True) for consumer in self._open]
        for thread in threads:
            thread.start()
        return threads

    def _run(self, consumer: Any) -> None:
        while not self._end.is_set():
            try:
                message = consumer.receive(timeout_millis=_RECEIVE_MS)
                source, number = numbered(message.data())
                if self.history.came(source, number, str(message.message_id())):
                    self._came(source)
                consumer.acknowledge(message)
            except self._timeout:
                continue
            except self._refused:
                self._end.wait(_RECEIVE_MS / 1000)

    def has(self, wanted: Mapping[str, int]) -> bool:
        """wanted: source -> how many different messages."""
        return all(self.history.count(source) >= count for source, count in wanted.items())

    def opened_again(self, seconds: float) -> int:
        """Ends its consumers, and has new ones for so long. Returns how many messages came again to them: all were
        acknowledged, so none should.
        """
        self._ended(self._open)
        again, self._open = self.history.again, [self._subscribe() for _ in range(self._consumers)]
        self._end.clear()
        self._threads = self._started()
        self._end.wait(seconds)
        return self.history.again - again

    def close(self, *, keep: bool = False) -> None:
        """keep: the subscription stays, with what it has acknowledged."""
        self._ended(self._open if keep else self._open[1:])
        if not keep:
            with contextlib.suppress(self._refused):  # its broker is away: it stays
                self._open[0].unsubscribe()

    def _ended(self, closed: Sequence[Any]) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(_JOIN_S)
        for consumer in closed:
            with contextlib.suppress(self._refused):
                consumer.close()
