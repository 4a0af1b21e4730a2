"""A certificate that is revoked while a metadata node and a bookie run: what is open by it ends, and nobody comes in by
it, at either of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from heliograph.kv.metadata_client import MetaClient
from heliograph.model.configuration.revocations import Revocation
from heliograph.runtime.clock import SystemClock, system_rng
from heliograph.wire import bookie_frames
from heliograph.wire.metadata_frames import FEATURES, MAGIC, Frame, body, frame
from local_meta import keys
from region_node.process.composition import build_bookie, build_meta, system_runtime
from region_node.process.settings import BookieRoleSettings, MetaNodeSettings, ProcessSettings
from region_node.security.certificate_authority import authority, ensure_certificates, issue
from region_node.security.settings import TlsSettings
from region_node.security.tls import client_context

pytestmark = [pytest.mark.wan, pytest.mark.slow]

PATIENCE_S = 60
ASKED = {
    "meta": frame(Frame.HELLO, 0, body(MAGIC, FEATURES, "t")),
    "bookie": bookie_frames.encode(bookie_frames.Kind.READ_LAC, ledger=7, request=1),
}
STOLEN = {"meta": "bookie", "bookie": "broker"}
"""Listener -> whose certificate was stolen."""


def _settings(folder: Path, node: str, **sections: Any) -> ProcessSettings:
    files = {
        f"{role}_{part}": str(folder / "tls" / f"{role}.us.{end}")
        for role in ("meta", "bookie", "broker")
        for part, end in (("cert", "pem"), ("key", "key"))
    }
    tls = TlsSettings(ca=str(folder / "tls" / "ca.pem"), internal=True, **files)
    return ProcessSettings(region="us", node_id=node, data_dir=str(folder / node), tls=tls, **sections)


@contextlib.asynccontextmanager
async def _running(folder: Path) -> AsyncIterator[tuple[dict[str, int], MetaClient]]:
    """The ports of both, and a broker's way to the metadata."""
    runtime = system_runtime(SystemClock())
    meta = build_meta(_settings(folder, "m", meta_node=MetaNodeSettings(port=0)), runtime)
    ports = await meta.start()
    address = f"127.0.0.1:{ports['meta']}"
    own = BookieRoleSettings(port=0, http_port=-1, free_mb_min=1, free_mb_again=1)
    bookie = build_bookie(_settings(folder, "k", meta=(address,), bookie=own), runtime)
    ports |= await bookie.start()
    client = MetaClient([address], clock=SystemClock(), rng=system_rng(), ssl=_context(folder, "broker.us"))
    try:
        yield ports, client
    finally:
        client.close()
        await bookie.stop()
        await meta.stop()


def _context(folder: Path, name: str) -> ssl.SSLContext:
    tls = folder / "tls"
    return client_context(str(tls / "ca.pem"), str(tls / f"{name}.pem"), str(tls / f"{name}.key"))


def _steal(folder: Path, role: str) -> str:
    """Another certificate of that role; returns its serial number."""
    path = folder / "tls" / f"stolen.{role}.pem"
    issue(*authority(folder / "tls"), role, "us", path, path.with_suffix(".key"), [])
    return f"{x509.load_pem_x509_certificate(path.read_bytes()).serial_number:x}"


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _opened(port: int, context: ssl.SSLContext, asked: bytes) -> Stream | None:
    """A connection that was answered; None: it was not."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(asked)
        return (reader, writer) if await reader.read(1) else None
    except OSError:
        return None


async def _ends(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(1 << 16):
            pass
    except OSError:
        pass


def test_what_is_open_ends_and_nobody_comes_in_by_it(tmp_path: Path) -> None:
    ensure_certificates(tmp_path / "tls", ["us"])
    serials = {listener: _steal(tmp_path, role) for listener, role in STOLEN.items()}
    contexts = {listener: _context(tmp_path, f"stolen.{role}") for listener, role in STOLEN.items()}

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S), _running(tmp_path) as (ports, client):
            said = asyncio.Event()
            client.watch(keys.METADATA_NODES, lambda *_: said.set())
            await said.wait()  # the node has said its level
            standing = {name: await _opened(ports[name], contexts[name], ASKED[name]) for name in STOLEN}
            good = await _opened(ports["bookie"], _context(tmp_path, "broker.us"), ASKED["bookie"])
            for serial in serials.values():
                record = Revocation(kind="certificate", name=serial, since_ms=1)
                await client.put(f"{keys.REVOKED}certificate/{serial}", record.encode())
            for name, stream in standing.items():
                assert stream is not None, name
                await _ends(stream[0])
                assert await _opened(ports[name], contexts[name], ASKED[name]) is None, name
            assert good is not None and not good[0].at_eof()
            assert await _opened(ports["bookie"], _context(tmp_path, "broker.us"), ASKED["bookie"]) is not None

    asyncio.run(run())
