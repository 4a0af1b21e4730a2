"""`tenants usage`: what tenants used in a month, for a bill or for a look.

Is: the regions' days (`GET /heliograph/v1/usage-days`), added up by month or shown by day, as a table, CSV, JSON, or a
picture. Isn't: the counting.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from heliograph.cli.groups import add, group
from heliograph.cli.resources import usage_plot
from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, cells, table
from heliograph.model.errors import ConfigError

_COUNTED = ("messages_in", "bytes_in", "messages_out", "bytes_out")
_STORED, _STORED_SECONDS = "storage_byte_hours", "storage_byte_seconds"

Month = Annotated[str, typer.Option("--month", help="Such as 2026-11, in UTC; not given: this month, until now.")]
Tenant = Annotated[str, typer.Option("--tenant", help="Only this one; its admins may ask. All of them: super users.")]
ByDay = Annotated[bool, typer.Option("--by-day", help="A line for each day, not one for the month.")]
AllRegions = Annotated[bool, typer.Option("--all-regions", help="Ask each region of the instance, at its admin URL.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Also draw the days into this file, an SVG: any browser shows it.")
]
Csv = Annotated[bool, typer.Option("--csv", help="Comma-separated values, for a spreadsheet or a billing program.")]


def register(app: typer.Typer) -> None:
    add(group(app, "tenants", "Tenants: who may administer them, and in which regions."), usage=usage)


def usage(
    rest: Rest,
    output: Output,
    month: Month = "",
    tenant: Tenant = "",
    by_day: ByDay = False,
    all_regions: AllRegions = False,
    as_csv: Csv = False,
    plot: Plot = None,
) -> None:
    """Report what tenants used in a month: messages and bytes in and out, and bytes stored times hours.

    For a bill:  heliograph tenants usage --month 2026-11 --csv --all-regions > usage.csv

    Brokers write what they counted every few minutes, so the last minutes of today are not in it yet. Days are UTC.
    Exit code 1 where a region did not answer.
    """
    month = month or datetime.now(UTC).strftime("%Y-%m")
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", month):
        raise ConfigError(f"--month: expected one such as 2026-11, not {month!r}")
    path = "/heliograph/v1/usage-days" + (f"/{quote(tenant, safe='')}" if tenant else "")
    rows, silent = [], []
    for name, region in _regions(rest) if all_regions else [("", rest)]:
        try:
            answer = region.get(path, month=month)
            rows += [{"region": answer["region"], **day} for day in answer["days"]]
        except ConfigError as error:
            if not all_regions:
                raise
            silent.append(f"{name}: {error}")
    _print(_added(rows, by_day), month, as_csv, output)
    if plot is not None:
        _draw(_added(rows, True), month, plot)
    for text in silent:
        typer.echo(f"without region {text}", err=True)
    raise typer.Exit(1 if silent else 0)


def _draw(days: list[dict[str, Any]], month: str, file: Path) -> None:
    where = ", ".join(sorted({row["region"] for row in days}))
    try:
        file.write_text(
            usage_plot.plot(days, f"What tenants used in {month}{f', {where}' if where else ''}"), encoding="utf-8"
        )
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error


def _regions(rest: Rest) -> list[tuple[str, Rest]]:
    found = [(name, rest.get(f"/admin/v2/clusters/{quote(name, safe='')}")) for name in rest.get("/admin/v2/clusters")]
    return [(name, rest.at(cluster["serviceUrl"])) for name, cluster in found if not cluster.get("gateway")]


def _added(rows: Iterable[dict[str, Any]], by_day: bool) -> list[dict[str, Any]]:
    """One row a region and tenant, and a day; in order."""
    sums = defaultdict[tuple[str, str, str], Counter[str]](Counter)
    for row in rows:
        into = sums[row["region"], row["tenant"], row["day"] if by_day else row["day"][:7]]
        for name in (*_COUNTED, _STORED_SECONDS):
            into[name] += int(row[name])
    return [
        {
            "period": when,
            "region": region,
            "tenant": tenant,
            **{name: found[name] for name in _COUNTED},
            _STORED: found[_STORED_SECONDS] // 3600,
        }
        for (region, tenant, when), found in sorted(sums.items())
    ]


def _print(rows: list[dict[str, Any]], month: str, as_csv: bool, output: Output) -> None:
    columns = ("period", "region", "tenant", *_COUNTED, _STORED)
    if output.json:
        output.show(rows)
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif rows:
        table(tuple(name.replace("_", " ") for name in columns), [cells(row, *columns) for row in rows])
    else:
        typer.echo(f"nothing was used in {month}, or it is not kept any more")
