"""LedgerContext: what every ledger shell of one broker shares, and the settings of ledgers.

Is: one object a broker, built where the pool is built. Isn't: per-ledger state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import ConfigError
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.model.striping import STRIDE
from heliograph.runtime.backoff import Backoff
from heliograph.runtime.clock import Rng
from heliograph.runtime.task_set import TaskSet
from storage.ledger.background_bounds import BackgroundBounds
from storage.ledger.bookies.bookie_latency import BookieLatency, ReadLatency
from storage.ledger.bookies.bookie_pool import BookiePool
from storage.ledger.known_losses import KnownLosses
from storage.ledger.ticker import Ticker
from storage.sealing.sealing import Sealing

_ACKS_PERCENTILE = 0.99
STALL_S = 1.0
"""A bookie whose ack is the only one that a ledger waits for is replaced after so long, or after STALL_FACTOR times
what acks take here, whichever is longer, but no later than after `add_timeout_s`. Where others have it already, a disk
that is merely busy is soon no longer alone.
"""
STALL_FACTOR = 10.0
SLOW_AFTER_S = 1.0
"""A bookie that owes an ack for longer, while an ack quorum had it, is kept, but new ledgers and reads go elsewhere for
a while.
"""
SECOND_READ_PERCENTILE = 0.95
"""A bookie that takes longer to answer a read than so many of the last reads did is not waited for alone: another copy
is read too.
"""
SECOND_READ_MIN_S = 0.02
"""But not before this; also the wait while too few reads are known."""
SECOND_READ_MAX_S = 1.0
RETURNS_WITHIN_S = 10.0
"""A bookie whose registration is gone for less may be back at once: a ledger that it may have entries of is not closed
on the word of one that has none of it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    add_timeout_s: float = 5.0
    """A bookie that owes an ack for longer is replaced, as if its connection had broken."""
    lost_after_s: float = 10.0
    """A ledger whose LAC stands still for longer, with runs waiting, is given up for a new one."""
    backlog_bytes_max: int = 32 << 20
    """A bookie that is behind the LAC by more is replaced."""
    retry_s: float = 0.1
    """First pause before a bookie, or the metadata, is tried again; doubles up to `retry_max_s`."""
    retry_max_s: float = 2.0
    stride: int = STRIDE
    """Entries of a stripe of new ledgers whose ensemble is wider than the write quorum."""
    recovery_timeout_s: float = 20.0
    """How long a recovery goes on trying while bookies don't answer."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_s <= self.retry_max_s:
            raise ConfigError(f"ledgers: want 0 < retry_s {self.retry_s} <= retry_max_s {self.retry_max_s}")
        if self.stride < 1:
            raise ConfigError(f"ledgers: stride must be at least 1, not {self.stride}")
        if min(self.add_timeout_s, self.lost_after_s, self.recovery_timeout_s) <= 0:
            raise ConfigError("ledgers: time-outs must be above 0")


async def _nobody_knows(_: LedgerMetadata) -> int:
    return -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerContext:
    meta: MetadataStore
    pool: BookiePool
    rng: Rng
    tasks: TaskSet = field(default_factory=lambda: TaskSet("background work of the storage failed"))
    background: BackgroundBounds = field(default_factory=BackgroundBounds)
    ticker: Ticker = field(default_factory=Ticker)
    settings: LedgerSettings = field(default_factory=LedgerSettings)
    latency: ReadLatency = field(default_factory=ReadLatency)
    losses: KnownLosses = field(default_factory=KnownLosses)
    sealing: Sealing | None = None
    """Encrypts what topics want encrypted at rest; None: nothing is, and what is cannot be read."""
    confirmed: Callable[[LedgerMetadata], Awaitable[int]] = _nobody_knows
    """Where bookies have forgotten a ledger: an entry of it that something else shows to be confirmed; -1:
    none. Raises what the metadata raises.
    """
    acks: BookieLatency = field(default_factory=BookieLatency)
    """How long bookies take from one ack to the next while they owe one; those that never came are not in it."""

    def second_read_s(self) -> float:
        """How long one bookie is waited for before another one is asked too."""
        return min(max(self.latency.percentile(SECOND_READ_PERCENTILE), SECOND_READ_MIN_S), SECOND_READ_MAX_S)

    def stalled_s(self, suspected: bool) -> float:
        """How long an ack is waited for that alone holds a ledger up. suspected: the bookie has just failed another
        ledger.
        """
        least = STALL_S / 4 if suspected else STALL_S
        return min(max(least, STALL_FACTOR * self.acks.percentile(_ACKS_PERCENTILE)), self.settings.add_timeout_s)

    def pause_s(self, attempt: int) -> float:
        """How long to wait before attempt number `attempt` (1 is the first that is repeated): doubling, and spread by
        chance.
        """
        return Backoff(self.settings.retry_s, self.settings.retry_max_s).pause_s(attempt, self.rng)

    async def close(self) -> None:
        self.ticker.close()
        await self.tasks.close()
