"""Where entries lie that a reader may have from bookies without this broker, and the permit with which it gets them.

Is: the answer about one range, for who may consume its topic (`bulk_reads` has asked). Isn't: the reading; a bookie
verifies the permit (`region_node.security.read_permits`).
Invariants: only what is confirmed, is not encrypted at rest, and does not lie in this broker's own memory; a small
range is read sooner than its place is told. Whatever is not known here at this moment is no error: then the reader asks
for the entries themselves.
"""

from __future__ import annotations

import ssl
from typing import Any

from heliograph.model.errors import HeliographError
from heliograph.model.ledger_metadata import LedgerInfo, LedgerMetadata
from region_node.security.ca_trust import Following
from region_node.security.read_permits import ReadKeys
from storage.ledger.bookies.bookie_pool import BookiePool
from storage.managed_ledger.log.managed_ledger import ManagedLedger

_BYTES_MIN = 1 << 20
"""A range of fewer bytes gets no place: the reader reads it from the broker, hundreds in one answer."""


class BookiePlaces:
    """Tells where bookies hold a range's entries, and issues the permit to read them. tls: with which this broker calls
    bookies; None: plainly.
    """

    def __init__(self, keys: ReadKeys, pool: BookiePool, tls: ssl.SSLContext | None) -> None:
        self._keys, self._pool, self._tls = keys, pool, tls

    def authority(self) -> str:
        """PEM of the CAs of bookies' certificates; "": they speak plainly."""
        if self._tls is None:
            return ""
        newest = self._tls.newest if isinstance(self._tls, Following) else self._tls
        return "".join(ssl.DER_cert_to_PEM_cert(der) for der in newest.get_ca_certs(binary_form=True))

    async def place(self, log: ManagedLedger, info: LedgerInfo, first: int, last: int) -> dict[str, Any] | None:
        """None: it is to be read from this broker."""
        if (last - first + 1) * info.size_bytes < _BYTES_MIN * max(1, info.entries):
            return None
        try:
            found = await log.at_bookies(info.ledger, first, last)
            if found is None:
                return None
            metadata, last = found
            if metadata.seal_form:  # only who has the keys can tell whether an entry is what was written there
                return None
            fragments = self._fragments(metadata, first, last)
            if not all(any(addresses) for _, addresses in fragments):
                return None
            permit = await self._keys.permit(info.ledger, first, last)
        except HeliographError:
            return None
        wide = metadata.stride if len(metadata.fragments[0][1]) > metadata.write_quorum else 0
        return {
            "permit": permit,
            "last": last,
            "stride": wide,
            "write_quorum": metadata.write_quorum,
            "fragments": fragments,
        }

    def _fragments(self, metadata: LedgerMetadata, first: int, last: int) -> list[tuple[int, list[str]]]:
        """(first entry, addresses) of those that hold some of the range."""
        ends = [*(start for start, _ in metadata.fragments[1:]), last + 1]
        held = [found for found, end in zip(metadata.fragments, ends, strict=True) if found[0] <= last and end > first]
        return [(start, [self._pool.http_address(bookie) for bookie in bookies]) for start, bookies in held]
