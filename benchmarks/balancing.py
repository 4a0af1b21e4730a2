"""Worlds in which our load balancer and models of Apache Pulsar's are compared, on virtual time: `make bench-balance`.

Prints a table for each class of worlds: the median over the seeds of the seconds until the first balance (never: the
whole time), the means of the seconds out of balance, the moves, and the bundles that moved more than once; "back":
moves to a broker that the bundle had left less than half an hour before. Not a
timing: the same seeds give the same numbers on any machine.
`--check` ends with 1, and says why, where ours is in balance later than any of them, or is out of balance for longer,
by more than a twentieth; where it moves more than AvgShedder, the only other one that keeps the balance; or where a
bundle goes back though the loads are constant (decision 179).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median

from geo_tests.sim.balance_world import (
    TICK_S,
    Average,
    Balancer,
    Ours,
    Outcome,
    Threshold,
    Transfer,
    World,
    bursty,
    moving,
    skewed,
)

HOUR = 3600
KINDS: dict[str, Callable[[], Balancer]] = {
    "ours": lambda: Ours(1),
    "ThresholdShedder": Threshold,
    "AvgShedder": lambda: Average(1),
    "TransferShedder": Transfer,
}


def case_study(seed: int, n: int, made: Balancer) -> Outcome:
    return World(
        seed, 3, 48, lambda index, now: (0.8, 0.6, 0.1)[index // 16] / 16, made, start=lambda index: index // 16
    ).run(HOUR)


CLASSES: dict[str, Callable[[int, int, Balancer], Outcome]] = {
    "80/60/10 %": case_study,
    "skewed": lambda seed, n, made: World(seed, n, 16 * n, skewed(seed, n * 0.45, 16 * n), made).run(3 * HOUR),
    "bursty": lambda seed, n, made: World(seed, n, 16 * n, bursty(seed, n * 0.45, 16 * n), made).run(3 * HOUR),
    "moving": lambda seed, n, made: World(seed, n, 16 * n, moving(seed, n * 0.45, 16 * n), made).run(4 * HOUR),
    "a broker joins": lambda seed, n, made: World(seed, n, 16 * n, skewed(seed, n * 0.6, 16 * n), made).run(
        2 * HOUR, {HOUR: World.join}
    ),
    "a broker dies": lambda seed, n, made: World(seed, n, 16 * n, skewed(seed, n * 0.4, 16 * n), made).run(
        2 * HOUR, {HOUR: lambda w: w.crash(w.brokers[0])}
    ),
}


CONSTANT = ("80/60/10 %", "skewed", "a broker joins", "a broker dies")
SLACK = 1.05
"""The same rules differ by so much between seeds."""
TICKS = 2 * TICK_S


def worse(world: str, found: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """What of ours is not as good as theirs in a class of worlds."""
    said = []
    ours = found["ours"]
    for kind, theirs in found.items():
        if kind == "ours":
            continue
        times = {
            "in balance after": [median(o.first_s for o in outcomes) for outcomes in (ours, theirs)],
            "out of balance for": [mean(o.unbalanced_s for o in outcomes) for outcomes in (ours, theirs)],
        }
        said += [
            f"{world}: {what} {mine:.0f} s, {kind} {other:.0f} s"
            for what, (mine, other) in times.items()
            if mine > SLACK * other + TICKS
        ]
    moves, most = mean(o.moves for o in ours), mean(o.moves for o in found["AvgShedder"])
    if moves > SLACK * most + 1:
        said.append(f"{world}: {moves:.0f} moves, AvgShedder {most:.0f}")
    if world in CONSTANT and (back := sum(o.bounced for o in ours)):
        said.append(f"{world}: {back} bundles went back to a broker that they had left")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6, help="worlds of each class; each has 3 to 100 brokers")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--check", action="store_true", help="end with 1 where ours is worse than a model, or a bundle bounces"
    )
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    sizes = [(seed, random.Random(seed).choice((3, 5, 10, 30)) if seed % 6 != 5 else 100) for seed in seeds]
    print(
        f"| world ({len(seeds)} seeds, brokers: {', '.join(str(n) for _, n in sizes)}) | balancer | balanced after s "
        "| out s | moves | moved again | back |"
    )
    print("|---|---|---|---|---|---|---|")
    said = []
    for world, run in CLASSES.items():
        found = {kind: [run(seed, n, made()) for seed, n in sizes] for kind, made in KINDS.items()}
        for kind, outcomes in found.items():
            print(f"| {world} | {kind} | {' | '.join(_columns(outcomes))} |", flush=True)
        said += worse(world, found)
    if arguments.check:
        print(
            "\n".join(["", *said])
            if said
            else "\nours is as good as each of them, and no bundle went back at constant loads"
        )
        sys.exit(1 if said else 0)


def _columns(outcomes: Sequence[Outcome]) -> list[str]:
    never = sum(o.balanced_after_s < 0 for o in outcomes)
    first = f"{median(o.first_s for o in outcomes):.0f}" + (f" ({never} never)" if never else "")
    counted = [
        [o.unbalanced_s for o in outcomes],
        [o.moves for o in outcomes],
        [o.moved_again for o in outcomes],
        [o.bounced for o in outcomes],
    ]
    return [first, *(f"{mean(values):.0f}" for values in counted[:3]), f"{mean(counted[3]):.1f}"]


if __name__ == "__main__":
    main()
