"""RunPacker: which runs of one link go out compressed.

Is: a pure core: runs in, frames out, with what is known of the link and of the runs before. Isn't: a codec
(`heliograph.wire.links.link_compression`).
Invariants: a target that did not say that it can read it gets nothing compressed; a run goes compressed only if that
made it smaller by `gain_min`; where runs do not become smaller (clients that compress themselves), fewer and fewer are
tried: one of 64 in the end.
Source: docs/protocols/links.md, "Compression".
"""

from __future__ import annotations

from heliograph.model.positions import Position
from heliograph.wire.block import encode_block
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.link_compression import LZ4, UNPACKED_BYTES_MAX, ZSTD, pack
from heliograph.wire.run import Buffer, Run
from replicator.bandwidth.compression_settings import CompressionSettings

LEVEL = 4
"""Feature level of a target that reads compressed runs."""
_SAMPLE_BYTES = 16 << 10
_SKIPPED_MAX = 64
_CODECS = {"none": 0, "lz4": LZ4, "zstd": ZSTD, "auto": ZSTD}


class CompressedBytes:
    """Bytes of runs as they were, and as they went out."""

    __slots__ = ("run_bytes", "wire_bytes")

    def __init__(self) -> None:
        self.run_bytes = self.wire_bytes = 0


class RunPacker:
    """Packs the runs of one link. run_bytes, wire_bytes: of all runs that it sent, before and after; they are added to
    `traffic`, too.
    """

    __slots__ = ("_skip", "_skipped", "_traffic", "level", "run_bytes", "settings", "wire_bytes")

    def __init__(self, settings: CompressionSettings, traffic: CompressedBytes | None = None) -> None:
        self.settings, self._traffic = settings, traffic or CompressedBytes()
        self.level = 1
        """The feature level of the target, as its last handshake said; below `LEVEL` nothing is compressed."""
        self.run_bytes = self.wire_bytes = 0
        self._skip = 0
        """Runs that are not tried from here on."""
        self._skipped = 0
        """How many were not tried last time."""

    def codec(self, rtt_ms: float) -> int:
        """0: nothing is compressed. rtt_ms: 0 while it is not known."""
        own = self.settings
        return (
            _CODECS[own.mode]
            if self.level >= LEVEL and (own.mode != "auto" or rtt_ms >= max(own.auto_rtt_ms, 0.001))
            else 0
        )

    def frame(self, stream: int, attempt: int, previous: Position, run: Run, rtt_ms: float) -> list[Buffer]:
        """Makes the RUN frame of a run with coordinates, compressed where that is worth it. rtt_ms: 0 while it is not
        known.
        """
        ledger, first, _ = run.spans[0]
        block = encode_block(run if self.level >= wire.LEADERSHIP_LEVEL else run.led_by_none(), ledger, first)
        size = sum(map(len, block))
        codec = self.codec(rtt_ms) if self.settings.run_bytes_min <= size <= UNPACKED_BYTES_MAX else 0
        packed = self._packed(codec, block, size) if codec else None
        self._count(size, size if packed is None else len(packed))
        if packed is None:
            return wire.block_frame(stream, attempt, previous, block)
        return wire.block_frame(stream, attempt, previous, [packed], codec, size)

    def _packed(self, codec: int, block: list[Buffer], size: int) -> bytes | None:
        if self._skip:
            self._skip -= 1
            return None
        whole = block[0] if len(block) == 1 else b"".join(block)
        if size > 4 * _SAMPLE_BYTES:
            middle = (size - _SAMPLE_BYTES) // 2
            if not self._pays(len(pack(codec, memoryview(whole)[middle : middle + _SAMPLE_BYTES])), _SAMPLE_BYTES):
                self._back_off()
                return None
        packed = pack(codec, whole)
        if not self._pays(len(packed), size):
            self._back_off()
            return None
        self._skipped = 0
        return packed

    def _count(self, before: int, after: int) -> None:
        self.run_bytes += before
        self.wire_bytes += after
        self._traffic.run_bytes += before
        self._traffic.wire_bytes += after

    def _pays(self, after: int, before: int) -> bool:
        return after <= before * (1 - self.settings.gain_min)

    def _back_off(self) -> None:
        self._skip = self._skipped = min(_SKIPPED_MAX - 1, 2 * self._skipped + 1)
