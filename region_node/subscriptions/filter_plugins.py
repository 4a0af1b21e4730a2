"""FilterBook: the entry filters that a broker has.

Is: names from the settings to objects, made once at the start. Isn't: which topics use which (a policy), or the
filters' interface (`region_node.subscriptions.filters`).
Invariants: a broker whose settings name a filter that cannot be loaded does not start.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from heliograph.model.configuration.policy_table import Applied
from heliograph.model.configuration.policy_values import WrongKind
from heliograph.model.errors import ConfigError
from region_node.subscriptions.filters import EntryFilter

Chosen = tuple[tuple[str, EntryFilter | None], ...]


class FilterBook:
    """`names`: what policies may name."""

    def __init__(self, filters: Mapping[str, EntryFilter] | None = None) -> None:
        self._filters = dict(filters or {})

    @property
    def names(self) -> list[str]:
        return sorted(self._filters)

    def of(self, policies: Applied) -> Chosen:
        """In the order of the policy."""
        named = policies.part("entryFilters", "entryFilterNames")
        return tuple((name, self._filters.get(name)) for name in names_in(named)) if named else ()

    def check(self, value: str) -> None:
        """Raises WrongKind where a policy names what is not here."""
        unknown = [name for name in names_in(value) if name not in self._filters]
        if unknown:
            there = f"there are {', '.join(self.names)}" if self._filters else "it has none"
            raise WrongKind(
                f"this broker has no entry filter {unknown[0]!r}; {there} (broker.entry_filters in its settings)"
            )


def names_in(value: str) -> list[str]:
    return [name for part in value.split(",") if (name := part.strip())]


def load_filters(named: Mapping[str, str]) -> FilterBook:
    """named: name -> "package.module:Class". Raises ConfigError."""
    made: dict[str, EntryFilter] = {}
    for name, place in named.items():
        module, _, attribute = place.partition(":")
        try:
            found = getattr(import_module(module), attribute)()
        except Exception as error:  # an operator's code may raise anything when it is imported
            raise ConfigError(
                f"broker.entry_filters.{name}: {place!r} cannot be loaded ({error!r}); want package.module:Class on "
                "PYTHONPATH"
            ) from error
        if not isinstance(found, EntryFilter):
            raise ConfigError(
                f"broker.entry_filters.{name}: {place!r} is no region_node.subscriptions.filters.EntryFilter"
            )
        made[name] = found
    return FilterBook(made)
