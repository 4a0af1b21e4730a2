"""Broken rules: how a test takes one rule out of the product, and what counts as having found that.

Is: patches that are refused where they do not fit, and the one way to look for what they break. Isn't: the rules that
are broken, which stand beside their tests.
Invariants: what is patched is there, and is called as what takes its place; a program error, wherever it was swallowed,
is no finding, and fails the test.

    def test_that_rule_is_needed(broken: BrokenRules) -> None:            # the fixture, of tests/conftest.py
        broken.setattr(Gate, "_may_confirm", lambda self, epoch, life: True)
        broken.look(run, range(40))                                       # some seed must raise an AssertionError
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

PROGRAM_ERRORS = (AttributeError, NameError, TypeError, ImportError, LookupError, UnicodeError, ArithmeticError)
"""What says that the program, or the patch of it, is wrong; not that a promise was broken."""
_LONG_SEARCH = 30
"""Seeds; after a change of the product another one may find what is broken, and each run would search for it."""
_PRODUCT = ("heliograph", "global_config", "local_meta", "storage", "replicator", "region_node")


class Unfit(Exception):
    """A broken rule does not fit the product any more, so that nothing can be concluded from it."""


class BrokenRules:
    """Those of one test. They end with it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.errors: list[Exception] = []
        """Program errors that came out of what was put in a rule's place, also those that somebody swallowed."""

    def setattr(self, target: object, name: str, value: object) -> None:
        """Raises Unfit where there is no such name, or it is called otherwise."""
        where = f"{getattr(target, '__name__', target)}.{name}"
        try:
            rule = inspect.getattr_static(target, name)
        except AttributeError:
            raise Unfit(f"{where}: there is no such name") from None
        _fits(where, rule, value)
        self._patch.setattr(target, name, self._watched(value))

    def setitem(self, target: Any, key: object, value: object) -> None:
        """Raises Unfit where there is no such key."""
        if key not in target:
            raise Unfit(f"{key!r}: there is no such key")
        self._patch.setitem(target, key, value)

    def mend(self) -> None:
        """Every rule is whole again."""
        self._patch.undo()

    @contextmanager
    def found(self, *promises: type[Exception], match: str = "") -> Iterator[None]:
        """What is within must raise one of `promises` (AssertionError, where none are given), with that in its text."""
        wanted = promises or (AssertionError,)
        try:
            yield
        except wanted as error:
            self._judge(error, match)
        else:
            self._refuse_errors()
            pytest.fail("nothing is found although the rule is broken")

    def look(
        self,
        run: Callable[[int], object],
        seeds: Iterable[int],
        *promises: type[Exception],
        match: str = "",
    ) -> None:
        """Some seed must find it, as `found`."""
        wanted, count = promises or (AssertionError,), 0
        for seed in seeds:
            try:
                run(seed)
            except wanted as error:
                error.add_note(f"seed {seed}")
                self._judge(error, match)
                if count >= _LONG_SEARCH:
                    warnings.warn(f"{count} seeds found nothing before seed {seed}: try that one first", stacklevel=2)
                return
            self._refuse_errors()
            count += 1
        pytest.fail(f"{count} seeds hold although the rule is broken")

    def _judge(self, error: Exception, match: str) -> None:
        self._refuse_errors()
        if (wrong := program_error(error)) is not None:
            raise Unfit(f"nothing was found, the program is wrong: {wrong!r}") from error
        if not re.search(match, str(error)):
            raise error
        print(f"found: {type(error).__name__}: {error}")

    def _refuse_errors(self) -> None:
        if self.errors:
            raise Unfit(f"what was put in a rule's place does not fit: {self.errors[0]!r}") from self.errors[0]

    def _watched(self, value: Any) -> Any:
        """The same, with program errors noted."""
        if isinstance(value, property):
            return property(*(part and self._watched(part) for part in (value.fget, value.fset, value.fdel)))
        if isinstance(value, staticmethod | classmethod):
            return type(value)(self._watched(value.__func__))
        if not isinstance(value, types.FunctionType) or inspect.isasyncgenfunction(value):
            return value
        if inspect.iscoroutinefunction(value):

            @functools.wraps(value)
            async def waited(*args: Any, **named: Any) -> Any:
                with self._noting():
                    return await value(*args, **named)

            return waited

        @functools.wraps(value)
        def called(*args: Any, **named: Any) -> Any:
            with self._noting():
                return value(*args, **named)

        return called

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except PROGRAM_ERRORS as error:
            self.errors.append(error)
            raise


def program_error(error: BaseException) -> BaseException | None:
    """The one that led to `error`, if any did."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, PROGRAM_ERRORS):
            return one
        seen.add(id(one))
        waiting += [one.__cause__, *(getattr(one, "exceptions", ()))]
    return None


def fitting(broken: type) -> type:
    """The same class, whose every method, and every class that it names, is one that the product has. Raises Unfit."""
    for level, cls in enumerate(broken.__mro__):
        if cls.__module__.startswith(_PRODUCT) or cls is object:
            break
        bases = broken.__mro__[level + 1 :]
        known = 0
        for name, value in vars(cls).items():
            if name.startswith("__") and name != "__init__":
                continue
            rule = next((vars(base)[name] for base in bases if name in vars(base)), None)
            if rule is not None:
                _fits(f"{cls.__name__}.{name}", rule, value)
                known += 1
            elif callable(value) or isinstance(value, staticmethod | classmethod | property):
                if not any(base.__module__.startswith(_PRODUCT) for base in bases):
                    break  # a world of the tests, not a rule
                raise Unfit(f"{cls.__name__}.{name}: there is no such rule")
            if isinstance(value, type) and not value.__module__.startswith(_PRODUCT):
                fitting(value)
        if cls is broken and not known:
            raise Unfit(f"{cls.__name__} breaks no rule")
    return broken


def _fits(where: str, rule: Any, value: Any) -> None:
    """Raises Unfit where `value` cannot be used as `rule` is."""
    if (kinds := (_kind(rule), _kind(value)))[0] != kinds[1]:
        raise Unfit(f"{where} is {kinds[0]}, and what is to take its place is {kinds[1]}")
    rule, value = getattr(rule, "__func__", rule), getattr(value, "__func__", value)
    if not isinstance(rule, types.FunctionType) or not isinstance(value, types.FunctionType):
        return
    if inspect.iscoroutinefunction(rule) != inspect.iscoroutinefunction(value):
        raise Unfit(f"{where}: one of them is awaited, and the other is not")
    for required in (False, True):
        given, named = _arguments(rule, required=required)
        try:
            inspect.signature(value).bind(*given, **named)
        except TypeError as error:
            raise Unfit(f"{where}{inspect.signature(rule)} is called otherwise: {error}") from None


def _kind(found: object) -> str:
    if isinstance(found, staticmethod):
        return "a static method"
    if isinstance(found, classmethod):
        return "a method of the class"
    return "called" if callable(found) and not inspect.isdatadescriptor(found) else "an attribute"


def _arguments(rule: Callable[..., object], *, required: bool) -> tuple[Sequence[None], dict[str, None]]:
    """Those of a call of it: all that it takes, or all that it needs."""
    wanted = [one for one in inspect.signature(rule).parameters.values() if not required or one.default is one.empty]
    given = [None for one in wanted if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return given, {one.name: None for one in wanted if one.kind is one.KEYWORD_ONLY}
