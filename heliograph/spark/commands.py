"""`heliograph spark`: keeps the queries of a job file running.

Is: the command line. Isn't: Spark: it is imported by the driver, in a process of its own.
"""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from heliograph.model.errors import ConfigError
from heliograph.spark.job_files.job_file import EXAMPLE, Query, read_job
from heliograph.spark.job_files.job_options import refuse_unknown, source_of, trigger_of
from heliograph.spark.portable import tasks_of
from heliograph.spark.scan.source_options import Options
from heliograph.spark.sql import check as check_text
from heliograph.spark.supervisor import supervise

app = typer.Typer(help="Spark queries over topics: run a job file, and keep it running.", no_args_is_help=True)
JOBS = ("audit", "etl", "redis", "replay", "wide")
_SHIPPED = "heliograph.spark.jobs."
JobFile = Annotated[
    Path, typer.Argument(metavar="JOB.TOML", help="What to run; `heliograph spark example` prints one.")
]


@app.command()
def run(job: JobFile) -> None:
    """Run the queries of a job file until they are done or you stop it.

    A query that fails starts again from its checkpoint, and so does everything when Spark itself dies. A line of JSON
    on stdout tells each start, failure, and every few seconds how far each query is. Ctrl-C or SIGTERM stops cleanly:
    the micro-batch that was under way runs again at the next start. Exit code 2: the file, or an option in it, is
    wrong.
    """
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    sys.exit(supervise(job.resolve(), read_job(job), stopping=stopping))


@app.command()
def check(job: JobFile) -> None:
    """Read a job file and say what is wrong with it, or which queries it has. Starts nothing, and asks no region.

    Topics, folders, and what only Spark knows (columns, expressions, its own SQL) are seen when it runs.
    """
    found = read_job(job)
    for query in found.queries:
        try:
            check_query(query, found.defaults)
        except ConfigError as error:
            raise ConfigError(f"[[query]] {query.name}: {error}") from error
        typer.echo(f"{query.name}: {query.kind if query.kind != 'start' else query.start}")


@app.command()
def example() -> None:
    """Print a job file with comments."""
    typer.echo(EXAMPLE, nl=False)


def check_query(query: Query, defaults: Mapping[str, str]) -> None:
    """What can be told without Spark. Raises ConfigError."""
    if query.kind == "sql":
        check_text(query.sql, defaults)
    elif query.kind == "start":
        module = query.start.partition(":")[0]
        if module.startswith(_SHIPPED):
            _check_job(module.removeprefix(_SHIPPED), query.options, defaults)
    elif query.source.get("format", "heliograph") == "heliograph":
        tasks_of(query.source.get("portable_tasks", "1"))
        Options(
            {
                **defaults,
                **{key: value for key, value in query.source.items() if key not in ("format", "portable_tasks")},
            }
        )


def _check_job(job: str, options: Mapping[str, Any], defaults: Mapping[str, str]) -> None:
    """Checks the options of a job that ships. Raises ConfigError."""
    if job not in JOBS:
        raise ConfigError(f"there is no job {job!r}; there are {', '.join(JOBS)}")
    try:
        module = importlib.import_module(_SHIPPED + job)
    except ImportError:  # no pyspark here, which every job needs: what it says is heard where it runs
        return
    where = "[query.options]"
    if job == "etl":
        module.check(defaults, options, where)
        return
    refuse_unknown(options, module.KNOWN, where)
    if "trigger" in options:
        trigger_of(options, where)
    if job != "audit" and "offline" not in options:
        source_of(options, defaults, where)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="spark")
