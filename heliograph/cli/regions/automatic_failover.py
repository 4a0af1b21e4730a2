"""`dr set --auto` and `dr hold`: whether a namespace fails over by itself, and what holds that up.

Is: words of a command line as values, and the calls. Isn't: bounds of the values: those are the brokers'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from heliograph.cli.rest import Rest
from heliograph.cli.show import Output
from heliograph.model.admin_paths import dr_path
from heliograph.model.errors import ConfigError

Auto = Annotated[
    list[str] | None,
    typer.Option(
        "--auto",
        help="Fail over by itself: after=30s (so long the active region is lost), and if wanted to=eu,ap (who may take "
        "over, in this order), hold=10m (so long after a move none by itself), max_risk=100 (a number alone: not to who"
        " lacks more messages), max_risk=5s (nor older ones); each behind its own --auto, or with spaces between. off: "
        "no more.",
    ),
]
OR_OFF = ", or off"
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def seconds_of(option: str, text: str, *, others: str = "") -> int:
    """Reads 30s, 10m, 1h. others: what else the option takes, for the message. Raises ConfigError, which names the
    option.
    """
    number, unit = text[:-1], UNITS.get(text[-1:])
    if unit is None or not number.isdecimal() or not int(number):
        raise ConfigError(f"{option} {text}: expected a number and one of {', '.join(UNITS)}, as 7d{others}")
    return int(number) * unit


def risk_of(option: str, text: str) -> dict[str, int]:
    """Reads 100 (messages), 5s. Raises ConfigError, which names the option."""
    if text.isdecimal():
        return {"risk_messages": int(text)}
    return {"risk_s": seconds_of(option, text, others=", so old; or a number alone, as 100, so many messages")}


def automatic_of(words: Sequence[str]) -> dict[str, Any] | None:
    """What the words of all `--auto` ask for; None: off. Raises ConfigError."""
    parts = [part for word in words for part in word.split()]
    if parts == ["off"]:
        return None
    found: dict[str, Any] = {}
    for part in parts:
        key, _, value = part.partition("=")
        if key == "after":
            found["after_s"] = seconds_of("--auto after", value)
        elif key == "hold":
            found["hold_s"] = seconds_of("--auto hold", value)
        elif key == "to":
            found["to"] = [region for region in value.split(",") if region]
        elif key == "max_risk":
            found |= risk_of("--auto max_risk", value)
        else:
            raise ConfigError(f"--auto {part}: expected after=, to=, hold=, max_risk=, or off alone")
    if "after_s" not in found:
        raise ConfigError("--auto: say after how long, as --auto after=30s")
    return found


def set_automatic(rest: Rest, namespace: str, words: Sequence[str]) -> tuple[dict[str, Any] | None, str]:
    """Returns what it does by itself from now on, None: nothing; and that in words. Raises ConfigError."""
    wanted, path = automatic_of(words), f"{dr_path(namespace)}/automatic"
    if wanted is None:
        rest.delete(path)
        return None, f"{namespace} does not fail over by itself any more"
    found: dict[str, Any] = rest.put(path, wanted)
    says = [automatic_text(namespace, found), *_cannot(rest.get(dr_path(namespace)).get("targets", {}), found["to"])]
    return found, "\n".join(says)


def _cannot(targets: dict[str, Any], to: Sequence[str]) -> list[str]:
    """Which regions that may take over do not say what they have now, in words. to: as wanted; none: all."""
    return [
        f"warning: {region} could not take over now: {why}"
        for region, cost in targets.items()
        if (not to or region in to) and (why := cost.get("target", {}).get("unreachable", ""))
    ]


def automatic_text(namespace: str, found: dict[str, Any]) -> str:
    to = f", to the first that is there of {', '.join(found['to'])}" if found["to"] else ""
    return (
        f"{namespace} fails over by itself once its active region was lost for {found['after_s']:g} s{to}; "
        f"not within {found['hold_s']:g} s after a move"
    )


def hold(
    rest: Rest,
    output: Output,
    namespace: Annotated[str, typer.Argument(help="tenant/namespace; or --all.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="All namespaces of the instance.")] = False,
    lasts: Annotated[
        str,
        typer.Option("--for", help="30m, 1h, up to 24h; off: nothing holds it any more, also no move before."),
    ] = "1h",
) -> None:
    """Let nothing fail over by itself for a while, as for maintenance. What an operator does is not held."""
    if bool(namespace) == everything:
        raise ConfigError("name one namespace, or --all")
    what = namespace or "all namespaces"
    path = f"{dr_path(namespace)}/hold" if namespace else "/heliograph/v1/dr/hold"
    if lasts == "off":
        rest.delete(path)
        output.told(None, f"nothing of an operator's holds {what} any more")
        return
    found = rest.put(path, {"for_s": seconds_of("--for", lasts, others=OR_OFF)})
    output.told(found, f"{what} will not fail over automatically for {lasts}; `--for off` ends that")
