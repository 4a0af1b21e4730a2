"""Audit: whether two regions' copies of topics hold the same messages, by coordinates; what is missing, and for how long.

    [[query]]
    job = "audit"      # docs/spark.md, "Audit", has all options

Is: two batch reads, compared by Spark; a report. Isn't: repair (`heliograph audit`), or payloads: only coordinates are read.
What is missing in a copy is one of: `gap` (later messages of that origin are there), `behind` (none is: it has not arrived yet), `before` (none that is
earlier is there: trimmed, or replicated from later on). Lag: of what is `behind`, the time from its publication to the moment of the audit; of what both
have, the time from when the origin stored it to when the other region did, by the two regions' clocks.
"""

from __future__ import annotations

import csv
import html
import json
import math
import time
from pathlib import Path
from typing import Any

from pyspark.sql import functions as sf

from heliograph.model.errors import ConfigError
from heliograph.spark.jobs.options import folder_of, refuse_unknown, source_of

_KNOWN = ("topics", "namespace", "topics_pattern", "regions", "path", "ranges_max", "source")
_ORIGIN = ("topic", "origin_region", "region", "epoch", "incarnation")
_MESSAGE = (*_ORIGIN, "ledger", "entry", "batch_index")
_SCHEMA = (
    "topic string, origin_region string, publish_time timestamp, stored_time timestamp, origin_time timestamp,"
    " coordinate struct<region:int,epoch:int,incarnation:string,ledger:bigint,entry:bigint,batch_index:int>"
)
KINDS = ("gap", "behind", "before")
_PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
_COLORS = {"p50": "#2a78b5", "p90": "#e69f00", "p99": "#d55e00", "max": "#7a1fa2"}
_LINES, _LINE, _TOP, _LEFT, _WIDTH, _LEAST_MS = 40, 22, 48, 330, 560, 1
RANGES = ("topic", "missing_in", "kind", "origin_region", "region", "epoch", "incarnation", "ledger", "first_entry", "last_entry", "messages", "oldest_ms")


