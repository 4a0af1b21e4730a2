"""How many of something there are by where they come from, and how many there may be.

Is: a core. Isn't: a socket, or identity.
Invariants: an IPv6 address counts by its /64, which is what one customer gets.
"""

from __future__ import annotations

import ipaddress


class AddressCounts:
    """Counts what is open, or under way, by address. `most` 0: no limit, nothing is counted."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._counts: dict[str, int] = {}

    def take(self, host: str) -> bool:
        """False: it has as many as it may have."""
        if not self.most:
            return True
        group = group_of(host)
        count = self._counts.get(group, 0)
        if count >= self.most:
            return False
        self._counts[group] = count + 1
        return True

    def give(self, host: str) -> None:
        """For each `take` that was True, once."""
        if not self.most:
            return
        group = group_of(host)
        left = self._counts[group] - 1
        if left:
            self._counts[group] = left
        else:
            del self._counts[group]

    def __len__(self) -> int:
        return len(self._counts)


def group_of(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
