"""Compression on links: what is compressed, for whom, and that bad bytes are the peer's fault and nothing else."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any

import cramjam
import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import ConfigError, PeerError
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.link_compression import LZ4, UNPACKED_BYTES_MAX, ZSTD, pack, unpack
from heliograph.wire.run import Run
from replicator.bandwidth.compression import LEVEL, RunPacker
from replicator.bandwidth.compression_settings import CompressionSettings
from replicator.manager.link_manager import LinkSettings
from tests.replicator.link_instance import Instance
from tests.replicator.link_world import World, parsed

ORIGIN = (1, 1, 5)


def text(size: int, seed: int = 1) -> bytes:
    rng = random.Random(seed)
    return b"".join(
        b'{"id":%d,"user":"user-%d","city":"Berlin"}' % (i, rng.randrange(5000)) for i in range(1 + size // 36)
    )[:size]


def sent_run(body: bytes, first: int = 0) -> Run:
    return Run([body], [len(body)], origin=ORIGIN, spans=((3, first, 1),), checksums=(7,))


def sent(packer: RunPacker, body: bytes, rtt_ms: float = 100.0) -> list[Any]:
    """The frame's fields; what it holds is checked."""
    run = sent_run(body)
    frame = b"".join(bytes(b) for b in packer.frame(1, 2, (3, -1), run, rtt_ms))
    _, fields, payload = parsed(frame)
    stream, attempt, previous, back = wire.read_run(fields, payload)
    assert (stream, attempt, previous, back.origin, back.spans) == (1, 2, (3, -1), ORIGIN, run.spans)
    assert [bytes(p) for p in back.parts] == [body]
    return fields


def packer(mode: str = "zstd", level: int = LEVEL, **settings: Any) -> RunPacker:
    made = RunPacker(CompressionSettings(mode=mode, **settings))
    made.level = level
    return made


@pytest.mark.parametrize(("mode", "codec"), [("lz4", LZ4), ("zstd", ZSTD), ("auto", ZSTD)])
def test_a_run_goes_smaller_and_comes_back_as_it_was(mode: str, codec: int) -> None:
    of = packer(mode)
    for size in (2048, 30_000, 900_000, 4 << 20):
        fields = sent(of, text(size))
        assert fields[4] == codec and fields[5] > size
    assert of.run_bytes > (4 << 20) + 930_000 and of.wire_bytes < of.run_bytes * 0.6


def test_who_cannot_read_it_gets_it_as_it_is() -> None:
    of = packer(level=LEVEL - 1)
    assert len(sent(of, text(100_000))) == 4 and of.run_bytes == of.wire_bytes > 100_000


def test_who_cannot_read_of_a_leadership_is_told_of_none() -> None:
    for level, told in ((wire.LEADERSHIP_LEVEL, 5), (wire.LEADERSHIP_LEVEL - 1, 0)):
        run = sent_run(b"x")
        run.leadership = 5
        _, fields, payload = parsed(b"".join(bytes(b) for b in packer(level=level).frame(1, 2, (3, -1), run, 1.0)))
        assert wire.read_run(fields, payload)[3].leadership == told and run.leadership == 5


def test_small_runs_near_regions_and_mode_none_are_left_alone() -> None:
    assert len(sent(packer(), text(1500))) == 4
    assert len(sent(packer("none"), text(100_000))) == 4
    auto = packer("auto")
    assert len(sent(auto, text(100_000), 0.0)) == 4, "not known yet how far it is"
    assert len(sent(auto, text(100_000), 4.9)) == 4
    assert len(sent(auto, text(100_000), 5.0)) == 6
    assert len(sent(packer("auto", auto_rtt_ms=0), text(100_000), 0.0)) == 4


def test_what_clients_compressed_already_goes_as_it_is_and_is_tried_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(
        "replicator.bandwidth.compression.pack", lambda codec, data: tried.append(len(data)) or pack(codec, data)
    )
    of, rng = packer(), random.Random(1)
    for size in (10_000, 200_000):
        for _ in range(300):
            assert len(sent(of, rng.randbytes(size))) == 4
    assert len(tried) <= 6 + 600 // 64 and max(tried[5:]) <= 16 << 10, "of large ones a sample is tried"
    assert of.wire_bytes == of.run_bytes
    began = len(tried)
    compressed = [len(sent(of, text(200_000))) == 6 for _ in range(130)]
    assert all(compressed[64:]) and len(tried) > began, "clients that stop compressing are noticed within 64 runs"


def test_bad_bytes_are_the_peers_fault() -> None:
    rng = random.Random(3)
    for codec in (LZ4, ZSTD):
        data = text(5000)
        good = pack(codec, data)
        assert bytes(unpack(codec, good, 5000)) == data
        for size in (0, 4999, 5001, UNPACKED_BYTES_MAX + 1, 1 << 60):
            with pytest.raises(PeerError):
                unpack(codec, good, size)
        for _ in range(500):
            bad = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                bad[rng.randrange(len(bad))] = rng.randrange(256)
            if rng.random() < 0.3:
                del bad[rng.randrange(len(bad)) :]
            try:
                assert len(unpack(codec, bad, 5000)) == 5000  # the block's checksum finds it then
            except PeerError:
                pass
        with pytest.raises(PeerError):
            unpack(codec, b"", 10)
    with pytest.raises(PeerError):
        unpack(3, b"abc", 3)


