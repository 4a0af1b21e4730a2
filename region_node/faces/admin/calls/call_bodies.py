"""What the body of a call is: the type that its handler's parameter `given` has. It is read, decoded, and checked
before the handler runs, and described by `/openapi.json`.

Is: the type, and the refusal that names the field which is wrong. Isn't: what only a handler can know: whether there is
such a region, or a value is in bounds that Pulsar answers with 412.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import msgspec

from heliograph.model.errors import MalformedRequest
from heliograph.model.positions import Position
from region_node.faces.admin.calls.admin_context import body

if TYPE_CHECKING:
    from aiohttp import web

GIVEN, NOTHING = "given", object()
"""The parameter's name; what `body_type` says where a handler has none."""

_WORDS = (
    ("Expected", "expected"),
    ("Object missing required field", "the object is missing the field"),
    ("Object contains unknown field", "the object has a field that is not known:"),
)
"""Of msgspec, and of ours."""


class Given(msgspec.Struct):
    """An object in a body: fields that it does not have are passed over, as Pulsar does."""


class OnlyGiven(Given, forbid_unknown_fields=True):
    """The same, where a field that it does not have is refused: one that is misspelt would change nothing."""


class MessageId(Given, rename="camel"):
    """Pulsar's: a position, and what some calls ask beside it."""

    ledger_id: int
    entry_id: int
    is_excluded: bool | None = None

    @property
    def position(self) -> Position:
        return self.ledger_id, self.entry_id


def body_type(handler: Callable[..., Any]) -> Any:
    """NOTHING: its calls have no body, or the handler reads it itself."""
    return get_type_hints(handler, include_extras=True).get(GIVEN, NOTHING)


def is_optional(kind: Any) -> bool:
    """Whether there may be no body."""
    return type(None) in get_args(kind)


def answer_type(handler: Callable[..., Any]) -> Any:
    """Any: the handler does not say; None's type: nothing."""
    return get_type_hints(handler, include_extras=True).get("return", Any)


async def decoded(request: web.Request, kind: Any) -> Any:
    """The body as a value of the type; no body is null, and so is "" or 0 where it could be nothing else: clients in Go
    send these where they have nothing to say. Raises MalformedRequest.
    """
    value = await body(request)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if value in ("", 0) and is_optional(kind):
            return None
        raise MalformedRequest(refusal(str(error), kind)) from error


def refusal(said: str, kind: Any) -> str:
    """What msgspec says of a value that is not of the type, as a sentence that begins with the field."""
    what, _, at = said.partition(" - at `$")
    where = at.rstrip("`").removeprefix(".") or "the body"
    for theirs, ours in _WORDS:
        what = what.replace(theirs, ours, 1)
    fields = (
        f" (it is an object of {', '.join(kind.__struct_encode_fields__)})"
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        else ""
    )
    return f"{where}: {what.replace('`', '')}{fields}"
