"""Revocations: which credentials count no more, as the global configuration says it.

Is: the value, its key, and whether it speaks of a credential. Isn't: who asks
(`region_node.security.authentication.revocations`), or who writes (`global_config.revocation_list`).
Invariants: a record that is in force is never deleted: whoever takes it back marks it as lifted. So where one is not
there any more, and neither lifted nor past its end, the configuration is an older one, and the record counts on.
Key: /revocations/{kind}/{name, quoted}.
Source: docs/security.md, "Revocation".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

from heliograph.model.configuration.configuration_records import _Value
from heliograph.model.errors import NotAllowed

REVOCATIONS = "/revocations/"
NAME_CHARS_MAX = 256
_SERIAL = re.compile(r"(?:0x)?([0-9a-f]{1,64})\Z")


class Revoked(StrEnum):
    """The kinds of what a record may name."""

    TOKEN = "token"
    SUBJECT = "subject"
    ISSUER = "issuer"
    CERTIFICATE = "certificate"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenBy:
    """By what somebody was known, in the words of a record. `subjects`: a token's subject, and the role that it gives
    where that is another; `issued_ms`: 0: the token does not say.
    """

    token: str = ""
    subjects: tuple[str, ...] = ()
    issuer: str = ""
    issued_ms: int = 0
    certificate: str = ""
    user: str = ""

    def names(self) -> list[tuple[str, str]]:
        """(kind, name) of each record that would speak of it."""
        found = [
            (Revoked.TOKEN, self.token),
            *((Revoked.SUBJECT, subject) for subject in self.subjects),
            (Revoked.ISSUER, self.issuer),
            (Revoked.CERTIFICATE, self.certificate),
            (Revoked.USER, self.user),
        ]
        return [(kind.value, name) for kind, name in found if name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation(_Value):
    """One record. `kind`: one of Revoked.

    `before_ms`: of a subject or an issuer: tokens that were issued before, and those that do not say when; 0: all.
    `until_ms`: what it names has run out by itself then, and the record may go; 0: never. `lifted_ms`: when it was
    taken back; 0: it is in force. `regions`: through which it was revoked; only these take it back.
    """

    kind: str
    name: str
    since_ms: int
    before_ms: int = 0
    until_ms: int = 0
    reason: str = ""
    by: str = ""
    lifted_ms: int = 0
    lifted_by: str = ""
    regions: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return revocation(self.kind, self.name)

    @property
    def age(self) -> tuple[int, int]:
        """The higher one of two records of one name is the newer."""
        return self.since_ms, self.lifted_ms

    def covers(self, proof: ProvenBy) -> bool:
        """Whether it revokes that credential, which it names."""
        return not self.lifted_ms and not (self.before_ms and proof.issued_ms >= self.before_ms)

    def as_strong_as(self, other: Revocation) -> bool:
        """Whether it revokes all that the other one does, for as long."""
        return not self.lifted_ms and all(
            not own or (theirs and own >= theirs)
            for own, theirs in ((self.before_ms, other.before_ms), (self.until_ms, other.until_ms))
        )

    def over(self, now_ms: int, *, kept_ms: int) -> bool:
        """Whether the record may be deleted: what it named ran out, or it was lifted, `kept_ms` ago."""
        return any(0 < end <= now_ms - kept_ms for end in (self.until_ms, self.lifted_ms))


def revocation(kind: str, name: str) -> str:
    return f"{REVOCATIONS}{kind}/{quote(name, safe='')}"


def named(kind: str, name: str) -> str:
    """The name as records have it. Raises NotAllowed."""
    if kind not in list(Revoked):
        raise NotAllowed(f"{kind[:32]!r} is nothing that is revoked: there are {', '.join(Revoked)}")
    if kind == Revoked.CERTIFICATE:
        return serial(name)
    if not 1 <= len(name) <= NAME_CHARS_MAX or any(ord(c) < 32 for c in name):
        raise NotAllowed(f"the name of a {kind} has 1 to {NAME_CHARS_MAX} characters, and no control characters")
    return name


def serial(text: str) -> str:
    """A certificate's serial number as records have it, from `4F:0a`, `0x4f0a`, and `04F0A`. Raises NotAllowed."""
    found = _SERIAL.match(text.strip().lower().replace(":", ""))
    if found is None:
        raise NotAllowed(
            f"{text[:80]!r} is no serial number of a certificate: give it in hexadecimal, as `openssl x509 -noout "
            "-serial -in FILE` prints it behind `serial=`"
        )
    return found[1].lstrip("0") or "0"
