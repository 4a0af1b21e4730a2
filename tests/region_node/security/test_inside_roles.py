"""What is written by hand of the calls inside a region, and between regions, against the rows that decide them; running
processes are asked by `test_secured_region.py`.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from global_config.transport.grpc_transport import SERVICE, ConfigTls, GrpcTransport, identity, make_message
from heliograph.kv.server import metadata_calls
from heliograph.wire.links.link_commands import LinkFrameKind
from storage.bookie.serving import bookie_calls
from tests.region_node.security.inside_calls import CALLS, NAMES, TABLE, WANTED, certificates, table

LETTERS = {"b": "broker", "k": "bookie", "m": "meta", "f": "config"}
LET_IN = {"meta": "bkm", "config": "bf", "bookie": "bk"}
"""Listener -> of whose certificates of the region; `region_node/process/composition.py`."""
ROWS = {"meta": metadata_calls.CALLS, "config": metadata_calls.CALLS, "bookie": bookie_calls.CALLS}
GRPC = {"Raft", "Forward"}


def test_each_call_has_a_line_and_no_other() -> None:
    lines = [key for key, _ in table(TABLE.read_text())]
    assert len(lines) == len(set(lines))
    wanted = {(listener, row.call.name) for listener, rows in ROWS.items() for row in rows.rows.values()}
    wanted |= {("link", kind.name) for kind in LinkFrameKind} | {("grpc", method) for method in GRPC}
    assert set(lines) == wanted
    assert {(listener, call) for listener, calls in CALLS.items() for call in calls} == {
        key for key in wanted if key[0] != "grpc"
    }


def test_rows_say_what_the_table_says() -> None:
    wrong = []
    for (listener, call), answers in WANTED.items():
        if listener not in ROWS:
            continue
        row = next(row for row in ROWS[listener].rows.values() if row.call.name == call)
        said = {letter for letter in LET_IN[listener] if LETTERS[letter] in row.roles}
        taken = {letter for letter, answer in answers.items() if answer == "ok"}
        if said != taken:
            wrong.append(f"{listener} {call}: the row lets {sorted(said)}, the table {sorted(taken)}")
    assert not wrong, "\n".join(wrong)


def _files(folder: Path, name: str) -> tuple[bytes, bytes, bytes]:
    cert, key = ((folder / f"{name}.{end}").read_bytes() for end in ("pem", "key"))
    return (folder / "ca.pem").read_bytes(), key, cert


@pytest.mark.wan
@pytest.mark.slow
def test_between_configuration_nodes_each_speaks_for_itself(tmp_path: Path) -> None:
    folder = certificates(tmp_path)

    async def said(port: int, letter: str, method: str) -> str:
        ca, *own = _files(folder, NAMES.get(letter, "broker.us"))
        credentials = grpc.ssl_channel_credentials(ca, *(own if letter in NAMES else ()))
        override = [("grpc.ssl_target_name_override", identity("us")), ("grpc.enable_retries", 0)]
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=override) as channel:
            path, message = f"/{SERVICE}/{method}", make_message("eu", b"x")
            try:
                if method == "Raft":
                    await channel.stream_unary(path)(iter([message]))
                else:
                    await channel.unary_unary(path)(message)
            except grpc.aio.AioRpcError as error:
                return {grpc.StatusCode.PERMISSION_DENIED: "closed", grpc.StatusCode.UNAVAILABLE: "shut"}[error.code()]
        return "ok"

    async def run() -> list[str]:
        ca, key, cert = _files(folder, identity("us"))
        peers, tls = {"us": "127.0.0.1:1", "eu": "127.0.0.1:1"}, ConfigTls(ca=ca, cert=cert, key=key)
        transport = GrpcTransport("us", peers, rng=random.Random(1), tls=tls)

        async def handled(*_: Any) -> bytes:
            return b""

        transport.on_forward(handled)
        port = await transport.start()
        wrong = []
        for (listener, call), answers in WANTED.items():
            for letter, answer in answers.items() if listener == "grpc" else ():
                found = await said(port, letter, call)
                if found != answer:
                    wrong.append(f"{call} {letter}: {found}, wanted {answer}")
        await transport.stop()
        return wrong

    assert not asyncio.run(run())
