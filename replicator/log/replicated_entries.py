"""Entries on their way between regions: what a link reads off them, and the one field that the target appends.

Is: the entry's own checksum, its addressees, `replicated_from`, checksums again. Isn't: a decision where a run goes.
Invariants: an entry is stored at the target only if its bytes are what the origin first stored (its checksum holds, and
equals the one in the run's header); the client's bytes stay as they were but for the appended field, the size in front
of the metadata, and the checksum.
Cost: about half a microsecond an entry at the source, one at the target.

An entry: [0x0e01, u32 crc32c of what follows] u32 metadata size, MessageMetadata, payload. `replicated_from` is field
5, `replicate_to` field 7.
Source: docs/protocols/pulsar.md, "Frames".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import accumulate, pairwise

import crc32c

from heliograph.model.errors import CorruptData, PeerError
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import FLAG_HIDDEN, FLAG_PASSING, Buffer, Run
from replicator.log.routing_trees import Tree, is_tree
from replicator.log.transaction_buffer import is_commit, is_marker, read_marker, read_participants

_MAGIC = 0x0E01
_MAGIC_BYTES = b"\x0e\x01"
_HEAD = struct.Struct(">HII").unpack_from
_REPLICATE_TO = b"\x3a"
_COPY_BELOW = 512
_PASSING = FLAG_HIDDEN | FLAG_PASSING
_crc = crc32c.crc32c


def checked_and_addressed(run: Run, reach: frozenset[str]) -> tuple[list[int], list[int] | None]:
    """(checksum of each entry as it was first stored, indexes of the entries that are addressed to a region in `reach`;
    None: all of them).
    """
    if is_marker(
        run
    ):  # of entries that were published for other regions only it may be the end, too: it is harmless there
        return [_crc(part) for part in run.parts], None if is_commit(run) else []
    checksums: list[int] = []
    skipped: list[int] = []
    for index, part in enumerate(run.parts):
        magic, checksum, size = _HEAD(part) if len(part) >= 10 else (0, 0, 0)
        if magic == _MAGIC:
            checksums.append(checksum)
            metadata = part[10 : 10 + size]
        else:
            checksums.append(_crc(part))
            metadata = part
        if _REPLICATE_TO in bytes(metadata) and not _addressed(part, reach):
            skipped.append(index)
    if run.flags is not None:
        skipped += [i for i, flag in enumerate(run.flags) if flag & FLAG_HIDDEN]
    if not skipped:
        return checksums, None
    left_out = frozenset(skipped)
    return checksums, [i for i in range(run.count) if i not in left_out]


def addressed_to(run: Run, reach: frozenset[str]) -> list[int] | None:
    """Indexes of the entries that were published for a region in `reach`; None: all of them."""
    left_out = [
        i for i, part in enumerate(run.parts) if _REPLICATE_TO in _metadata(part) and not _addressed(part, reach)
    ]
    return [i for i in range(run.count) if i not in left_out] if left_out else None


def meant_for(run: Run) -> frozenset[str] | None:
    """The regions that every entry of the run was published for; None: none of them names any."""
    named: frozenset[str] | None = None
    for part in run.parts:
        if _REPLICATE_TO in _metadata(part):
            try:
                metadata, _ = entry_metadata(part)
            except CorruptData:
                continue
            if metadata.replicate_to:
                named = frozenset(metadata.replicate_to) if named is None else named.intersection(metadata.replicate_to)
    return named


def _metadata(part: Buffer) -> bytes:
    magic, _, size = _HEAD(part) if len(part) >= 10 else (0, 0, 0)
    return bytes(part[10 : 10 + size] if magic == _MAGIC else part)


def _addressed(part: Buffer, reach: frozenset[str]) -> bool:
    try:
        metadata, _ = entry_metadata(part)
    except CorruptData:
        return True  # not ours to judge: the target checks it again
    return not metadata.replicate_to or not reach.isdisjoint(metadata.replicate_to)


def is_passing(run: Run) -> bool:
    """Whether it is held here only for regions behind this one: such entries lie in runs of their own."""
    return run.flags is not None and bool(run.flags[0] & FLAG_PASSING)


def received(run: Run, source: str) -> Run:
    """The run as the target stores it: each entry verified, `replicated_from` = `source` appended. Raises PeerError."""
    assert run.checksums is not None
    if is_marker(run) or is_tree(run):
        try:
            if is_tree(run):
                Tree.decode(run.parts[0])
            else:
                read_marker(run.parts[0])
                read_participants(run.parts[0])
        except CorruptData as error:
            raise PeerError(f"link: {error}") from error
        if _crc(run.parts[0]) != run.checksums[0]:
            raise PeerError("link: the end of a transaction, or a tree, does not match its checksum")
        return run
    name = source.encode()
    suffix = b"\x2a%c%b" % (len(name), name)
    grown = len(suffix)
    data: Buffer = run.body if run.body is not None else b"".join(run.parts)
    if run.size_bytes < _COPY_BELOW * run.count:
        data = bytes(data)  # slices of small bytes are cheaper than views
    chunks: list[Buffer] = []
    add = chunks.extend
    known_size, size_bytes = -1, b""
    at = 0
    for length, checksum in zip(run.lengths, run.checksums, strict=True):
        end = at + length
        magic, crc, size = _HEAD(data, at) if length >= 10 else (0, 0, 0)
        split = at + 10 + size
        if magic == _MAGIC and crc == checksum and split <= end and _crc(data[at + 6 : end]) == crc:
            if size != known_size:
                known_size, size_bytes = size, (size + grown).to_bytes(4, "big")
            head = b"".join((size_bytes, data[at + 10 : split], suffix))
            payload = data[split:end]
            add((_MAGIC_BYTES, _crc(payload, _crc(head)).to_bytes(4, "big"), head, payload))
        else:
            add(_without_checksum(data[at:end], checksum, suffix))
        at = end
    body = b"".join(chunks)
    view = memoryview(body)
    lengths = [length + grown for length in run.lengths]
    stored = run.with_parts(
        [view[end - size : end] for end, size in zip(accumulate(lengths), lengths, strict=True)],
        flags=run.flags,
        body=body,
    )
    stored.time_ms = stored.first_index = 0  # of this region, when it is appended
    return stored


def passing(run: Run, region: str) -> list[Run]:
    """The run in pieces, of which those that are not meant for `region` are hidden there, and go on to others."""
    meant = addressed_to(run, frozenset((region,)))
    if meant is None or is_tree(run) or is_marker(run):
        return [run]
    kept = frozenset(meant)
    cuts = [0, *(i for i in range(1, run.count) if (i in kept) != (i - 1 in kept)), run.count]
    pieces = [run.cut(start, stop) for start, stop in pairwise(cuts)]
    hidden = bytes([_PASSING])
    return [
        piece if start in kept else piece.with_parts(piece.parts, flags=hidden * piece.count)
        for start, piece in zip(cuts, pieces, strict=False)
    ]


def fetched(run: Run, name: str, region: str) -> list[Run]:
    """The run, of which the region `name` has published, as `region` stores it where other regions tell it, in pieces:
    what it published itself is all shown there. Raises PeerError.
    """
    stored = received(run, name)
    return [stored] if name == region else passing(stored, region)


def _without_checksum(part: Buffer, checksum: int, suffix: bytes) -> tuple[Buffer, ...]:
    """An entry that its client sent without a checksum stays so. Raises PeerError where it is another than the run's
    header says.
    """
    size = int.from_bytes(part[:4], "big")
    if part[:2] == _MAGIC_BYTES or _crc(part) != checksum or 4 + size > len(part):
        raise PeerError("link: an entry does not match its checksum")
    return ((size + len(suffix)).to_bytes(4, "big"), part[4 : 4 + size], suffix, part[4 + size :])


def published_checksums(run: Run) -> list[int]:
    """The checksum of each entry as its client published it, made from the stored bytes; -1 where an entry contradicts
    its own checksum, or its run's.

    A replicated run is one as the target stores it: with `replicated_from` at the end of each entry's metadata.
    """
    return [checksum for checksum, _ in _as_published(run)]


def as_published(run: Run) -> Run:
    """A replicated run as it came over the link, without `replicated_from`, nothing hidden. Raises CorruptData where an
    entry contradicts its checksum.
    """
    assert run.origin is not None
    parts: list[Buffer] = []
    for checksum, pieces in _as_published(run):
        if checksum < 0:
            raise CorruptData("an entry does not match its checksum")
        parts.append(b"".join(pieces))
    return run.with_parts(parts, flags=None if is_passing(run) else run.flags)


def _as_published(run: Run) -> Iterator[tuple[int, tuple[Buffer, ...]]]:
    """(checksum or -1, the entry in pieces), of each entry."""
    suffix = b"" if run.origin is None else _appended(run)
    for index, part in enumerate(run.parts):
        found = _entry_as_published(part, suffix)
        wanted = None if run.checksums is None else run.checksums[index]
        yield found if wanted is None or found[0] == wanted else (-1, ())


def _entry_as_published(part: Buffer, suffix: bytes) -> tuple[int, tuple[Buffer, ...]]:
    magic = bytes(part[:2]) == _MAGIC_BYTES
    at = 6 if magic else 0
    size = int.from_bytes(part[at : at + 4], "big")
    split = at + 4 + size
    if magic and (split > len(part) or _crc(part[6:]) != int.from_bytes(part[2:6], "big")):
        return -1, ()
    if not suffix:
        return (int.from_bytes(part[2:6], "big"), (part,)) if magic else (_crc(part), (part,))
    metadata = bytes(part[at + 4 : split])
    if split > len(part) or not metadata.endswith(suffix):
        return -1, ()
    pieces: tuple[Buffer, ...] = ((size - len(suffix)).to_bytes(4, "big"), metadata[: -len(suffix)], part[split:])
    checksum = 0
    for piece in pieces:
        checksum = _crc(piece, checksum)
    return checksum, (_MAGIC_BYTES, checksum.to_bytes(4, "big"), *pieces) if magic else pieces


def _appended(run: Run) -> bytes:
    """What the target has appended to the metadata of every entry of a run."""
    for part in run.parts:
        if bytes(part[:2]) != _MAGIC_BYTES or _crc(part[6:]) == int.from_bytes(part[2:6], "big"):
            try:
                name = entry_metadata(part)[0].replicated_from.encode()
            except CorruptData:
                continue
            return b"\x2a%c%b" % (len(name), name)
    return b"\x2a"  # then none of them is as it was
