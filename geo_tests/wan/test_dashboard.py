"""The Grafana dashboards: they are what their generator makes, and every metric in them is one that running processes
give out.

Whether Prometheus answers each of their queries: tests/system/test_alerts.py.
"""

from __future__ import annotations

import re
import urllib.request

import pulsar
import pytest

from geo_tests.wan.instance import Instance, eventually
from tools.dashboards import BOARDS, FOLDER, KAFKA, file_of, make, queries

_NAME = re.compile(r"\b(?:pulsar|bookie|heliograph|process)_[A-Za-z_]+\b")


def _given(url: str) -> set[str]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_the_files_are_what_their_generator_makes(board: object) -> None:
    known = next(one for one in BOARDS if one is board)
    assert file_of(known).read_text() == make(known), "run `python tools/dashboards.py`"


def test_there_are_no_other_files() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {file_of(board).name for board in BOARDS}


def test_every_metric_of_them_is_given_out(pair: Instance) -> None:
    topic = "persistent://public/geo/dashboard"
    consumer = pair.client("us").subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    pair.client("us").create_producer(topic, "d").send(b"x")
    consumer.receive(timeout_millis=60_000)
    processes = [row for row in pair.status()["regions"]["us"]["processes"] if row["role"] in ("broker", "bookie")]
    urls = [
        f"http://127.0.0.1:{row['ports']['admin' if row['role'] == 'broker' else 'http']}/metrics" for row in processes
    ]
    wanted = {
        name for board in BOARDS if board is not KAFKA for query in queries(board) for name in _NAME.findall(query)
    }
    assert len(wanted) > 40

    def missing() -> set[str]:
        return wanted - set().union(*(_given(url) for url in urls))

    eventually(lambda: not missing(), "every metric of the dashboards")
    consumer.close()
