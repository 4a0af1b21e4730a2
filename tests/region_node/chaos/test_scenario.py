"""A scenario says what is done; what is wrong with one is said with its line, its field, and what to do."""

from __future__ import annotations

import pytest

from heliograph.model.errors import ConfigError
from region_node.chaos.scenario import EXAMPLE, FAULTS, scenario_of

STEP = '[[step]]\nfault = "cut"\n'


def test_the_example_is_a_scenario_and_shows_every_fault() -> None:
    made = scenario_of(EXAMPLE, "example.toml")
    assert {step.fault for step in made.steps} | {"command", "failover"} == set(FAULTS)
    for kind, fields in FAULTS.items():
        assert all(name in EXAMPLE for name in (*fields, f'fault = "{kind}"')), kind
    assert EXAMPLE.splitlines()[made.steps[0].line - 1].startswith("[[step]]")
    assert (made.load.keys, made.load.consumers, made.load.deduplication) == (16, 2, None)
    own = EXAMPLE
    for field in ("[[step]]", "fault", "run =", "to =", "active ="):
        own = own.replace(f"# {field}", field)
    failover, command = scenario_of(own, "example.toml").steps[-2:]
    assert failover.to == "eu" and command.run, "what is commented out is a step, too"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed = 'x'\n" + STEP, "s.toml, line 1: seed is 'x': it is a whole number"),
        (STEP + 'between = ["us"]\n', 's.toml, line 3: between names two regions, as ["us", "eu"]'),
        (STEP + 'between = ["us", "eu"]\naround = "us"\n', "line 4: around cannot stand beside between"),
        (STEP + "\n[[step]]\nfault = 'latency'\n", "line 4: latency_ms is missing: fault = 'latency' needs it"),
        (STEP + "for_s = -1\n", "line 3: for_s is -1: it is a number, 0 or more"),
        (STEP + "for = 3\n", "line 3: for is no field of a step with fault = 'cut': it has around, at_s,"),
        (STEP + "one_way = 'yes'\n", "line 3: one_way is true or false, without quotes"),
        ("[[step]]\nfault = 'cuts'\n", "line 2: fault is 'cuts': it is one of cut, black-hole,"),
        ("[[step]]\nfor_s = 3\n", "line 1: fault is missing: one of cut,"),
        ("[[step]]\nfault='kill'\nprocess='us-broker-0'\nrole='broker'\n", "line 3: process says which one already"),
        (STEP + "at_s = 1\n\n" + STEP, "line 5: at_s is missing, and other steps have it"),
        ("order = 'random'\n" + STEP + "at_s = 1\n", "line 1: order is for steps that wait for each other"),
        ("name = 'n'\nrounds = 2\n" + STEP + "at_s = 1\n", "line 2: rounds is for steps that wait"),
        ("[load]\n\nkeys = -1\n" + STEP, "line 3: keys is -1: it is a whole number, 0 or more"),
        ("[load]\nconsumers = 2\n" + STEP, "line 2: consumers of one subscription share it by key: say keys = 16"),
        ("[load]\ntopic = 'numbers'\n" + STEP, "line 2: topic is 'numbers': it is persistent://tenant/namespace/name"),
        ("[load]\nclient = 'kafka'\n" + STEP, 'line 2: client is "kafka": say where each region listens'),
        ("[load]\ndeduplication = 'no'\n" + STEP, "line 2: deduplication is true or false"),
        ("[[step]]\nfault = 'failover'\nto = 'eu'\n", 'line 2: fault is "failover": say who takes messages: active'),
        ("[load]\nactive='us'\n[[step]]\nfault = 'failover'\n", "line 3: to is missing: fault = 'failover' needs it"),
        (
            "[load]\nactive='us'\n[[step]]\nfault='failover'\nto='eu'\nat_s = 1\n",
            "line 6: at_s is not for a failover",
        ),
        (
            "[load]\nclient = 'kafka'\nrepeat_every = 9\n[load.kafka]\nus = 'h:1'\n" + STEP,
            'line 3: repeat_every is not for client = "kafka"',
        ),
        (
            "[load]\nclient = 'kafka'\nactive = 'us'\n[load.kafka]\nus = 'h:1'\n" + STEP,
            'line 3: active is not for client = "kafka"',
        ),
        ("loads = 3\n" + STEP, "line 1: loads is no field of a scenario: it has load, name,"),
        ("name = 'nothing'\n", "s.toml has no step: each begins with [[step]]"),
        ("[[step]\n", "s.toml is no TOML: "),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_what_to_do(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        scenario_of(text, "s.toml")
    assert said in str(wrong.value)


def test_the_seed_draws_the_order_of_each_round() -> None:
    text = 'order = "random"\nrounds = 3\nseed = %d\n' + "".join(
        f'[[step]]\nfault = "cut"\nfor_s = {n}\n' for n in range(8)
    )
    first, again, other = (scenario_of(text % seed, "s").ordered() for seed in (1, 1, 2))
    assert first == again != other and len(first) == 24
    assert all(sorted(step.for_s for step in first[at : at + 8]) == list(range(8)) for at in (0, 8, 16))


def test_steps_with_times_are_begun_by_them() -> None:
    text = "".join(f'[[step]]\nfault = "cut"\nat_s = {at}\n' for at in (5, 1, 3))
    made = scenario_of(text, "s")
    assert made.timed and [step.at_s for step in made.ordered()] == [1, 3, 5]
    assert made.name == "s" and not scenario_of(STEP, "s").timed
