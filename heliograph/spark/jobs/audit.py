"""Audit: whether two regions' copies of topics hold the same messages, by coordinates; what is missing, and for how
long.

    [[query]]
    job = "audit"      # docs/spark.md, "Audit", has all options

Is: two batch reads, compared by Spark; a report. Isn't: repair (`heliograph audit`), or payloads: only coordinates are
read.
What is missing in a copy is one of: `elsewhere` (its producer named regions, and this is none of them), `alias` (it is
there under another coordinate, as its producer sent it again elsewhere), what the region itself names (`trimmed`,
`expired`, `admin`, `deleted`, `lost`, or `named` without a reason), `gap` (later messages of that origin are there),
`behind` (none is: it has not arrived yet, as the region says), `before` (none that is earlier is there: trimmed, or
replicated from later on). The first two are no difference between the copies. Lag: of what is `behind`, the time from
its publication to the moment of the audit; of what both have, the time from when the origin stored it to when the other
region did, by the two regions' clocks.
How: an entry is what regions hand each other, whole and as it was, so entries are read, not messages: what is compared,
and kept, is as much as there are entries. Percentiles are of entries. What grows with entries is on executors, where
Spark spills it; what comes to the driver grows with topics, and with ranges up to `ranges_max`.
"""

from __future__ import annotations

import csv
import html
import json
import math
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import functions as sf

from heliograph.client.block_reader import OriginHoldings
from heliograph.model.coordinates import Origin
from heliograph.model.errors import ConfigError, HeliographError, NotFound
from heliograph.spark.job_files.job_options import folder_of, refuse_unknown, source_of
from heliograph.spark.job_files.running_queries import say
from heliograph.spark.scan.source_options import Options, RegionAccess

KNOWN = ("topics", "namespace", "topics_pattern", "regions", "path", "ranges_max", "source")
_ORIGIN = ("topic", "origin_region", "region", "epoch", "incarnation")
_ENTRY = (*_ORIGIN, "ledger", "entry")
_SCHEMA = (
    "topic string, origin_region string, publish_time timestamp, stored_time timestamp, origin_time timestamp,"
    " producer_name string, replicate_to string, first_sequence_id bigint,"
    " messages int, coordinate "
    "struct<region:int,epoch:int,incarnation:string,ledger:bigint,entry:bigint,batch_index:int>"
)
_SAME = ("elsewhere", "alias")
_SENT = ("topic", "producer_name", "first_sequence_id", "at")
"""By which an entry is known again under another coordinate: a producer that sends it again sends the same bytes."""
_NAMELESS = "k"
"""The producer of all entries that Kafka's clients wrote, with the same sequence id: they are not known again."""
_ACCURACY = 1000
"""Makes percentiles exact within a thousandth of all entries, for a few hundred kilobytes for each topic in a task."""
_TOLD = "topic string, missing_in string, region int, epoch int, incarnation string"
_RANGES = (
    f"{_TOLD}, after struct<ledger:bigint,entry:bigint>, through struct<ledger:bigint,entry:bigint>, reason string"
)
_HEARD = f"{_TOLD}, heard struct<ledger:bigint,entry:bigint>"
_PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
_COLORS = {"p50": "#2a78b5", "p90": "#e69f00", "p99": "#d55e00", "max": "#7a1fa2"}
_LINES, _LINE, _TOP, _LEFT, _WIDTH, _LEAST_MS = 40, 22, 48, 330, 560, 1
_LETTERS, _LETTER = 90, 7
"""A line's name shows so many letters at most, from its end, and one takes about so many pixels."""
RANGES = (
    "topic",
    "missing_in",
    "kind",
    "origin_region",
    "region",
    "epoch",
    "incarnation",
    "ledger",
    "first_entry",
    "last_entry",
    "messages",
    "oldest_ms",
)


