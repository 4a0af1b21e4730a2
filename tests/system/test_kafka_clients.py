"""Kafka's clients of every age against a real region: kafka-python 1.4 and 2.0 in environments of their own, and the
Java clients and tools of Kafka 4.1.

Everything is installed into ~/.cache/heliograph the first time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.cache import CACHE
from geo_tests.wan.kafka_support import secure_region, token
from tests.region_node.region_processes import Region
from tests.system.kafka_clients import WAIT_S, address, jars, java, java_round_trip, kcat, region

__all__ = ["jars", "region"]
pytestmark = pytest.mark.system
OLDEST = (None, (0, 8, 2), (0, 9), (0, 10, 0))

ROUND_TRIP = """
import sys
import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
address, topic, version, compression = sys.argv[1], sys.argv[2], eval(sys.argv[3]), eval(sys.argv[4])
fields = {"bootstrap_servers": address, **({"api_version": version} if version else {})}
fields.update(eval(sys.argv[5]))
producer = KafkaProducer(acks="all", compression_type=compression, **fields)
sent = [producer.send(topic, key=b"k%d" % i, value=None if i % 7 == 3 else b"v%d" % i) for i in range(60)]
producer.flush()
assert [f.get(120).offset for f in sent] == list(range(60))
consumer = KafkaConsumer(topic, group_id="g-" + topic, auto_offset_reset="earliest", consumer_timeout_ms=120000, **fields)
found = []
for message in consumer:
    found.append((message.offset, message.key, message.value))
    if len(found) == 60:
        break
