"""Upload: copies one closed ledger to an object, and verifies what arrived.

Is: the steps of one attempt between its begin and its commit. Isn't: the metadata's changes
(`storage.tiered.offload.offloader`), or the choice of ledgers.
Invariants: an object that `upload` returned is whole: every block was read back and fits its checksum, its place, and
the number of entries. Of a topic that is to be sealed nothing in it is in the clear, whatever bookies hold.
What fails leaves at most one object, which no metadata ever calls stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import replace

from heliograph.model.errors import BookieUnavailable, CorruptData
from heliograph.model.ledger_metadata import LedgerInfo, LedgerState, OffloadRecord, OffloadState
from heliograph.runtime.clock import Clock
from heliograph.runtime.throttle import Throttle
from heliograph.wire.block import encode_block
from heliograph.wire.run import Run
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.located_ledgers import data_key_of
from storage.ledger.reading.ledger_reader import ledger_metadata, read_entries
from storage.sealing.cipher import WITH_HEADER, form_of, promised
from storage.sealing.sealing import Sealing
from storage.tiered.objects.object_format import (
    FOOTER_BYTES,
    HEAD_BYTES,
    Index,
    IndexWriter,
    check_head,
    cut_blocks,
    encode_head,
)
from storage.tiered.objects.object_names import ledger_key
from storage.tiered.store import ObjectStore
from storage.tiered.tiered_settings import TieredSettings

_READ_BYTES = 1 << 20


async def upload(
    context: LedgerContext,
    store: ObjectStore,
    topic: str,
    info: LedgerInfo,
    begun: OffloadRecord,
    settings: TieredSettings,
    throttle: Throttle,
    took: Callable[[float], None],
    clock: Clock,
) -> OffloadRecord:
    """Returns the record of the object, STORED at wall time 0. took: hears of each read from the bookies, in ms.

    Raises what the bookies, the store, and the metadata raise.
    """
    metadata = await ledger_metadata(context, info.ledger)
    if metadata.state != LedgerState.CLOSED or metadata.last_entry + 1 != info.entries:
        raise CorruptData(
            f"ledger {info.ledger} of {topic} is to hold {info.entries} entries, but its metadata says "
            f"{metadata.state.name} at {metadata.last_entry}"
        )
    forms = {WITH_HEADER}
    data_key = await data_key_of(context.meta, info.ledger)

    async def read(first: int) -> list[tuple[int, Run]]:
        began = clock.monotonic()
        runs = await read_entries(context, metadata, first, info.entries - 1, _READ_BYTES)
        took((clock.monotonic() - began) * 1000)
        sealing = context.sealing
        if sealing is not None:  # what was written before the topic had to be sealed goes to no store in the clear
            of = topic, info.ledger, info.closed_ms
            if data_key:
                seals = metadata.ledger, metadata.seal_form
                runs = [(at, await sealed_anew(sealing, of, *seals, at, run, data_key)) for at, run in runs]
            else:
                runs = [(at, await sealing.sealed(*of, at, run, metadata.seal_form)) for at, run in runs]
        forms.update(form_of(run) for _, run in runs)
        return runs

    record = await put_object(store, topic, info, begun, settings, throttle, read, forms)
    if await data_key_of(context.meta, info.ledger) != data_key:
        raise BookieUnavailable(f"ledger {info.ledger} of {topic} was sealed anew while it was uploaded")
    return replace(record, data_key=data_key)


async def put_object(
    store: ObjectStore,
    topic: str,
    info: LedgerInfo,
    begun: OffloadRecord,
    settings: TieredSettings,
    throttle: Throttle,
    read: Callable[[int], Awaitable[list[tuple[int, Run]]]],
    forms: Collection[int],
) -> OffloadRecord:
    """Returns the record of the object, STORED at wall time 0, once it was read back. read: entries from one on; forms:
    those of all that it gave. Raises what `read` and the store raise.
    """
    key = ledger_key(begun.holder, topic, info.ledger, begun.attempt)
    writer, sizes = IndexWriter(settings.index_bytes), list[int]()
    await store.put(key, _body(read, topic, info, begun, writer, throttle, sizes))
    record = replace(
        begun,
        state=OffloadState.STORED,
        size_bytes=writer.offset + sizes[0],
        index_bytes=sizes[0],
        seal_form=promised(min(forms)),
    )
    index = await check(store, topic, info, record)
    await _verify_blocks(store, key, index, settings.read_bytes)
    return record


async def sealed_anew(
    sealing: Sealing, of: tuple[str, int, int], ledger: int, form: int, at: int, run: Run, data_key: int
) -> Run:
    """What is uploaded of a ledger that was sealed anew, or looked at for that: nothing in it has another key. of:
    topic, ledger, and when it was closed; that ledger is the one that an object's seals are of, `ledger` the one that
    the run's seal is of. form: the lowest of those that it was read with.
    """
    if run.seal is not None:
        ((at, run),) = await sealing.opened(ledger, [(at, run)])
        form = form or sealing.form()
    return await sealing.sealed(*of, at, run, form, data_key)


async def _body(
    read: Callable[[int], Awaitable[list[tuple[int, Run]]]],
    topic: str,
    info: LedgerInfo,
    begun: OffloadRecord,
    writer: IndexWriter,
    throttle: Throttle,
    sizes: list[int],
) -> AsyncIterator[bytes]:
    """read: entries from one on. sizes: gets the bytes of index and footer."""
    yield encode_head(info.ledger, info.entries, begun.attempt)
    while writer.entries < info.entries:
        runs = await read(writer.entries)
        parts = []
        before = writer.offset
        for first, run in runs:
            if first != writer.entries:
                raise CorruptData(
                    f"ledger {info.ledger} of {topic}: entry {writer.entries} was asked for, and {first} came"
                )
            block = encode_block(run, info.ledger, first)
            writer.add(run.count, sum(map(len, block)))
            parts += block
        await throttle.take(writer.offset - before)
        yield b"".join(parts)
    tail = writer.finish(info.ledger, topic)
    sizes.append(len(tail))
    yield tail


async def check(store: ObjectStore, topic: str, info: LedgerInfo, record: OffloadRecord) -> Index:
    """Reads head and index back. Raises NoSuchObject; CorruptData where it is not the whole object of this ledger."""
    key = ledger_key(record.holder, topic, info.ledger, record.attempt)
    try:
        size = await store.size_bytes(key)
        if size != record.size_bytes or not FOOTER_BYTES < record.index_bytes < size:
            raise CorruptData(f"it has {size} bytes, and not {record.size_bytes}")
        check_head(await store.read(key, 0, HEAD_BYTES), info.ledger, info.entries, record.attempt)
        index = Index.decode(await store.read(key, size - record.index_bytes, size), size)
        if (index.ledger, index.entries, index.topic) != (info.ledger, info.entries, topic):
            raise CorruptData(f"its index is of {index.entries} entries of ledger {index.ledger} of {index.topic}")
    except CorruptData as error:
        raise CorruptData(f"object {key} in {store.url}, ledger {info.ledger} of {topic}: {error}") from error
    return index


async def _verify_blocks(store: ObjectStore, key: str, index: Index, read_bytes: int) -> None:
    """Reads every block back, up to about `read_bytes` at a time. Raises CorruptData where one is bad, or entries are
    missing.
    """
    entry = 0
    try:
        while entry < index.entries:
            first, start, stop = index.range_of(entry, read_bytes)
            if first != entry:
                raise CorruptData(f"entry {entry} begins no row of its index")
            runs = cut_blocks(await store.read(key, start, stop), index.ledger, first)
            entry = runs[-1][0] + runs[-1][1].count
    except CorruptData as error:
        raise CorruptData(f"object {key} in {store.url} did not arrive as it was sent: {error}") from error
    if entry != index.entries:
        raise CorruptData(f"object {key} in {store.url} holds {entry} entries, and not {index.entries}")
