"""Kafka clients of other ages for tests: the official Java client of any version, and Debian's librdkafka with kcat.

Is: fetching them into ~/.cache/heliograph the first time, and running them. Isn't: a test, or a region.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cache import once
from benchmarks.maven import copy_dependencies
from tests.region_node.region_processes import Region

SOURCES = Path(__file__).resolve().parent / "java"
WAIT_S = 300
"""A JVM that starts on a machine which does other things too."""
DEBIAN = ("kcat", "librdkafka1", "libyajl2")
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>heliograph.tests</groupId><artifactId>kafka-clients</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>@VERSION@</version></dependency>
  </dependencies>
</project>
"""


def java_client(version: str) -> Path:
    """The folder of that client's jars. Skips in one sentence where it cannot be had."""
    if shutil.which("java") is None:
        pytest.skip("Kafka's Java client needs a JDK 17 or newer on this machine; it is absent")

    def fetch(scratch: Path) -> None:
        if shutil.which("mvn") is None:
            pytest.skip("Kafka's Java client needs Maven on this machine to be fetched; it is absent")
        pom = scratch / "pom.xml"
        pom.write_text(_POM.replace("@VERSION@", version))
        try:
            copy_dependencies(pom, scratch)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"kafka-clients {version} cannot be fetched by Maven here: {error.stdout.strip()[-200:]}")

    return once(f"kafka-clients/{version}", fetch)


def java_round_trip(version: str, *arguments: str) -> str:
    """What `KafkaRoundTrip` printed."""
    command = [
        "java",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{java_client(version)}/*",
        str(SOURCES / "KafkaRoundTrip.java"),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout.startswith("good"), done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def debian_kcat() -> tuple[str, dict[str, str]]:
    """(the program, its environment): kcat on Debian's librdkafka, unpacked beside the system. Skips in one sentence
    where it cannot be had.
    """

    def unpack(scratch: Path) -> None:
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            pytest.skip("Debian's librdkafka needs apt on this machine; it is absent")
        fetched = subprocess.run(["apt-get", "download", *DEBIAN], cwd=scratch, capture_output=True, text=True)
        if fetched.returncode:
            pytest.skip(
                f"Debian's librdkafka cannot be fetched here (apt-get update may help): {fetched.stderr.strip()[-200:]}"
            )
        for package in scratch.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(scratch)], check=True)

    folder = once("debian-librdkafka", unpack)
    (library,) = folder.glob("usr/lib/*/librdkafka.so.1")
    return str(folder / "usr/bin/kcat"), {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}


def kcat(*arguments: str, given: str = "") -> str:
    """Its output. Raises AssertionError where it fails."""
    program, environment = debian_kcat()
    done = subprocess.run(
        [program, *arguments], input=given, capture_output=True, text=True, timeout=WAIT_S, env=environment
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def jars() -> Path:
    from benchmarks.kafka_servers import kafka_jars

    try:
        return kafka_jars()
    except SystemExit as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    with Region(tmp_path_factory.mktemp("clients")) as made:
        made.start(kafka={"port": 0, "rebalance_delay_ms": 0})

        def rest(method: str, path: str, body: Any = None) -> None:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(
                made.admin_url() + path, data, {"Content-Type": "application/json"}, method=method
            )
            urllib.request.urlopen(request, timeout=120).read()

        rest("PUT", "/admin/v2/clusters/us", {})
        rest("PUT", "/admin/v2/tenants/public", {"allowedClusters": ["us"]})
        rest("PUT", "/admin/v2/namespaces/public/default")
        yield made


def address(region: Region) -> str:
    return f"127.0.0.1:{region.processes['us-broker-0'].ports['kafka']}"


def java(jars: Path, main: str, *arguments: str, given: str = "") -> str:
    done = subprocess.run(
        ["java", "-cp", f"{jars}/*", main, *arguments], input=given, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
