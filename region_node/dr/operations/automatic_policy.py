"""Automatic failover as a namespace has it: after how long, where to, at what risk; and what holds it up.

Is: the values, their keys in the global configuration, and what of a standby's facts is too much at risk. Isn't: who
decides (`region_node.dr.operations.automatic_failover`).
Invariants: a hold is a key under a lease that nobody renews, so that it ends by the clock of whoever leads the
configuration, and by no wall clock; the hold behind a move is put by the write that moves.
Keys: /dr/automatic/{tenant}/{namespace} (Automatic), /dr/holds/{tenant}/{namespace}/moved, …/operator, /dr/holds-all
(Hold, each under its lease).
Source: docs/operating/disaster-recovery.md, "Automatic failover".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from global_config.keys import AUTOMATIC
from heliograph.kv.metadata_store import TTL_MS_MAX, MetadataStore, Put
from heliograph.model.configuration.configuration_records import _Value
from heliograph.model.errors import CorruptData, NotAllowed
from region_node.dr.operations import namespace_facts

log = logging.getLogger("region_node.dr")

HOLDS = "/dr/holds"
"""Begins the keys of all holds."""
ALL_HELD = f"{HOLDS}-all"
BY = "automatic"
"""Who asked for it, in the operation and its report."""
AFTER_S_MIN, AFTER_S_MAX = 10.0, 86_400.0
"""Links that are cut for less are no loss of a region; leases last for 6 s."""
HOLD_S_MIN, HOLD_S_MAX = 30.0, TTL_MS_MAX / 1000
HOLD_S = 600.0
"""Between two moves of a namespace, where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Automatic(_Value):
    """One namespace is failed over by itself. `after_s`: so long its active region must be lost."""

    after_s: float
    to: tuple[str, ...] = ()
    """The regions that may take over, the first that is there; none: whichever lacks least."""
    hold_s: float = HOLD_S
    """So long after a move, of whatever kind, there is none by itself."""
    risk_messages: int | None = None
    """A region that is known to lack more than so many messages does not take over."""
    risk_s: float | None = None
    """The same of one which the oldest of them had kept waiting for longer when the active region was heard last."""
    by: str = ""
    asks: str = ""
    """Why it does not until somebody sets it again; "": it does."""

    def check(self, regions: tuple[str, ...], lease_s: float) -> None:
        """Raises NotAllowed where a number, or a region, cannot be. regions: the namespace's; lease_s: a broker's."""
        least_s = max(AFTER_S_MIN, lease_s + 1)
        if not least_s <= self.after_s <= AFTER_S_MAX:
            raise NotAllowed(
                f"after={self.after_s:g}s: a region can be taken for lost after {least_s:g} s (longer than its leases "
                f"last, {lease_s:g} s) to {AFTER_S_MAX:g} s"
            )
        if not HOLD_S_MIN <= self.hold_s <= HOLD_S_MAX:
            raise NotAllowed(f"hold={self.hold_s:g}s: it can be {HOLD_S_MIN:g} s to {HOLD_S_MAX:g} s")
        if away := [region for region in self.to if region not in regions]:
            raise NotAllowed(
                f"to={','.join(self.to)}: the namespace is not in {away[0]}; it is in {', '.join(regions)}"
            )
        if len(regions) < 2:
            raise NotAllowed(f"the namespace is in {', '.join(regions)} alone: no other region could take over")
        if (self.risk_messages or 0) < 0 or (self.risk_s or 0.0) < 0:
            raise NotAllowed("max_risk is a number of messages, or of seconds, and not below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(_Value):
    """Nothing fails over by itself while its lease lasts. since_ms: wall time, for people."""

    for_s: float
    why: str
    since_ms: int = 0


def automatic(namespace: str) -> str:
    return AUTOMATIC + namespace


def moved_key(namespace: str) -> str:
    """The hold behind a move."""
    return f"{HOLDS}/{namespace}/moved"


def operators_key(namespace: str) -> str:
    """The hold of an operator. namespace: "" for all that there are."""
    return f"{HOLDS}/{namespace}/operator" if namespace else ALL_HELD


def hold_keys(namespace: str) -> tuple[str, ...]:
    """Whatever stands at one of them holds the namespace."""
    return moved_key(namespace), operators_key(namespace), ALL_HELD


async def hold(store: MetadataStore, namespace: str, for_s: float, by: str, now_ms: int) -> Hold:
    """An operator wants none for so long. namespace: "" for all. Raises NotAllowed, also where that would end sooner
    than what stands there, by these clocks; MetadataError.
    """
    if not 0 < for_s <= HOLD_S_MAX:
        raise NotAllowed(f"it can be held for up to {HOLD_S_MAX / 3600:g} h at once, not for {for_s:g} s")
    if (found := await store.get(operators_key(namespace))) is not None:
        old = Hold.decode(found[0])
        left_s = min(old.for_s, old.for_s - (now_ms - old.since_ms) / 1000)
        if for_s < left_s:
            raise NotAllowed(
                f"{hold_text(old)}, and {left_s:.0f} s of that are left: a shorter one would end it sooner; --for off "
                "ends it now"
            )
    made = Hold(for_s=for_s, why=f"{by} holds it", since_ms=now_ms)
    lease = await store.grant(int(for_s * 1000))
    await store.put(operators_key(namespace), made.encode(), lease=lease)
    return made


async def release(store: MetadataStore, namespace: str) -> bool:
    """Ends an operator's hold, and of one namespace the one behind a move, too. namespace: "" for that of all. Returns
    whether there was one.
    """
    keys = (operators_key(namespace), moved_key(namespace)) if namespace else (ALL_HELD,)
    return any([await store.delete(key) for key in keys])


async def held(store: MetadataStore, namespace: str) -> str:
    """What holds it, in words; "": nothing. Raises MetadataUnavailable."""
    for key in hold_keys(namespace):
        if (found := await store.get(key)) is not None:
            return hold_text(Hold.decode(found[0]))
    return ""


def hold_text(found: Hold) -> str:
    return f"{found.why} for {found.for_s:g} s"


async def hold_behind_move(store: MetadataStore, namespace: str, text: str, now_ms: int) -> list[Put]:
    """What the write that moves a namespace puts, too; none where it is not failed over by itself. text: which move."""
    if (found := await store.get(automatic(namespace))) is None:
        return []
    try:
        hold_s = Automatic.decode(found[0]).hold_s
    except CorruptData as error:  # the namespace is closed by now, and is to be opened
        log.error("failover.automatic_unreadable", extra={"namespace": namespace, "error": str(error)})
        hold_s = HOLD_S
    lease = await store.grant(int(hold_s * 1000))
    made = Hold(for_s=hold_s, why=f"a {text} holds it", since_ms=now_ms)
    return [Put(moved_key(namespace), made.encode(), lease=lease)]


async def forget_automatic(store: MetadataStore, namespace: str) -> bool:
    """It is not failed over by itself any more; what holds it stays. Returns whether it was."""
    return await store.delete(automatic(namespace))


def too_much_at_risk(wanted: Automatic, facts: Mapping[str, Any], source: str) -> str:
    """Why the region of `facts` may not take over from `source`, in words; "": it may. What was published after
    `source` was heard last is in no number: nobody there knows it.
    """
    if wanted.risk_messages is None and wanted.risk_s is None:
        return ""
    lag = namespace_facts.lacking(facts, source)
    if not_known := [*lag["missing"], *lag["unheard"]]:
        return f"it is not known how much of {not_known[0]} it lacks, and max_risk is set"
    if lag["untold"]:
        return f"it is not known how much it lacks ({lag['untold']}), and max_risk is set"
    if wanted.risk_messages is not None and lag["messages"] > wanted.risk_messages:
        return f"it lacks {lag['messages']} messages, and max_risk is {wanted.risk_messages}"
    age_s = namespace_facts.waited_s(facts, source)
    if wanted.risk_s is not None and age_s > wanted.risk_s:
        return f"the oldest message that it lacks had waited for {age_s:.1f} s, and max_risk is {wanted.risk_s:g} s"
    return ""
