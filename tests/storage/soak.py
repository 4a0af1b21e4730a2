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
from tests.storage.bookie.entry_log.compacting_lives import many_compacting_lives
from tests.storage.bookie.lives import a_directory_fails, many_lives
from tests.storage.bookie.maintenance.garbage import ledgers_come_and_go
from tests.storage.ledger.recovery.stepped_recovery import one_recovery
from tests.storage.ledger.repair.three_bookies import one_history_of_pauses
from tests.storage.ledger.striped_world import StripedWorld
from tests.storage.ledger.writing.stepped_writer import one_writing
from tests.storage.managed_ledger.histories import one_history
from tests.storage.managed_ledger.log.mended import one_crash
from tests.storage.tiered.histories import one_history as one_tiered_history

_SHAPES = ((1, 1), (1, 1), (1, 3), (2, 4), (3, 3))
"""(journal directories, ledger directories)."""


def _lives(seed: int) -> None:
    many_lives(seed, _SHAPES[seed % len(_SHAPES)])


def _world(seed: int) -> None:
    LedgerWorld(seed).run()


def _striped(seed: int) -> None:
    StripedWorld(seed).run()


SUITES: Mapping[str, tuple[Callable[[int], None], int]] = {
    "bookie": (_lives, 8),
    "directory-fails": (a_directory_fails, 2),
    "compaction": (many_compacting_lives, 2),
    "garbage": (ledgers_come_and_go, 1),
    "writer": (one_writing, 4),
    "recovery": (one_recovery, 4),
    "copies": (one_history_of_pauses, 1),
    "world": (_world, 4),
    "striped-world": (_striped, 2),
    "managed-ledger": (one_history, 4),
    "repair": (one_crash, 1),
    "tiers": (one_tiered_history, 1),
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
