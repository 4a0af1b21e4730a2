"""What does not fit the product, or ends in an error of the program, has found nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from heliograph.model.errors import HeliographError
from heliograph.raft.core import RaftCore
from replicator.health.incoming_stats import IncomingLink
from replicator.sending.link_sender import LinkSender
from tests.broken_rules import BrokenRules, Unfit, fitting, program_error


class Rule:
    limit = 3

    def holds(self, key: str, *, at: int = 0) -> bool:
        return True

    async def waits(self) -> None: ...

    @property
    def full(self) -> bool:
        return False

    @staticmethod
    def majority(marks: list[int]) -> int:
        return marks[0]


async def awaited(self: Any, key: str, *, at: int = 0) -> bool:
    return True


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("hold", lambda self: True, "no such name"),
        ("holds", lambda self, key: True, "called otherwise"),
        ("holds", lambda self, key, *, at: True, "called otherwise"),
        ("holds", lambda key, *, at=0: True, "called otherwise"),
        ("holds", awaited, "awaited"),
        ("holds", property(lambda self: True), "an attribute"),
        ("waits", lambda self: None, "awaited"),
        ("full", lambda self: True, "an attribute"),
        ("limit", lambda: 4, "an attribute"),
        ("majority", lambda marks: 1, "a static method"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, value: Any, why: str, broken: BrokenRules) -> None:
    with pytest.raises(Unfit, match=why):
        broken.setattr(Rule, name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("holds", lambda *_, **__: False),
        ("full", property(lambda self: True)),
        ("limit", 4),
        ("limit", property(lambda self: 4)),
        ("majority", staticmethod(lambda marks: 1)),
    ],
)
def test_what_fits_takes_the_place_until_it_is_mended(name: str, value: Any, broken: BrokenRules) -> None:
    before, stood = getattr(Rule(), name), inspect.getattr_static(Rule, name)
    broken.setattr(Rule, name, value)
    now = getattr(Rule(), name)
    assert (now("x") if callable(now) else now) != (before("x") if callable(before) and name == "holds" else before)
    broken.mend()
    assert inspect.getattr_static(Rule, name) is stood


def _promise() -> None:
    raise AssertionError("a message is lost")


def _by_an_error() -> None:
    try:
        {}["x"]
    except KeyError as error:
        raise AssertionError("the world ended") from error


def test_a_promise_that_is_broken_is_a_finding_and_an_error_of_the_program_is_none(broken: BrokenRules) -> None:
    with broken.found(match="is lost"):
        _promise()
    with pytest.raises(AssertionError, match="is lost"), broken.found(match="comes twice"):
        _promise()
    with pytest.raises(Unfit, match="KeyError"), broken.found():
        _by_an_error()
    with pytest.raises(HeliographError), broken.found():
        raise HeliographError("refused")
    with pytest.raises(pytest.fail.Exception, match="nothing is found"), broken.found():
        pass
    assert program_error(ExceptionGroup("both", [ValueError(), NameError("x")])) is not None


@pytest.mark.parametrize("outcome", [lambda: None, _promise])
def test_an_error_in_a_rules_place_counts_also_where_somebody_swallows_it(
    outcome: Callable[[], None], broken: BrokenRules
) -> None:
    def wrong(self: Rule, key: str, *, at: int = 0) -> bool:
        return self.nothing  # type: ignore[attr-defined, no-any-return]

    def run(_: int) -> None:
        try:
            Rule().holds("x")
        except AttributeError:
            outcome()

    broken.setattr(Rule, "holds", wrong)
    with pytest.raises(Unfit, match="nothing"):
        broken.look(run, range(3))


def test_seeds_are_looked_through_until_one_finds_it(broken: BrokenRules) -> None:
    ran: list[int] = []

    def run(seed: int) -> None:
        ran.append(seed)
        assert seed < 3

    broken.look(run, range(9))
    assert ran == [0, 1, 2, 3]
    with pytest.raises(pytest.fail.Exception, match="2 seeds hold"):
        broken.look(run, range(2))


class Gone(RaftCore):
    def _has_never_been(self) -> None: ...


class CalledOtherwise(LinkSender):
    def ready(self) -> bool:  # type: ignore[override]
        return True


class Nothing(IncomingLink): ...


@pytest.mark.parametrize("mutant", [Gone, CalledOtherwise, Nothing])
def test_a_class_that_breaks_no_rule_of_its_base_is_refused(mutant: type) -> None:
    with pytest.raises(Unfit):
        fitting(mutant)
