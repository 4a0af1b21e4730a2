"""SharedParts: what all topics' logs of one broker share.

Is: one object a broker, built by the factory; the same value where many topics were given equal ones. Isn't: anything
of one topic.
Invariants: nothing here grows with the number of topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from heliograph.runtime.clock import Clock
from heliograph.runtime.throttle import Throttle
from storage.ledger.ledger_context import LedgerContext
from storage.managed_ledger.append_counts import Appends
from storage.managed_ledger.cache.entry_cache import EntryCache
from storage.managed_ledger.cache.read_ahead import ReadAhead
from storage.managed_ledger.cursors.cursor import CURSOR_SETTINGS, CursorSettings
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.managed_ledger.metadata.ledger_catalog import PAGE_LEDGERS
from storage.managed_ledger.metadata.metadata_flusher import MetadataFlusher

if TYPE_CHECKING:
    from storage.managed_ledger.log.log_reader import ColdReads
    from storage.managed_ledger.log.managed_ledger import ManagedLedger

T = TypeVar("T", bound=Hashable)
_SAME_MAX = 1000


@dataclass(slots=True, kw_only=True)
class SharedParts:
    """cold: reads ledgers that only an object store has. may_page: every broker of the region understands pages of
    ledgers. page_ledgers: how many of them a page takes.

    on_closed: called with each log that ends. touch: called with a topic that `ManagedLedger.rest` has something to do
    for. expiry: by it retention ends.
    mending: what in-place repairs read and write.
    """

    context: LedgerContext
    flusher: MetadataFlusher
    cache: EntryCache
    ahead: ReadAhead
    settings: ManagedLedgerSettings
    clock: Clock
    expiry: Clock
    on_closed: Callable[[ManagedLedger], None]
    touch: Callable[[str], None]
    mending: Throttle
    cold: ColdReads | None = None
    may_page: Callable[[], bool] = lambda: True
    page_ledgers: int = PAGE_LEDGERS
    cursor_settings: CursorSettings = CURSOR_SETTINGS
    appends: Appends = field(default_factory=Appends)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _same: dict[Hashable, Hashable] = field(default_factory=dict)

    def same(self, value: T) -> T:
        """The equal value that was given before, where there is one: quorums and retention are those of a namespace,
        and topics are very many.
        """
        if len(self._same) >= _SAME_MAX:
            self._same.clear()
        found: T = self._same.setdefault(value, value)  # type: ignore[assignment]
        return found
