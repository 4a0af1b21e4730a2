"""Enrolment: whether a bookie is, at its start, the one that the region's metadata knows, and of the same life.

Is: the judgement (`doubt_of`, a core), and the shell that asks the metadata, writes the start down there, and ends the
limbo. Isn't: an operator's grant of a new life (`storage.ledger.repair.new_lives`).
Invariants: the identity of a bookie lies in the metadata and is changed by compare-and-set only; before the metadata
has it, nothing is acknowledged, and nothing is said to be absent. A bookie that any ledger names, and that comes with
empty, older, or another life's directories, stays in limbo until an operator says what it is; on its disks nothing is
written then. One that no ledger names is enrolled by itself. A full disk is waited for. A start is on the disks before
it is in the metadata, so disks may be one start ahead, and never behind.
Source: docs/protocols/storage.md, "Identity".
"""

from __future__ import annotations

import logging
from dataclasses import replace

import msgpack

from heliograph.kv.metadata_store import MetadataStore, pages_under
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import CorruptData, MetadataError, NotAllowed
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.runtime.clock import Rng
from heliograph.runtime.disk import is_transient
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from local_meta import keys
from local_meta.metadata_age import kept_later
from storage.bookie.directories.cookie import DiskIdentity
from storage.bookie.serving.bookie import Bookie
from storage.ledger.bookies.bookie_cookie import BookieCookie

log = logging.getLogger("storage.bookie.enrolment")

_TRY_S = 1.0
_LOOK_S = 30.0
"""How often one that is admitted looks whether another process has taken its identity."""


def doubt_of(disk: DiskIdentity, record: BookieCookie | None, forgot: bool = False) -> str:
    """Why directories with this identity are not those of the bookie that the metadata knows; "" where they are.
    forgot: they lack a mark that the bookie had kept there.
    """
    if record is not None and record.granted:
        return ""
    if disk.fresh:
        return "its directories are empty"
    if record is None:
        return ""  # of a metadata that was made anew: what it has is its own
    if disk.salt != record.salt:
        return "its directories are of another life of this bookie"
    if disk.start < record.start:
        return (
            f"its directories are older than its last start: they know of start {disk.start}, the region of start "
            f"{record.start}"
        )
    if forgot:
        return "its directories are older than what it last had: a copy that was made while it ran"
    return ""


class Enrolment:
    """One start of one bookie, which has been opened. Attributes are for reading."""

    def __init__(self, bookie: Bookie, meta: MetadataStore, *, rng: Rng) -> None:
        self._bookie, self._meta, self._rng = bookie, meta, rng
        self._key = keys.bookie_cookie(bookie.bookie_id)
        self._by = rng.getrandbits(63)
        self._start = 0
        """The number of this start, once it is on the disks."""
        self._named = False
        self._tasks = TaskSet("the enrolment of the bookie has ended")

    async def start(self) -> None:
        """Returns once the metadata was asked, or where it is away, or a disk is full: it goes on trying. Raises
        OSError.
        """
        await self._step()
        self._tasks.spawn(every(self._pause_s, self._again))

    async def stop(self) -> None:
        await self._tasks.close()

    async def _again(self) -> None:
        try:
            await self._step()
        except OSError as error:
            self._doubt(f"its start could not be written down: {error}: restart it")
            raise

    def _pause_s(self) -> float:
        return (_TRY_S if self._bookie.limbo else _LOOK_S) * self._rng.uniform(0.8, 1.0)

    async def _step(self) -> None:
        bookie = self._bookie
        if bookie.limbo and not bookie.in_doubt:
            return  # something of it is corrupt: that is for this whole start
        try:
            found = await self._meta.get(self._key)
            record = BookieCookie.decode(found[0]) if found is not None else None
            if record is None or record.by != self._by or not self._start:
                record = await self._enrol(record, found[1] if found is not None else -1)
            if record is not None and bookie.limbo:
                bookie.judge("", record.floor)
                log.info("bookie.admitted", extra={"bookie": bookie.bookie_id, "start": record.start})
        except CorruptData as error:
            self._doubt(str(error))
        except NotAllowed as error:  # by metadata of another version: the next step asks again
            if bookie.limbo:
                self._doubt(str(error))
        except MetadataError:
            pass  # away, or changed meanwhile: the next step asks again
        except OSError as error:
            if not is_transient(error):
                raise
            self._doubt(f"its start could not be written down: {error}: make room, and it goes on by itself")

    async def _enrol(self, record: BookieCookie | None, version: int) -> BookieCookie | None:
        """What the metadata says of this start from now on; None where the bookie is in doubt. Raises OSError, and what
        the metadata raises.
        """
        bookie = self._bookie
        if not self._start:
            forgot = await self._forgot()
            doubt = doubt_of(bookie.identity, record, forgot)
            if doubt and await self._is_named():
                self._doubt(
                    f"{doubt}, and ledgers name it: give it the directories it had (is a disk not mounted?), or, where "
                    f"they are lost, see what `heliograph bookies new-life {bookie.bookie_id}` would cost"
                )
                return None
            if forgot:  # it is admitted as it is: what it had kept is asked of no later start
                await self._meta.put(keys.seen_by_bookie(bookie.bookie_id), b"")
            assert bookie.opening is not None
            self._start = bookie.opening.begin(record.start if record is not None else 0)
        if record is not None and record.start >= self._start:
            self._doubt("another process has started under its id, or a new life was granted to it: restart it")
            return None
        known = record or BookieCookie()
        wanted = replace(
            known,
            salt=bookie.identity.salt,
            start=self._start,
            by=self._by,
            floor=max(known.floor, bookie.floor),
            granted=False,
        )
        await self._meta.put(self._key, wanted.encode(), expected=version)
        return wanted

    async def _forgot(self) -> bool:
        """Whether its directories lack the mark that it had kept there of this metadata, behind the one that they have.
        Raises what the metadata raises.
        """
        bookie, found = self._bookie, await self._meta.get(keys.INSTANCE)
        if found is None or found[0].decode(errors="replace") != bookie.known_metadata.instance:
            return False  # of another metadata: its marks say nothing here
        return await kept_later(self._meta, keys.seen_by_bookie(bookie.bookie_id), bookie.identity.mark)

    def _doubt(self, why: str) -> None:
        if self._bookie.limbo != why:
            log.error("bookie.limbo", extra={"bookie": self._bookie.bookie_id, "why": why})
            self._bookie.judge(why)

    async def _is_named(self) -> bool:
        """Whether any ledger of the region counts on this bookie. One whose record cannot be read does where that has
        the bookie's name in it.
        """
        if self._named:
            return True
        name = self._bookie.bookie_id
        packed: bytes = msgpack.packb(name)
        async for page in pages_under(self._meta, keys.LEDGERS):
            for key, blob, _ in page:
                metadata = readable(LedgerMetadata.decode, key, blob)
                self._named = (
                    packed in blob if metadata is None else any(name in ensemble for _, ensemble in metadata.fragments)
                )
                if self._named:
                    return True
        return False
