"""setting: the mark on a field of a class of settings that an operator sets: its unit, its bounds, its name elsewhere.

Is: the mark, and the one check of bounds. Isn't: reading a file (`region_node.process.settings`), or the page that is
made of the marks (`tools/settings_reference.py`).
Invariants: a plain field of a class with marks is inner: no settings file can give it. Fields of sections have no mark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from heliograph.model.errors import ConfigError

T = TypeVar("T")
_MARK = "setting"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingMark:
    unit: str = ""
    least: float | None = None
    """The least value that is allowed."""
    above: float | None = None
    """The greatest value that is too small."""
    most: float | None = None
    """The greatest value that is allowed."""
    below: float | None = None
    """The least value that is too great."""
    means: str = ""
    """What the least value stands for, where it stands for something else than its number."""
    one_of: tuple[str, ...] = ()
    theirs: str = ""
    """The name in Pulsar, BookKeeper, or Kafka; with the unit where that is another one, and then it is no name by
    which it can be given.
    """

    def allows(self, value: Any) -> bool:
        """None, where the field takes it, is no value."""
        if value is None:
            return True
        if self.one_of:
            return value in self.one_of
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def bounds(self) -> str:
        """Returns the bounds in words: `0 (none) to 65535`, `above 0`; "" where there are none."""
        if self.one_of:
            return f"one of {', '.join(self.one_of)}"
        meant = f" ({self.means})" if self.means else ""
        low = _number(self.least) + meant if self.least is not None else ""
        if self.above is not None:
            low = f"above {_number(self.above)}{meant}"
        if self.below is not None:
            return f"{low} to below {_number(self.below)}"
        if self.most is not None:
            high = _number(self.most)
            return f"{low} to {high}" if self.least is not None else f"{low}{', ' if low else ''}at most {high}"
        return f"{low} or more" if self.least is not None else low


def setting(
    default: T,
    unit: str = "",
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    means: str = "",
    one_of: tuple[str, ...] = (),
    theirs: str = "",
) -> T:
    """Returns a field of a dataclass, with an operator's mark; a dict as a default is copied for each instance."""
    mark = SettingMark(
        unit=unit, least=least, above=above, most=most, below=below, means=means, one_of=one_of, theirs=theirs
    )
    if isinstance(default, dict):
        copy: Callable[[], Any] = default.copy
        made: T = field(default_factory=copy, metadata={_MARK: mark})
        return made
    return field(default=default, metadata={_MARK: mark})


def must_be_set(unit: str = "") -> dict[str, SettingMark]:
    """Returns the metadata of an operator's field without a default: `field(metadata=must_be_set())`."""
    return {_MARK: SettingMark(unit=unit)}


def marks(kind: type) -> dict[str, SettingMark]:
    """Returns the operator's fields of a class, sections left out; none for a class that is no class of settings."""
    return {entry.name: entry.metadata[_MARK] for entry in fields(kind) if _MARK in entry.metadata}


def check_bounds(given: Any, section: str) -> None:
    """Raises ConfigError at the first field of `given` that is out of the bounds of its mark. section: its path."""
    for name, mark in marks(type(given)).items():
        if not mark.allows(value := getattr(given, name)):
            shown = repr(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else value
            raise ConfigError(f"{section}{'.' if section else ''}{name} must be {mark.bounds()}, not {shown}")


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
