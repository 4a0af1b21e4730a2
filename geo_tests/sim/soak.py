"""Soak: thousands of simulated worlds, on all cores, with a line of progress, and a record by which it goes on.

    python -m geo_tests.sim.soak --seeds 5000 [--first 0] [--jobs 2] [--passive] [--again]

--passive: the namespace is active-passive, and is moved and failed over all the time. --again: seeds that passed on
this commit run again, too. Of the other worlds every second one has weather: disks that fill, fail, and rot, machines
and regions that fall silent, beside as many other faults as there are in one without; in one of sixteen bookies lose
their disks, in another one each region has three metadata voters, which lose theirs.

Each failing seed is printed with the command that replays it. In the end: how often each kind of fault happened, how
often each kind of report of the product was compared with the truth, the slowest seeds. Ends with 1 where a seed
failed, or where of 500 worlds or more that draw a kind of fault it happened in less than 5 %.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from geo_tests.sim.passive_world import PassiveWorld, run_passive
from geo_tests.sim.soak_record import RARE, Ran, SoakRecord, rare_kinds, record_of
from geo_tests.sim.world import LOST_DISKS, THREE_VOTERS, WEATHER, World, WorldSettings, run_seed

ROOT = Path(__file__).resolve().parents[2]
_ERROR_CHARS_MAX = 2000
_NAMED_EVERY = 16
_NAMED = {2: (" --lost-disks", LOST_DISKS), 10: (" --voters", THREE_VOTERS)}
"""Rest of the seed -> the option that replays it, and its settings, of worlds whose kinds of faults are named."""


def settings_of(seed: int) -> WorldSettings:
    """Of a world that is not active-passive."""
    return WEATHER if seed % 2 else _NAMED.get(seed % _NAMED_EVERY, ("", WorldSettings()))[1]


def _option(seed: int, *, passive: bool) -> str:
    """With which `geo_tests.sim.world` replays it."""
    if passive:
        return " --passive"
    return " --weather" if seed % 2 else _NAMED.get(seed % _NAMED_EVERY, ("", None))[0]


def _run(task: tuple[int, bool]) -> Ran:
    seed, passive = task
    try:
        verdict = run_passive(seed)[0] if passive else run_seed(seed, settings_of(seed))
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        return Ran(seed=seed, error=text if len(text) < _ERROR_CHARS_MAX else text[:_ERROR_CHARS_MAX] + " ...")
    return Ran(
        seed=seed,
        messages=verdict.messages,
        sort=verdict.sort,
        kinds=dict(Counter(verdict.kinds)),
        reports=dict(verdict.reports),
        cpu_s=round(verdict.cpu_s, 3),
    )


def _quiet() -> None:
    """What a world's brokers log would stand between the lines of progress."""
    logging.getLogger().addHandler(logging.NullHandler())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="geo_tests.sim.soak", description="Runs many simulated worlds.")
    parser.add_argument("--seeds", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--passive", action="store_true")
    parser.add_argument("--again", action="store_true", help="also seeds that passed on this commit")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "geo_tests.sim.soak", *(arguments or sys.argv[1:])],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    record = record_of("passive" if chosen.passive else "world", ROOT)
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    left = [seed for seed in seeds if chosen.again or seed not in record.passed]
    if len(left) < len(seeds):
        print(f"{len(seeds) - len(left)} of {len(seeds)} worlds passed on this commit before; --again runs them again")
    try:
        failed = _soak(left, record, passive=chosen.passive, jobs=chosen.jobs)
    except KeyboardInterrupt:
        print("\nended; the same command goes on")
        return 130
    ran = [record.passed[seed] for seed in seeds if seed in record.passed]
    known = known_kinds(ran, passive=chosen.passive)
    rare = rare_kinds(ran, known)
    for line in summary(ran, rare, known):
        print(line)
    if failed:
        print(f"failed: {sorted(failed)}")
    return 1 if failed or rare else 0


def _soak(left: Sequence[int], record: SoakRecord, *, passive: bool, jobs: int) -> list[int]:
    """Runs them; returns the seeds that failed."""
    began, messages, faults, failed = time.monotonic(), 0, 0, list[int]()
    with multiprocessing.get_context("spawn").Pool(jobs, _quiet, maxtasksperchild=50) as pool:
        for count, ran in enumerate(pool.imap_unordered(_run, [(seed, passive) for seed in left]), 1):
            record.add(ran)
            if ran.error:
                failed.append(ran.seed)
                replay = f"python -m geo_tests.sim.world{_option(ran.seed, passive=passive)} --seed {ran.seed} --trace"
                print(f"\rseed {ran.seed} failed: {ran.error}\n    {replay}", flush=True)
            messages, faults = messages + ran.messages, faults + sum(ran.kinds.values())
            spent = time.monotonic() - began
            print(
                f"\r{count} of {len(left)} worlds, {len(failed)} failed, {messages} messages, {faults} faults, "
                f"{spent:.0f} s, {spent / count * jobs:.2f} s each, {(len(left) - count) * spent / count:.0f} s left  ",
                end="",
                flush=True,
            )
    print()
    return failed


def known_kinds(ran: Iterable[Ran], *, passive: bool = False) -> dict[str, set[str]]:
    """Sort of world -> the kinds of faults that those of it draw from."""
    seeds = {one.sort: one.seed for one in ran}
    return {
        sort: (PassiveWorld(seed) if passive else World(seed, settings_of(seed))).kinds()
        for sort, seed in seeds.items()
    }


def summary(
    ran: Sequence[Ran], rare: dict[str, float], known: Mapping[str, Collection[str]] | None = None
) -> list[str]:
    """What a soak says in the end, in lines: of all worlds that passed, of whichever run. known: sort of world -> kinds
    that are named also where they never happened.
    """
    named, worlds = {kind for kinds in (known or {}).values() for kind in kinds}, Counter[str]()
    happened, within = Counter[str](dict.fromkeys(named, 0)), Counter[str]()
    compared = Counter[str]()
    for one in ran:
        compared.update(one.reports)
        happened.update(one.kinds)
        within.update(one.kinds.keys())
        worlds.update((known or {}).get(one.sort, ()))
    lines = [
        f"{len(ran)} worlds passed, {sum(one.messages for one in ran)} messages, {happened.total()} faults, "
        f"{compared.total()} reports compared with the truth"
    ]
    lines += [f"  {count:8} reports of {kind}" for kind, count in sorted(compared.items())]
    lines += [
        f"  {happened[kind]:6} {kind}, in {within[kind] / max(1, worlds[kind] or len(ran)):.0%} of the worlds"
        for kind in sorted(happened)
    ]
    slowest = sorted(ran, key=lambda one: -one.cpu_s)[:5]
    lines.append("slowest: " + ", ".join(f"{one.seed} ({one.cpu_s:.1f} s)" for one in slowest))
    lines += [
        f"too rare: {kind}, in {part:.1%} of the worlds that draw it; {RARE:.0%} are wanted"
        for kind, part in rare.items()
    ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
