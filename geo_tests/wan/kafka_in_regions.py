"""Clients of Kafka in tests of several regions: they find a region, send, and are sent on."""

from __future__ import annotations

import socket
from typing import Any

import psutil

from geo_tests.wan.instance import Instance
from geo_tests.wan.kafka_support import DEADLINE_S, ck

VERSIONS = b"\0\0\0\x0b\0\x12\0\0\0\0\0\x07\0\x01c"


def speaks_kafka(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as raw:
            raw.sendall(VERSIONS)
            return raw.recv(8)[4:8] == b"\0\0\0\x07"
    except OSError:
        return False


def kafka_address(instance: Instance, region: str) -> str:
    """Of one of the region's brokers: the one of its listening ports that speaks Kafka's protocol."""
    pid = next(row["pid"] for row in instance.status()["regions"][region]["processes"] if "-broker-" in row["name"])
    ports = [c.laddr.port for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return f"127.0.0.1:{next(port for port in ports if speaks_kafka(port))}"


def send(address: str, topic: str, values: list[bytes], **settings: Any) -> None:
    failed: list[Any] = []
    made = ck.Producer({"bootstrap.servers": address, "acks": "all", "log_level": 0, **settings})
    for value in values:
        made.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert made.flush(DEADLINE_S) == 0 and not failed, failed


def consumer(address: str, group: str, topic: str) -> Any:
    made = ck.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    made.subscribe([topic])
    return made
