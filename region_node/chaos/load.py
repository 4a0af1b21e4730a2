"""ChaosLoad: numbered messages that are published and read in every region of a scenario, and what is told of them.

Is: the namespace as the scenario wants it, one stream and one subscription in each region, their rate. Isn't: a
verdict.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from heliograph.cli.messaging.produce_consume import official
from heliograph.cli.rest import Rest, RestRefused
from heliograph.model.admin_paths import dr_path
from heliograph.model.errors import ConfigError
from region_node.chaos.kafka_regions import KafkaRegions
from region_node.chaos.regions import NotInTime, Regions, eventually, takes
from region_node.chaos.scenario import Scenario
from region_node.chaos.streams import MessageForm, NumberedStream, RegionCopies
from region_node.chaos.subscriptions import LoadSubscription
from region_node.chaos.timeline import Timeline

_LOOK_S = 1.0
_LOOK_TIMEOUT_S = 2.0
_PAUSE_S = 0.02
_IN_FLIGHT_MAX = 900
"""Of one region, not answered yet: at a thousand the official client makes its caller wait."""
_RETENTION_MINUTES = 1440
"""Of a namespace that a run makes: what it leaves goes by itself."""
_NOT_FOUND, _CONFLICT = 404, 409


class ChaosLoad:
    """What one run publishes and reads; it begins when this is made. run_id: in no other one's names, or what is sent
    is taken for repeats of that. look: is called each second meanwhile.

    Raises ConfigError where the namespace, a subscription, or a producer cannot be had.
    """

    def __init__(
        self,
        scenario: Scenario,
        regions: Regions,
        names: Sequence[str],
        run_id: str,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._scenario, self._regions, self.names, self._look = scenario, regions, list(names), look
        self._run_id = run_id
        self.topic, self.timeline = scenario.load.topic, Timeline()
        self._began, self._next_look = time.monotonic(), 0.0
        prepare(scenario, regions, self.names)
        by_kafka = scenario.load.client == "kafka"
        self._spoken: Regions = KafkaRegions(regions, scenario.load.kafka) if by_kafka else regions
        self.subscriptions: list[LoadSubscription] = []
        self.streams: dict[str, NumberedStream] = {}
        """By the region that takes what they publish."""
        try:
            for region in self.names:  # all of them, before anything is published
                self.subscriptions.append(self._subscription(region, f"chaos-{run_id}"))
            for region in [scenario.load.active] if scenario.load.active else self.names:
                self.streams[region] = self._stream(region, f"{run_id}-{region}")
        except BaseException:
            self.close()
            raise
        self.arrivals = RegionCopies(regions, self.topic, {one.region: one.began for one in self.subscriptions})
        self._owed = dict.fromkeys(self.names, 0.0)

    def moved(self, source: str, target: str, tail: Collection[int]) -> None:
        """What was published in `source` is taken by `target` from now on. tail: numbers that the first had alone."""
        stream = self.streams.pop(source)
        stream.tail.update(tail)
        self.streams[target] = stream

    def _subscription(self, region: str, name: str) -> LoadSubscription:
        return LoadSubscription(
            self._spoken,
            region,
            self.topic,
            name,
            consumers=self._scenario.load.consumers,
            ours=f"{self._run_id}-",
            came=lambda _: self.timeline.count("read", region, self.now()),
        )

    def _stream(self, region: str, name: str) -> NumberedStream:
        load = self._scenario.load

        def answered(seconds: float) -> None:
            self.timeline.count("acknowledged", region, self.now())
            self.timeline.latency(region, self.now(), seconds)

        return NumberedStream(
            self._spoken,
            region,
            self.topic,
            name=name,
            form=MessageForm(keys=load.keys, size_bytes=load.size_bytes, repeat_every=load.repeat_every),
            answered=answered,
        )

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def publish(self, seconds: float) -> None:
        """Publishes in every region for so long, at the scenario's rate, and looks meanwhile."""
        rate, last, until = self._scenario.load.rate_per_s, self.now(), self.now() + seconds
        while (now := self.now()) < until:
            if now >= self._next_look:
                self._look_at_all()
                self._next_look = self.now() + _LOOK_S
            for region, stream in self.streams.items():
                self._owed[region] += (now - last) * rate
                room = _IN_FLIGHT_MAX - (stream.sent - stream.acked - stream.failed)
                count = max(0, min(int(self._owed[region]), room))
                self._owed[region] = min(self._owed[region] - count, rate)  # what could not be sent is not made up for
                for _ in range(count):
                    stream.publish(1)
                    self.timeline.count("sent", region, now)
            last = now
            time.sleep(_PAUSE_S)  # the rate of the load, not a wait for anything

    def _look_at_all(self) -> None:
        self._look()
        for region in self.names:
            try:
                told = self._at_risk(region)
            except ConfigError:
                continue  # its broker is away, or stands still
            for target, row in told.items():
                self.timeline.level("at risk", f"{region}-{target}", self.now(), row["messages"])

    def _at_risk(self, region: str) -> Mapping[str, Mapping[str, int]]:
        path = f"/heliograph/v1/topics/{self.topic.removeprefix('persistent://')}/risk"
        told: Mapping[str, Mapping[str, int]] = (
            self._regions.rest(region).at(timeout_s=_LOOK_TIMEOUT_S).get(path)["not_yet_elsewhere"]
        )
        return told

    def settle(self) -> float:
        """Returns when all that was sent is answered, every subscription has all that was acknowledged, and no region
        says that something is at risk; with when everything was there, in seconds since the run began. Raises
        NotInTime.
        """
        patience_s = self._scenario.patience_s
        for stream in self.streams.values():
            stream.finish(patience_s)
        wanted = {stream.name: stream.acked for stream in self.streams.values()}
        for one in self.subscriptions:
            eventually(
                partial(one.has, wanted), f"the subscription in {one.region} has all that is acknowledged", patience_s
            )
        there = self.now()
        for region in self.names:
            eventually(partial(self._safe, region), f"{region} says that nothing is at risk", patience_s)
        return there

    def _safe(self, region: str) -> bool:
        return not any(row["messages"] for row in self._at_risk(region).values())

    def close(self, *, keep: bool = False) -> None:
        """keep: the subscriptions stay, so that somebody may look at them."""
        for stream in self.streams.values():
            with contextlib.suppress(official().PulsarException):  # a broker that is down says no good-bye
                stream.close()
        for one in self.subscriptions:
            one.close(keep=keep)


