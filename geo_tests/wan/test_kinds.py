"""Every kind of message that a client can make, mixed on one link, both ways at once: what arrives is what was sent, in
order, once.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from geo_tests.wan.instance import Instance, eventually, rest

_TOPIC = "persistent://public/geo/kinds"
_ROUNDS = 3
_CHUNKED = 500_000
"""So often the words of a chunked message: clients cut at 5 MiB."""
Row = tuple[bytes, str, int, str]
"""Body, partition key, event time, the property `kind`."""


def keys(folder: Path) -> Any:
    """Of end-to-end encryption."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = folder / "private.pem", folder / "public.pem"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return pulsar.CryptoKeyReader(str(public), str(private))


def published(client: Any, region: str, reader: Any) -> list[Row]:
    """Some of each kind, one behind another; returns them."""
    lone = {"batching_enabled": False}
    producers = {
        "plain": client.create_producer(_TOPIC, f"plain-{region}", **lone),
        "batch": client.create_producer(
            _TOPIC,
            f"batch-{region}",
            batching_enabled=True,
            batching_max_publish_delay_ms=1000,
            batching_max_messages=7,
        ),
        "lz4": client.create_producer(_TOPIC, f"lz4-{region}", compression_type=pulsar.CompressionType.LZ4, **lone),
        "chunks": client.create_producer(_TOPIC, f"chunks-{region}", chunking_enabled=True, **lone),
        "sealed": client.create_producer(
            _TOPIC, f"sealed-{region}", encryption_key="k", crypto_key_reader=reader, **lone
        ),
        "delayed": client.create_producer(_TOPIC, f"delayed-{region}", **lone),
        "keyed": client.create_producer(_TOPIC, f"keyed-{region}", **lone),
    }
    rows: list[Row] = []
    for turn in range(_ROUNDS):
        for kind, producer in producers.items():
            count = 7 if kind == "batch" else 1
            for n in range(count):
                body = f"{region} {kind} {turn} {n} ".encode() * (_CHUNKED if kind == "chunks" else 1)
                more: dict[str, Any] = {"partition_key": f"{region}-{turn % 2}"} if kind == "keyed" else {}
                if kind == "delayed":
                    more["deliver_after"] = timedelta(seconds=1)
                rows.append((body, more.get("partition_key", ""), 1000 + turn, kind))
                producer.send_async(body, None, event_timestamp=1000 + turn, properties={"kind": kind}, **more)
            producer.flush()
    for producer in producers.values():
        producer.close()
    return rows


def rows_in(client: Any, key_reader: Any, *, compacted: bool = False) -> list[Row]:
    reader = client.create_reader(
        _TOPIC, pulsar.MessageId.earliest, crypto_key_reader=key_reader, is_read_compacted=compacted
    )
    found = []
    while reader.has_message_available():
        m = reader.read_next(timeout_millis=60_000)
        found.append((m.data(), m.partition_key(), m.event_timestamp(), m.properties().get("kind", "")))
    reader.close()
    return found


def test_messages_of_every_kind_arrive_as_they_were_sent(pair: Instance, tmp_path: Path) -> None:
    reader = keys(tmp_path)
    clients = {region: pair.client(region) for region in ("us", "eu")}
    sent = {region: published(client, region, reader) for region, client in clients.items()}
    total = sum(map(len, sent.values()))
    for region, client in clients.items():
        eventually(lambda client=client: len(rows_in(client, reader)) >= total, f"everything is in {region}")
        found = rows_in(client, reader)
        assert len(found) == total
        for origin, rows in sent.items():
            mine = [row for row in found if row[0].startswith(origin.encode())]
            assert mine == rows, (region, origin, len(mine), len(rows))
    for ends, row in pair.links(_TOPIC).items():
        assert not {event["cause"] for event in row["history"]} & {"protocol", "connection-lost"}, (
            ends,
            row["history"],
        )
    for region, client in clients.items():  # each region compacts its own copy
        url = f"{pair.admin(region)}/admin/v2/{_TOPIC.replace('://', '/')}/compaction"
        rest("PUT", url)
        eventually(lambda url=url: rest("GET", url)["status"] == "SUCCESS", f"compaction in {region}")
        kept = [row for row in rows_in(client, reader, compacted=True) if row[3] == "keyed"]
        assert sorted(row[1] for row in kept) == [f"{origin}-{n}" for origin in ("eu", "us") for n in (0, 1)]
        assert {row[0].split()[2] for row in kept if row[1].endswith("-0")} == {str((_ROUNDS - 1) // 2 * 2).encode()}, (
            "the newest of each key"
        )
