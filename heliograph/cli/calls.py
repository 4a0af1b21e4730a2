"""Commands that are one call of the admin interface: the call's row stands above the command.

Is: asking by the method and the path of a row of `region_node.faces.admin`, and printing what is answered. Isn't: the
options and the help of a command: its function has those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypeVar

from heliograph.cli.rest import Rest
from heliograph.cli.show import Output
from heliograph.model.admin_paths import path_of

Function = TypeVar("Function", bound=Callable[..., Any])
ANSWER, _PLAIN = "answer", Output()


@dataclass(frozen=True, slots=True)
class Call:
    """One row, above a function that has the command's arguments and its help. It returns the body, and may take a
    `rest` to ask what belongs there; or, where it takes the `answer`, it prints that for people.
    """

    method: str
    path: str
    query: tuple[str, ...] = ()
    """Arguments that go there."""
    said: str = ""
    """What a person reads once it is done, with {names} of arguments and {answer}; "": the answer."""
    as_json: bool = False
    """The command has `--json`; where the answer is what a person reads, it always has."""

    def __call__(self, function: Function) -> Function:
        function.call = self  # type: ignore[attr-defined]
        return function

    @property
    def ports(self) -> dict[str, type]:
        return {"rest": Rest, "output": Output} if self.as_json or not self.said else {"rest": Rest}

    def make(self, function: Callable[..., Any], rest: Rest, output: Output = _PLAIN, **given: Any) -> None:
        asked = {name: given[name] for name in self.query}
        path, takes = path_of(self.path, **given), signature(function).parameters
        prints, more = ANSWER in takes, {"rest": rest} if "rest" in takes else {}
        answer = rest.ask(self.method, path, None if prints else function(**given, **more), asked)
        if prints and not output.json:
            function(**given, answer=answer)
        elif self.said:
            output.told(answer, self.said.format(answer=answer, **given))
        else:
            output.show(answer)


def call_of(function: Callable[..., Any]) -> Call | None:
    """The row that stands above a function."""
    return getattr(function, "call", None)
