"""Authorities: whether CAs that stand in a file have signed a certificate, themselves or by intermediates.

Is: that question, of a leaf and of a chain, for who must take back trust from connections that stand. Isn't: the check
of a chain's times, names, and rights; OpenSSL does that in the handshake.
Source: RFC 5280; docs/decisions/0129-trust-is-taken-back-at-the-next-byte.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature


def leads_to(chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate]) -> bool:
    """Whether one of the roots has signed a certificate of the chain, and each one before that is signed by the one
    behind it. chain: the leaf first.
    """
    for at, certificate in enumerate(chain):
        if signer(certificate, roots) is not None:
            return True
        if signer(certificate, chain[at + 1 : at + 2]) is None:
            return False
    return False


def signer(leaf: x509.Certificate, roots: Iterable[x509.Certificate]) -> x509.Certificate | None:
    """Which of them has signed it; None: none has."""
    for root in roots:
        try:
            leaf.verify_directly_issued_by(root)
        except (InvalidSignature, ValueError, TypeError):
            continue
        return root
    return None