def start(spark: Any, defaults: dict[str, str], name: str, options: dict[str, Any]) -> list[Any]:
    """Writes report.json, ranges.csv, and, where a lag is known, lag.svg into `path`. No streaming query: it is done
    when this returns.
    """
    where = f"[[query]] {name}"
    refuse_unknown(options, KNOWN, where)
    regions = options.get("regions")
    if not isinstance(regions, dict) or len(regions) != 2 or not all(isinstance(url, str) for url in regions.values()):
        raise ConfigError(
            f'{where} wants regions: two names and their admin URLs, such as {{ us = "http://us:8080", eu = '
            f'"http://eu:8080" }}'
        )
    ranges_max = options.get("ranges_max", 100_000)
    if isinstance(ranges_max, bool) or not isinstance(ranges_max, int) or ranges_max < 1:
        raise ConfigError(f"{where}: ranges_max is {ranges_max!r}; it is a whole number of at least 1")
    folder = Path(folder_of(options, "path", where))
    sources = {
        region: source_of(options, {**defaults, "admin_url": url, "region": region}, where)
        for region, url in regions.items()
    }
    _writable(folder, where)
    report, ranges = audit(spark, sources, time.time_ns() // 1_000_000, ranges_max)
    with (folder / "ranges.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(RANGES)
        writer.writerows(ranges)
    picture = plot(report)
    report["plot"] = "lag.svg" if picture else "none: nothing is missing, and nothing came from the other region"
    if picture:
        (folder / "lag.svg").write_text(picture)
    else:
        (folder / "lag.svg").unlink(missing_ok=True)
    whole = folder / "report.json.new"
    whole.write_text(json.dumps(report, indent=2) + "\n")
    whole.replace(folder / "report.json")  # who reads it meanwhile has the one before
    say("audit.compared", query=name, report=str(folder / "report.json"), **summary(report))
    return []


def _writable(folder: Path, where: str) -> None:
    """Before hours of reading. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(f"{where}: nothing can be written into path: {error}") from error


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """What a line of the log has room for."""
    topics = report["topics"].values()
    missing: Counter[str] = Counter()
    for topic in topics:
        missing.update(
            {
                f"{each['kind']} in {each['in']}": each["messages"]
                for each in topic["missing"]
                if each["kind"] not in _SAME
            }
        )
    told = {
        "topics": len(topics),
        "differ": sum(not topic["same"] for topic in topics),
        "both": sum(topic["both"] for topic in topics),
    }
    twice = sum(sum(topic["duplicates"].values()) for topic in topics)
    return {
        "same": report["same"],
        **told,
        "missing": dict(sorted(missing.items())),
        "duplicates": twice,
        "not_told": len(report["not_told"]),
    }


def audit(
    spark: Any, sources: dict[str, dict[str, str]], now_ms: int, ranges_max: int
) -> tuple[dict[str, Any], list[Any]]:
    """sources: the options of two reads, by region. Returns (report, ranges of entries that are missing in one of them:
    rows of RANGES).
    """
    names = list(sources)
    sides = [_side(spark, source).withColumn("side", sf.lit(number)) for number, source in enumerate(sources.values())]
    counts = [
        sf.sum(sf.when(sf.col("side") == number, sf.col("messages")).otherwise(0)).alias(f"n{number}")
        for number in (0, 1)
    ]
    came = sf.unix_millis("stored_time") - sf.unix_millis(
        "origin_time"
    )  # of two copies, the first counts: the other one is a duplicate
    lags = [
        sf.min(sf.when((sf.col("side") == n) & (sf.col("origin_region") != names[n]), came)).alias(f"lag{n}")
        for n in (0, 1)
    ]
    size = sf.max("messages").alias("size")
    sent = [sf.min(name).alias(name) for name in ("producer_name", "first_sequence_id", "replicate_to")]
    entries = (
        sides[0]
        .unionAll(sides[1])
        .groupBy(*_ENTRY)
        .agg(*counts, *lags, size, *sent, sf.min("publish_time").alias("at"))
        .persist()
    )
    try:
        place = sf.struct("ledger", "entry")
        bounds = [
            bound(sf.when(sf.col(f"n{number}") > 0, place)).alias(f"{name}{number}")
            for number in (0, 1)
            for name, bound in (("first", sf.min), ("last", sf.max))
        ]
        known = entries.groupBy(*_ORIGIN).agg(*bounds)
        topics = _topics(entries, names)
        for number, region in enumerate(names):
            for row in _arrived(entries, number).collect():
                lag = dict(zip(_PARTS, row["lags"], strict=True))
                topics[row["topic"]]["arrived"].append(
                    {"in": region, "from": row["origin_region"], "messages": row["messages"], "lag_ms": lag}
                )
        gaps = [_missing(entries, known, number, names[number], now_ms) for number in (0, 1)]
        found = gaps[0].unionAll(gaps[1]).persist()
        ranges: list[Any] = []
        silent: list[str] = []
        lacking = found.select("topic", "missing_in").distinct().orderBy("topic", "missing_in").collect()
        if lacking:
            lost = _explained(spark, found, _twins(entries, found, names), *_told(sources, lacking, silent)).persist()
            kinds = lost.groupBy("topic", "missing_in", "kind").agg(
                sf.sum("size").alias("messages"),
                sf.percentile_approx("age_ms", [*_PARTS.values()], _ACCURACY).alias("ages"),
            )
            for row in kinds.collect():
                ages = dict(zip(_PARTS, row["ages"], strict=True))
                topics[row["topic"]]["missing"].append(
                    {"in": row["missing_in"], "kind": row["kind"], "messages": row["messages"], "age_ms": ages}
                )
            ranges = list(
                _ranges(lost).limit(ranges_max).toLocalIterator()
            )  # `collect` has that many from each task come to the driver
            lost.unpersist()
        found.unpersist()
    finally:
        entries.unpersist()
    for topic in topics.values():
        topic["arrived"].sort(key=lambda each: (each["in"], each["from"]))
        topic["missing"].sort(key=lambda each: (each["in"], each["kind"]))
        topic["same"] = all(each["kind"] in _SAME for each in topic["missing"]) and not any(
            topic["duplicates"].values()
        )
    report = {
        "at": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="seconds"),
        "at_ms": now_ms,
        "regions": names,
        "not_told": silent,
        "same": all(each["same"] for each in topics.values()),
        "topics": dict(sorted(topics.items())),
    }
    return report, ranges


def _side(spark: Any, source: dict[str, str]) -> Any:
    """The entries of one region; none of a topic that is not there."""
    if Options(source).names:
        there = _there(source)
        if not there:
            return spark.createDataFrame([], _SCHEMA).select("*", "coordinate.*").drop("coordinate")
        source = {key: value for key, value in source.items() if key != "topic"} | {"topics": ",".join(there)}
    rows = spark.read.format("heliograph").schema(_SCHEMA).options(**{**source, "columns": "entries"}).load()
    return rows.select("*", "coordinate.*").drop("coordinate")


def _there(source: dict[str, str]) -> list[str]:
    """Picks from the topics that are named those that the region has."""
    options, found = Options(source), list[str]()
    reader = options.reader()
    try:
        for name in options.names:
            try:
                found += Options({**source, "topics": name}).topics(reader)
            except NotFound:
                continue
        known = reader.snapshots(found)
    finally:
        reader.close()
    return [topic for topic in found if topic in known]


def ask(source: dict[str, str], topic: str) -> dict[Origin, OriginHoldings]:
    """What the region that is read says of the topic's origins. Raises HeliographError."""
    reader = RegionAccess(source, "audit").reader()
    try:
        return reader.told(topic, source["region"])
    finally:
        reader.close()


def _told(sources: dict[str, dict[str, str]], lacking: list[Any], silent: list[str]) -> tuple[list[Any], list[Any]]:
    """Asks the regions of topics that lack something, and returns rows of _RANGES and of _HEARD. silent: gets the
    topics and regions that could not be asked.
    """
    ranges: list[Any] = []
    heard: list[Any] = []
    for row in lacking:
        topic, region = row["topic"], row["missing_in"]
        try:
            answer = ask(sources[region], topic)
        except NotFound:
            continue
        except HeliographError as error:
            silent.append(f"{topic} in {region}: {error}")
            continue
        for (number, epoch, incarnation), (through, missing) in answer.items():
            key = (topic, region, number, epoch, f"{incarnation:016x}")
            ranges += [(*key, after, last, reason or "named") for after, last, reason in missing]
            if through is not None:
                heard.append((*key, through))
    return ranges, heard


def _twins(entries: Any, found: Any, names: list[str]) -> Any:
    """What is there under another coordinate, of what is missing: little, as a rule, and then all entries are looked at
    where they are.
    """
    wanted = found.where(sf.col("producer_name") != _NAMELESS).select("missing_in", *_SENT).distinct()
    there = [
        entries.where(sf.col(f"n{number}") > 0).select(sf.lit(name).alias("missing_in"), *_SENT)
        for number, name in enumerate(names)
    ]
    return (
        there[0]
        .unionAll(there[1])
        .join(wanted, ["missing_in", *_SENT], "left_semi")
        .distinct()
        .withColumn("twin", sf.lit(True))
    )


def _explained(spark: Any, found: Any, twins: Any, ranges: list[Any], heard: list[Any]) -> Any:
    """With the kind as the region itself would say it, where it says something."""
    key, place = ("topic", "missing_in", "region", "epoch", "incarnation"), sf.struct("ledger", "entry")
    made = found.join(twins, ["missing_in", *_SENT], "left").join(
        spark.createDataFrame(heard, _HEARD), list(key), "left"
    )
    arrived = (sf.col("kind") == "behind") & sf.col("heard").isNotNull() & (place <= sf.col("heard"))
    made = made.withColumn(
        "kind", sf.when(arrived, sf.when(sf.col("none"), "before").otherwise("gap")).otherwise(sf.col("kind"))
    )
    if ranges:
        named = spark.createDataFrame(ranges, _RANGES).select(
            *[sf.col(name).alias(f"t_{name}") for name in key], "after", "through", "reason"
        )
        at = [sf.col(name) == sf.col(f"t_{name}") for name in key]
        within = (place > sf.col("after")) & (place <= sf.col("through"))
        made = made.join(named, [*at, within], "left").withColumn("kind", sf.coalesce("reason", "kind"))
    addressed = sf.col("replicate_to").isNotNull() & ~sf.array_contains(
        sf.split("replicate_to", ","), sf.col("missing_in")
    )
    kind = sf.when(addressed, "elsewhere").when(sf.col("twin"), "alias").otherwise(sf.col("kind"))
    return made.select(*_ENTRY, "size", "missing_in", kind.alias("kind"), "age_ms")


def _topics(entries: Any, names: list[str]) -> dict[str, Any]:
    both = sf.sum(sf.least("n0", "n1", "size")).alias("both")
    sums = [sf.sum(sf.col(f"n{number}")).alias(f"rows{number}") for number in (0, 1)]
    twice = [
        sf.sum(sf.greatest(sf.col(f"n{number}") - sf.col("size"), sf.lit(0))).alias(f"twice{number}")
        for number in (0, 1)
    ]
    found = {}
    for row in entries.groupBy("topic").agg(both, *sums, *twice).collect():
        of = {what: {name: row[f"{what}{number}"] for number, name in enumerate(names)} for what in ("rows", "twice")}
        found[row["topic"]] = {
            "both": row["both"],
            "messages": of["rows"],
            "duplicates": of["twice"],
            "arrived": [],
            "missing": [],
        }
    return found


def _arrived(entries: Any, number: int) -> Any:
    """How long entries of other regions took to the copy `number`; a lag below 0, of clocks that differ, is 0."""
    lag = sf.greatest(sf.col(f"lag{number}"), sf.lit(0))
    counted = sf.sum("size").alias("messages"), sf.percentile_approx(lag, [*_PARTS.values()], _ACCURACY).alias("lags")
    return entries.where(sf.col(f"lag{number}").isNotNull()).groupBy("topic", "origin_region").agg(*counted)


def _missing(entries: Any, known: Any, number: int, region: str, now_ms: int) -> Any:
    """Entries that the copy `number` has not got, each with why that may be."""
    place, first, last = sf.struct("ledger", "entry"), sf.col(f"first{number}"), sf.col(f"last{number}")
    kind = sf.when(last.isNull() | (place > last), "behind").when(place < first, "before").otherwise("gap")
    age = sf.greatest(sf.lit(now_ms) - sf.unix_millis("at"), sf.lit(0))
    rows = (
        entries.where(sf.col(f"n{number}") == 0)
        .join(known, list(_ORIGIN))
        .withColumn("kind", kind)
        .withColumn("none", last.isNull())
    )
    return rows.select(
        *_ENTRY,
        "size",
        "none",
        *_SENT[1:],
        "replicate_to",
        "kind",
        sf.lit(region).alias("missing_in"),
        age.alias("age_ms"),
    )


def _ranges(lost: Any) -> Any:
    """Joins consecutive entries of a ledger that are missing alike into one row."""
    from pyspark.sql.window import Window

    keys = (*_ORIGIN, "ledger", "missing_in", "kind")
    number = sf.row_number().over(Window.partitionBy(*keys).orderBy("entry"))
    runs = lost.withColumn("run", sf.col("entry") - number).groupBy(*keys, "run")
    bounds = sf.min("entry").alias("first_entry"), sf.max("entry").alias("last_entry")
    made = runs.agg(*bounds, sf.sum("size").alias("messages"), sf.max("age_ms").alias("oldest_ms"))
    return made.select(*RANGES).orderBy("topic", "missing_in", "origin_region", "ledger", "first_entry")


def plot(report: dict[str, Any]) -> str:
    """An SVG picture: a line for each topic and region that lack something, or got something, by seconds on a
    logarithmic scale; or "".

    Of forty at most: what differs before what does not, each with the longest.
    """
    of_one = len({topic.rpartition("/")[0] for topic in report["topics"]}) == 1
    named = [
        (topic.rpartition("/")[2] if of_one else topic.removeprefix("persistent://"), of)
        for topic, of in report["topics"].items()
    ]
    found = [
        (each["kind"] not in _SAME, f"{topic}: {each['kind']} in {each['in']}", each["age_ms"])
        for topic, of in named
        for each in of["missing"]
    ]
    found += [
        (False, f"{topic}: {each['from']} to {each['in']}", each["lag_ms"])
        for topic, of in named
        for each in of["arrived"]
    ]
    shown = sorted(found, key=lambda row: (row[0], row[2]["max"]))[-_LINES:]
    rows = [(label if len(label) <= _LETTERS else "\u2026" + label[1 - _LETTERS :], ages) for _, label, ages in shown]
    if not rows:
        return ""
    left = max(_LEFT, _LETTER * max(len(label) for label, _ in rows) + 20)
    decades = max(1, math.ceil(math.log10(max(_LEAST_MS, *(ages["max"] for _, ages in rows)) / _LEAST_MS)))
    step, bottom = _WIDTH / decades, _TOP + _LINE * len(rows)
    parts = [
        f'<text x="{left}" y="20">seconds since publication, of what is missing; from the origin to the other region, '
        "of what came</text>"
    ]
    for number in range(decades + 1):
        x = left + step * number
        parts.append(f'<line x1="{x:.0f}" y1="{_TOP}" x2="{x:.0f}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{x:.0f}" y="{bottom + 16}" text-anchor="middle">{_LEAST_MS / 1000 * 10**number:g}</text>'
        )
    for number, (label, ages) in enumerate(rows):
        y = _TOP + _LINE * (number + 0.5)
        parts.append(f'<text x="{left - 10}" y="{y + 4:.0f}" text-anchor="end">{html.escape(label)}</text>')
        for name, color in _COLORS.items():
            x = left + step * math.log10(max(ages[name], _LEAST_MS) / _LEAST_MS)
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.0f}" r="4" fill="{color}"><title>{name} {ages[name] / 1000:g} '
                "s</title></circle>"
            )
    for number, (name, color) in enumerate(_COLORS.items()):
        parts.append(
            f'<circle cx="{left + 60 * number}" cy="34" r="4" fill="{color}"/><text x="{left + 60 * number + 8}" '
            f'y="38">{name}</text>'
        )
    size = f'width="{left + _WIDTH + 40}" height="{bottom + 30}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
