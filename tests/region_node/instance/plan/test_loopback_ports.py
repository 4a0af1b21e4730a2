"""Ports that are kept: a server listens there, and nobody else is given them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from heliograph.model.errors import ConfigError
from region_node.instance.plan.layout import make_plan
from region_node.instance.plan.loopback_ports import RANGE_VARIABLE, LoopbackPorts


def bind(port: int) -> None:
    """As somebody does who wants no port that another has."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_a_port_stays_with_whoever_asked_for_it() -> None:
    with LoopbackPorts() as ports:
        port = ports.free()
        with pytest.raises(OSError):
            bind(port)
        with pytest.raises(ConfigError, match=f"port {port} would be used twice"):
            ports.claim(port, "clients", "--service-port")
    bind(port)


def test_a_port_is_none_that_connections_get_nor_one_that_another_keeps() -> None:
    connections_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with LoopbackPorts() as ports, LoopbackPorts() as others:
        given = [each.free() for _ in range(200) for each in (ports, others)]
    assert len({*given}) == 400 and max(given) < connections_from


@pytest.mark.parametrize("shared", [False, True])
def test_servers_listen_on_a_port_that_is_kept_and_come_back_to_it(shared: bool) -> None:
    async def main() -> None:
        with LoopbackPorts() as ports:
            port = ports.free()
            for _ in range(2):
                servers = [
                    await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", port, reuse_port=shared or None)
                    for _ in range(1 + shared)
                ]
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                for server in servers:
                    server.close()
                    await server.wait_closed()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)

    asyncio.run(main())


def test_where_somebody_listens_a_claim_is_refused_and_what_is_only_kept_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, LoopbackPorts() as ports:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} .clients. is taken.*--service-port"):
            ports.claim(port, "clients", "--service-port")
        free = ports.free()
        ports.keep([0, port, free])
        with LoopbackPorts() as others:
            others.keep(
                [free]
            )  # the command that starts an instance and its supervisor keep the same ones for a moment


def test_ports_come_from_the_range_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RANGE_VARIABLE, "31000-31002")
    with LoopbackPorts() as ports:
        assert {ports.free() for _ in range(3)} == {31000, 31001, 31002}
        with pytest.raises(ConfigError, match="no free port was found from 31000 to 31002: name others with"):
            ports.free()


@pytest.mark.parametrize("text", ["20000", "0-5", "30000-20000", "1-70000", "a-b"])
def test_what_is_no_range_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(RANGE_VARIABLE, text)
    with LoopbackPorts() as ports, pytest.raises(ConfigError, match=f"{RANGE_VARIABLE}={text}: expected two ports"):
        ports.free()


def test_a_new_plan_leaves_its_ports_kept_for_whoever_starts_it() -> None:
    with LoopbackPorts() as ports:
        plan = make_plan(["us"], brokers={"us": 1}, bookies=2, wan="none", ports=ports)
        for port in plan.ports():
            with pytest.raises(OSError):
                bind(port)


def test_all_ports_of_a_plan_are_known() -> None:
    plan = make_plan(["us", "eu"], brokers={"us": 2, "eu": 1}, bookies=2, wan="default", tls=True)
    us = plan.region("us")
    assert plan.ports() >= {
        us.service_port,
        us.service_tls_port,
        us.admin_port,
        us.health_port,
        us.bookies[0].ports["http"],
        us.metadata.ports["raft"],
    }
    assert plan.ports() >= {plan.toxiproxy_port, *(link.port for link in plan.links)} and 0 not in plan.ports()
    with LoopbackPorts() as ports:
        ports.keep(plan.ports())
        with pytest.raises(OSError):
            bind(us.brokers[1].ports["link"])
