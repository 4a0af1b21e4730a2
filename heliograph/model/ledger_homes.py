"""Ledger homes: which of a bookie's ledger directories has a ledger.

Is: arithmetic that bookies and those who count copies share. Isn't: aware of which directories there are or were lost.
Invariants: it is on disks for ever: the answer for a ledger and a number of directories never changes.
Source: docs/protocols/storage.md, "A bookie's directories".
"""

from __future__ import annotations


def home_of(ledger: int, directories: int) -> int:
    """The ledger directory of a ledger: the same for ever, and spread well, also where ids follow a pattern."""
    return (ledger * 0x9E3779B97F4A7C15 >> 40 & 0xFFFFFF) * directories >> 24