def test_a_frame_of_zstd_cannot_ask_for_any_amount_of_memory() -> None:
    made = bytearray(pack(ZSTD, text(900_000)))
    assert not made[4] & 32 and len(unpack(ZSTD, made, 900_000)) == 900_000
    made[5] = (24 - 10) << 3  # a window of 16 MiB
    with pytest.raises(PeerError, match="window"):
        unpack(ZSTD, made, 900_000)
    single = bytearray(pack(ZSTD, text(300_000)))
    assert single[4] >> 5 == 0b101, "one segment, whose size has four bytes"
    single[5:9] = (16 << 20).to_bytes(4, "little")
    with pytest.raises(PeerError, match="window"):
        unpack(ZSTD, single, 300_000)


def test_whatever_a_compressed_run_says_is_read_or_is_a_peer_error() -> None:
    rng = random.Random(5)
    frames = [
        b"".join(bytes(b) for b in packer(mode).frame(1, 2, (3, -1), sent_run(text(4000)), 1.0))
        for mode in ("lz4", "zstd")
    ]
    accepted = 0
    for _ in range(3000):
        frame = bytearray(rng.choice(frames))
        for _ in range(rng.randrange(1, 3)):
            frame[rng.randrange(8, 60 if rng.random() < 0.7 else len(frame))] = rng.randrange(256)
        try:
            _, fields, payload = parsed(bytes(frame))
            _, _, _, run = wire.read_run(fields, payload)
            assert [bytes(p) for p in run.parts] == [text(4000)], "the block's checksum is over what comes out"
            accepted += 1
        except (PeerError, struct.error):
            pass
    assert accepted < 1500


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"mode": "gzip"}, {"gain_min": 1.0}, {"auto_rtt_ms": -1}):
        with pytest.raises(ConfigError):
            CompressionSettings(**wrong)  # type: ignore[arg-type]


def test_the_simulated_world_compresses() -> None:
    world = World(2)
    world.run()
    bytes_of = {mode: [0, 0] for mode in ("none", "lz4", "zstd")}
    for link in world.links.values():
        of = bytes_of[link.packer.settings.mode]
        of[0], of[1] = of[0] + link.packer.run_bytes, of[1] + link.packer.wire_bytes
    assert (
        bytes_of["none"][0] == bytes_of["none"][1]
        and bytes_of["lz4"][0] > bytes_of["lz4"][1]
        and bytes_of["zstd"][0] > bytes_of["zstd"][1]
    )


@pytest.mark.parametrize("delay_s", [0.0001, 0.02])
def test_links_to_far_regions_are_compressed_and_near_ones_are_not(delay_s: float) -> None:
    with Simulation(4) as sim:

        async def main() -> None:
            instance = Instance(sim, ("us", "eu"), 1, LinkSettings())
            sim.network.latency("us", "eu", delay_s, delay_s)
            await instance.load()
            us, eu = instance.regions.values()
            await asyncio.sleep(3)  # heartbeats have measured the way
            for _ in range(20):
                us.publish(100)
                await asyncio.sleep(0.2)
            await asyncio.sleep(3)
            assert eu.bodies() == us.bodies() and len(eu.bodies()) == 2000
            stats = us.link("eu")
            assert stats.restarts == 0 and not eu.faults and stats.run_bytes > 80_000
            assert stats.wire_bytes < stats.run_bytes * 0.7 if delay_s > 0.005 else stats.wire_bytes == stats.run_bytes
            total = us.brokers[0].links.budgets.traffic["eu"]
            assert (total.run_bytes, total.wire_bytes) == (stats.run_bytes, stats.wire_bytes)

        sim.run(main(), limit_s=120)


def test_bytes_that_make_no_sense_end_that_connection_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Simulation(6) as sim:

        async def main() -> None:
            instance = Instance(
                sim, ("us", "eu"), 1, LinkSettings(compression=CompressionSettings(mode="zstd", run_bytes_min=0))
            )
            sim.network.latency("us", "eu", 0.01, 0.01)
            await instance.load()
            us, eu = instance.regions.values()
            damaged = []

            def broken(codec: int, data: Any) -> bytes:
                good = bytearray(pack(codec, data))
                if len(damaged) < 3:
                    damaged.append(len(good))
                    good[len(good) // 2] ^= 0xFF
                return bytes(good)

            monkeypatch.setattr("replicator.bandwidth.compression.pack", broken)
            for _ in range(10):
                us.publish(50)
                await asyncio.sleep(1)
            await asyncio.sleep(10)
            assert len(damaged) == 3 and len(eu.faults) == 3 and us.link("eu").restarts == 3
            assert eu.bodies() == us.bodies() and len(eu.bodies()) == 500

        sim.run(main(), limit_s=120)


def test_the_codecs_are_those_that_the_document_names() -> None:
    data = text(3000)
    assert bytes(cramjam.zstd.decompress(pack(ZSTD, data))) == data
    assert bytes(cramjam.lz4.decompress_block(pack(LZ4, data), output_len=3000)) == data
