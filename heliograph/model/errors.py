"""The error tree: each leaf is a fact that a caller can act on.

Is: one tree for all packages. Isn't: a mapping to Pulsar, Kafka, or HTTP codes; those are one table each, beside the
handler.
`retryable` says whether the same call may succeed later without anybody changing anything.
"""

from __future__ import annotations


def reason_of(error: BaseException, otherwise: str = "") -> str:
    """What an error says; where it says nothing, as a time-out does, `otherwise`, or the name of its type. An exception
    without a text is still true: `error or "..."` would say nothing.
    """
    return str(error) or otherwise or type(error).__name__


class HeliographError(Exception):
    """Root. `retryable`: the same call may succeed later by itself."""

    retryable = False


class PeerError(HeliographError):
    """The other side sent something wrong: close that connection, and nothing else."""


class ConfigError(HeliographError):
    """A setting or option is wrong; the text says what to do."""


class MalformedRequest(HeliographError):
    """The request's body, path, or query is not what the call wants."""


# -- metadata ---------------------------------------------------------------------------------------------------------


class MetadataError(HeliographError):
    """Root of what the local metadata or the global configuration answers."""


class VersionConflict(MetadataError):
    """A compare-and-set found another version; nothing was changed. `actual`: the version found, -1 where the key is
    absent.
    """

    def __init__(self, key: str, expected: int, actual: int) -> None:
        super().__init__(f"{key}: expected version {expected}, found {actual}")
        self.key, self.expected, self.actual = key, expected, actual


class LeaseLost(MetadataError):
    """The lease has expired or is unknown; keys that hung on it are gone. Final: take a new lease."""


class MetadataUnavailable(MetadataError):
    """No majority, no leader, or no answer in time. A read or a refused write: nothing was changed."""

    retryable = True


class NotLeader(MetadataUnavailable):
    """This member does not lead its group; nothing was changed. `leader`: who may, None where nobody is known."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"not the leader; try {leader}" if leader else "no leader is known")
        self.leader = leader


class OutcomeUnknown(MetadataError):
    """A write was sent and no answer came: it may or may not have happened. Read before you repeat."""

    retryable = True


# -- storage ----------------------------------------------------------------------------------------------------------


class StorageError(HeliographError):
    """Root of what bookies, ledgers, and managed ledgers answer."""


class LedgerFenced(StorageError):
    """Another writer took the ledger over. Final: close the topic."""


class NotEnoughBookies(StorageError):
    """Too few writable bookies for the write quorum. Nothing was acknowledged."""

    retryable = True


class NoSuchLedger(StorageError):
    """The ledger does not exist (explicit answer, not a time-out)."""


class NoSuchEntry(StorageError):
    """The entry does not exist on this bookie (explicit answer, not a time-out)."""


class BookieUnavailable(StorageError):
    """No answer, no connection, or a bookie in limbo: says nothing about the entry.

    forgotten: an answer, and a final one: the ledger is older than this life of the bookie, which may have lost what it
    had.
    """

    retryable = True

    def __init__(self, text: str, *, forgotten: bool = False) -> None:
        super().__init__(text)
        self.forgotten = forgotten


class CorruptData(StorageError):
    """A checksum does not match what is stored. Read another copy."""


class EntriesLost(StorageError):
    """Confirmed entries `first` to `last` of `ledger` are gone: every bookie that should have them was asked, and says
    that it has not. No time brings them back.
    """

    def __init__(self, ledger: int, first: int, last: int) -> None:
        super().__init__(
            f"entries {first} to {last} of ledger {ledger} are lost: no bookie has a copy any more; `heliograph topics "
            f"repair` looks elsewhere, and a reader that begins at {ledger}:{last + 1} goes on behind them"
        )
        self.ledger, self.first, self.last = ledger, first, last


class DiskFailed(StorageError):
    """A write or a sync failed; that directory is not used again by this process."""


class StoreRefused(StorageError):
    """An object store is not set, or refuses what is asked of it: its address, its credentials, or a right is missing.
    The text says which.
    """


class StoreUnavailable(StorageError):
    """An object store does not answer, or not in time: says nothing about the object."""

    retryable = True


class NoSuchObject(StorageError):
    """An object is not in its store (explicit answer)."""


class KeyMissing(StorageError):
    """Entries are encrypted at rest, and the key is not here, or is to be and there is none. The text says which;
    nothing is lost.
    """


class Trimmed(StorageError):
    """The position lies below what retention still holds."""


class TopicClosed(StorageError):
    """The topic is being unloaded, moved, or deleted: look it up again."""

    retryable = True


# -- topics -----------------------------------------------------------------------------------------------------------


class TopicError(HeliographError):
    """Root of what a topic refuses."""


class NotFound(TopicError):
    """Tenant, namespace, topic, or subscription does not exist; the text says which."""


class SubscriptionNotFound(NotFound):
    """The topic exists, the subscription does not."""


class TopicTerminated(TopicError):
    """The topic was terminated: nothing is appended any more."""


class AlreadyExists(TopicError):
    """The name that was to be made is taken already."""


class NotAllowed(TopicError):
    """A policy or a limit forbids it; the text says which."""


class Unauthenticated(TopicError):
    """The credentials are missing, wrong, or run out: present others. `reason`: one word for metrics, of a fixed
    set.
    """

    def __init__(self, text: str, reason: str = "refused") -> None:
        super().__init__(text)
        self.reason = reason


class Unauthorized(TopicError):
    """The role may not do this."""


class NotOwner(TopicError):
    """This broker does not own the topic's bundle: look it up again."""

    retryable = True


class RegionPassive(TopicError):
    """This region does not serve a client now. `url`, `url_tls`: service URLs of where it goes on, without and with
    TLS; both "": none is known. `migrated`: it goes on there for good.
    """

    retryable = True

    def __init__(self, text: str, url: str = "", url_tls: str = "", *, migrated: bool = False) -> None:
        super().__init__(text)
        self.url, self.url_tls, self.migrated = url, url_tls, migrated


class ProducerBusy(TopicError):
    """A producer of that name, or an exclusive one, is there already."""


class BacklogQuotaHold(TopicError):
    """The backlog is above its quota: the producer waits until consumers have caught up, or the quota was raised."""

    retryable = True


class BacklogQuotaExceeded(TopicError):
    """The backlog is above its quota, and its policy is to tell the producer so."""


class EncryptionRequired(TopicError):
    """The namespace takes encrypted messages only."""


class ProducerFenced(TopicError):
    """Another producer took the topic over. Final for this producer."""


class ConsumerBusy(TopicError):
    """The subscription is taken by another consumer or has another type."""


class ConsumerAssignError(TopicError):
    """The hash ranges of a sticky Key_Shared consumer are empty, or overlap another's."""


# -- links ------------------------------------------------------------------------------------------------------------


class LinkError(HeliographError):
    """Root of what ends one connection of a replication link; `cause` is an enumerated code that the status shows."""

    retryable = True

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause
