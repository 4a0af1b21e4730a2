"""What docs/operating/one-address.md says, done: HAProxy and dnsmasq with the page's own configurations, its program,
real clients behind them, and an active region that falls silent.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from geo_tests.wan.disaster import active_passive, dr, numbers, stopped_pids
from geo_tests.wan.instance import Instance, eventually
from geo_tests.wan.user_program import UserProgram
from tests.system.behind_one_address import block
from tests.system.programs import dnsmasq, haproxy, libraries

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

NAMESPACE = "public/shop"
ROUTE = f"/heliograph/v1/health/active?namespace={NAMESPACE}"
LOOK_UPS, BROKERS, WHERE = "bind :6650", "bind :6660", "bind :8080"
"""As the page has them."""


def unused_port() -> int:
    """Outside of what instances take theirs from."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return {name: unused_port() for name in (LOOK_UPS, BROKERS, WHERE)}


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory, ports: dict[str, int]) -> Iterator[Instance]:
    haproxy()
    instance = Instance(
        tmp_path_factory.mktemp("one") / "data",
        regions=("us", "eu", "ap"),
        wan="none",
        environment={"HELIOGRAPH_BROKER__LISTENERS__LB": f"pulsar://127.0.0.1:{ports[BROKERS]}"},
    )
    try:
        active_passive(instance, NAMESPACE, "us")
        yield instance
    finally:
        for pid in stopped_pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        instance.down()