def start(spark: Any, defaults: dict[str, str], name: str, options: dict[str, Any]) -> list[Any]:
    """Writes report.json, ranges.csv, and, where a lag is known, lag.svg into `path`. No streaming query: it is done when this returns."""
    where = f"[[query]] {name}"
    refuse_unknown(options, _KNOWN, where)
    regions = options.get("regions")
    if not isinstance(regions, dict) or len(regions) != 2 or not all(isinstance(url, str) for url in regions.values()):
        raise ConfigError(f'{where} wants regions: two names and their admin URLs, such as {{ us = "http://us:8080", eu = "http://eu:8080" }}')
    ranges_max = options.get("ranges_max", 100_000)
    if isinstance(ranges_max, bool) or not isinstance(ranges_max, int) or ranges_max < 1:
        raise ConfigError(f"{where}: ranges_max is {ranges_max!r}; it is a whole number of at least 1")
    folder = Path(folder_of(options, "path", where))
    sources = {region: source_of(options, {**defaults, "admin_url": url, "region": region}, where) for region, url in regions.items()}
    report, ranges = audit(spark, sources, time.time_ns() // 1_000_000, ranges_max)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "ranges.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, RANGES)
        writer.writeheader()
        writer.writerows(ranges)
    picture = plot(report)
    report["plot"] = "lag.svg" if picture else "none: nothing is missing, and nothing came from the other region"
    if picture:
        (folder / "lag.svg").write_text(picture)
    else:
        (folder / "lag.svg").unlink(missing_ok=True)
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return []


def audit(spark: Any, sources: dict[str, dict[str, str]], now_ms: int, ranges_max: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """sources: the options of two reads, by region. Returns (report, ranges of entries that are missing in one of them)."""
    names = list(sources)
    sides = [_side(spark, source).withColumn("side", sf.lit(number)) for number, source in enumerate(sources.values())]
    counts = [sf.sum((sf.col("side") == number).cast("int")).alias(f"n{number}") for number in (0, 1)]
    came = sf.unix_millis("stored_time") - sf.unix_millis("origin_time")  # of two copies, the first counts: the other one is a duplicate
    lags = [sf.min(sf.when((sf.col("side") == n) & (sf.col("origin_region") != names[n]), came)).alias(f"lag{n}") for n in (0, 1)]
    messages = sides[0].unionAll(sides[1]).groupBy(*_MESSAGE).agg(*counts, *lags, sf.min("publish_time").alias("at")).persist()
    try:
        place = sf.struct("ledger", "entry")
        bounds = [
            bound(sf.when(sf.col(f"n{number}") > 0, place)).alias(f"{name}{number}")
            for number in (0, 1)
            for name, bound in (("first", sf.min), ("last", sf.max))
        ]
        known = messages.groupBy(*_ORIGIN).agg(*bounds)
        topics = _topics(messages, names)
        for number, region in enumerate(names):
            for row in _arrived(messages, number).collect():
                lag = dict(zip(_PARTS, row["lags"], strict=True))
                topics[row["topic"]]["arrived"].append({"in": region, "from": row["origin_region"], "messages": row["messages"], "lag_ms": lag})
        missing = [_missing(messages, known, number, names[number], now_ms) for number in (0, 1)]
        lost = missing[0].unionAll(missing[1]).persist()
        kinds = lost.groupBy("topic", "missing_in", "kind").agg(
            sf.count("*").alias("messages"), sf.percentile_approx("age_ms", [*_PARTS.values()], 10_000).alias("ages")
        )
        for row in kinds.collect():
            ages = dict(zip(_PARTS, row["ages"], strict=True))
            topics[row["topic"]]["missing"].append({"in": row["missing_in"], "kind": row["kind"], "messages": row["messages"], "age_ms": ages})
        ranges = [row.asDict() for row in _ranges(lost).limit(ranges_max).collect()]
        lost.unpersist()
    finally:
        messages.unpersist()
    for topic in topics.values():
        topic["arrived"].sort(key=lambda each: (each["in"], each["from"]))
        topic["missing"].sort(key=lambda each: (each["in"], each["kind"]))
        topic["same"] = not topic["missing"] and not any(topic["duplicates"].values())
    report = {"at_ms": now_ms, "regions": names, "same": all(each["same"] for each in topics.values()), "topics": dict(sorted(topics.items()))}
    return report, ranges


def _side(spark: Any, source: dict[str, str]) -> Any:
    rows = spark.read.format("heliograph").schema(_SCHEMA).options(**source).load()
    return rows.select("topic", "origin_region", "publish_time", "stored_time", "origin_time", "coordinate.*")


def _topics(messages: Any, names: list[str]) -> dict[str, Any]:
    both = sf.sum(((sf.col("n0") > 0) & (sf.col("n1") > 0)).cast("bigint")).alias("both")
    sums = [sf.sum(sf.col(f"n{number}")).alias(f"rows{number}") for number in (0, 1)]
    twice = [sf.sum(sf.greatest(sf.col(f"n{number}") - 1, sf.lit(0))).alias(f"twice{number}") for number in (0, 1)]
    found = {}
    for row in messages.groupBy("topic").agg(both, *sums, *twice).collect():
        of = {what: {name: row[f"{what}{number}"] for number, name in enumerate(names)} for what in ("rows", "twice")}
        found[row["topic"]] = {"both": row["both"], "messages": of["rows"], "duplicates": of["twice"], "arrived": [], "missing": []}
    return found


def _arrived(messages: Any, number: int) -> Any:
    """How long messages of other regions took to the copy `number`; a lag below 0, of clocks that differ, is 0."""
    lag = sf.greatest(sf.col(f"lag{number}"), sf.lit(0))
    counted = sf.count("*").alias("messages"), sf.percentile_approx(lag, [*_PARTS.values()], 10_000).alias("lags")
    return messages.where(sf.col(f"lag{number}").isNotNull()).groupBy("topic", "origin_region").agg(*counted)


def _missing(messages: Any, known: Any, number: int, region: str, now_ms: int) -> Any:
    """Messages that the copy `number` has not got, each with why that may be."""
    place, first, last = sf.struct("ledger", "entry"), sf.col(f"first{number}"), sf.col(f"last{number}")
    kind = sf.when(last.isNull() | (place > last), "behind").when(place < first, "before").otherwise("gap")
    age = sf.greatest(sf.lit(now_ms) - sf.unix_millis("at"), sf.lit(0))
    rows = messages.where(sf.col(f"n{number}") == 0).join(sf.broadcast(known), list(_ORIGIN))
    return rows.select(*_MESSAGE, sf.lit(region).alias("missing_in"), kind.alias("kind"), age.alias("age_ms"))


def _ranges(lost: Any) -> Any:
    """Consecutive entries together."""
    from pyspark.sql.window import Window

    keys = (*_ORIGIN, "ledger", "missing_in", "kind")
    entries = lost.groupBy(*keys, "entry").agg(sf.count("*").alias("n"), sf.max("age_ms").alias("age_ms"))
    number = sf.row_number().over(Window.partitionBy(*keys).orderBy("entry"))
    runs = entries.withColumn("run", sf.col("entry") - number).groupBy(*keys, "run")
    bounds = sf.min("entry").alias("first_entry"), sf.max("entry").alias("last_entry")
    made = runs.agg(*bounds, sf.sum("n").alias("messages"), sf.max("age_ms").alias("oldest_ms"))
    return made.select(*RANGES).orderBy("topic", "missing_in", "origin_region", "ledger", "first_entry")


def plot(report: dict[str, Any]) -> str:
    """An SVG picture: a line for each topic and region that lack something, or got something, the forty longest, by seconds on a logarithmic scale; or ""."""
    named = [(topic.rpartition("/")[2], of) for topic, of in report["topics"].items()]
    rows = [(f"{topic}: {each['kind']} in {each['in']}", each["age_ms"]) for topic, of in named for each in of["missing"]]
    rows += [(f"{topic}: {each['from']} to {each['in']}", each["lag_ms"]) for topic, of in named for each in of["arrived"]]
    rows = sorted(rows, key=lambda row: row[1]["max"])[-_LINES:]
    if not rows:
        return ""
    decades = max(1, math.ceil(math.log10(max(_LEAST_MS, *(ages["max"] for _, ages in rows)) / _LEAST_MS)))
    step, bottom = _WIDTH / decades, _TOP + _LINE * len(rows)
    parts = [f'<text x="{_LEFT}" y="20">seconds since publication, of what is missing; from the origin to the other region, of what came</text>']
    for number in range(decades + 1):
        x = _LEFT + step * number
        parts.append(f'<line x1="{x:.0f}" y1="{_TOP}" x2="{x:.0f}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.0f}" y="{bottom + 16}" text-anchor="middle">{_LEAST_MS / 1000 * 10**number:g}</text>')
    for number, (label, ages) in enumerate(rows):
        y = _TOP + _LINE * (number + 0.5)
        parts.append(f'<text x="{_LEFT - 10}" y="{y + 4:.0f}" text-anchor="end">{html.escape(label)}</text>')
        for name, color in _COLORS.items():
            x = _LEFT + step * math.log10(max(ages[name], _LEAST_MS) / _LEAST_MS)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.0f}" r="4" fill="{color}"><title>{name} {ages[name] / 1000:g} s</title></circle>')
    for number, (name, color) in enumerate(_COLORS.items()):
        parts.append(f'<circle cx="{_LEFT + 60 * number}" cy="34" r="4" fill="{color}"/><text x="{_LEFT + 60 * number + 8}" y="38">{name}</text>')
    size = f'width="{_LEFT + _WIDTH + 40}" height="{bottom + 30}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n' + "\n".join(parts) + "\n</svg>\n"
