"""A broker's process under hostile requests over sockets: it lives, logs no failure, and lets everything go. `make fuzz
OVER=sockets` sends many more.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.wire.kafka.message_codec import BY_NAME
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.commands.command_table import SERVED
from tests.region_node.faces.guarded_region import guarded_region
from tests.region_node.faces.hostile_lines import Attack
from tests.region_node.faces.kafka.hostile import KafkaCases
from tests.region_node.faces.pulsar.codec import FIELDS
from tests.region_node.faces.pulsar.hostile import PulsarCases, plan
from tests.region_node.faces.socket_fuzzing import Looks, Watch, main
from tests.region_node.live import until

TOKENS = dict.fromkeys("gocptls", "TOKEN")
GRAMMARS = [PulsarCases, KafkaCases]
CASES = 300


def test_each_field_of_each_command_of_pulsars_clients_has_hostile_values() -> None:
    fields: dict[str, int] = {}
    for about, _, _ in plan():
        fields[about] = fields.get(about, 0) + 1
    for kind in SERVED:
        name = FIELDS[kind]
        for field in getattr(pb.BaseCommand(), name).DESCRIPTOR.fields:
            assert fields[f"{name}.{field.name}"] >= 10, f"{name}.{field.name}"
    assert {f"MessageMetadata.{field.name}" for field in pb.MessageMetadata.DESCRIPTOR.fields} <= set(fields)


def test_each_request_of_kafka_comes_in_each_version() -> None:
    widest = max(api.highest - api.lowest + 1 for api in BY_NAME.values())
    cases = KafkaCases(TOKENS)
    seen = {cases.case(1, number).about.partition(":")[0] for number in range(2 * widest * len(BY_NAME))}
    wanted = {f"{api.name} {version}" for api in BY_NAME.values() for version in range(api.lowest, api.highest + 1)}
    assert len(wanted - seen) < len(wanted) // 10


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_case_is_the_same_whatever_came_before_it(grammar: Any) -> None:
    cases = grammar(TOKENS)
    late = [cases.case(7, number) for number in range(40)][31:]
    assert [grammar(TOKENS).case(7, number) for number in range(31, 40)] == late
    assert grammar(TOKENS).case(8, 31) != late[0]


def test_a_case_is_shown_without_being_sent(capsys: pytest.CaptureFixture[str]) -> None:
    main("m", "a", PulsarCases, ["--seed", "7", "--case", "31", "--show"])
    case = PulsarCases(TOKENS).case(7, 31)
    shown = capsys.readouterr().out
    assert shown.startswith(f"case 31 of seed 7, as {case.letter}: {case.about}\n")
    assert case.data[:2000].hex() in shown


def test_a_process_that_ends_or_logs_a_failure_is_found_once(tmp_path: Path) -> None:
    log, ended = tmp_path / "log", SimpleNamespace(poll=lambda: None, returncode=None)
    log.write_text("2026-11-28 23:13:12,176 ERROR before=the-attack\n")
    process = SimpleNamespace(log_path=log, popen=ended)
    watch = Watch(SimpleNamespace(processes={"us-broker-0": process}))  # type: ignore[arg-type]
    with log.open("a") as more:
        more.write('2026-11-28 23:13:12,176 INFO request.refused error="command ERROR is none that a client sends"\n')
        more.write("2026-11-28 23:13:12,176 ERROR ownership.lease_lost broker=us-broker-0 bundles=4\n")
        more.write("2026-11-28 23:13:12,176 ERROR task.failed\n2026-11-28 23:13:12,176 ERR")
    assert watch.findings("near 5") == ["us-broker-0 logged near 5: 2026-11-28 23:13:12,176 ERROR task.failed"]
    assert watch.stood_still == ["near 5"], "which any work on the machine may be the cause of"
    ended.poll, ended.returncode = (lambda: -11), -11
    with log.open("a") as more:
        more.write("OR cut\n")
    assert [found.partition(":")[0] for found in watch.findings("near 6")] == [
        "us-broker-0 ended with -11 near 6",
        "us-broker-0 logged near 6",
    ]
    assert watch.findings("near 7") == []


@pytest.mark.slow
@pytest.mark.wan
def test_a_brokers_process_takes_hostile_requests(tmp_path: Path) -> None:
    with guarded_region(tmp_path) as region:
        watch = Watch(region)
        for grammar in GRAMMARS:
            cases = grammar(region.tokens)
            attack = Attack(cases, region.port(cases.face), seed=1)
            looks = Looks(watch, attack)
            attack.run(iter(range(CASES)), looks.look)
            looks.look()
            outcome, ends = attack.outcome, attack.outcome.ends
            assert outcome.findings == []
            assert outcome.sent == CASES and not outcome.turned_away
            assert ends["answered"] + ends["refused"] > CASES // 4, "most would say that nothing is reached"
            assert ends["answered"] > CASES // 8 and ends["refused"] > CASES // 20 and ends["closed"] > CASES // 4
            assert outcome.connections < CASES, "cases share connections"
            until(lambda port=attack.port: watch.connections(port) == 0)
