"""The commands `wan install`, `set`, `show`, `cut`, `heal`: what is wrong, on purpose, with the ways of a running
instance on this machine.

Is: options, units, and what a person sees. Isn't: the faults (`region_node.instance.nodes.wide_area`, by the
supervisor), or Toxiproxy's build (`region_node.instance.toxiproxy_program`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from heliograph.cli import groups
from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError
from region_node.commands.instance_options import DEFAULT_DATA, Data
from region_node.instance import toxiproxy_program
from region_node.instance.control import call
from region_node.instance.nodes.wan_faults import NetworkFault
from region_node.instance.plan.layout import BROKERS, CLIENTS

_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_KBIT = {"kbit": 1, "mbit": 1000, "gbit": 1_000_000}
_LATENCY_MS_MAX, _ENDS_MS_MAX = 600_000, 86_400_000
_RESET_MS_MIN, _KBIT_MIN, _KBIT_MAX = 100, 8, 100_000_000
_RATE_OFF = 0.1
"""Of what was asked for: so far off a rate may be that Toxiproxy keeps, which counts whole kB/s."""
_NO_LOSS = (
    "--loss: nothing was set. Toxiproxy passes bytes on, no packets, and what a network loses TCP sends again: here is "
    "nothing that could be lost. What a client sees of loss is delay and a lower rate: give --jitter and --bandwidth, "
    "and --reset-after for connections that do not survive it. Packets are lost between hosts, or network namespaces, "
    "that have a region each, by root: `tc qdisc add dev DEVICE root netem loss 1%` (docs/operating/network-faults.md)"
)

Source = Annotated[str, typer.Argument(help="A region; or `clients`, `brokers`.")]
Target = Annotated[
    str, typer.Argument(help="Another region; of `clients` a region or a broker, of `brokers` a region or a bookie.")
]
Either = Annotated[str, typer.Argument(help="As of `wan set`; without both: everything.", show_default=False)]
Opened = Annotated[bool, typer.Option("--one-way", help="Only connections that SOURCE opens to TARGET.")]
Ends = Annotated[
    str,
    typer.Option(
        "--for", help="It ends by itself after so long, such as 5m; else with `wan heal`.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    text = (
        "Make the network of a running instance on this machine worse, on purpose, and whole again.\n\n"
        "A way has two ends: two regions (`us eu`); or, of an instance begun with `up --proxied`, `clients us` (or one "
        "of its brokers) and `brokers us` (or one of its bookies). `set` delays, slows, and resets it, `cut` cuts it, "
        "`show` tells what is wrong with which, `heal` ends it. Nothing of it outlives the instance, or its Toxiproxy."
    )
    wan = groups.group(app, "wan", text)
    groups.add(wan, install=install, set=set_, show=show, cut=cut, heal=heal)


def set_(
    output: Output,
    source: Source,
    target: Target,
    latency: Annotated[
        str, typer.Option(help="Round trip, such as 120ms; with --one-way of that direction alone.", show_default=False)
    ] = "",
    jitter: Annotated[
        str, typer.Option(help="By how much that varies, up and down, such as 20ms.", show_default=False)
    ] = "",
    bandwidth: Annotated[
        str, typer.Option(help="What each connection carries in each direction, such as 50mbit.", show_default=False)
    ] = "",
    reset_after: Annotated[
        str,
        typer.Option(help="All connections are reset each time this has passed, such as 30s.", show_default=False),
    ] = "",
    loss: Annotated[
        str, typer.Option(help="Not by Toxiproxy: it is refused, with what to do in its place.", show_default=False)
    ] = "",
    one_way: Annotated[
        bool, typer.Option("--one-way", help="Only bytes from SOURCE to TARGET; --reset-after: what SOURCE opens.")
    ] = False,
    ends: Ends = "",
    data: Data = DEFAULT_DATA,
) -> None:
    """Delay, slow down, or reset what two ends say to each other, in the place of what was set there before.

    `heliograph wan set us eu --latency 120ms --jitter 20ms --bandwidth 50mbit --for 5m`: what is not given is as the
    instance was begun. Connections that stand go on. The supervisor ends it, also where this command is long gone.
    """
    if loss:
        raise ConfigError(_NO_LOSS)
    fault = NetworkFault(
        latency_ms=milliseconds("--latency", latency, 0, _LATENCY_MS_MAX),
        jitter_ms=milliseconds("--jitter", jitter, 0, _LATENCY_MS_MAX),
        bandwidth_kb_s=kilobytes("--bandwidth", bandwidth),
        reset_after_ms=milliseconds("--reset-after", reset_after, _RESET_MS_MIN, _ENDS_MS_MAX),
    )
    if fault == NetworkFault():
        raise ConfigError(
            "it is not said what is to be wrong: give --latency, --jitter, --bandwidth, or --reset-after; `heliograph "
            "wan cut` lets nothing through"
        )
    given: dict[str, Any] = {"fault": asdict(fault), "both": not one_way, "ends_in_s": _ends(ends)}
    answer = call(data.resolve(), "wan set", source=source, target=target, **given)
    arrow = "→" if one_way else "↔"
    output.told(answer, f"set: {source} {arrow} {target} ({_count(answer)}){_until(ends)}")


def cut(
    output: Output,
    source: Source,
    target: Target,
    one_way: Opened = False,
    ends: Ends = "",
    data: Data = DEFAULT_DATA,
) -> None:
    """Cut a way: what is open is closed, and nothing new gets through, until `heliograph wan heal`."""
    given: dict[str, Any] = {"both": not one_way, "ends_in_s": _ends(ends)}
    answer = call(data.resolve(), "cut", source=source, target=target, **given)
    output.told(answer, f"cut: {', '.join(answer['proxies'])}{_until(ends)}")


def heal(
    output: Output, source: Either = "", target: Either = "", one_way: Opened = False, data: Data = DEFAULT_DATA
) -> None:
    """End what is wrong with a way, or with all, however it came about: each is as the instance was begun."""
    if bool(source) != bool(target) or (one_way and not source):
        raise ConfigError("a way has two ends: give both, or none to heal all")
    answer = call(data.resolve(), "heal", source=source, target=target, both=not one_way)
    output.told(answer, f"healed: {', '.join(answer['proxies'])}")


def show(output: Output, data: Data = DEFAULT_DATA) -> None:
    """What each way is like now, by direction of the bytes; inside a region only where that is not as it was begun.

    `--json`: each proxy's, all of them.
    """
    sides = call(data.resolve(), "wan show")["sides"]
    if not output.json and all(side["usual"] for side in sides):
        typer.echo("every way is as the instance was begun")
    columns = ("from", "to", "ms", "± ms", "kbit/s", "reset after s", "state", "ends in s", "proxies")
    output.rows(columns, [tuple(row) for row in lines(sides)], sides)


def lines(sides: list[dict[str, Any]]) -> list[list[Any]]:
    """One for each direction and what it is like; the last cell counts the proxies that are so. None inside a region
    for what is as it was begun.
    """
    found: dict[tuple[Any, ...], int] = {}
    for side in sides:
        if side["usual"] and side["opened_by"] in (CLIENTS, BROKERS):
            continue
        reset_s = None if side["reset_after_ms"] is None else side["reset_after_ms"] / 1000
        like = (side["one_way_ms"], side["jitter_ms"], side["bandwidth_kbit"], reset_s, _state(side))
        row = (side["from"], side["to"], *like, side["ends_in_s"])
        found[row] = found.get(row, 0) + 1
    return [[*row, count] for row, count in found.items()]


def _state(side: Mapping[str, Any]) -> str:
    if side["cut"]:
        return "cut"
    return ", ".join(side["other"]) or ("as begun" if side["usual"] else "set")


def install(
    output: Output,
    to: Annotated[
        Path | None,
        typer.Option(
            help="The program's file; else a folder of this user, where every instance finds it.", show_default=False
        ),
    ] = None,
) -> None:
    """Find Toxiproxy's server, by which ways are made worse, or build it by this machine's Go.

    Its modules are fetched from GOPROXY, and held against the sums that come with Heliograph. An instance looks for the
    program at HELIOGRAPH_TOXIPROXY, where this command puts it, and in PATH.
    """
    there = toxiproxy_program.found() if to is None else None
    if there is not None and not there.exists():
        raise ConfigError(f"{toxiproxy_program.VARIABLE} names {there}, and no file is there: mend it, or unset it")
    if there is not None:
        output.told({"ok": True, "program": str(there), "built": False}, f"Toxiproxy is there: {there}")
        return
    target = toxiproxy_program.place() if to is None else to.resolve()
    with Console(stderr=True, quiet=output.json).status("building Toxiproxy's server"):
        toxiproxy_program.install(target)
    output.told({"ok": True, "program": str(target), "built": True}, f"Toxiproxy was built: {target}")


# -- units ------------------------------------------------------------------------------------------------------------


def milliseconds(option: str, text: str, least: int, most: int) -> int | None:
    """Reads 120ms, 1.5s, 5m, 1h; "": None. Raises ConfigError, which names the option."""
    if not text:
        return None
    number, unit = _parts(text)
    if unit not in _MS:
        raise ConfigError(f"{option} {text}: expected a number and one of {', '.join(_MS)}, such as 120ms or 5m")
    found = round(number * _MS[unit])
    if not least <= found <= most:
        raise ConfigError(f"{option} {text}: it must be {_told(least)} to {_told(most)}")
    return found


def kilobytes(option: str, text: str) -> int | None:
    """Reads 800kbit, 50mbit, 1gbit, as kB/s; "": None. Raises ConfigError, which names the option."""
    if not text:
        return None
    number, unit = _parts(text)
    if unit not in _KBIT:
        raise ConfigError(
            f"{option} {text}: expected a number and one of {', '.join(_KBIT)} (a second), such as 50mbit"
        )
    kbit = number * _KBIT[unit]
    if not _KBIT_MIN <= kbit <= _KBIT_MAX:
        raise ConfigError(f"{option} {text}: it must be {_KBIT_MIN}kbit to {_KBIT_MAX // _KBIT['gbit']}gbit")
    found = round(kbit / 8)
    if abs(found * 8 - kbit) > _RATE_OFF * kbit:
        below = int(kbit // 8) * 8
        raise ConfigError(
            f"{option} {text}: Toxiproxy counts whole kilobytes a second: give {below}kbit, or {below + 8}kbit"
        )
    return found


def _parts(text: str) -> tuple[float, str]:
    """A number, and its unit in small letters; no unit: "" """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]*)", text.strip().lower())
    return (float(found[1]), found[2]) if found else (0.0, "")


def _told(ms: int) -> str:
    unit = next(unit for unit in reversed(_MS) if ms % _MS[unit] == 0 and (ms or unit == "ms"))
    return f"{ms // _MS[unit]}{unit}"


def _ends(text: str) -> float | None:
    found = milliseconds("--for", text, 100, _ENDS_MS_MAX)
    return None if found is None else found / 1000


def _until(text: str) -> str:
    return f"; it ends by itself after {text}" if text else ""


def _count(answer: Mapping[str, Any]) -> str:
    count = len(answer["proxies"])
    return f"{count} {'proxy' if count == 1 else 'proxies'}"
