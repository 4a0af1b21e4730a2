"""Host names: which a socket can be asked for at all.

Is: the rule of their shape. Isn't: a resolver, or a list of those that are allowed.
"""

from __future__ import annotations


def is_host(text: str) -> bool:
    """Whether it is a name or an address that can be looked up: no empty label, and none of more than 63 characters.
    What is none raises UnicodeError, or ValueError, where a connection to it is made: those are no OSError.
    """
    try:
        return bool(text.encode("idna")) and "\0" not in text
    except UnicodeError:
        return False
