"""Refusals: what of an answer is a refusal, for the one line in the log that each request gets which was refused.

Is: finding codes in an answer, whatever request it is to. Isn't: the line (`kafka_session`), or a code
(`error_codes`).
Invariants: what belongs to the protocol's ordinary course, as a rebalance does, is no refusal.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from heliograph.runtime.throttle import ROWS
from heliograph.wire.kafka.message_codec import Fields
from region_node.faces.kafka.error_codes import Code

_ORDINARY = (Code.NONE, Code.MEMBER_ID_REQUIRED, Code.REBALANCE_IN_PROGRESS)


Refusals = tuple[Code, str, int]
"""(the first code that is none of the ordinary ones, its text, how many there are)."""


def refused(answer: Fields) -> Generator[None, None, Refusals | None]:
    """Returns None where nothing was refused; yields behind each ROWS rows of the answer."""
    first: tuple[Code, str] | None = None
    count = 0
    for index, found in enumerate(_codes(answer), 1):
        if found is not None:
            count += 1
            first = first or found
        if not index % ROWS:
            yield
    return None if first is None else (*first, count)


def in_part(answer: Fields) -> bool:
    """Whether something of what was asked for was done: some row has a code that does not say no, of those without such
    rows of their own. Of nothing nothing is done.
    """
    code = answer.get("error_code")
    if code is not None and code not in _ORDINARY:
        return False
    rows = [each for value in answer.values() if isinstance(value, list) for each in value if isinstance(each, dict)]
    coded = [each for each in rows if any(True for _ in _all_codes(each))]
    return any(map(in_part, coded)) if coded else code is not None


def _all_codes(row: Mapping[str, Any]) -> Iterator[int]:
    if "error_code" in row:
        yield row["error_code"]
    for value in row.values():
        for each in value if isinstance(value, list) else ():
            if isinstance(each, dict):
                yield from _all_codes(each)


def _codes(row: Mapping[str, Any]) -> Iterator[tuple[Code, str] | None]:
    """One of each row; None: it refuses nothing itself."""
    code = row.get("error_code", 0)
    yield (Code(code), row.get("error_message") or "") if code not in _ORDINARY else None
    for value in row.values():
        if isinstance(value, list):
            for each in value:
                if isinstance(each, dict):
                    yield from _codes(each)