def prepare(scenario: Scenario, regions: Regions, names: Sequence[str]) -> None:
    """Returns when the namespace is in every region as the scenario wants it. Where it is absent it is made:
    replicated, kept for a day, with deduplication. Raises ConfigError.
    """
    namespace = "/".join(scenario.load.topic.removeprefix("persistent://").split("/")[:2])
    path, first, deduplication = (
        f"/admin/v2/namespaces/{namespace}",
        regions.rest(names[0]),
        scenario.load.deduplication,
    )
    try:
        there = first.get(f"{path}/replication")
    except RestRefused as refused:
        if refused.code != _NOT_FOUND:
            raise
        there, deduplication = names, deduplication is not False
        first.put(path, {"replication_clusters": list(names)})
        first.post(f"{path}/retention", {"retentionTimeInMinutes": _RETENTION_MINUTES, "retentionSizeInMB": -1})
    if missing := sorted(set(names) - set(there or [])):
        raise ConfigError(
            f"the namespace {namespace} is not replicated to {', '.join(missing)}: name the regions that it has in "
            "[load] regions, or another topic"
        )
    if deduplication is not None:
        first.post(f"{path}/deduplication", deduplication)

    def seen(region: str) -> bool:
        asked = regions.rest(region).get
        replicated = set(asked(f"{path}/replication") or []) >= set(names)
        return replicated and (deduplication is None or asked(f"{path}/deduplication") == deduplication)

    for region in names:
        try:
            eventually(partial(seen, region), f"{region} has the namespace {namespace}", scenario.patience_s)
        except NotInTime as error:
            raise ConfigError(f"{error}: `heliograph status` shows whether its regions hear each other") from error
    if scenario.load.client == "kafka":  # which would make it with partitions
        for region in names:
            _make_topic(regions.rest(region), scenario.load.topic)
    if active := scenario.load.active:
        regions.rest(active).put(dr_path(namespace), {"active": active, "slo": {}})
        eventually(lambda: takes(regions, active, namespace), f"{active} takes messages", scenario.patience_s)


def _make_topic(rest: Rest, topic: str) -> None:
    """Without partitions, unless it is there."""
    try:
        rest.put(f"/admin/v2/persistent/{topic.removeprefix('persistent://')}")
    except RestRefused as refused:
        if refused.code != _CONFLICT:
            raise
