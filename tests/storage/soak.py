"""Soak of storage: thousands of seeds of its simulations, on all cores, with a line of progress and a summary.

    python -m tests.storage.soak --seeds 3000 [--first 0] [--jobs 2] [--suite bookie]

Is: each seed is one history of one suite, in turn: bookies that lose power, are killed, compact, collect garbage, or
have a directory that fails; writers and recoveries against the disks of their bookies; whole worlds of bookies,
metadata, and writers; managed ledgers with owners that die; tiers in an object store. Each compares what is there with
a model of what was acknowledged. Isn't: regions, links, clients (`geo_tests.sim.soak`).
A failing seed is printed with the command that replays it. Ends with 1 where one failed.
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
from collections.abc import Callable, Mapping, Sequence

from geo_tests.sim.ledgers import LedgerWorld
from geo_tests.sim.loop import collect
from tests.storage.bookie import test_power_cuts
from tests.storage.bookie.entry_log import test_compaction
from tests.storage.bookie.maintenance import test_garbage_collector
from tests.storage.ledger.recovery import test_recovery_rules
from tests.storage.ledger.repair import test_replica_check
from tests.storage.ledger.test_striping import StripedWorld
from tests.storage.ledger.writing import test_ledger_append
from tests.storage.managed_ledger import test_simulation
from tests.storage.managed_ledger.log import test_damaged_ledgers
from tests.storage.tiered import test_simulation as test_tiers

_SHAPES = ((1, 1), (1, 1), (1, 3), (2, 4), (3, 3))
"""(journal directories, ledger directories)."""


def _lives(seed: int) -> None:
    test_power_cuts.test_many_lives(seed, _SHAPES[seed % len(_SHAPES)])


def _world(seed: int) -> None:
    LedgerWorld(seed).run()


def _striped(seed: int) -> None:
    StripedWorld(seed).run()


SUITES: Mapping[str, tuple[Callable[[int], None], int]] = {
    "bookie": (_lives, 8),
    "directory-fails": (test_power_cuts.test_a_directory_fails_in_one_of_many_lives, 2),
    "compaction": (test_compaction.test_many_compacting_lives, 2),
    "garbage": (test_garbage_collector.test_no_living_ledger_ever_goes, 1),
    "writer": (test_ledger_append.test_confirmed_means_that_an_ack_quorum_of_the_recorded_ensemble_holds_it, 4),
    "recovery": (test_recovery_rules.test_whatever_the_writer_confirms_before_or_after_is_found, 4),
    "copies": (test_replica_check.test_bookies_that_pause_again_and_again_lack_nothing_in_the_end, 1),
    "world": (_world, 4),
    "striped-world": (_striped, 2),
    "managed-ledger": (test_simulation.test_what_is_confirmed_stays_and_all_else_follows, 4),
    "repair": (test_damaged_ledgers.test_a_crash_at_any_step_only_puts_it_off, 1),
    "tiers": (test_tiers.test_whatever_happens_nothing_is_lost_and_nothing_is_left_over, 1),
}
"""Name -> (what runs a seed, how many of each round of seeds it gets)."""
_ROUND = [name for name, (_, share) in SUITES.items() for _ in range(share)]


def suite_of(seed: int, only: str = "") -> str:
    return only or _ROUND[seed % len(_ROUND)]


def _run(task: tuple[int, str]) -> tuple[int, str, str]:
    """(seed, suite, why it failed: "" where it did not)."""
    seed, suite = task
    logging.disable(logging.CRITICAL)  # what is broken on purpose is logged in thousands of lines
    try:
        SUITES[suite][0](seed)
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        return seed, suite, text if len(text) < 2000 else text[:2000] + " ..."
    finally:
        logging.disable(logging.NOTSET)
        collect()
    return seed, suite, ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tests.storage.soak", description="Runs many seeds of the simulations of storage."
    )
    parser.add_argument("--seeds", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--suite", choices=list(SUITES), default="", help="this one alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.storage.soak", *(arguments or sys.argv[1:])],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    began = time.monotonic()
    tasks = [(seed, suite_of(seed, chosen.suite)) for seed in range(chosen.first, chosen.first + chosen.seeds)]
    ran: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(chosen.jobs, maxtasksperchild=200) as pool:
        for count, (seed, suite, text) in enumerate(pool.imap_unordered(_run, tasks), 1):
            ran[suite] += 1
            if text:
                failed[suite] += 1
                print(
                    f"\rseed {seed} of {suite} failed: {text}\n    python -m tests.storage.soak --suite {suite} "
                    f"--first {seed} --seeds 1",
                    flush=True,
                )
            spent = time.monotonic() - began
            left = (len(tasks) - count) * spent / count
            print(
                f"\r{count} of {len(tasks)} seeds, {failed.total()} failed, {spent:.0f} s, {left:.0f} s left  ",
                end="",
                flush=True,
            )
    print()
    for suite, count in sorted(ran.items()):
        print(f"  {count:6} {suite}{f', {failed[suite]} failed' if failed[suite] else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
