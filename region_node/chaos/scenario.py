"""A scenario of `heliograph chaos run`: what is published and read, what is broken when, and for how long.

Is: a TOML file, checked. Isn't: doing it (`conductor`, `faults`).
Steps that say no time are done one after another, each once everything is whole again, in their order or in one that
the seed draws. Steps that say `at_s` begin then, counted from when the load runs, and may overlap.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heliograph.model.errors import ConfigError

EXAMPLE = """\
# A scenario of `heliograph chaos run`. Without steps of yours, this one cuts, slows, kills, and stops, under load.
name = "a link, a broker, a bookie"
seed = 1                # what is left open below is drawn by it: run again, it is the same
order = "given"         # "random": the steps in an order that the seed draws (none of them may say at_s then)
rounds = 1              # so often all steps
patience_s = 120        # behind each fault everything must be whole again, by itself, in this time

[load]                  # numbered messages, published and read in each region
client = "pulsar"       # "kafka": Kafka's protocol, by confluent-kafka; then [load.kafka] names an address by region
topic = "persistent://public/chaos/numbers"   # it, and its namespace (replicated, deduplication on), are made if absent
# regions = ["us", "eu"]  # left out: each region of --admin
rate_per_s = 50         # in each region
size_bytes = 200
keys = 16               # messages have so many keys; order is judged by key. 0: none, order is by producer
consumers = 2           # of one subscription in each region; more than one need keys
# active = "us"          # the namespace takes messages in this region alone (it is made active-passive); see "failover"
# deduplication = true  # set for the namespace; left out: on where the namespace is made by this run, else as it is
# repeat_every = 10     # each tenth message is sent twice, as by a producer that has not heard: stored once, with
                        # deduplication; without it the run is reported as broken

# What is broken. Fields of every step: fault, for_s (how long it holds, 5), at_s (seconds from the beginning of the
# load; with it in every step they begin then, and may overlap; without, each waits until all is whole again).

[[step]]                # both ways between two regions; closed connections, and nobody answers
fault = "cut"           # one_way = true: only what the first one opens
between = ["us", "eu"]  # or around = "us": between it and all others. Neither: two regions that the seed draws
for_s = 10

[[step]]                # nothing arrives, connections stay open
fault = "black-hole"
around = "us"
for_s = 12

[[step]]
fault = "latency"
between = ["us", "eu"]
latency_ms = 300        # more than there is, each way
jitter_ms = 50

[[step]]
fault = "bandwidth"
between = ["us", "eu"]
kilobytes_per_s = 20

[[step]]                # connections end at once
fault = "reset"
between = ["us", "eu"]

[[step]]                # SIGKILL; started again behind for_s. Processes are those of `heliograph status`
fault = "kill"
role = "broker"         # broker, bookie, or meta; with region = "us" one there. Or process = "us-broker-0"

[[step]]                # SIGSTOP, and on again
fault = "stop"
role = "bookie"

[[step]]                # the owner closes the topic, and opens it again
fault = "unload"
region = "us"

# [[step]]              # with active = "us" in [load]: us is cut off for for_s, eu takes over, us comes back and
# fault = "failover"    # rejoins; what was reported as at risk is held against what us had alone; nothing of it is lost
# to = "eu"

