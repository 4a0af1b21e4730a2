"""Fuzzing of a broker's process over sockets: hostile cases on many connections, beside a bystander in a third process.

Is: an attack on a region of real processes that the run starts and ends, and a report: how the cases ended, whether a
process ended or logged a failure, memory and open descriptors before and after, and how long the bystander waited with
the attack and without it.
Isn't: how the cases are sent (`tests.region_node.faces.hostile_lines`), or a grammar
(`tests.region_node.faces.pulsar.hostile`, `tests.region_node.faces.kafka.hostile`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.region_node.faces.bystander import Bystander
from tests.region_node.faces.guarded_region import Guarded, guarded_region
from tests.region_node.faces.hostile_lines import SILENCE_S, Attack, Cases, Outcome, Step

FAILURE = re.compile(rb"^[\d-]{10} [\d:,]{12} (ERROR|CRITICAL) |Traceback|[Uu]nhandled|never retrieved|never awaited")
"""What no client's bytes may bring into a log."""
STOOD_STILL = b"ownership.lease_lost"
"""Counted apart: a broker that no core is left for logs it too, whatever it is sent."""
BOUND_MS = 100.0
"""How much longer than without an attack a bystander may wait."""
SETTLE_S = 15.0
FILES_MORE_MAX = 20
"""Open descriptors of a broker beyond those before the attack: open ledgers and topics have some."""


@dataclass(slots=True)
class Health:
    """Of all processes, by name: resident bytes, open descriptors, seconds of CPU so far."""

    rss: dict[str, int]
    files: dict[str, int]
    cpu: dict[str, float]


class Watch:
    """The processes of the region from outside: that they live, what they log, what they hold."""

    def __init__(self, region: Guarded) -> None:
        self.region = region
        self.read = {name: one.log_path.stat().st_size for name, one in region.processes.items()}
        self.dead: set[str] = set()
        self.stood_still: list[str] = []

    def health(self) -> Health:
        alive = {name: psutil.Process(one.popen.pid) for name, one in self._living()}
        return Health(
            {name: one.memory_info().rss for name, one in alive.items()},
            {name: one.num_fds() for name, one in alive.items()},
            {name: sum(one.cpu_times()[:2]) for name, one in alive.items()},
        )

    def connections(self, port: int) -> int:
        """How many a process of the region holds there."""
        every = (one for name, process in self._living() for one in psutil.Process(process.popen.pid).net_connections())
        return sum(one.laddr.port == port and one.status != psutil.CONN_LISTEN for one in every)

    def findings(self, near: str) -> list[str]:
        """What is new since the last look."""
        found = []
        for name, process in self.region.processes.items():
            if process.popen.poll() is not None and name not in self.dead:
                self.dead.add(name)
                found.append(f"{name} ended with {process.popen.returncode} {near}")
            with process.log_path.open("rb") as log:
                log.seek(self.read[name])
                new = log.read()
            whole = new.rfind(b"\n") + 1
            self.read[name] += whole
            for line in new[:whole].splitlines():
                if STOOD_STILL in line:
                    self.stood_still.append(near)
                elif FAILURE.search(line):
                    found.append(f"{name} logged {near}: {line[:400].decode(errors='replace')}")
        return found

    def _living(self) -> list[tuple[str, Any]]:
        return [(name, one) for name, one in self.region.processes.items() if one.popen.poll() is None]


class Looks:
    """What is seen each half second of the processes that `attack` is on, as findings and figures of its outcome."""

    def __init__(self, watch: Watch, attack: Attack) -> None:
        self.watch, self.attack, self.last = watch, attack, (0.0, 0)

    def look(self) -> bool:
        """Whether all of them live."""
        outcome, near = self.attack.outcome, self.near()
        outcome.findings += self.watch.findings(near)
        health = self.watch.health()
        outcome.highest_rss = max((outcome.highest_rss, *health.rss.values()))
        cpu = max(health.cpu.values(), default=0.0)
        before, sent = self.last
        if self.last != (0.0, 0):
            outcome.costliest = max(outcome.costliest, ((cpu - before) / max(1, outcome.sent - sent), near))
        self.last = cpu, outcome.sent
        outcome.moments.append((time.monotonic(), self.attack.latest))
        return not self.watch.dead

    def near(self) -> str:
        """The cases that may have brought what is seen now."""
        return f"near cases {self.attack.lowest} to {self.attack.latest}"


def ready(region: Guarded) -> None:
    """The bystander's topic, which nobody else may touch."""
    status, said = region.ask("l", "PUT", "/admin/v2/persistent/house/main/quiet")
    assert status == 204, said


