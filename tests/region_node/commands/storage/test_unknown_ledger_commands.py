"""What is published again of a ledger that the metadata does not know: what the topic has is left out."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.model.errors import ConfigError
from heliograph.wire.run import FLAG_HIDDEN, Run
from region_node.commands.storage import raw_producer, unknown_ledger_commands
from tests.storage.managed_ledger.world import names_of, run_of

RUN = 100


class Kept:
    """A producer that keeps what it is given."""

    def __init__(self) -> None:
        self.published: list[tuple[int, str]] = []
        self.ended = 0
        self.confirmed = -1

    async def publish(self, first: int, run: Run) -> None:
        self.published += [(first + index, name) for index, name in enumerate(names_of(run))]

    async def finish(self) -> None:
        self.ended += 1
        self.confirmed = self.published[-1][0] if self.published else -1

    def close(self) -> None:
        self.ended += 1


async def runs_of(count: int, hidden: int = -1) -> AsyncIterator[tuple[int, Run]]:
    for first in range(0, count, RUN):
        run = run_of(*(f"n{entry}" for entry in range(first, first + RUN)))
        if first <= hidden < first + RUN:
            run.flags = bytearray(RUN)
            run.flags[hidden - first] = FLAG_HIDDEN
        yield first, run


@pytest.mark.parametrize("after", [-1, 149])
def test_what_the_topic_has_is_left_out_and_it_is_asked_for_many_entries_at_once(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept()

    async def opened(*_: str) -> Kept:
        return kept

    here = [(0, 5), (7, 120), (130, 301), (1499, 1499), (1901, 2400)]
    asked: list[tuple[int, int]] = []

    async def ask(first: int, last: int) -> list[tuple[int, int]]:
        asked.append((first, last))
        return [(max(low, first), min(high, last)) for low, high in here if low <= last and high >= first]

    monkeypatch.setattr(raw_producer, "open_producer", opened)

    async def main() -> None:
        there = await unknown_ledger_commands._publish(runs_of(2000, 400), 7, "t", "s", after, ask)
        wanted = [entry for entry in range(after + 1, 2000) if not any(low <= entry <= high for low, high in here)]
        assert [entry for entry, _ in kept.published] == [entry for entry in wanted if entry != 400]
        assert all(name == f"n{entry}" for entry, name in kept.published) and kept.ended == 2
        assert there == 2000 - (after + 1) - len(wanted)
        assert asked == [(max(0, (after + 1) // RUN * RUN), asked[0][1]), (asked[0][1] + 1, asked[0][1] + 1000)]

    run_alone(main())


@pytest.mark.parametrize("after", [-1, 149, 1499])
def test_one_that_breaks_off_says_from_where_to_go_on(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going on so publishes nothing twice, and leaves nothing out."""
    kept = Kept()
    asked: list[int] = []

    async def opened(*_: str) -> Kept:
        return kept

    async def ask(first: int, last: int) -> list[tuple[int, int]]:
        asked.append(first)
        if len(asked) == 2:
            raise ConfigError("the broker is away")
        return []

    async def run(after: int) -> None:
        await unknown_ledger_commands._publish(runs_of(2600), 7, "t", "s", after, ask)

    monkeypatch.setattr(raw_producer, "open_producer", opened)

    async def main() -> None:
        with pytest.raises(ConfigError, match="the broker is away; what lies up to entry") as said:
            await run(after)
        await run(int(str(said.value).rpartition("--after ")[2]))
        assert [entry for entry, _ in kept.published] == list(range(after + 1, 2600))

    run_alone(main())