@contextlib.contextmanager
def running(program: Path, *words: str) -> Iterator[None]:
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries(program)}
    process = subprocess.Popen([str(program), *words], env=environment, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def host_of(url: str) -> str:
    return url.rpartition("/")[2]


def balanced(regions: Instance, ports: dict[str, int]) -> str:
    """The page's configuration, of regions with one broker each, whose addresses are on this machine."""
    text = "\n".join(line for line in block("haproxy").splitlines() if not re.search(r"-1\.example", line))
    text = re.sub(r"\nlisten broker-1\n  bind :6661\n", "", text)
    for name, port in ports.items():
        text = text.replace(f"{name}\n", f"bind 127.0.0.1:{port}\n")
    for region in ("us", "eu"):
        state = regions.state["regions"][region]
        admin = host_of(state["admin_url"])
        text = text.replace(
            f"{region}-0.example:6650 port 8080", f"{host_of(state['service_url'])} port {admin.rpartition(':')[2]}"
        )
        text = text.replace(f"{region}-0.example:8080", admin)
    assert "example:" not in text and ":6660" not in text
    return f"{text}\n"


def program(*words: str) -> UserProgram:
    return UserProgram(sys.executable, "-m", *words)


def silence(regions: Instance, region: str) -> list[int]:
    """Stops every process of it: connections stay open, and new ones are accepted by the kernel."""
    stopped = [row["pid"] for row in regions.status()["regions"][region]["processes"] if row["pid"]]
    stopped_pids.update(stopped)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    return stopped


def test_clients_go_on_in_the_next_region_when_theirs_falls_silent(
    regions: Instance, ports: dict[str, int], tmp_path: Path
) -> None:
    """Behind HAProxy, and with the page's own program, at once; who has both addresses, and nothing else, once its
    keep-alive has told it. Before that all of them follow switchovers.
    """
    state = regions.state["regions"]
    both = f"{state['us']['service_url']},{host_of(state['eu']['service_url'])}"
    asked = [f"{state[name]['admin_url']}={state[name]['service_url']}" for name in ("us", "eu")]
    (tmp_path / "haproxy.cfg").write_text(balanced(regions, ports))
    topics = [f"persistent://{NAMESPACE}/{name}" for name in ("balanced", "asking", "listed")]
    one_address = "tests.system.behind_one_address"
    with running(haproxy(), "-db", "-q", "-f", str(tmp_path / "haproxy.cfg")):
        programs = [
            program(one_address, topics[0], "balanced", f"pulsar://127.0.0.1:{ports[LOOK_UPS]}"),
            program(one_address, topics[1], "asking", NAMESPACE, *asked),
            program("geo_tests.wan.logged_client", both, topics[2], "listed"),
        ]
        try:
            for to in ("eu", "us"):
                all_publish(programs)
                dr(regions, "us", "switchover", NAMESPACE, "--to", to)
            all_publish(programs)
            stopped = silence(regions, "us")
            began = time.monotonic()
            dr(regions, "eu", "failover", NAMESPACE, "--to", "eu", "--yes")
            all_publish(programs[:2], began)
            all_publish(programs[2:], began)
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            rejoin = ("eu", "rejoin", NAMESPACE, "--region", "us")
            eventually(lambda: isinstance(dr(regions, *rejoin, check=False), dict), "us is heard again, and rejoins")
            for made, topic in zip(programs, topics, strict=True):
                sent = int(made.end()[-1].split()[1])
                assert set(numbers(regions, "eu", topic)) == set(range(sent)), f"all of {topic} is there"
        finally:
            for made in programs:
                made.close()


def all_publish(programs: Sequence[UserProgram], began: float = 0.0) -> None:
    """began: when it is told how long each took, since then."""
    for made in programs:
        made.wait_for(50)
        if began:
            print(f"goes on {time.monotonic() - began:.1f} s after the silence began")


def test_a_name_leads_to_the_region_that_is_active(regions: Instance, tmp_path: Path) -> None:
    """Both regions' admin ports are one port of two addresses here, as they would be of two machines."""
    if shutil.which("curl") is None:
        pytest.skip("the page's script wants curl, which is absent")
    web, port, hosts = unused_port(), unused_port(), tmp_path / "hosts"
    hosts.mkdir()
    addresses = {"us": "127.0.1.1", "eu": "127.0.2.1"}
    forward = "defaults\n  mode tcp\n  timeout connect 3s\n  timeout client 1m\n  timeout server 1m\n"
    for region, address in addresses.items():
        admin = host_of(regions.admin(region))
        forward += f"listen {region}\n  bind {address}:{web}\n  server {region} {admin}\n"
    (tmp_path / "forward.cfg").write_text(forward)
    script = tmp_path / "active-region.sh"
    script.write_text(block("sh").replace("$address:8080", f"$address:{web}"))
    script.chmod(0o755)
    configuration = block("ini").replace("/run/pulsar-hosts", str(hosts))
    (tmp_path / "dnsmasq.conf").write_text(
        f"{configuration}port={port}\nlisten-address=127.0.0.1\nbind-interfaces\nno-resolv\nno-hosts\npid-file=\nuser=root\n"
    )
    active = next(name for name in addresses if dr(regions, "eu", "status", NAMESPACE)["active"] == name)
    other = next(name for name in addresses if name != active)
    written = (str(hosts / "active"), "pulsar.example", ROUTE, *addresses.values())
    with (
        running(haproxy(), "-db", "-q", "-f", str(tmp_path / "forward.cfg")),
        running(dnsmasq(), "-k", "-C", str(tmp_path / "dnsmasq.conf")),
        running(script, *written),
    ):
        eventually(lambda: address_of("pulsar.example", port) == addresses[active], f"the name leads to {active}")
        dr(regions, active, "switchover", NAMESPACE, "--to", other)
        eventually(lambda: address_of("pulsar.example", port) == addresses[other], f"the name leads to {other}")


def address_of(name: str, port: int) -> str:
    """What DNS answers there; "": nothing."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    question = struct.pack(">6H", 1, 0x100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.settimeout(2)
        asked.sendto(question, ("127.0.0.1", port))
        try:
            answer = asked.recv(512)
        except OSError:
            return ""
    return socket.inet_ntoa(answer[-4:]) if struct.unpack(">H", answer[6:8])[0] else ""