assert found == [(i, b"k%d" % i, None if i % 7 == 3 else b"v%d" % i) for i in range(60)], found
consumer.commit()
assert consumer.committed(TopicPartition(topic, 0)) == 60
consumer.close()
producer.close()
print("good", kafka.__version__)
"""  # noqa: E501


def environment(version: str) -> str:
    """The interpreter of an environment with that kafka-python. Skips with one sentence where it cannot be made."""
    folder = CACHE / "kafka-venvs" / f"kp-{version}"
    python = folder / "bin" / "python"
    if not python.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = subprocess.run([sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True)
        if not made.returncode:
            made = subprocess.run(
                [str(python), "-m", "pip", "install", "-q", f"kafka-python=={version}", "six"],
                capture_output=True,
                text=True,
            )
        if made.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            pytest.skip(f"kafka-python {version} cannot be installed here: {made.stderr.strip()[-200:]}")
    return str(python)


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize(
    ("client", "version"), [*(("1.4.7", v) for v in OLDEST), *(("2.0.2", v) for v in (None, (0, 9), (0, 11), (2, 1)))]
)
def test_old_clients(region: Region, client: str, version: tuple[int, ...] | None, compression: str | None) -> None:
    topic = f"old-{client}-{'.'.join(map(str, version or ('any',)))}-{compression}"
    command = [environment(client), "-c", ROUND_TRIP, address(region), topic, repr(version), repr(compression), "{}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout.startswith("good"), done.stdout + done.stderr


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_java_clients_and_tools(region: Region, jars: Path, compression: str) -> None:
    at, topic = ("--bootstrap-server", address(region)), f"java-{compression}"
    tools = "org.apache.kafka.tools"
    java(
        jars,
        f"{tools}.TopicCommand",
        *at,
        "--create",
        "--topic",
        topic,
        "--partitions",
        "1",
        "--config",
        "retention.ms=3600000",
    )
    assert "PartitionCount: 1" in java(jars, f"{tools}.TopicCommand", *at, "--describe", "--topic", topic)
    lines = [f"key{i}\tvalue{i}" for i in range(300)]
    more = ["--property", "parse.key=true", "--compression-codec", compression]
    java(jars, f"{tools}.ConsoleProducer", *at, "--topic", topic, *more, given="\n".join(lines) + "\n")
    read = [
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        "300",
        "--timeout-ms",
        "120000",
        "--property",
        "print.key=true",
    ]
    for group, level in (("one", "read_committed"), ("two", "read_uncommitted")):
        found = java(
            jars,
            f"{tools}.consumer.ConsoleConsumer",
            *at,
            *read,
            "--group",
            f"{group}-{compression}",
            "--isolation-level",
            level,
        )
        assert found.splitlines() == lines
    described = java(
        jars, f"{tools}.consumer.group.ConsumerGroupCommand", *at, "--describe", "--group", f"one-{compression}"
    )
    assert described.split()[-9:][3] == "300" or " 300 " in described, described
    java(jars, f"{tools}.TopicCommand", *at, "--delete", "--topic", topic)


def test_javas_transactional_producer(region: Region, jars: Path) -> None:
    at, topic = f"bootstrap.servers={address(region)}", "java-transactions"
    tools = "org.apache.kafka.tools"
    java(
        jars,
        f"{tools}.TopicCommand",
        "--bootstrap-server",
        address(region),
        "--create",
        "--topic",
        topic,
        "--partitions",
        "3",
    )
    arguments = [
        "--topic",
        topic,
        "--num-records",
        "3000",
        "--record-size",
        "100",
        "--throughput",
        "-1",
        "--producer-props",
        at,
        "enable.idempotence=true",
    ]
    said = java(
        jars,
        f"{tools}.ProducerPerformance",
        *arguments,
        "--transactional-id",
        "perf",
        "--transaction-duration-ms",
        "50",
    )
    assert "3000 records sent" in said
    read = [
        "--bootstrap-server",
        address(region),
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        "3000",
        "--timeout-ms",
        "120000",
    ]
    assert (
        len(java(jars, f"{tools}.consumer.ConsoleConsumer", *read, "--isolation-level", "read_committed").splitlines())
        == 3000
    )


def test_javas_tool_sets_quotas(region: Region, jars: Path) -> None:
    command, who = (
        ("kafka.admin.ConfigCommand", "--bootstrap-server", address(region)),
        ("--entity-type", "users", "--entity-name", "ann"),
    )
    tool = ("--entity-type", "clients", "--entity-name", "tool")
    java(jars, *command, "--alter", "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048", *who, *tool)
    java(jars, *command, "--alter", "--add-config", "producer_byte_rate=512", *who)
    assert "user-principal 'ann', client-id 'tool' are consumer_byte_rate=2048.0, producer_byte_rate=1024.0" in java(
        jars, *command, "--describe", *who, *tool
    )
    assert "user-principal 'ann' are producer_byte_rate=512.0" in java(jars, *command, "--describe", *who)
    java(jars, *command, "--alter", "--add-config", "request_percentage=12.5,controller_mutation_rate=3", *who)
    shown = java(jars, *command, "--describe", *who)
    assert "request_percentage=12.5" in shown and "controller_mutation_rate=3.0" in shown
    address_of = ("--entity-type", "ips", "--entity-name", "10.0.0.9")
    java(jars, *command, "--alter", "--add-config", "connection_creation_rate=50", *address_of)
    assert "connection_creation_rate=50.0" in java(jars, *command, "--describe", *address_of)
    java(jars, *command, "--alter", "--delete-config", "producer_byte_rate", *who)
    assert "512" not in java(jars, *command, "--describe", *who)


JAVA = (("0.10.2.2", "none,gzip,snappy,lz4"), ("0.11.0.3", "none,gzip,snappy,lz4"), ("1.1.1", "none,gzip,snappy,lz4"))
JAVA += (("2.8.2", "none,gzip,snappy,lz4,zstd"), ("4.4.0", "none,gzip,snappy,lz4,zstd"))


@pytest.mark.parametrize(("version", "compressions"), JAVA)
def test_javas_client_of_any_age(region: Region, version: str, compressions: str) -> None:
    """Each compression with each of acks 0, 1, all; message format v1 before 0.11; transactions since."""
    more = [] if version.startswith("0.10") else ["transactions"]
    said = java_round_trip(version, address(region), f"java-{version}", compressions, "0,1,all", *more)
    assert said.split()[1] == str(3 * len(compressions.split(",")) + len(more))


@pytest.mark.parametrize("version", ["0.10.2.2", "1.1.1", "4.4.0"])
def test_javas_client_logs_in(tmp_path: Path, version: str) -> None:
    """0.10 by SaslHandshake 0 and tokens without a header; newer ones by SaslAuthenticate."""
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="anybody" password="token:{}";'
    fields = [
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanism=PLAIN",
        f"sasl.jaas.config={login.format(token('root'))}",
    ]
    with secure_region(tmp_path) as secure:
        assert java_round_trip(version, address(secure), "logged-in", "gzip", "all", *fields).split() == ["good", "1"]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_debians_librdkafka(region: Region, compression: str) -> None:
    at, topic = ("-b", address(region)), f"debian-{compression}"
    lines = "".join(f"key{i}:value{i}\n" for i in range(300))
    for acks in ("0", "1", "all"):
        kcat("-P", *at, "-t", f"{topic}-{acks}", "-K:", "-z", compression, "-X", f"acks={acks}", given=lines)
        deadline = time.monotonic() + WAIT_S
        while (
            int(kcat("-Q", *at, "-t", f"{topic}-{acks}:0:-1").split()[-1]) < 300
        ):  # with acks=0 nobody is told when it is stored
            assert time.monotonic() < deadline
        assert kcat("-C", *at, "-t", f"{topic}-{acks}", "-K:", "-o", "beginning", "-e", "-q") == lines
    found = kcat("-q", *at, "-G", f"group-{topic}", "-X", "auto.offset.reset=earliest", "-c", "300", f"{topic}-all")
    assert sorted(found.split()) == sorted(f"value{i}" for i in range(300))
    assert f'topic "{topic}-all" with 1 partitions' in kcat("-L", *at)
