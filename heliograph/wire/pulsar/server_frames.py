"""What a server writes on the data path: SEND_RECEIPTs of a run, MESSAGEs of a run, and frames of single commands.

Is: bytes for a gathered write. Isn't: who gets them, or when.
A run's receipts differ only in sequence and entry id, its messages only in entry id and size: everything else is made
once a column (`heliograph.wire.varint`), and the columns are woven together by slices.
Source: docs/protocols/pulsar.md, "Frames" and "Message ids".

    SEND_RECEIPT  08 07 | 3a size ( 08 producer | 10 sequence | 1a size ( 08 ledger | 10 entry ) | [20 highest] )
    MESSAGE       08 09 | 4a size ( 08 consumer | 12 size ( 08 ledger | 10 entry | [18 partition] ) |
                                    [18 redeliveries] | n x [20 ack set] | [28 epoch] )
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand, CommandMessage
from heliograph.wire.run import Buffer, Run
from heliograph.wire.varint import column, column_limit, varint

_SIZES = struct.Struct(">II").pack
_JOIN_BELOW = 16384


def frame(command: BaseCommand) -> bytes:
    """Makes a frame of one command, without a payload behind it."""
    body = command.SerializeToString()
    return _SIZES(len(body) + 4, len(body)) + body


def receipts(
    producer_id: int, sequences: Sequence[int], highest: Sequence[int] | None, ledger: int, first: int
) -> bytes:
    """One receipt each, for consecutive entries from (ledger, first) on. ledger -1: duplicates, none of which has an
    entry.
    """
    count = len(sequences)
    if ledger < 0:
        return b"".join(_receipt(producer_id, s, highest[i] if highest else 0, -1, -1) for i, s in enumerate(sequences))
    start = sequences[0]
    if (
        highest is not None
        or sequences[-1] - start != count - 1
        or (count > 2 and list(sequences) != list(range(start, start + count)))
    ):
        return b"".join(
            _receipt(producer_id, s, highest[i] if highest else 0, ledger, first + i) for i, s in enumerate(sequences)
        )
    if count == 1:
        return _receipt(producer_id, start, 0, ledger, first)
    out: list[bytes] = []
    stop = start + count
    while start < stop:
        size = min(stop, column_limit(start), column_limit(first) - first + start) - start
        out += _receipt_columns(producer_id, start, ledger, first, size)
        start += size
        first += size
    return b"".join(out)


def _receipt_columns(producer_id: int, start: int, ledger: int, first: int, size: int) -> list[bytes]:
    sequence_low, sequence_high = column(start, size)
    entry_low, entry_high = column(first, size)
    producer = b"\x08" + varint(producer_id) + b"\x10"
    ids = b"\x08" + varint(ledger) + b"\x10"
    id_size = len(ids) + len(entry_low[0]) + len(entry_high)
    body = len(producer) + len(sequence_low[0]) + len(sequence_high) + 2 + id_size
    prefix = _SIZES(body + 8, body + 4) + b"\x08\x07\x3a" + varint(body) + producer
    woven = [prefix] * (4 * size)
    woven[1::4] = sequence_low
    woven[2::4] = [sequence_high + b"\x1a" + varint(id_size) + ids] * size
    woven[3::4] = entry_low if not entry_high else [low + entry_high for low in entry_low]
    return woven


def _receipt(producer_id: int, sequence: int, highest: int, ledger: int, entry: int) -> bytes:
    ids = b"\x08" + varint(ledger) + b"\x10" + varint(entry)
    body = b"\x08" + varint(producer_id) + b"\x10" + varint(sequence) + b"\x1a" + varint(len(ids)) + ids
    if highest:
        body += b"\x20" + varint(highest)
    size = varint(len(body))
    command_size = 3 + len(size) + len(body)
    return _SIZES(command_size + 4, command_size) + b"\x08\x07\x3a" + size + body


def ack_set_words(bits: int) -> list[int]:
    """A set of messages of a batch as words of 64 bits, the lowest first, as signed numbers."""
    count = (bits.bit_length() + 63) // 64
    return list(struct.unpack(f"<{count}q", bits.to_bytes(8 * count, "little")))


def with_broker_metadata(run: Run) -> Run:
    """The same entries, each behind the broker's time and the index in the topic of its last message.

    0e 02 | u32 size | 08 time ms | 10 index | the entry as it is stored
    """
    parts: list[Buffer] = []
    index, time = run.first_index - 1, b"\x08" + varint(run.time_ms) + b"\x10"
    for at, part in enumerate(run.parts):
        index += 1 if run.counts is None else run.counts[at]
        metadata = time + varint(max(index, 0))
        parts.append(b"\x0e\x02" + len(metadata).to_bytes(4, "big") + metadata + part)
    return Run(parts, [len(part) for part in parts], counts=run.counts)


def messages(
    consumer_id: int,
    ledger: int,
    first: int,
    run: Run,
    *,
    partition: int = -1,
    epoch: int = 0,
    redeliveries: Sequence[int] | None = None,
    ack_sets: Mapping[int, int] | None = None,
) -> list[Buffer]:
    """MESSAGE frames of all entries of `run`, which lies at (ledger, first): one joined buffer where entries are small.

    redeliveries: deliveries before this one, of each entry, or None where all are 0. epoch 0: none.
    ack_sets: index in the run -> bits of the messages of a batch that are not acknowledged, where some are.
    """
    if run.count > 1 and (ack_sets or (redeliveries is not None and len(set(redeliveries)) > 1)):
        out: list[Buffer] = []
        for index in range(run.count):
            piece = run.cut(index, index + 1)
            count = None if redeliveries is None else redeliveries[index : index + 1]
            bits = {0: ack_sets[index]} if ack_sets and index in ack_sets else None
            out += messages(
                consumer_id,
                ledger,
                first + index,
                piece,
                partition=partition,
                epoch=epoch,
                redeliveries=count,
                ack_sets=bits,
            )
        return out
    head = b"\x08" + varint(consumer_id) + b"\x12"
    tail = b"\x18" + varint(redeliveries[0]) if redeliveries and redeliveries[0] else b""
    if ack_sets:
        tail += CommandMessage(ack_set=ack_set_words(ack_sets[0])).SerializePartialToString()
    if epoch:
        tail += b"\x28" + varint(epoch)
    woven: list[Buffer] = []
    at = 0
    while at < run.count:
        size = min(run.count - at, column_limit(first) - first)
        woven += _message_columns(head, tail, ledger, first, run, at, size, partition)
        at += size
        first += size
    return [b"".join(woven)] if run.size_bytes < _JOIN_BELOW * run.count else woven


def _message_columns(
    head: bytes, tail: bytes, ledger: int, first: int, run: Run, at: int, size: int, partition: int
) -> list[Buffer]:
    entry_low, entry_high = column(first, size)
    ids = b"\x08" + varint(ledger) + b"\x10"
    after = entry_high + (b"\x18" + varint(partition) if partition >= 0 else b"")
    id_size = len(ids) + len(entry_low[0]) + len(after)
    ids = varint(id_size) + ids
    body = len(head) + len(ids) + len(entry_low[0]) + len(after) + len(tail)
    after += tail
    start = b"\x08\x09\x4a" + varint(body) + head + ids
    command_size = 3 + len(varint(body)) + body
    start = command_size.to_bytes(4, "big") + start
    lengths = run.lengths[at : at + size]
    if run.size_bytes >= _JOIN_BELOW * run.count:
        out: list[Buffer] = []
        for low, length, part in zip(entry_low, lengths, run.parts[at : at + size], strict=True):
            out += ((command_size + 4 + length).to_bytes(4, "big") + start + low + after, part)
        return out
    woven: list[Buffer] = [start] * (4 * size)
    length = lengths[0]
    if all(other == length for other in lengths):
        woven[0::4] = [(command_size + 4 + length).to_bytes(4, "big") + start] * size
    else:
        woven[0::4] = [(command_size + 4 + length).to_bytes(4, "big") + start for length in lengths]
    woven[1::4] = entry_low
    woven[2::4] = [after] * size
    woven[3::4] = run.parts[at : at + size]
    return woven