# [[step]]              # a fault of your own: commands of your shell. Each must end with 0; `undo` is run in any case.
# fault = "command"     # HELIOGRAPH_CHAOS_TOPIC and HELIOGRAPH_CHAOS_REGIONS are set
# run = "kubectl -n us delete pod us-broker-0"
# undo = ""
# for_s = 20
"""

_WHERE = frozenset({"between", "around", "one_way"})
_WHICH = frozenset({"process", "role", "region"})
FAULTS: Mapping[str, frozenset[str]] = {
    "cut": _WHERE,
    "black-hole": _WHERE,
    "latency": _WHERE | {"latency_ms", "jitter_ms"},
    "bandwidth": _WHERE | {"kilobytes_per_s"},
    "reset": _WHERE,
    "kill": _WHICH,
    "stop": _WHICH,
    "unload": frozenset({"region"}),
    "failover": frozenset({"to"}),
    "command": frozenset({"run", "undo"}),
}
"""Kind -> its fields, beside those of every step."""
WAN_FAULTS = frozenset({"failover", *(kind for kind, fields in FAULTS.items() if fields >= _WHERE)})
PROCESS_FAULTS = frozenset(kind for kind, fields in FAULTS.items() if fields >= _WHICH)
ROLES = ("broker", "bookie", "meta")
CLIENTS = ("pulsar", "kafka")
TOPIC = "persistent://public/chaos/numbers"
_OF_ALL = frozenset({"fault", "at_s", "for_s"})
_NOT_BY_KAFKA = {
    "repeat_every": "its client sends nothing twice by itself; take it out",
    "consumers": "the topic has one partition, which one member of a group reads; take it out",
    "active": "a failover is judged by Pulsar's client; take it out",
}
_NEEDS = {"latency": "latency_ms", "bandwidth": "kilobytes_per_s", "command": "run", "failover": "to"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioStep:
    """One fault. line: where it stands in the file. at_s: None where steps wait for each other. between, around,
    process, role, region: empty where the seed draws. to: which region takes over.
    """

    fault: str
    line: int
    at_s: float | None = None
    for_s: float = 5.0
    between: tuple[str, ...] = ()
    around: str = ""
    one_way: bool = False
    process: str = ""
    role: str = ""
    region: str = ""
    latency_ms: int = 0
    jitter_ms: int = 0
    kilobytes_per_s: int = 0
    to: str = ""
    run: str = ""
    undo: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What is published and read. regions: none: all. active: the one region that takes messages; "": each.
    deduplication: None: as it is, or on in what the run makes.
    kafka: region -> host:port.
    """

    client: str = "pulsar"
    topic: str = TOPIC
    regions: tuple[str, ...] = ()
    active: str = ""
    rate_per_s: float = 50.0
    size_bytes: int = 0
    keys: int = 0
    consumers: int = 1
    deduplication: bool | None = None
    repeat_every: int = 0
    kafka: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A whole file. order: `given` or `random`; patience_s: behind each fault."""

    name: str
    seed: int = 1
    order: str = "given"
    rounds: int = 1
    patience_s: float = 120.0
    load: LoadPlan
    steps: tuple[ScenarioStep, ...]

    @property
    def timed(self) -> bool:
        return self.steps[0].at_s is not None

    def ordered(self) -> list[ScenarioStep]:
        """The steps of all rounds, as they are begun."""
        if self.timed:
            return sorted(self.steps, key=lambda step: (step.at_s or 0.0, step.line))
        rng = random.Random(self.seed)
        rounds = list[Sequence[ScenarioStep]]()
        for _ in range(self.rounds):
            rounds.append(rng.sample(self.steps, len(self.steps)) if self.order == "random" else self.steps)
        return [step for one in rounds for step in one]


def scenario_of(text: str, name: str) -> Scenario:
    """name: of the file, for errors. Raises ConfigError with the line, the field, and what to do."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is no TOML: {error}; `heliograph chaos run --example` prints a scenario") from error
    return _Reader(text, name).scenario(given)


