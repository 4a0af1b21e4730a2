"""`heliograph spark`: keeps the queries of a job file running.

Is: the command line. Isn't: Spark: it is imported by the driver, in a process of its own.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from heliograph.spark.job import EXAMPLE, read_job
from heliograph.spark.supervisor import supervise

app = typer.Typer(help="Spark queries over topics: run a job file, and keep it running.", no_args_is_help=True)
JobFile = Annotated[Path, typer.Argument(metavar="JOB.TOML", help="What to run; `heliograph spark example` prints one.")]


@app.command()
def run(job: JobFile) -> None:
    """Run the queries of a job file until they are done or you stop it.

    A query that fails starts again from its checkpoint, and so does everything when Spark itself dies. A line of JSON on stdout tells
    each start, failure, and every few seconds how far each query is. Ctrl-C or SIGTERM stops cleanly: the micro-batch that was under way
    runs again at the next start. Exit code 2: the file, or an option in it, is wrong.
    """
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    sys.exit(supervise(job.resolve(), read_job(job), stopping=stopping))


@app.command()
def check(job: JobFile) -> None:
    """Read a job file and say what is wrong with it, or which queries it has. Starts nothing."""
    found = read_job(job)
    for query in found.queries:
        typer.echo(f"{query.name}: {query.kind if query.kind != 'start' else query.start}")


@app.command()
def example() -> None:
    """Print a job file with comments."""
    typer.echo(EXAMPLE, nl=False)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="spark")
