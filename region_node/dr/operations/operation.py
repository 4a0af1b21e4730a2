"""Operation: one switchover, failover, or rejoin of a namespace, as the global configuration keeps it.

Is: what was asked, which step is next, what each step said, the numbers of the report; and for how long one process has
seen its step. Isn't: the work of a step (`region_node.dr.operations.operation_steps`).
Invariants: one unfinished operation a namespace; a step is recorded as done only after its effect is durable, and every
step may be done again.
Keys: /dr/operations/{tenant}/{namespace} (the one under way, or the last), /dr/history/{tenant}/{namespace}/{id:08}
(finished ones), /dr/reports/{tenant}/{namespace}/{id:08} (signed reports of drills),
/dr/boundaries/{tenant}/{namespace}/{epoch:08}/{index:06} (what the new active region held of each topic when it took
over: JSON, at most 500 topics each; kept until the region that was lost is the active one again).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from global_config.keys import OPERATIONS
from heliograph.model.configuration.configuration_records import _Value
from heliograph.model.configuration.leadership import Leadership
from heliograph.model.errors import NotAllowed

SWITCHOVER, FAILOVER, REJOIN, DRILL = "switchover", "failover", "rejoin", "drill"
CLOSING = (SWITCHOVER, FAILOVER)
"""Operations that stop the active region."""
STEPS = {
    SWITCHOVER: ("check", "drain", "deliver", "subscriptions", "flip", "open"),
    FAILOVER: ("measure", "fence", "boundary", "flip", "open"),
    REJOIN: ("reach", "count", "deliver", "verify"),
    DRILL: ("live", "audit", "shadow", "rehearse", "first", "clean", "sign"),
}
MEANING = {
    "check": "both regions answer, and the target has a broker that may take over",
    "drain": "the active region takes no more messages and confirms those it took",
    "deliver": "what the regions have is in both",
    "subscriptions": "replicated subscriptions are in step",
    "measure": "what is known to be missing in the target",
    "fence": "the active region confirms nothing any more: its brokers say so, or their leases have ended",
    "boundary": "what the target holds is written down, topic by topic",
    "flip": "the target is the active region, under a new epoch",
    "open": "the target's brokers know it, and take messages",
    "reach": "the returned region answers with every topic, and obeys the new epoch",
    "count": "what only the returned region has is counted",
    "verify": "both regions hold both tails",
    "live": "what would be lost at this moment is counted, and how long publishing takes is measured",
    "audit": "counts and checksums of the target's copy are compared with the origin's",
    "shadow": "a namespace of the same regions with as many topics, for the rehearsal alone",
    "rehearse": "the shadow is failed over, in earnest",
    "first": "messages are stored in the region that took over, and read back",
    "clean": "the shadow is gone",
    "sign": "how long publishing took is measured again, and the report is judged and signed",
}
RUNNING, DONE, CANCELLED = "running", "done", "cancelled"
KEPT = 50
REPORTS_KEPT = 100
_FORGOTTEN_S = 600.0
"""An operation of which nobody asked for so long is forgotten: its step begins when it is seen again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(_Value):
    """source: the region that is, or was, the active one; of a rejoin, the one that came back."""

    id: int
    kind: str
    namespace: str
    source: str
    target: str
    by: str = ""
    step: str = ""
    """"" once every step is done."""
    state: str = RUNNING
    waiting: str = ""
    """Why the step is not done yet."""
    begun_ms: int = 0
    ended_ms: int = 0
    steps: tuple[list[Any], ...] = ()
    """[name, wall ms when it was done, what it found] each."""
    report: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def new(cls, number: int, kind: str, namespace: str, source: str, target: str, by: str, now_ms: int) -> Operation:
        """Returns one at the first step of its kind. Raises NotAllowed: no such kind, or `source` is `target`."""
        if kind not in STEPS:
            raise NotAllowed(f"there is no operation {kind!r}: {', '.join(STEPS)}")
        if source == target:
            raise NotAllowed(f"{namespace} is active in {target} already")
        return cls(
            id=number,
            kind=kind,
            namespace=namespace,
            source=source,
            target=target,
            by=by,
            step=STEPS[kind][0],
            begun_ms=now_ms,
        )

    @property
    def running(self) -> bool:
        return self.state == RUNNING

    def passed(self, text: str, now_ms: int, **report: Any) -> Operation:
        """The present step is done."""
        names = STEPS[self.kind]
        index = names.index(self.step)
        after = names[index + 1] if index + 1 < len(names) else ""
        return replace(
            self,
            steps=(*self.steps, [self.step, now_ms, text]),
            step=after,
            waiting="",
            state=RUNNING if after else DONE,
            ended_ms=0 if after else now_ms,
            report={**self.report, **report},
        )

    def waits(self, text: str) -> Operation:
        return replace(self, waiting=text)

    def cancelled(self, now_ms: int) -> Operation:
        """Raises NotAllowed once the regions were flipped: then the way back is another operation."""
        if any(step[0] == "flip" for step in self.steps):
            raise NotAllowed(f"{self.target} is the active region already: finish this operation, then switch back")
        return replace(self, state=CANCELLED, waiting="", ended_ms=now_ms)

    def left(self, now_ms: int) -> Operation:
        """The regions were flipped, and the new one was not seen to take messages: another operation goes on from
        there.
        """
        return replace(
            self,
            state=DONE,
            step="",
            waiting="",
            ended_ms=now_ms,
            steps=(*self.steps, ["open", now_ms, f"{self.target} was not seen to open"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The leadership that somebody has seen, and wants nothing begun of another one. operation: the number of the
    namespace's last operation then; 0: it had none; None: it is not known. alone: nor beside any other that is under
    way, but for a drill, which is in nobody's way. step: where that operation was; None: that may have changed.
    """

    active: str
    epoch: int
    operation: int | None = None
    alone: bool = False
    step: str | None = None

    def moved(self, record: Leadership, last: Operation | None) -> str:
        """What is otherwise by now; "": nothing. Also an operation that moves the namespace, and was begun since."""
        if (record.active, record.epoch) != (self.active, self.epoch):
            return f"it is active in {record.active} under epoch {record.epoch}"
        if (
            self.alone
            and last is not None
            and last.running
            and last.kind != DRILL
            and (last.id != self.operation or self.step not in (None, last.step))
        ):
            return f"a {last.kind} to {last.target} is under way at step {last.step}"
        if (
            last is None
            or not last.running
            or last.kind not in CLOSING
            or self.operation is None
            or last.id <= self.operation
        ):
            return ""
        return f"a {last.kind} to {last.target} is under way at step {last.step}"


class StepAges:
    """For how long each operation is at its step, as far as this process has seen it. Its monotonic clock alone counts:
    no clock of another machine, and no jump of its own, makes it longer than it was. Of a step that was begun
    elsewhere, or before a restart, it is less.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, tuple[tuple[int, int, str], float, float]] = {}
        """Namespace -> (operation, when it was begun, step), since when, and when it was asked for, the last at the
        end.
        """

    def age_s(self, op: Operation) -> float:
        now, step = self._monotonic(), (op.id, op.begun_ms, op.step)
        before, since, _ = self._seen.pop(op.namespace, (step, now, now))
        since = since if before == step else now
        self._seen[op.namespace] = step, since, now
        while self._seen[oldest := next(iter(self._seen))][2] < now - _FORGOTTEN_S:
            del self._seen[oldest]
        return now - since


def with_report(op: Operation, **report: Any) -> Operation:
    return replace(op, report={**op.report, **report})


def operation_key(namespace: str) -> str:
    return OPERATIONS + namespace


def history_prefix(namespace: str) -> str:
    return f"/dr/history/{namespace}/"


def reports_prefix(namespace: str) -> str:
    return f"/dr/reports/{namespace}/"


def boundaries_prefix(namespace: str) -> str:
    return f"/dr/boundaries/{namespace}/"


def boundary_prefix(namespace: str, epoch: int) -> str:
    return f"{boundaries_prefix(namespace)}{epoch:08d}/"
