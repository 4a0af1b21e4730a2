"""Names in SQL statements. Isn't: a statement; nor anything that wants a library, as commands read it, too."""

from __future__ import annotations


def identifier(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"
