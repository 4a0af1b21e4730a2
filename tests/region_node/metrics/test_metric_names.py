"""What a broker's /metrics claims of Pulsar's metrics (`pulsar_metrics.tsv`): every name, with its kind and its
labels.
"""

from __future__ import annotations

import contextlib
import re
import urllib.request
from pathlib import Path

import pytest

from tests.region_node.live import until
from tests.region_node.one_topic import provision
from tests.region_node.region_processes import Region

pulsar = pytest.importorskip("pulsar")
pytestmark = [pytest.mark.wan, pytest.mark.slow]

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ")


def shown(url: str) -> tuple[dict[str, str], dict[str, set[str]]]:
    """(name -> kind, name -> sets of labels, sorted, as text). Each family comes once, as one block."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    kinds: dict[str, str] = {}
    labels: dict[str, set[str]] = {}
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in kinds, f"{name} comes twice"
            kinds[name] = kind
        elif found := _LINE.match(line):
            family = next(reversed(kinds))
            members = (family, f"{family}_sum", f"{family}_count") if kinds[family] == "summary" else (family,)
            assert found[1] in members, f"{found[1]} stands outside its family"
            labels.setdefault(found[1], set()).add(",".join(sorted(re.findall(r'(\w+)="', found[2] or ""))))
    return kinds, labels


def test_names_kinds_and_labels_are_pulsars(tmp_path: Path) -> None:
    rows = [
        line.split("\t")
        for line in (Path(__file__).parent / "pulsar_metrics.tsv").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert len(rows) > 120
    with Region(tmp_path) as region:
        region.start(bookies=2, brokers=1, metrics_consumers=True, transaction_coordinator_enabled=True)
        provision(region)
        client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            consumer = client.subscribe("persistent://public/default/m", "s", consumer_type=pulsar.ConsumerType.Shared)
            client.create_producer("persistent://public/default/m").send(b"x")
            consumer.acknowledge(consumer.receive(timeout_millis=60_000))
            client.create_producer("persistent://public/default/s", schema=pulsar.schema.StringSchema())
            for method in ("GET", "DELETE"):
                asked = urllib.request.Request(
                    f"{region.admin_url()}/admin/v2/schemas/public/default/s/schema", method=method
                )
                urllib.request.urlopen(asked, timeout=60).close()
            asked = urllib.request.Request(
                f"{region.admin_url()}/admin/v2/persistent/public/default/m/compaction", method="PUT"
            )
            urllib.request.urlopen(asked, timeout=60).close()
            urllib.request.urlopen(
                f"{region.admin_url()}/admin/v3/transactions/coordinatorStats?coordinatorId=0", timeout=60
            ).close()
            missing: list[tuple[str, str, str]] = []

            def all_there() -> bool:
                kinds, labels = shown(region.admin_url())
                missing[:] = [
                    (name, kind, wanted)
                    for name, kind, wanted in rows
                    if kinds.get(name) != kind or wanted not in labels.get(name, ())
                ]
                return not missing

            with contextlib.suppress(AssertionError):
                until(all_there)
            assert missing == []
        finally:
            client.close()
