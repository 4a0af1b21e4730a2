"""`heliograph wan` on an instance whose clients and bookies are behind proxies, too: what is set reaches who is named,
whoever is not goes on, and afterwards everything arrives. How large the effect is: tests/system/test_network_faults.py.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geo_tests.wan.instance import Instance, eventually, heliograph
from geo_tests.wan.streams import assert_same_everywhere
from region_node.chaos.streams import NumberedStream
from tests.guide.page import Page
from tests.guide.shell import Reader, Shell

TOPIC = "persistent://public/geo/faults"


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Regions us and eu, 20 ms apart, of a broker and two bookies each."""
    folder = tmp_path_factory.mktemp("proxied")
    (folder / "wan.json").write_text(json.dumps({"us-eu": {"rtt_ms": 20, "jitter_ms": 0}}))
    instance = Instance(folder / "data", regions=("us", "eu"), wan=str(folder / "wan.json"), proxied=True)
    try:
        instance.namespace("public/geo", ["us", "eu"])
        yield instance
    finally:
        instance.down()


def wan(instance: Instance, *words: str) -> Any:
    return json.loads(heliograph("wan", *words, "--data", str(instance.data), "--json").stdout)


def unusual(instance: Instance) -> list[tuple[str, str]]:
    return sorted({(side["from"], side["to"]) for side in wan(instance, "show") if not side["usual"]})


def test_each_part_is_cut_and_healed_and_nothing_is_lost(proxied: Instance) -> None:
    us, eu = (NumberedStream(proxied, region, TOPIC) for region in ("us", "eu"))
    for stream in (us, eu):
        stream.publish(20)
        stream.finish()

    wan(proxied, "cut", "brokers", "us")
    us.publish(20)
    eu.publish(20)
    eu.finish()
    assert us.acked <= 20, "no bookie of us can be reached, and nothing is acknowledged without one"
    wan(proxied, "heal", "us", "brokers")
    us.finish()

    wan(proxied, "cut", "clients", "eu-broker-0")
    eu.publish(20)
    us.publish(20)
    us.finish()
    assert eu.acked <= 40
    assert unusual(proxied) == [("clients", "eu-broker-0"), ("eu-broker-0", "clients")]
    wan(proxied, "heal")
    eu.finish()

    wan(proxied, "set", "us", "eu", "--latency", "60ms", "--jitter", "10ms", "--reset-after", "400ms", "--for", "4s")
    assert unusual(proxied) == [("eu", "us"), ("us", "eu")]
    while unusual(proxied):  # the command that set it is long gone
        us.publish(5)
        eu.publish(5)
        us.finish()
        eu.finish()
    assert_same_everywhere(proxied, TOPIC, [us, eu])


def test_every_fault_ends_with_its_tool(proxied: Instance) -> None:
    wan(proxied, "set", "us", "eu", "--bandwidth", "8kbit")
    wan(proxied, "set", "brokers", "us-bookie-0", "--latency", "5s")
    os.kill(int(proxied.status()["wan"]["pid"]), signal.SIGKILL)
    eventually(lambda: not unusual(proxied), "Toxiproxy is back, with nothing wrong")
    stream = NumberedStream(proxied, "us", f"{TOPIC}-again")
    stream.publish(5)
    stream.finish()
    wan(proxied, "set", "clients", "us", "--latency", "5s")
    proxied.down()
    proxied.up()
    assert unusual(proxied) == []


@pytest.mark.long
def test_every_command_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    with Shell(tmp_path) as shell:
        page = Reader(Page.read("network-faults.md"), shell)
        try:
            page.section("Network faults on purpose")
            page.section("Faults")
            page.section("The end")
            page.finish()
        finally:
            heliograph("down", "--data", str(tmp_path / ".heliograph"), check=False)
