"""The Grafana dashboard: it is what its generator makes, and every metric in it is one that running processes give out."""

from __future__ import annotations

import json
import re
import urllib.request

import pulsar

from geo_tests.wan.instance import Instance, eventually
from tools.dashboard import FILE, make

_OF_PROMETHEUS = {"sum", "by", "max", "topk", "rate", "or", "vector", "label_values"}
_NAME = re.compile(r"\b(?:pulsar|bookie|heliograph|process)_[A-Za-z_]+\b")


def _names() -> set[str]:
    def walk(value: object) -> set[str]:
        if isinstance(value, dict):
            return set().union(*(walk(v) for v in value.values()))
        if isinstance(value, list):
            return set().union(*(walk(v) for v in value))
        return set(_NAME.findall(value)) if isinstance(value, str) else set()

    return walk(json.loads(FILE.read_text())) - _OF_PROMETHEUS


def _given(url: str) -> set[str]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


def test_the_file_is_what_its_generator_makes() -> None:
    assert FILE.read_text() == make(), "run `python tools/dashboard.py`"


def test_every_metric_of_it_is_given_out(pair: Instance) -> None:
    topic = "persistent://public/geo/dashboard"
    consumer = pair.client("us").subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    pair.client("us").create_producer(topic, "d").send(b"x")
    consumer.receive(timeout_millis=10_000)
    processes = [row for row in pair.status()["regions"]["us"]["processes"] if row["role"] in ("broker", "bookie")]
    urls = [f"http://127.0.0.1:{row['ports']['admin' if row['role'] == 'broker' else 'http']}/metrics" for row in processes]
    wanted = _names()
    assert len(wanted) > 20

    def missing() -> set[str]:
        return wanted - set().union(*(_given(url) for url in urls))

    eventually(lambda: not missing(), "every metric of the dashboard")
    consumer.close()
