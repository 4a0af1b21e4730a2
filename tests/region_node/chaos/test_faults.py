"""Faults are refused where they cannot be made, with the step's line; what began is ended. (Those of processes and
paths want real ones: geo_tests/wan/test_chaos_run.py.)
"""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.model.errors import ConfigError
from region_node.chaos.faults import StepFaults
from region_node.chaos.scenario import scenario_of
from tests.region_node.chaos.memory_regions import MemoryRegions


def faults(folder: Path, *steps: str, names: tuple[str, ...] = ("us", "eu")) -> StepFaults:
    scenario = scenario_of("".join(f"[[step]]\n{step}\n" for step in steps), "s.toml")
    return StepFaults(scenario, MemoryRegions(names), names, folder)


@pytest.mark.parametrize(
    ("step", "names", "said"),
    [
        ('fault = "cut"\nbetween = ["us", "ap"]', ("us", "eu"), "there is no region 'ap' under load: us, eu"),
        ('fault = "unload"\nregion = "ap"', ("us",), "there is no region 'ap' under load: us"),
        ('fault = "cut"', ("us",), "is between regions: give --admin a URL of each"),
        ('fault = "kill"', ("us",), "heliograph up --data"),
    ],
)
def test_what_is_not_there_is_said_before_anything_is_done(
    tmp_path: Path, step: str, names: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError) as wrong:
        faults(tmp_path, 'fault = "command"\nrun = "true"', step, names=names).check()
    assert said in str(wrong.value)


@pytest.mark.slow
def test_a_command_is_run_with_the_topic_and_undone(tmp_path: Path) -> None:
    here = tmp_path / "here"
    command = f"echo $HELIOGRAPH_CHAOS_TOPIC $HELIOGRAPH_CHAOS_REGIONS > {here}"
    step = f"fault = \"command\"\nrun = '{command}'\nundo = 'rm {here}'"
    made = faults(tmp_path, step)
    made.check()
    (only,) = scenario_of(f"[[step]]\n{step}\n", "s.toml").steps
    fault = made.begin(only)
    assert here.read_text() == "persistent://public/chaos/numbers us,eu\n" and fault.where == "line 1"
    fault.heal()
    assert not here.exists()


@pytest.mark.slow
def test_a_command_that_fails_is_named_and_undone_as_well(tmp_path: Path) -> None:
    undone = tmp_path / "undone"
    step = f"fault = \"command\"\nrun = 'echo no such pod >&2; exit 3'\nundo = 'touch {undone}'"
    (only,) = scenario_of(f"[[step]]\n{step}\n", "s.toml").steps
    with pytest.raises(ConfigError, match=r"line 1 \(command\) cannot be done: run ended with 3: .*no such pod"):
        faults(tmp_path, step).begin(only)
    assert undone.exists()


def test_a_topic_is_unloaded_in_the_region_that_the_step_names(tmp_path: Path) -> None:
    scenario = scenario_of('[[step]]\nfault = "unload"\nregion = "eu"\n', "s.toml")
    regions = MemoryRegions(["us", "eu"])
    fault = StepFaults(scenario, regions, regions.names, tmp_path).begin(scenario.steps[0])
    assert regions.asked == [("PUT", "/admin/v2/persistent/public/chaos/numbers/unload", None)] and fault.where == "eu"
