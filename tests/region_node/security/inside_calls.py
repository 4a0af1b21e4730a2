"""What is sent to the listeners inside a region, and between regions, by whoever holds a certificate: for the table of
what is to be answered (`inside_table.txt`), and of keys (`inside_keys.txt`).

Is: one well-formed frame of each call, and what comes of it. Isn't: the table, or the region.

A call is `LISTENER CALL`, as in the table. Behind each comes one that the listener answers to everybody whom it lets
in: where that is answered, the call was taken; where the connection ends instead, it was not.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from cryptography import x509

from heliograph.kv.machine_commands import CommandKind, CommandStatus, command, txn_fields, unpack
from heliograph.kv.metadata_store import ABSENT, Put, prefix_end
from heliograph.raft.messages import VoteReply, encode
from heliograph.wire import bookie_frames as bookie
from heliograph.wire import metadata_frames as meta
from heliograph.wire.block import encode_block
from heliograph.wire.links import audit_commands, link_commands, schema_commands
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.run import Run
from region_node.security.certificate_authority import authority, ensure_certificates, issue
from replicator.subscriptions.ack_claims import Claims
from tests.region_node.faces.pulsar import codec

LETTERS = "ncsreEbkmf"
NAMES = {
    "c": "client.reader",
    "s": "client.root",
    "r": "replicator.eu",
    "e": "broker.eu",
    "E": "config.eu",
    "b": "broker.us",
    "k": "bookie.us",
    "m": "meta.us",
    "f": "config.us",
}
"""Letter -> whose certificate; `n` has none."""
TABLE = Path(__file__).with_name("inside_table.txt")
STREAM, LEDGER = 99, 1 << 40
ORIGIN = (5, 1, 1)


def table(text: str) -> Iterator[tuple[tuple[str, str], dict[str, str]]]:
    """((listener, call), letter -> answer) of each line."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            listener, call, *answers = line.split()
            yield (listener, call), dict(zip(LETTERS, answers, strict=True))


WANTED = dict(table(TABLE.read_text()))


def certificates(folder: Path) -> Path:
    """Those of another region, and of clients, by the same authority. Returns the folder."""
    ensure_certificates(folder, ["us", "eu"])
    for name in ("client.reader", "client.root"):
        if not (folder / f"{name}.pem").exists():
            role, _, rest = name.partition(".")
            also = [x509.DNSName(name)]
            issue(*authority(folder), role, rest, folder / f"{name}.pem", folder / f"{name}.key", list(also))
    return folder


def _block() -> bytes:
    return b"".join(encode_block(Run([b"x"], [1], time_ms=5), LEDGER, 0))


def _run() -> Run:
    part = codec.entry(b"x")
    return Run([part], [len(part)], origin=ORIGIN, spans=((0, 0, 1),), checksums=[int.from_bytes(part[2:6], "big")])


def _asked(kind: bookie.Kind, body: bytes = b"", **fields: int) -> bytes:
    return bookie.encode(kind, body_bytes=len(body), ledger=LEDGER, **fields) + body


