"""Soak: thousands of simulated worlds, on all cores, with a line of progress.

    python -m geo_tests.sim.soak --seeds 5000 [--first 0] [--jobs 2] [--passive]

--passive: the namespace is active-passive, and is moved and failed over all the time.

Each failing seed is printed with the command that replays it. Ends with 1 where one failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence

from geo_tests.sim.passive_world import run_passive
from geo_tests.sim.world import Verdict, run_seed


def _run(task: tuple[int, bool]) -> tuple[int, Verdict | None, str]:
    seed, passive = task
    try:
        return seed, run_passive(seed)[0] if passive else run_seed(seed), ""
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        return seed, None, text if len(text) < 2000 else text[:2000] + " ..."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="geo_tests.sim.soak", description="Runs many simulated worlds.")
    parser.add_argument("--seeds", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--passive", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "geo_tests.sim.soak", *(arguments or sys.argv[1:])],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    began, messages, failed = time.monotonic(), 0, []
    faults: Counter[str] = Counter()
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    with multiprocessing.get_context("spawn").Pool(chosen.jobs, maxtasksperchild=50) as pool:
        for count, (seed, verdict, text) in enumerate(
            pool.imap_unordered(_run, [(seed, chosen.passive) for seed in seeds]), 1
        ):
            if verdict is None:
                failed.append(seed)
                replay = f"python -m geo_tests.sim.world{' --passive' if chosen.passive else ''} --seed {seed} --trace"
                print(f"\rseed {seed} failed: {text}\n    {replay}", flush=True)
            else:
                messages += verdict.messages
                faults.update(verdict.kinds)
            spent = time.monotonic() - began
            print(
                f"\r{count} of {len(seeds)} worlds, {len(failed)} failed, {messages} messages, {faults.total()} "
                "faults, "
                f"{spent:.0f} s, {spent / count * chosen.jobs:.2f} s each, {(len(seeds) - count) * spent / count:.0f} "
                "s left  ",
                end="",
                flush=True,
            )
    print()
    for kind, count in sorted(faults.items()):
        print(f"  {count:6} {kind}")
    if failed:
        print(f"failed: {sorted(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
