"""LedgerRecovery, stepped by a seed against a writer that does not know that it is being fenced."""

from __future__ import annotations

import random

from heliograph.model.ledger_metadata import LedgerMetadata
from storage.ledger.recovery.recovery_rules import LedgerRecovery
from storage.ledger.writing.ledger_append import LedgerAppend

QUORUMS = [(1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 3, 3), (5, 5, 3), (3, 2, 2), (3, 2, 1), (4, 3, 2), (5, 2, 2)]


def one_recovery(seed: int) -> None:
    """Adds and acks are on their way while the fences arrive one by one; some bookies never answer, some answer
    late.
    """
    rng = random.Random(seed)
    width, write, ack = rng.choice(QUORUMS)
    names = [f"b{i}" for i in range(width)]
    metadata = LedgerMetadata(1, write, ack, ((0, tuple(names)),), stride=rng.choice((1, 3)) if width > write else 0)
    striping = metadata.striping
    writer = LedgerAppend(names, ack, striping)
    held: dict[str, set[int]] = {name: set() for name in names}
    known_lac = dict.fromkeys(names, -1)
    fenced: set[str] = set()
    sent = {name: [entry for entry in range(12) if striping.holds(place, entry)] for place, name in enumerate(names)}
    core = LedgerRecovery(metadata)
    deaf = {name for name in names if rng.random() < 0.15}
    found_end: int | None = None
    for _ in range(400):
        name = rng.choice(names)
        match rng.randrange(5):
            case 0 | 1 if sent[name]:  # an add reaches a bookie, which refuses it once it is fenced
                entry = sent[name].pop(0)
                if name not in fenced:
                    held[name].add(entry)
                    known_lac[name] = max(known_lac[name], writer.lac)
                    writer.on_ack(name, entry)
            case 2 if rng.random() < 0.2 and name not in deaf:
                fenced.add(name)
                core.on_fenced(name, known_lac[name])
            case 3 if core.to_ask() and found_end is None:
                asked = rng.choice(core.to_ask())
                if rng.random() < 0.3:
                    pass  # no answer: nothing is known
                elif core.next in held[asked]:
                    through = core.next
                    while through + 1 in held[asked] and rng.random() < 0.7:
                        through += 1
                    core.on_found(through)
                else:
                    core.on_absent(asked)
            case _:
                pass
        if core.ended and found_end is None:
            found_end = core.next - 1
        if found_end is not None:
            assert writer.lac <= found_end


def one_recovery_behind_a_loss(seed: int) -> None:
    """As above, and nobody stays away; one bookie loses all that it has before it is fenced, and denies it."""
    rng = random.Random(seed)
    width, write, ack = rng.choice([quorums for quorums in QUORUMS if quorums[2] > 1])
    names = [f"b{i}" for i in range(width)]
    metadata = LedgerMetadata(1, write, ack, ((0, tuple(names)),), stride=rng.choice((1, 3)) if width > write else 0)
    striping = metadata.striping
    writer = LedgerAppend(names, ack, striping)
    held: dict[str, set[int]] = {name: set() for name in names}
    known_lac = dict.fromkeys(names, -1)
    for entry in range(rng.randrange(12)):
        for place, name in enumerate(names):
            if (
                striping.holds(place, entry)
                and rng.random() < 0.7
                and len(held[name] | {entry}) == sum(striping.holds(place, e) for e in range(entry + 1))
            ):
                held[name].add(entry)
                writer.on_ack(name, entry)
                known_lac[name] = max(known_lac[name], writer.lac - rng.randrange(3))
    emptied = rng.choice(names)
    held[emptied], known_lac[emptied] = set(), -1
    core = LedgerRecovery(metadata, lambda bookie: True)
    for _ in range(2000):
        if core.ended:
            break
        if core.unfenced() and rng.random() < 0.2:
            name = rng.choice(core.unfenced())
            core.on_fenced(name, known_lac[name], max(held[name], default=-1))
        elif core.to_ask():
            asked = rng.choice(core.to_ask())
            if core.next in held[asked]:
                core.on_found(core.next)
            elif asked == emptied and rng.random() < 0.5:
                core.on_forgotten(asked)
            else:
                core.on_absent(asked)
    assert core.ended and writer.lac <= core.next - 1