_META: dict[str, Callable[[], bytes]] = {
    "HELLO": lambda: b"",
    "COMMAND": lambda: meta.frame(meta.Frame.COMMAND, 1, command(CommandKind.REVOKE, [LEDGER])),
    "GET": lambda: meta.frame(meta.Frame.GET, 1, meta.body("/none")),
    "RANGE": lambda: meta.frame(meta.Frame.RANGE, 1, meta.body("/none/", "/none0", 1)),
    "RENEW": lambda: meta.frame(meta.Frame.RENEW, 1, meta.body(LEDGER)),
    "WATCH": lambda: meta.frame(meta.Frame.WATCH, 1, meta.body("/none/", 0)),
    "UNWATCH": lambda: meta.frame(meta.Frame.UNWATCH, 1, meta.body()),
    "RAFT": lambda: meta.frame(
        meta.Frame.RAFT, 0, meta.body("us-meta-9", encode(VoteReply(term=0, granted=False)), "127.0.0.1:1")
    ),
    "STATUS": lambda: meta.frame(meta.Frame.STATUS, 1, meta.body()),
    "BACKUP": lambda: meta.frame(meta.Frame.BACKUP, 1, meta.body(0)),
    "MEMBERS": lambda: meta.frame(meta.Frame.MEMBERS, 1, meta.body("show", "", "")),
    "COUNT": lambda: meta.frame(meta.Frame.COUNT, 1, meta.body("/none/")),
}
CALLS: dict[str, dict[str, Callable[[], bytes]]] = {
    "meta": _META,
    "config": _META,
    "bookie": {
        "ADD": lambda: _asked(bookie.Kind.ADD, _block(), number=1, entry=0, value=-1, request=1),
        "ADD_RECOVERY": lambda: _asked(bookie.Kind.ADD_RECOVERY, _block(), number=1, entry=0, value=-1, request=1),
        "READ": lambda: _asked(bookie.Kind.READ, (1 << 20).to_bytes(4, "big"), entry=0, value=0, request=1),
        "FENCE": lambda: _asked(bookie.Kind.FENCE, request=1),
        "WRITE_LAC": lambda: _asked(bookie.Kind.WRITE_LAC, value=0),
        "READ_LAC": lambda: _asked(bookie.Kind.READ_LAC, request=1),
        "DELETE": lambda: _asked(bookie.Kind.DELETE, request=1),
        "LEDGERS": lambda: _asked(bookie.Kind.LEDGERS, entry=-1, request=1),
    },
    "link": {
        name: lambda made=made: b"".join(made())  # type: ignore[misc]
        for name, made in {
            "OPEN": lambda: link_commands.open_frame(STREAM, "persistent://none/none/none", "eu", 9),
            "OPENED": lambda: link_commands.opened_frame(STREAM, 1, 1, link_commands.Vector()),
            "RUN": lambda: link_commands.run_frame(STREAM, 1, (-1, -1), _run()),
            "RECEIPT": lambda: link_commands.receipt_frame(STREAM, [(ORIGIN, (1, 1))]),
            "GAP": lambda: link_commands.gap_frame(STREAM, 1, link_commands.Vector()),
            "SKIP": lambda: link_commands.skip_frame(
                STREAM,
                1,
                link_commands.SkipRecord(ORIGIN, (-1, -1), (0, 0), link_commands.SkipReason.FILTERED, "us"),
            ),
            "HEARTBEAT": lambda: link_commands.heartbeat_frame(link_commands.LinkHeartbeat(1, 0, 0)),
            "CLOSE": lambda: link_commands.close_frame(STREAM, "moved", "x"),
            "CLAIMS": lambda: link_commands.claims_frame(STREAM, "s", Claims((1, 1), {}).fields()),
            "ASK": lambda: audit_commands.ask_frame(
                STREAM, 1, audit_commands.Ask(audit_commands.What.ROWS, ORIGIN, (-1, -1), (0, 0))
            ),
            "TELL": lambda: audit_commands.tell_frame(
                STREAM, 1, audit_commands.What.ROWS, audit_commands.AuditAnswer("no")
            ),
            "SCHEMAS": lambda: schema_commands.schemas_frames(STREAM, []),
            "OVERRULE": lambda: schema_commands.overrule_frames(STREAM, []),
        }.items()
    },
}


def context(folder: Path, letter: str) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.load_verify_locations(folder / "ca.pem")
    if name := NAMES.get(letter):
        made.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return made


_HELLO = meta.frame(meta.Frame.HELLO, 0, meta.body(meta.MAGIC, meta.FEATURES, "t"))
_CONNECT = codec.frame(pb.BaseCommand.CONNECT, client_version="t", protocol_version=19)
_PONG = codec.frame(pb.BaseCommand.PONG)
_STATUS_REQUEST = 77


def answered(port: int, folder: Path, letter: str, listener: str, call: str) -> str:
    """`ok`: it was taken; `closed`: it ended the connection; `shut`: so does what everybody is answered."""
    if _taken(port, folder, letter, listener, CALLS[listener][call]()):
        return "ok"
    return "closed" if _let_in(port, folder, letter, listener) else "shut"


