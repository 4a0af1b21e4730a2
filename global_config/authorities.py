"""Authorities: which CAs stand in a file, and whether one of them has signed a certificate itself.

Is: that question, for who must take back trust from connections that stand. Isn't: the check of a chain; OpenSSL does that in the handshake.
Source: RFC 5280; docs/decisions/0129-trust-is-taken-back-at-the-next-byte.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from cryptography import x509
from cryptography.exceptions import InvalidSignature


def signer(leaf: x509.Certificate, roots: Iterable[x509.Certificate]) -> x509.Certificate | None:
    """Which of them has signed it; None: none has."""
    for root in roots:
        try:
            leaf.verify_directly_issued_by(root)
        except (InvalidSignature, ValueError, TypeError):
            continue
        return root
    return None
