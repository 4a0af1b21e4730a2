"""Restore: brings a topic back from an object store alone, into a region that knows nothing of it.

Is: the choice of a manifest, the check of every object that it names, the topic's state as of their end, and the one
write that makes the topic.
Isn't: what a state means (that comes in), tenants, namespaces, or policies.
Invariants: nothing is written before every object was found whole at its ends; positions stay what they were, and the
region's ledger ids go on above all that the topic ever named; the state knows of no entry that is not there; an
existing topic is never touched.
Source: docs/protocols/tiered.md, "Restore".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from heliograph.kv.metadata_store import ABSENT, Check, MetadataStore, Op, Put
from heliograph.model.errors import AlreadyExists, CorruptData, NotAllowed, NotFound, OutcomeUnknown, VersionConflict
from heliograph.model.ledger_metadata import LedgerInfo, ManagedLedgerMetadata, OffloadRecord, OffloadState
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from local_meta import keys
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.metadata.ledger_catalog import PAGE_LEDGERS, Catalog
from storage.tiered.objects.object_names import MANIFEST, ObjectName, parse
from storage.tiered.objects.object_names import key as key_of
from storage.tiered.offload.ledger_upload import check
from storage.tiered.offload.object_claims import RESTORE_MS, claim_to_restore, lease
from storage.tiered.offload.offload_plan import stored_prefix
from storage.tiered.offload.topic_manifest import TopicManifest
from storage.tiered.reading.cold_reader import ColdReader
from storage.tiered.store import ObjectStore, Stores

_READ_BYTES = 1 << 20
_ENTRIES_A_READ = 4096
_CURSORS_A_WRITE = 200
_BYTES_A_WRITE = 2 << 20
"""Cursors and their keys in one transaction, which takes 4 MiB, and one cursor no more than 1 MiB."""


class RestoredState(Protocol):
    """The state of the layer above, as it is brought to the end of what is restored."""

    def begin(self, blob: bytes, *, whole: bool) -> None:
        """The snapshot that replaying starts from. whole: False where it knows of more than is there: only who the
        topic is, is taken from it.
        """
        ...

    def replay(self, ledger: int, first: int, run: Run) -> None: ...

    def end(self, last: Position) -> bytes:
        """The snapshot as of `last`; what is published from now on is told from what the lost region may have published
        behind it.
        """
        ...


Adapt = Callable[[Cursor], Awaitable[tuple[Collection[int], list[str]]]]
"""Takes off a cursor what it says of ledgers beside the log that are not here; returns the ids of all that it named,
and notes. It writes nothing.
"""


async def names_nothing(cursor: Cursor) -> tuple[Collection[int], list[str]]:
    return (), []


@dataclass(frozen=True, slots=True)
class Restored:
    topic: str
    holder: str
    ledgers: int
    entries: int
    size_bytes: int
    last: Position
    cursors: tuple[str, ...]
    made_ms: int
    """Wall time of the manifest: how old cursors and policies are."""
    policies: dict[str, str]
    partitions: int
    notes: tuple[str, ...]


async def objects(store: ObjectStore, prefix: str = "") -> AsyncIterator[tuple[ObjectName, int]]:
    """(name, bytes) of every object of ours."""
    async for page in store.list(prefix):
        for key, size in page:
            name = parse(key)
            if name is not None:
                yield name, size


async def manifests(store: ObjectStore, prefix: str = "") -> dict[tuple[str, str], list[tuple[ObjectName, str, int]]]:
    """(holder, topic) -> its manifests (name, key, bytes), the newest last."""
    found: dict[tuple[str, str], list[tuple[ObjectName, str, int]]] = {}
    async for name, size in objects(store, prefix):
        if name.kind == MANIFEST:
            found.setdefault((name.holder, name.topic), []).append((name, key_of(name), size))
    return {place: sorted(rows) for place, rows in sorted(found.items())}


async def newest_manifest(
    store: ObjectStore, rows: list[tuple[ObjectName, str, int]]
) -> tuple[TopicManifest, list[str]]:
    """The newest that can be read, and a note for each that cannot. Raises CorruptData where none can."""
    notes: list[str] = []
    for name, key, size in reversed(rows):
        try:
            manifest = TopicManifest.decode(await store.read(key, 0, size))
            if manifest.topic != name.topic:
                raise CorruptData(f"it is of {manifest.topic}")
            return manifest, notes
        except CorruptData as error:
            notes.append(f"manifest {key} cannot be used ({error}); the one before it was taken")
    raise CorruptData(f"no manifest of {rows[0][0].topic} in {store.url} can be read: {'; '.join(notes)}")


async def restore_topic(
    meta: MetadataStore,
    stores: Stores,
    reader: ColdReader,
    topic: str,
    state: RestoredState,
    prepare: Callable[[TopicManifest], Awaitable[list[str]]],
    *,
    url: str = "",
    holder: str = "",
    keep_cursor: Callable[[str], bool] = lambda name: True,
    adapt: Adapt = names_nothing,
    may_page: bool = True,
    page_ledgers: int = PAGE_LEDGERS,
) -> Restored:
    """url: of another store than the broker's own. holder: where several have the topic. keep_cursor: by name. adapt:
    each that is kept.

    may_page: every broker of the region understands pages of ledgers. page_ledgers: how many of them a page takes.

    prepare: called once, when nothing stands in the way any more: makes what the topic needs around it, and returns
    notes.

    Raises NotFound, AlreadyExists, NotAllowed (several holders, or objects that are being deleted), NoSuchObject and
    CorruptData (nothing was written), and what store and metadata raise.
    """
    if url == stores.own_url:
        url = ""
    store = stores.get(url)
    if await meta.get(keys.managed_ledger(topic)) is not None:
        raise AlreadyExists(
            f"{topic} exists in this region: delete it first, if it is to be replaced by what the object store has"
        )
    async with lease(meta, RESTORE_MS) as held:
        claim = await claim_to_restore(meta, topic, held)
        chosen = await _choose(store, topic, holder)
        manifest, notes = await newest_manifest(store, chosen)
        infos = [_local_gone(info, url) for info in stored_prefix(manifest.metadata.ledgers)]
        if not infos:
            raise NotFound(f"{store.url} holds a manifest of {topic}, but no ledger of it")
        for info in infos:
            assert info.offload is not None
            await check(stores.get(info.offload.store), topic, info, info.offload)
        left = manifest.metadata.ledgers[len(infos) :]
        if left and (unstored := sum(info.entries for info in left)):
            notes.append(
                f"{unstored} entries or more in {len(left)} ledgers were not offloaded when the manifest was made, and "
                "are not restored"
            )
        last = (infos[-1].ledger, infos[-1].entries - 1)
        blob, next_index = await _state_at_end(reader, topic, infos, manifest, state, notes)
        terminated = min(last, manifest.metadata.terminated_at) if manifest.metadata.terminated_at is not None else None
        form = ManagedLedgerMetadata(tuple(infos), blob, last, terminated, manifest.metadata.properties, next_index, 0)
        catalog = Catalog(infos, last)
        cursors, beside = dict[str, bytes](), set[int]()
        for name, stored in manifest.cursors:
            if keep_cursor(name):
                cursor = _clamped(name, stored, catalog)
                named, told = await adapt(cursor)
                beside.update(named)
                notes += told
                cursors[name] = cursor.encode()
        notes += await prepare(manifest)
        await _raise_ids(meta, manifest, infos, beside)
        await _write(meta, topic, form, cursors, page_ledgers if may_page else None, claim)
        size = sum(info.size_bytes for info in infos)
        entries = sum(info.entries for info in infos)
        return Restored(
            topic,
            chosen[0][0].holder,
            len(infos),
            entries,
            size,
            last,
            tuple(sorted(cursors)),
            manifest.made_ms,
            manifest.policies,
            manifest.partitions,
            tuple(notes),
        )


async def _choose(store: ObjectStore, topic: str, holder: str) -> list[tuple[ObjectName, str, int]]:
    found = {
        place[0]: rows
        for place, rows in (await manifests(store, f"{holder}/" if holder else "")).items()
        if place[1] == topic
    }
    if not found:
        raise NotFound(
            f"{store.url} holds no manifest of {topic}{f' by {holder}' if holder else ''}: `heliograph tier list` "
            "shows what it holds"
        )
    if len(found) > 1:
        raise NotAllowed(
            f"{store.url} holds {topic} of several regions: choose one of {', '.join(sorted(found))} with --holder"
        )
    return next(iter(found.values()))


def _local_gone(info: LedgerInfo, url: str) -> LedgerInfo:
    record = info.offload
    assert record is not None
    # a second object was its own region's to let go
    moved: OffloadRecord = replace(record, state=OffloadState.LOCAL_GONE, store=record.store or url, also="")
    return replace(info, offload=moved)


async def _state_at_end(
    reader: ColdReader,
    topic: str,
    infos: list[LedgerInfo],
    manifest: TopicManifest,
    state: RestoredState,
    notes: list[str],
) -> tuple[bytes, int]:
    """(snapshot, index of the next message) as of the last entry that is there."""
    last = (infos[-1].ledger, infos[-1].entries - 1)
    covered = [found for found in manifest.states if found[0] <= last]
    if covered:
        through, blob = covered[-1]
        state.begin(blob, whole=True)
    else:
        through, blob = (-1, -1), manifest.states[-1][1] if manifest.states else b""
        state.begin(blob, whole=False)
        notes.append(
            "no state from before the end of the stored ledgers was kept; it was made anew from all their entries"
        )
    next_index = 0
    async for ledger, first, run in entries(reader, topic, infos, min(through, last)):
        if (ledger, first) > through:
            state.replay(ledger, first, run)
        next_index = run.first_index + run.messages
    return state.end(last), next_index


async def entries(
    reader: ColdReader, topic: str, infos: list[LedgerInfo], at: Position
) -> AsyncIterator[tuple[int, int, Run]]:
    """(ledger, first entry, run) from position `at` on, that one by itself, to the end."""
    for info in infos:
        if info.ledger < at[0]:
            continue
        assert info.offload is not None
        first = max(at[1], 0) if info.ledger == at[0] else 0
        last = info.entries - 1
        while first <= last:
            until = first if (info.ledger, first) == at else min(first + _ENTRIES_A_READ - 1, last)
            for start, run in await reader.read(topic, info.ledger, info.offload, first, until, _READ_BYTES):
                yield info.ledger, start, run
                first = start + run.count


def _clamped(name: str, blob: bytes, catalog: Catalog) -> Cursor:
    """The cursor, on what is there: where it had passed the end, all of that is acknowledged."""
    cursor = Cursor(
        name, catalog, (-1, -1), durable=True, properties={}, request_flush=lambda _: None, wait_flushed=_nothing
    )
    cursor.restore(blob)
    if cursor.mark_delete > catalog.last:
        cursor.reset(catalog.last)
    return cursor


async def _nothing(_: Cursor) -> None: ...


async def _raise_ids(
    meta: MetadataStore, manifest: TopicManifest, infos: list[LedgerInfo], beside: Collection[int]
) -> None:
    """New ledgers of the region lie above every id that the topic is known to have used. beside: outside of its log."""
    known = [info.ledger for info in manifest.metadata.ledgers] + [position[0] for position, _ in manifest.states]
    known += beside
    await meta.next_ids(
        keys.LEDGER_IDS, at_least=max([infos[-1].ledger, manifest.metadata.state_through[0], *known]) + 1
    )


def _writes(puts: list[Put]) -> Iterator[list[Op]]:
    """All of them, in order, as many at once as a transaction takes."""
    some, size = list[Op](), 0
    for put in puts:
        more = len(put.key.encode()) + len(put.value)
        if some and (len(some) == _CURSORS_A_WRITE or size + more > _BYTES_A_WRITE):
            yield some
            some, size = [], 0
        some.append(put)
        size += more
    if some:
        yield some


async def _write(
    meta: MetadataStore,
    topic: str,
    form: ManagedLedgerMetadata,
    cursors: dict[str, bytes],
    page_ledgers: int | None,
    claim: Check,
) -> None:
    """The topic's own key comes last: without it, cursors and pages are nobody's. page_ledgers: None: in no page.
    claim: without it objects may be gone that were looked at.
    """
    for puts in _writes([Put(keys.cursor(topic, name), blob) for name, blob in cursors.items()]):
        await meta.txn(puts)
    catalog = Catalog(form.ledgers, form.state_through)
    while page_ledgers is not None and catalog.seal(page_ledgers) and catalog.history is not None:
        for page, value in catalog.history.take_changed().items():
            await meta.put(keys.ledger_page(topic, page), value)
    pages, ledgers = catalog.forms(0)
    key, blob = keys.managed_ledger(topic), replace(form, ledgers=ledgers, pages=pages).encode()
    try:
        await meta.txn([Put(key, blob, ABSENT), claim])
    except VersionConflict as error:
        if await meta.get(key) is None:
            raise NotAllowed(
                f"another restore of {topic} has begun meanwhile, or this one took longer than a day: objects may have "
                "been deleted that it has looked at; if there is no other one, try again"
            ) from error
        raise AlreadyExists(f"{topic} was made by somebody else meanwhile") from error
    except OutcomeUnknown:
        found = await meta.get(key)
        if found is None or found[0] != blob:
            raise
