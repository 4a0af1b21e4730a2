"""What must never leave a process in a log, an audit record, or a support file: found by name and by form, and replaced
by `***`.

Is: plain functions over texts and JSON values. Isn't: a judge of payloads; these are not logged at all.
Invariants: a value whose name speaks of a secret is never shown, nor a token, key, or password that its form gives
away, wherever it stands; in doubt more is hidden than need be. Names of files and addresses (`secret_file`, `jwks_url`)
are shown: an operator needs them, and they open nothing.
It takes time in proportion to a text, whatever the text is (clients have their words in logs): a name or a token is
looked at from its beginning only, once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "***"
_WORDS = (
    "secret",
    "password",
    "passwd",
    "token",
    "credential",
    "authorization",
    "authentication_parameters",
    "auth_params",
    "private_key",
    "api_key",
    "access_key",
    "account_key",
    "signature",
    "cookie",
)
_SHOWN_ENDS = ("file", "files", "path", "dir", "url", "ms", "s", "count")
"""Last parts of names, as in `token_file` and `token_max_s`, that make a name harmless."""
_LISTS = ("tokens",)
"""Sections of the settings that say where keys lie: their own fields are judged one by one."""
_NAME = rf"(?<![\w.\-])(?=[\w.\-]*?(?:{'|'.join(word.replace('_', '[_-]?') for word in _WORDS)}))[\w.\-]++"
_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    (
        re.compile(r"""((?:proxy-)?authorization\\?["']?\s*[:=]\s*\\?["']?)[^"'\\\n]+""", re.IGNORECASE),
        rf"\g<1>{HIDDEN}",
    ),
    (re.compile(r"\b(bearer)\s+[\w.~+/=\-]{6,}", re.IGNORECASE), rf"\g<1> {HIDDEN}"),
    (re.compile(r"\b(Basic)\s+[A-Za-z0-9+/=]{8,}"), rf"\g<1> {HIDDEN}"),
    (re.compile(r"(?<![\w\-])((?>[\w\-]*?(?=\beyJ)))eyJ[\w\-]{4,}+\.[\w\-]+(?:\.[\w\-]*)?"), rf"\g<1>{HIDDEN}"),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), HIDDEN),
    (re.compile(r"(\w://[^\s/:@]*):[^\s/@]+@"), rf"\g<1>:{HIDDEN}@"),
)
_ASSIGNED = re.compile(
    rf"""(?P<name>{_NAME})(?P<sign>\\?["']?\s*[:=]\s*)"""
    rf"""(?:(?P<quote>\\?["'])(?:(?!(?P=quote)).)*(?P=quote)?|[^\s,;&}})\]"'\\]+)""",
    re.IGNORECASE,
)
_CUT_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=\-]*\Z", re.IGNORECASE), rf"\g<1> {HIDDEN}"),
    (re.compile(r"eyJ[\w\-.]*\Z"), HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{0,16}\Z"), HIDDEN),
    (re.compile(r"(\w://[^\s/:@]*):[^\s/@]*\Z"), rf"\g<1>:{HIDDEN}"),
)
"""The same where a text was cut within one, so that too little of it is left for its form."""
_SHORTEST = 7
"""No shorter text has a form: `token=x`."""
MORE = "…"
LEVELS_MAX = 32
_SIGNS = 4
"""Characters of JSON around a value: quotes, a comma, a blank."""


def is_secret(name: str) -> bool:
    """Whether a field of this name is hidden whatever it holds."""
    parts = re.split(r"[_.\-\s]+", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower())
    return any(word.replace("_", "") in "".join(parts) for word in _WORDS) and not (
        len(parts) > 1 and parts[-1] in _SHOWN_ENDS
    )


def text(value: str) -> str:
    """The same without what looks like a secret."""
    if len(value) < _SHORTEST:
        return value
    for form, instead in _FORMS:
        value = form.sub(instead, value)
    return _ASSIGNED.sub(_hide_assigned, value)


def _hide_assigned(found: re.Match[str]) -> str:
    if not is_secret(found["name"]):
        return found[0]
    quote = found["quote"] or ""
    return f"{found['name']}{found['sign']}{quote}{HIDDEN}{quote}"


def cut(value: str, chars: int) -> str:
    """The beginning of a longer text, and how long it was; the same without a secret that is known by its end alone."""
    if len(value) <= chars:
        return value
    shown = value[:chars]
    for form, instead in _CUT_FORMS:
        shown = form.sub(instead, shown)
    return f"{shown}… ({len(value)} characters)"


def _hides(name: str) -> bool:
    return is_secret(name) and name not in _LISTS


class Beginning:
    """The beginning of any value, as JSON, without secrets: of about `chars` characters and LEVELS_MAX levels. Nothing
    behind it is looked at. `is_cut`: there was more; "…" stands in its place.
    """

    def __init__(self, value: Any, chars: int) -> None:
        self.is_cut, self._left = False, chars
        self.value = self._of(value, "", LEVELS_MAX, hidden=False)

    def _of(self, value: Any, name: str, levels: int, *, hidden: bool) -> Any:
        hidden = hidden or _hides(name)
        self._left -= _SIGNS
        if isinstance(value, Mapping):
            return self._fields(value, levels - 1, hidden=hidden)
        if isinstance(value, list | tuple | set | frozenset):
            return self._items(value, "" if name in _LISTS else name, levels - 1, hidden=hidden)
        if value is None or isinstance(value, bool) or value == "":
            return value
        if hidden:
            self._left -= len(HIDDEN)
            return HIDDEN
        if isinstance(value, int | float) and abs(value) < 1 << 64:
            self._left -= _SIGNS
            return value
        if isinstance(value, bytes | bytearray):
            value = bytes(value[: max(self._left, 0) + 1])
        return self._text(value if isinstance(value, str) else str(value))

    def _fields(self, value: Mapping[Any, Any], levels: int, *, hidden: bool) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in value.items():
            field = str(key)
            self._left -= len(field) + _SIGNS
            if self._left <= 0 or not levels:
                self.is_cut, out[MORE] = True, MORE
                break
            out[field] = self._of(item, field, levels, hidden=hidden)
        return out

    def _items(self, value: Iterable[Any], name: str, levels: int, *, hidden: bool) -> list[Any]:
        out: list[Any] = []
        for item in value:
            if self._left <= 0 or not levels:
                self.is_cut = True
                out.append(MORE)
                break
            out.append(self._of(item, name, levels, hidden=hidden))
        return out

    def _text(self, value: str) -> str:
        room = max(self._left, 0)
        self._left -= len(value)
        self.is_cut = self.is_cut or len(value) > room
        return text(cut(value, room))
