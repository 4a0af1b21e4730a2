"""ResealJob: that a tenant's older ledgers are to be written anew under its newest data key, and how far that is.

Is: the value at `/reseals/{tenant}` of a region's local metadata, who may change it, which ledgers it is about, and the
port to what topics have beside their logs.
Isn't: the work (`reseal_worker`), or one ledger (`ledger_resealing`).
Invariants: what is done is told from the ledgers' own places, never from what is counted here; so a job goes on
wherever it stopped, on any broker.
Source: docs/operating/keys.md, "Encryption at rest: older ledgers under a new key".
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Protocol, Self

from heliograph.kv.metadata_store import ABSENT, MetadataStore, pages_under
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import AlreadyExists, CorruptData, NotFound, VersionConflict
from heliograph.model.ledger_metadata import LedgerInfo, ManagedLedgerMetadata
from heliograph.runtime.throttle import RowPace
from local_meta import keys
from storage.managed_ledger.metadata.ledger_pages import stored_topic

FORMAT = 1
EXAMPLES = 5
LOOKED_AFTER_MS = 3_600_000
"""So long after a job was cancelled second objects are looked for: a broker may have heard of that late."""


class JobState(StrEnum):
    """Each as it is stored, and as the command shows it."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ResealJob:
    """Times are wall ms; numbers of ledgers and bytes are as they were last counted."""

    tenant: str
    begun_ms: int
    key_ms: int
    """When the oldest data key was made that may stay."""
    settled_ms: int
    """A ledger that was begun no earlier holds nothing of an older key."""
    bytes_per_s: int
    """So much is read; as much is written, to each bookie of a copy."""
    keep_ms: int
    """So long an older copy stays beside the newer one."""
    key: int = 0
    """Number of the oldest data key that may stay; 0, and where that was removed: the one of `key_ms`."""
    state: JobState = JobState.RUNNING
    counted: bool = False
    ended_ms: int = 0
    ledgers_done: int = 0
    bytes_done: int = 0
    ledgers_left: int = 0
    bytes_left: int = 0
    ledgers_kept: int = 0
    """Those that are written anew, while readers still go to the older copy."""
    ledgers_open: int = 0
    ledgers_offloaded: int = 0
    """Those whose objects in a store are left as they are, as the broker that counts is set to none."""
    objects_left: int = 0
    """Ledgers whose objects in a store are to be uploaded anew by their topics' owners; of a job that was cancelled:
    those that still have a second object there.
    """
    compacted_left: int = 0
    """Topics whose compacted ledger, here or in an object store, is to be written anew by their owners."""
    waits_for: tuple[str, ...] = ()
    """Some topics whose ledgers are open, or could not be written anew."""
    trouble: str = ""
    """Why the last ledger that failed did; "" where none did since."""

    @property
    def active(self) -> bool:
        return self.state in (JobState.RUNNING, JobState.CANCELLING)

    def pending(self, now_ms: int) -> bool:
        """Whether brokers have anything to do for it."""
        if self.state != JobState.CANCELLED:
            return self.active
        return self.objects_left > 0 or now_ms < self.ended_ms + LOOKED_AFTER_MS

    @property
    def left(self) -> bool:
        """Whether anything was to be done, or waited for, as it was last counted."""
        ledgers = self.ledgers_left + self.ledgers_kept + self.ledgers_open
        return ledgers + self.objects_left + self.compacted_left > 0

    def encode(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        """Reads what was stored of a job. Raises CorruptData."""
        try:
            fields: dict[str, Any] = json.loads(blob)
            if (found := fields.pop("format")) != FORMAT:
                raise CorruptData(f"reseal job: of format {found}; this version reads format {FORMAT}")
            state = JobState(fields["state"])
            return cls(**{**fields, "state": state, "waits_for": tuple(fields["waits_for"])})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptData(f"reseal job: {error!r}") from error


async def job_of(meta: MetadataStore, tenant: str) -> tuple[ResealJob, int] | None:
    """(the tenant's last job, its version)."""
    found = await meta.get(keys.reseal(tenant))
    return None if found is None else (ResealJob.decode(found[0]), found[1])


async def begin(meta: MetadataStore, job: ResealJob) -> None:
    """Raises AlreadyExists where one is at work, of whatever pace."""
    found = await job_of(meta, job.tenant)
    if found is not None and found[0].active:
        raise AlreadyExists(
            f"ledgers of tenant {job.tenant} are being sealed anew already: `heliograph keys reseal-status` shows how "
            "far that is; cancel it first, for another pace"
        )
    try:
        await meta.put(keys.reseal(job.tenant), job.encode(), expected=ABSENT if found is None else found[1])
    except VersionConflict as error:
        raise AlreadyExists(f"somebody else has just changed the job of tenant {job.tenant}: look at it") from error


async def cancel(meta: MetadataStore, tenant: str) -> ResealJob:
    """What readers go to already stays so; other copies, and second objects in a store, are given up. Raises
    NotFound.
    """
    while True:
        found = await job_of(meta, tenant)
        if found is None or not found[0].active:
            raise NotFound(f"no ledgers of tenant {tenant} are being sealed anew")
        cancelled = replace(found[0], state=JobState.CANCELLING)
        try:
            await meta.put(keys.reseal(tenant), cancelled.encode(), expected=found[1])
            return cancelled
        except VersionConflict:
            continue  # its worker tells how far it is


async def topics_of(meta: MetadataStore, tenant: str) -> AsyncIterator[str]:
    """Each topic of the tenant that has a log in this region."""
    pace = RowPace()
    async for page in pages_under(meta, keys.managed_ledgers_of(tenant)):
        for key, _, _ in page:
            await pace.row()
            yield keys.topic_of(key)


async def ledgers_begun_before(
    meta: MetadataStore, tenant: str, before_ms: int
) -> AsyncIterator[tuple[str, int, LedgerInfo]]:
    """(topic, no earlier than which it was begun, ledger) of each ledger of the tenant's topics that may have been
    begun before. Topics' metadata that cannot be read is told, and left out.
    """
    pace = RowPace()
    async for page in pages_under(meta, keys.managed_ledgers_of(tenant)):
        for key, blob, _ in page:
            await pace.row()
            stored = readable(ManagedLedgerMetadata.decode, key, blob)
            if stored is None or all(begun >= before_ms for begun, _ in stored.spans()):
                continue
            topic = keys.topic_of(key)
            if stored.pages:
                whole = await stored_topic(meta, topic)
                if whole is None:
                    continue
                stored = whole[0]
            for info, (begun, _) in zip(stored.ledgers, stored.spans(), strict=True):
                await pace.row()
                if begun < before_ms:
                    yield topic, begun, info


class _EveryKey(tuple[int, ...]):
    __slots__ = ()

    def __contains__(self, number: object) -> bool:
        return True


EVERY_KEY = _EveryKey()
"""As the keys that may stay: nothing is sealed anew, and what is kept beside what was so goes."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What a job wants of a tenant. newer: numbers of the data keys that may stay, the oldest first."""

    tenant: str
    newer: Sequence[int]
    before_ms: int
    """What was made before that may hold something of an older key, where nothing else tells; wall ms."""
    settled_ms: int
    """A ledger that was begun later holds nothing of an older key; wall ms."""
    bytes_per_s: int
    keep_ms: int
    """So long an older object stays beside the newer one."""
    left: bool = True
    """Whether anything that topics were compacted to was left as the job was last counted."""
    objects_left: bool = True
    """The same of objects."""


class SideReseals(Protocol):
    """What topics have beside their logs, as a job sees it (what they were compacted to:
    `region_node.tiering.topic_resealing`). What is left is told from the metadata, whoever owns the topic; the
    topic's owner alone writes it, and the objects of its log.
    """

    @property
    def writes_objects(self) -> bool:
        """Whether this broker is set to an object store."""
        ...

    async def left(self, topic: str, aim: Aim) -> bool:
        """Whether something of it is to be written anew. Raises what the metadata raises; CorruptData."""
        ...

    async def step(self, aims: Sequence[Aim]) -> None:
        """Begins some of what this broker is to write. It is called every few seconds, also where there is no aim, and
        raises nothing but what the metadata raises.
        """
        ...
