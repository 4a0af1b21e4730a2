"""Worlds in which our load balancer and models of Apache Pulsar's are compared, on virtual time: `make bench-balance`.

Prints a table for each class of worlds: the mean over the seeds of the seconds until the first balance, the seconds out of balance, the moves, and the
bundles that moved more than once. Not a timing: the same seeds give the same numbers on any machine.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from statistics import mean

from geo_tests.sim.balance_world import Average, Balancer, Ours, Outcome, Threshold, Transfer, World, bursty, moving, skewed

HOUR = 3600
KINDS: dict[str, Callable[[], Balancer]] = {
    "ours": lambda: Ours(1),
    "ThresholdShedder": Threshold,
    "AvgShedder": lambda: Average(1),
    "TransferShedder": Transfer,
}


def case_study(seed: int, n: int, made: Balancer) -> Outcome:
    return World(seed, 3, 48, lambda index, now: (0.8, 0.6, 0.1)[index // 16] / 16, made, start=lambda index: index // 16).run(HOUR)


CLASSES: dict[str, Callable[[int, int, Balancer], Outcome]] = {
    "80/60/10 %": case_study,
    "skewed": lambda seed, n, made: World(seed, n, 16 * n, skewed(seed, n * 0.45, 16 * n), made).run(3 * HOUR),
    "bursty": lambda seed, n, made: World(seed, n, 16 * n, bursty(seed, n * 0.45, 16 * n), made).run(3 * HOUR),
    "moving": lambda seed, n, made: World(seed, n, 16 * n, moving(seed, n * 0.45, 16 * n), made).run(4 * HOUR),
    "a broker joins": lambda seed, n, made: World(seed, n, 16 * n, skewed(seed, n * 0.6, 16 * n), made).run(2 * HOUR, {HOUR: World.join}),
    "a broker dies": lambda seed, n, made: World(seed, n, 16 * n, skewed(seed, n * 0.4, 16 * n), made).run(2 * HOUR, {HOUR: lambda w: w.crash(w.brokers[0])}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6, help="worlds of each class; each has 3 to 100 brokers")
    arguments = parser.parse_args()
    sizes = [(seed, random.Random(seed).choice((3, 5, 10, 30)) if seed % 6 != 5 else 100) for seed in range(arguments.seeds)]
    print(f"| world ({arguments.seeds} seeds, brokers: {', '.join(str(n) for _, n in sizes)}) | balancer | balanced after s | out s | moves | moved again |")
    print("|---|---|---|---|---|---|")
    for world, run in CLASSES.items():
        for kind, made in KINDS.items():
            found = [run(seed, n, made()) for seed, n in sizes]
            never = sum(o.balanced_after_s < 0 for o in found)
            after = [o.balanced_after_s for o in found if o.balanced_after_s >= 0]
            first = f"{mean(after):.0f}" if after else "-"
            counted = [mean(values) for values in ([o.unbalanced_s for o in found], [o.moves for o in found], [o.moved_again for o in found])]
            columns = (first + (f" ({never} never)" if never else ""), *(f"{value:.0f}" for value in counted))
            print(f"| {world} | {kind} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