@contextlib.contextmanager
def folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="fuzz-") as made:
        yield Path(made)


EPILOG = """\
how it goes
  The run starts a region of its own on loopback: one process for metadata, two bookies, one broker, with tokens and
  rights. An honest client in another process (Pulsar's official one, or librdkafka) publishes and reads in tenant
  `house`. Then cases come on many connections, as nobody, as roles without and with grants, and as the admin of tenant
  `shop`: requests that are valid but for one field, alone or behind a sign-in, a producer, or a consumer. Cases with
  the same before them share a connection until one of them ends it, a few on their way at once.
  At its end, also at Ctrl-C, the region and the client are ended by their process ids, and a report is printed. The
  exit code is 1 where something was found.

how a case ends
  answered or refused: what was sent behind it is answered, and it is itself where it is to be answered; refused: by an
  error. closed: the broker closed the connection, and all that came before the case was answered; cases behind it were
  not looked at, and are sent again. silent: neither within 3 s, twice; rightly where something waits.

what is a finding
  a process that ended; a line of a log with Traceback, "unhandled", or level ERROR; an exchange of the bystander that
  failed; an answer that cannot be read; more than 20 descriptors beyond those before, 15 s after the attack. Verdicts
  on the bystander's longest wait (at most 100 ms more than in an equally long run without an attack) and memory are
  printed and fail nothing: other work on this machine may be what it waited for.

examples
  a million cases:                    python -m {module} --over sockets --cases 1000000
  one case again, alone:              python -m {module} --over sockets --seed 7 --case 31337
  the cases before it too:            python -m {module} --over sockets --seed 7 --case 31000 --cases 400
  what a case would send:             python -m {module} --over sockets --seed 7 --case 31337 --show
  what one hostile case does to others, on a broker that is not busy with many at once:
                                      python -m {module} --over sockets --connections 4 --rate 50
  keep data and logs of the region:   python -m {module} --over sockets --data /tmp/region
"""


def options(module: str, about: str, arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {module} --over sockets",
        description=about,
        epilog=EPILOG.format(module=module),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=int, help="how many (100,000; 1 with --case)")
    parser.add_argument("--seed", type=int, default=1, help="another one makes other cases of the same numbers (1)")
    parser.add_argument("--case", type=int, metavar="M", help="begin with case M; alone, unless --cases says more")
    parser.add_argument("--connections", type=int, default=32, help="how many at a time (32)")
    parser.add_argument("--rate", type=float, default=0.0, help="cases a second at most (as many as are answered)")
    parser.add_argument("--calm-s", type=float, help="how long the run without attack is (as long as the attack)")
    parser.add_argument("--data", type=Path, help="a new folder for data and logs, which stays (a temporary one)")
    parser.add_argument("--show", action="store_true", help="print what the cases are and send nothing")
    made = parser.parse_args(arguments)
    if made.cases is None:
        made.cases = 100_000 if made.case is None else 1
    made.case = made.case or 0
    if made.cases < 1 or made.case < 0 or made.connections < 1 or made.rate < 0:
        parser.error("--cases and --connections are at least 1, --case and --rate at least 0")
    return made


def progress(total: int) -> Callable[[Outcome], bool]:
    """A line every ten seconds; always True."""
    last = [time.monotonic()]
    sent = [0]

    def say(outcome: Outcome) -> bool:
        now = time.monotonic()
        if now - last[0] < 10:
            return True
        rate = (outcome.sent - sent[0]) / (now - last[0])
        print(
            f"{outcome.sent:,} of {total:,} cases, {rate:,.0f}/s, {len(outcome.findings)} findings, "
            f"{(total - outcome.sent) / max(rate, 0.1) / 60:.1f} min left",
            flush=True,
        )
        last[0], sent[0] = now, outcome.sent
        return True

    return say


def main(module: str, about: str, made: Callable[[dict[str, str]], Cases], arguments: list[str]) -> None:
    """Ends with exit code 1 where something was found."""
    chosen = options(module, about, arguments)
    numbers = range(chosen.case, chosen.case + chosen.cases)
    if chosen.show:
        shown = made(dict.fromkeys("gocptls", "TOKEN"))
        for number in numbers:
            case = shown.case(chosen.seed, number)
            print(f"case {number} of seed {chosen.seed}, as {case.letter}: {case.about}")
            for step in (*case.opening.steps, Step(case.data)):
                print(f"  {step.data[:2000].hex()}  ({len(step.data)} bytes)")
        return
    for wanted in (signal.SIGINT, signal.SIGTERM):  # also where a shell began this in the background
        signal.signal(wanted, signal.default_int_handler)
    with folder(chosen.data) as data, guarded_region(data) as region:
        ready(region)
        cases = made(region.tokens)
        bystander = Bystander(cases.face, region.port(cases.face), region.tokens["l"])
        try:
            found = _run(region, cases, bystander, chosen, numbers)
        finally:
            bystander.end()
    sys.exit(1 if found else 0)