@cache
def _let_in(port: int, folder: Path, letter: str, listener: str) -> bool:
    return _taken(port, folder, letter, listener, b"")


def _taken(port: int, folder: Path, letter: str, listener: str, sent: bytes) -> bool:
    begin, probe, wanted = {
        "bookie": (b"", bookie.encode(bookie.Kind.READ_LAC, ledger=LEDGER, request=_STATUS_REQUEST), b""),
        "link": (_CONNECT, codec.frame(pb.BaseCommand.PING), _PONG),
    }.get(listener, (_HELLO, meta.frame(meta.Frame.STATUS, _STATUS_REQUEST, meta.body()), b""))
    wanted = wanted or _STATUS_REQUEST.to_bytes(4, "big")
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 60) as plain,
            context(folder, letter).wrap_socket(plain) as stream,
        ):
            stream.settimeout(60)
            found = b""
            stream.sendall(begin + sent + probe)
            while wanted not in found:
                if not (data := stream.recv(1 << 16)):
                    return False
                found += data
            return True
    except OSError as error:
        assert not isinstance(error, TimeoutError), f"{listener} neither answers nor closes"
        return False


# -- keys of the metadata ----------------------------------------------------------------------------------------------

KEY_TABLE = Path(__file__).with_name("inside_keys.txt")
KEY_CALLS = ("read", "list", "write", "make", "watch")
KEY_LETTERS = {"b": "broker", "k": "bookie", "m": "meta"}
_NEVER = 1 << 40
"""No key has this version, and no lease this number: what asks for it changes nothing."""


def key_table(text: str) -> Iterator[tuple[str, str, str]]:
    """(key, call, letters of those who may) of each field of each line."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            key, *allowed = line.split()
            yield from ((key, call, letters) for call, letters in zip(KEY_CALLS, allowed, strict=True))


def key_request(key: str, call: str) -> tuple[meta.Frame, bytes]:
    """A request that changes nothing, whoever may make it."""
    match call:
        case "read":
            return meta.Frame.GET, meta.body(key)
        case "list":
            beside = key.rpartition("/")[0] + "/"
            return meta.Frame.RANGE, meta.body(beside, prefix_end(beside), 1)
        case "watch":
            return meta.Frame.WATCH, meta.body(key, 0)
        case _:
            put = Put(key, b"", ABSENT, lease=_NEVER) if call == "make" else Put(key, b"", _NEVER)
            return meta.Frame.COMMAND, command(CommandKind.TXN, txn_fields([put]))


def keys_answered(port: int, folder: Path, letter: str) -> list[str]:
    """What differs from the table, for one peer on one connection."""
    wrong = []
    with (
        socket.create_connection(("127.0.0.1", port), 60) as plain,
        context(folder, letter).wrap_socket(plain) as stream,
    ):
        cutter = meta.MetadataFrameCutter()
        cutter.size_max = meta.FRAME_BYTES_MAX
        stream.sendall(
            _HELLO
            + meta.frame(meta.Frame.GET, 1, meta.body("/bookies/OWN" if letter == "k" else "/metadata-nodes/OWN"))
        )
        for number, (key, call, letters) in enumerate(key_table(KEY_TABLE.read_text()), 2):
            kind, payload = key_request(key, call)
            stream.sendall(meta.frame(kind, number, payload))
            while True:
                found = cutter.next()
                if found is None:
                    data = stream.recv(1 << 16)
                    assert data, f"{letter} {call} {key}: the connection ended"
                    cutter.feed(data)
                elif found[1] == number and found[0] in (meta.Frame.ANSWER, meta.Frame.LISTING):
                    break
            taken = found[0] == meta.Frame.LISTING or unpack(found[2])[0] != CommandStatus.REFUSED
            if taken != (letter in letters):
                wrong.append(f"{letter} {call} {key}: {'taken' if taken else 'refused'}")
    return wrong
