"""Names of objects: whose they are, which topic's, and which attempt's.

Is: object keys from topics, ledgers, and attempts, and back. Isn't: what stands in an object.
Invariants: a key names exactly one upload; a holder (one region's local metadata, by its instance id) writes and
deletes below its own folder only; a topic's name stands in the key so that a person, and a restore, find it.

    {holder}/{tenant}/{namespace}/{topic}/ledger/{id:020}-{attempt}         the entries of one ledger
    {holder}/{tenant}/{namespace}/{topic}/manifest/{version:020}-{attempt}  what else a restore needs
                                                                            version: of the topic's metadata;
                                                                            attempt: grows where the version stays

    {holder}/seen/{version:020}                                             at which version the mark stood that the
                                                                            collection of objects put into the metadata
    {holder}/seen/doubt                                                     why nothing is collected
    {holder}/seen/judged-{id:020}                                           ledgers below it had their objects when an
                                                                            operator confirmed

holder: {region}-{the first 16 digits of the metadata's instance id}. In names, all but A-Z a-z 0-9 - _ . becomes = and
two digits.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote

from heliograph.model.topic_names import TopicName

LEDGER = "ledger"
MANIFEST = "manifest"
_HOLDER_DIGITS = 16
_SEEN, _DOUBT, _JUDGED = "seen", "doubt", "judged-"


class ObjectName(NamedTuple):
    holder: str
    topic: str
    """The topic's full name, without quoting."""
    kind: str
    """Says what the object holds: LEDGER or MANIFEST."""
    number: int
    """The ledger's id, or the metadata's version."""
    attempt: str


def holder_of(region: str, instance: str) -> str:
    return f"{_quoted(region)}-{instance[:_HOLDER_DIGITS]}"


def folder(holder: str, topic: str) -> str:
    """The prefix of all keys of one topic, with a slash at its end."""
    name = TopicName.parse(topic)
    tenant, _, namespace = name.namespace.partition("/")
    return f"{holder}/{_quoted(tenant)}/{_quoted(namespace)}/{_quoted(name.local)}/"


def key(name: ObjectName) -> str:
    return f"{folder(name.holder, name.topic)}{name.kind}/{name.number:020d}-{name.attempt}"


def ledger_key(holder: str, topic: str, ledger: int, attempt: str) -> str:
    return key(ObjectName(holder, topic, LEDGER, ledger, attempt))


def manifest_attempt(moment: int, chance: int) -> str:
    """moment: larger than that of any manifest before it under the same version, all of which are one broker's. chance:
    64 bits. It lies behind 32 hexadecimal digits, which attempts of manifests were before.
    """
    return f"t{moment:016x}{chance:016x}"


def seen_key(holder: str, version: int) -> str:
    return f"{holder}/{_SEEN}/{version:020d}"


def seen_version(key: str) -> int | None:
    """None where it is no mark's."""
    _, _, name = key.partition(f"/{_SEEN}/")
    return int(name) if name.isdecimal() else None


def seen_folder(holder: str) -> str:
    """The prefix of what is known of the metadata, with a slash at its end."""
    return f"{holder}/{_SEEN}/"


def doubt_key(holder: str) -> str:
    return seen_folder(holder) + _DOUBT


def judged_key(holder: str, ledger: int) -> str:
    return f"{seen_folder(holder)}{_JUDGED}{ledger:020d}"


def judged_below(key: str) -> int | None:
    """None where it is no key of `judged_key`."""
    _, _, name = key.partition(f"/{_SEEN}/{_JUDGED}")
    return int(name) if name.isdecimal() else None


def parse(key: str) -> ObjectName | None:
    """None where it is no object of ours."""
    parts = key.split("/")
    if len(parts) != 6 or parts[4] not in (LEDGER, MANIFEST):
        return None
    number, _, attempt = parts[5].partition("-")
    if not number.isdecimal() or not attempt:
        return None
    tenant, namespace, local = (unquote(part.replace("=", "%")) for part in parts[1:4])
    return ObjectName(parts[0], f"persistent://{tenant}/{namespace}/{local}", parts[4], int(number), attempt)


def _quoted(name: str) -> str:
    return quote(name, safe="").replace("~", "%7E").replace("%", "=")