def _run(region: Guarded, cases: Cases, bystander: Bystander, chosen: argparse.Namespace, numbers: range) -> bool:
    watch = Watch(region)
    attack = Attack(cases, region.port(cases.face), chosen.seed, chosen.connections, chosen.rate)
    looks = Looks(watch, attack)
    say = progress(len(numbers))
    before = watch.health()
    os.nice(5)  # an attacker has a machine of its own; here it may not take the broker's
    bystander.said()
    print(
        f"{len(numbers):,} cases of seed {chosen.seed} to {cases.face} on {chosen.connections} connections", flush=True
    )
    stopped = False
    try:
        attack.run(iter(numbers), lambda: looks.look() and say(attack.outcome))
    except KeyboardInterrupt:
        stopped = True
    outcome = attack.outcome
    attacked = bystander.said()
    calm_s = min(outcome.seconds, 10.0) if stopped else outcome.seconds if chosen.calm_s is None else chosen.calm_s
    time.sleep(SETTLE_S)
    bystander.said()
    print(f"attack over; {calm_s:.0f} s without one", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(max(calm_s, 1.0))
    calm = bystander.said()
    looks.look()
    report(outcome, before, watch.health(), attacked, calm)
    for near in watch.stood_still:
        print(f"a lease was lost {near}: the broker stood still for 3 s, for a case or for other work on this machine")
    for finding in outcome.findings:
        print(f"FOUND: {finding}")
    if outcome.findings:
        seed, first = chosen.seed, chosen.case
        print(f"again: python -m {cases.module} --over sockets --seed {seed} --case {first} --cases {outcome.sent}")
        print("what a process logged around it: run that with --data FOLDER, and read FOLDER/*.log")
    else:
        print("nothing found")
    return bool(outcome.findings)


def report(outcome: Outcome, before: Health, after: Health, attacked: dict[str, Any], calm: dict[str, Any]) -> None:
    """Adds what the figures show to the findings, and prints them."""
    rate = outcome.sent / max(outcome.seconds, 0.001)
    ends = ", ".join(f"{count:,} {end}" for end, count in outcome.ends.most_common())
    print(f"{outcome.sent:,} cases in {outcome.seconds:,.0f} s, {rate:,.0f}/s: {ends}")
    print(
        f"{outcome.connections:,} connections, {outcome.turned_away:,} of them not let in; {outcome.again:,} times a "
        "case was sent once more, as one before it had closed its connection"
    )
    shown = "; ".join(f"{number} ({about})" for number, about in outcome.silent[:5])
    if shown:
        print(f"without an answer after {SILENCE_S:.0f} s, rightly where something waits: {shown}")
    for name in before.rss:
        if name not in after.rss:
            continue
        print(
            f"{name}: {before.rss[name] >> 20} MiB before, {after.rss[name] >> 20} MiB after; "
            f"{before.files[name]} descriptors before, {after.files[name]} after; "
            f"{1000 * (after.cpu[name] - before.cpu[name]) / max(outcome.sent, 1):.2f} ms of CPU a case"
        )
        if after.files[name] > before.files[name] + FILES_MORE_MAX:
            outcome.findings.append(f"{name} has {after.files[name]} descriptors, {before.files[name]} before")
    print(f"most memory of a process meanwhile: {outcome.highest_rss >> 20} MiB")
    print(f"costliest half second: {1000 * outcome.costliest[0]:.0f} ms of CPU a case, {outcome.costliest[1]}")
    for when, said in (("in the attack", attacked), ("without one", calm)):
        print(
            f"bystander {when}: longest wait {said['longest_ms']:,.0f} ms, p99 {said['p99_ms']:,.0f} ms, "
            f"{said['exchanges']:,} exchanges"
        )
        outcome.findings += [f"bystander {when}: {error}" for error in said["errors"]]
    more = attacked["longest_ms"] - calm["longest_ms"]
    near = next((number for at, number in outcome.moments if at >= attacked["longest_at"]), 0)
    verdict = "held" if more <= BOUND_MS else f"NOT HELD, its longest began near case {near:,}"
    print(f"bystander waits at most {BOUND_MS:.0f} ms longer for the attack: {more:+,.0f} ms: {verdict}")