class _Reader:
    """Checks what TOML has given, and says of what is wrong in which line it stands."""

    def __init__(self, text: str, name: str) -> None:
        self._lines, self._name = text.splitlines(), name
        self._steps = [n for n, line in enumerate(self._lines, 1) if re.match(r"\s*\[\[\s*step\s*\]\]", line)]

    def scenario(self, given: Mapping[str, Any]) -> Scenario:
        known = {"name", "seed", "order", "rounds", "patience_s", "load", "step"}
        self._only(given, known, 1, "a scenario")
        order = self._one_of(given, "order", ("given", "random"), "given", 1)
        steps = self._all_steps(given.get("step"))
        made = Scenario(
            name=self._text(given, "name", 1) or self._name,
            seed=int(self._number(given, "seed", 1, 1, whole=True)),
            order=order,
            rounds=int(self._number(given, "rounds", 1, 1, least=1, whole=True)),
            patience_s=self._number(given, "patience_s", 120.0, 1, least=1),
            load=self._load(given.get("load", {})),
            steps=steps,
        )
        if made.timed and (order == "random" or made.rounds > 1):
            field = "order" if order == "random" else "rounds"
            raise self._wrong(1, field, "is for steps that wait for each other: take it out, or at_s of every step")
        for step in steps:
            if step.fault == "failover" and not made.load.active:
                raise self._wrong(step.line, "fault", 'is "failover": say who takes messages: active = "us" in [load]')
            if step.fault == "failover" and made.timed:
                raise self._wrong(step.line, "at_s", "is not for a failover, which waits until it is over: take it out")
        return made

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _load(self, given: Any) -> LoadPlan:
        line = self._header("load")
        if not isinstance(given, dict):
            raise self._wrong(1, "load", "is a table: begin it with [load]")
        self._only(given, set(LoadPlan.__dataclass_fields__), line, "[load]")
        topic = self._text(given, "topic", line) or TOPIC
        if not re.fullmatch(r"persistent://[^/]+/[^/]+/[^/]+", topic):
            raise self._wrong(line, "topic", f"is {topic!r}: it is persistent://tenant/namespace/name")
        keys = int(self._number(given, "keys", 0, line, least=0, whole=True))
        consumers = int(self._number(given, "consumers", 1, line, least=1, whole=True))
        client = self._one_of(given, "client", CLIENTS, "pulsar", line)
        if consumers > 1 and not keys and client == "pulsar":
            raise self._wrong(line, "consumers", "of one subscription share it by key: say keys = 16, or consumers = 1")
        if client == "kafka":
            for name, why in _NOT_BY_KAFKA.items():
                if given.get(name, 1) not in (0, 1, ""):
                    raise self._wrong(line, name, f'is not for client = "kafka": {why}')
        deduplication = given.get("deduplication")
        if deduplication not in (None, True, False):
            raise self._wrong(line, "deduplication", "is true or false, without quotes")
        kafka = given.get("kafka", {})
        if not isinstance(kafka, dict) or not all(isinstance(value, str) for value in kafka.values()):
            raise self._wrong(line, "kafka", 'is a table of addresses by region: [load.kafka], then us = "host:9092"')
        if client == "kafka" and not kafka:
            raise self._wrong(
                line, "client", 'is "kafka": say where each region listens: [load.kafka], us = "host:9092"'
            )
        return LoadPlan(
            client=client,
            topic=topic,
            regions=self._texts(given, "regions", line),
            active=self._text(given, "active", line),
            rate_per_s=self._number(given, "rate_per_s", 50.0, line, least=0.1),
            size_bytes=int(self._number(given, "size_bytes", 0, line, least=0, whole=True)),
            keys=keys,
            consumers=consumers,
            deduplication=deduplication,
            repeat_every=int(self._number(given, "repeat_every", 0, line, least=0, whole=True)),
            kafka=kafka,
        )

    def _all_steps(self, given: Any) -> tuple[ScenarioStep, ...]:
        if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
            raise ConfigError(
                f"{self._name} has no step: each begins with [[step]] and says its fault; "
                "`heliograph chaos run --example` prints some"
            )
        lines = self._steps if len(self._steps) == len(given) else [1] * len(given)
        steps = tuple(self._step(each, line) for each, line in zip(given, lines, strict=True))
        timed = [step.at_s is not None for step in steps]
        if any(timed) and not all(timed):
            step = steps[timed.index(False)]
            raise self._wrong(step.line, "at_s", "is missing, and other steps have it: say it in each step, or in none")
        return steps

    def _step(self, given: Mapping[str, Any], line: int) -> ScenarioStep:
        fault = self._one_of(given, "fault", tuple(FAULTS), "", line)
        if not fault:
            raise self._wrong(line, "fault", f"is missing: one of {', '.join(FAULTS)}")
        self._only(given, FAULTS[fault] | _OF_ALL, line, f"a step with fault = {fault!r}")
        if (needed := _NEEDS.get(fault)) and needed not in given:
            raise self._wrong(line, needed, f"is missing: fault = {fault!r} needs it")
        between, around = self._texts(given, "between", line), self._text(given, "around", line)
        if "between" in given and (len(between) != 2 or between[0] == between[1]):
            raise self._wrong(line, "between", 'names two regions, as ["us", "eu"]')
        if between and around:
            raise self._wrong(line, "around", "cannot stand beside between: keep one of them")
        process, role = self._text(given, "process", line), self._one_of(given, "role", ROLES, "", line)
        if process and (role or "region" in given):
            raise self._wrong(line, "process", "says which one already: leave role and region out")
        one_way = given.get("one_way", False)
        if not isinstance(one_way, bool):
            raise self._wrong(line, "one_way", "is true or false, without quotes")
        numbers = {
            name: int(self._number(given, name, 0, line, least=0, whole=True))
            for name in ("latency_ms", "jitter_ms", "kilobytes_per_s")
        }
        return ScenarioStep(
            fault=fault,
            line=line,
            at_s=self._number(given, "at_s", 0.0, line, least=0) if "at_s" in given else None,
            for_s=self._number(given, "for_s", 5.0, line, least=0),
            between=between,
            around=around,
            one_way=one_way,
            process=process,
            role=role,
            region=self._text(given, "region", line),
            to=self._text(given, "to", line),
            run=self._text(given, "run", line),
            undo=self._text(given, "undo", line),
            **numbers,
        )

    # -- values --------------------------------------------------------------------------------------------------------

    def _only(self, given: Mapping[str, Any], known: set[str] | frozenset[str], line: int, where: str) -> None:
        if unknown := sorted(given.keys() - known):
            raise self._wrong(line, unknown[0], f"is no field of {where}: it has {', '.join(sorted(known))}")

    def _text(self, given: Mapping[str, Any], name: str, line: int) -> str:
        value = given.get(name, "")
        if not isinstance(value, str):
            raise self._wrong(line, name, f"is {value!r}: it is a text, in quotes")
        return value

    def _texts(self, given: Mapping[str, Any], name: str, line: int) -> tuple[str, ...]:
        value = given.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._wrong(line, name, f'is {value!r}: it is a list of names, as ["us", "eu"]')
        return tuple(value)

    def _one_of(self, given: Mapping[str, Any], name: str, known: tuple[str, ...], default: str, line: int) -> str:
        value = given.get(name, default)
        if name in given and value not in known:
            raise self._wrong(line, name, f"is {value!r}: it is one of {', '.join(known)}")
        return str(value)

    def _number(
        self,
        given: Mapping[str, Any],
        name: str,
        default: float,
        line: int,
        *,
        least: float | None = None,
        whole: bool = False,
    ) -> float:
        value = given.get(name, default)
        kind = "a whole number" if whole else "a number"
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise self._wrong(line, name, f"is {value!r}: it is {kind}")
        if least is not None and value < least:
            raise self._wrong(line, name, f"is {value!r}: it is {kind}, {least:g} or more")
        return value

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _header(self, table: str) -> int:
        """The line of a table's header; 1 where it has none of its own."""
        wanted = re.compile(rf"\s*\[\s*{re.escape(table)}\s*\]")
        return next((n for n, line in enumerate(self._lines, 1) if wanted.match(line)), 1)

    def _wrong(self, line: int, name: str, what: str) -> ConfigError:
        """line: where the field's table begins."""
        wanted = re.compile(rf"\s*\[?\s*(?:\w+\.)?[\"']?{re.escape(name)}[\"']?\s*(?:=|\])")
        for number, text in enumerate(self._lines[line - 1 :], line):
            if number > line and text.lstrip().startswith("[") and not wanted.match(text):
                break
            if wanted.match(text):
                line = number
                break
        return ConfigError(f"{self._name}, line {line}: {name} {what}")
