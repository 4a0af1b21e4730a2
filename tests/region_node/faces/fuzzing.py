"""What fuzzing a broker's listeners has in common: damage, pieces, and runs by the thousand.

Is: the harness around the grammars `tests.region_node.faces.pulsar.fuzz` and `tests.region_node.faces.kafka.fuzz`.
Isn't: a request, or what may be the answer to one.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Callable

from tests.region_node.faces import socket_fuzzing
from tests.region_node.faces.pulsar.harness import settle
from tests.region_node.faces.socket_fuzzing import Cases

PER_SEED = 1000


class Errors(logging.Handler):
    """What was logged as an error: nothing a client sends may be one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.getMessage())


def damaged(rng: random.Random, data: bytes, part: float) -> tuple[bytes, bool]:
    """(what is sent instead, whether it is as it was). part: of the cases in which some bytes are changed; some others
    are noise from end to end.
    """
    if data and rng.random() < part:
        out = bytearray(data)
        for _ in range(rng.randrange(1, 5)):
            out[rng.randrange(len(out))] = rng.randrange(256)
        return bytes(out), False
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(1, 200)), False
    return data, True


async def in_pieces(rng: random.Random, data: bytes, take: Callable[[bytes], None]) -> None:
    """As a network brings it."""
    at = 0
    while at < len(data):
        size = rng.randrange(1, len(data) + 1)
        take(data[at : at + size])
        at += size
        await settle(2)


def main(module: str, about: str, run: Callable[[int], None], cases: Callable[[dict[str, str]], Cases]) -> None:
    """`python -m MODULE [--over sockets] --cases N [--seed S]`; prints the seed of what fails, and ends with an error.
    run: a thousand cases of a seed in this process. cases: those for a broker's process, by tokens of roles.
    """
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--over", choices=("memory", "sockets"), default="memory")
    over, arguments = first.parse_known_args()
    if over.over == "sockets":
        socket_fuzzing.main(module, about, cases, arguments)
        return
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=about,
        epilog="With --over sockets the cases go to a broker in a process of its own: see --over sockets --help.",
    )
    parser.add_argument("--cases", type=int, default=100_000, help="rounded up to thousands (100,000)")
    parser.add_argument("--seed", type=int, default=1000, help="the first one; each runs a thousand cases (1000)")
    options = parser.parse_args(arguments)
    errors = Errors()
    logging.getLogger().addHandler(errors)
    begun = time.monotonic()
    rounds = -(-options.cases // PER_SEED)
    for number in range(rounds):
        seed = options.seed + number
        try:
            run(seed)
        except BaseException:
            print(f"failed with seed {seed}: python -m {module} --cases {PER_SEED} --seed {seed}", flush=True)
            raise
        if errors.records:
            sys.exit(f"logged as errors with seed {seed}: {errors.records[:3]}")
        if (number + 1) % 10 == 0 or number + 1 == rounds:
            print(f"{(number + 1) * PER_SEED:,} cases, {time.monotonic() - begun:.0f} s", flush=True)
