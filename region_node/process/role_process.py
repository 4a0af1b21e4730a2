"""One process of a region: reads its settings, locks its folder, starts its roles, says so, and drains when it is told
to end.

Is: `python -m region_node.process --settings FILE.json [--role broker]`. Isn't: a supervisor; it restarts nothing.
Once ready it prints one line, {"ready": true, "ports": {...}}. SIGTERM and SIGINT drain within a bounded time; a second
one ends at once.
What is wrong before that ends as one sentence on stderr and exit code 2; a fault later as exit code 1.
Source: docs/operating.md, "Processes"; docs/decisions/0006-collector-and-loop.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import fcntl
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from heliograph.model.errors import ConfigError, CorruptData, HeliographError
from heliograph.runtime import process_usage
from heliograph.runtime.every import every
from region_node.process import settings as settings_module
from region_node.process.composition import Role, Runtime, build, system_runtime
from region_node.process.settings import ProcessSettings
from region_node.process.shifted_clock import clock_of
from region_node.runtime import logs
from region_node.runtime.private_files import keep_files_private, shut

log = logging.getLogger("region_node.process")

DATA_FORMAT = 1
"""The format of the folders of bookies and metadata nodes, in `version.json`; each file has its own format too."""
YOUNG_OBJECTS = 50_000
YOUNG_LOOKS = 10
"""After so many looks at the young those are looked at that were not freed by one."""
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs until a signal; ends the process with 0, 1 (a fault), or 2 (something to put right first)."""
    keep_files_private()
    parser = argparse.ArgumentParser(prog="region_node.process", description="One process of a Heliograph region.")
    parser.add_argument(
        "--settings", required=True, metavar="FILE", help="JSON; the environment (HELIOGRAPH_...) overrides it"
    )
    parser.add_argument(
        "--role", default="", help=f"comma separated, of {', '.join(settings_module.ROLES)}; else what the file says"
    )
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    parser.add_argument(
        "--log-format", choices=logs.FORMATS, help="lines for people, or JSON for programs; else what the settings say"
    )
    chosen = parser.parse_args(arguments)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its core writes to stderr by itself
    handler = logs.install(logs.LogSettings(format=chosen.log_format or "console"), chosen.log_level)
    try:
        roles = tuple(role for role in chosen.role.split(",") if role)
        settings = settings_module.load(chosen.settings, os.environ, roles=roles)
        wanted = replace(settings.log, format=chosen.log_format) if chosen.log_format else settings.log
        handler = logs.install(wanted, chosen.log_level, region=settings.region, node=settings.node_id)
        if settings.cpus:
            process_usage.pin(process_usage.parse_cpus(settings.cpus))
        if settings.disk_priority is not None:
            process_usage.disk_priority(settings.disk_priority)
        with _folder(settings), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runtime = system_runtime(clock_of(settings, os.environ))
            code = runner.run(_logged(run(settings, runtime), handler, runtime, settings.log.window_s))
    except ConfigError as error:
        code = _refuse(str(error))
    except OSError as error:
        code = _refuse(_os_sentence(error))
    except KeyboardInterrupt:
        code = 130
    handler.say_left_out()
    sys.exit(code)


async def _logged(
    running: Coroutine[Any, Any, int], handler: logs.EventHandler, runtime: Runtime, window_s: float
) -> int:
    """Says what the log's limit left out also where nothing more is logged."""

    async def say() -> None:
        handler.say_left_out(runtime.clock.wall_ms() / 1000)

    saying = asyncio.ensure_future(every(window_s, say))
    try:
        return await running
    finally:
        saying.cancel()


async def run(settings: ProcessSettings, runtime: Runtime) -> int:
    """Starts the roles in order, serves, and stops them in the reverse order. Raises ConfigError and OSError of the
    start.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Future[str] = loop.create_future()
    hurried: asyncio.Future[None] = loop.create_future()

    def on_signal(name: str) -> None:
        if not told.done():
            told.set_result(name)
        elif not hurried.done():
            hurried.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    log.info(
        "process.starting",
        extra={"region": settings.region, "node": settings.node_id, "roles": ",".join(settings.roles)},
    )
    if "broker" in settings.roles and settings.security.exposure.to_all(settings.bind):
        log.warning(
            "security.open_to_all",
            extra={"bind": settings.bind, "hint": "whoever reaches it may do everything: set security.authentication"},
        )
    roles: list[Role] = []
    code = 0
    try:
        ports = await _start(settings, runtime, roles, told)
        if not told.done():
            _announce(ports)
            settle_memory()
            log.info(
                "process.ready",
                extra={"region": settings.region, "node": settings.node_id, "roles": ",".join(settings.roles)},
            )
            code = await _serve(roles, told)
    finally:
        stopping = asyncio.ensure_future(_stop(roles))
        await asyncio.wait({stopping, hurried}, timeout=STOP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            log.warning("process.stop_cut_short", extra={"node": settings.node_id})
            stopping.cancel()
    log.info("process.ended", extra={"node": settings.node_id, "code": code})
    return code


async def _start(
    settings: ProcessSettings, runtime: Runtime, roles: list[Role], told: asyncio.Future[str]
) -> dict[str, int]:
    """Each role is in `roles` before it starts, so that a start that failed half way is stopped too."""
    ports: dict[str, int] = {}

    async def start_all() -> None:
        for name in [role for role in settings_module.ROLES if role in settings.roles]:
            role = build(name, settings, runtime)
            roles.append(role)
            ports.update(await role.start())

    starting = asyncio.ensure_future(start_all())
    either: list[asyncio.Future[Any]] = [starting, told]
    await asyncio.wait(either, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        try:
            starting.result()
        except CorruptData as error:
            raise ConfigError(
                f"what {settings.node_id} keeps in {settings.data_dir} is damaged ({error}); leave it as it is, and "
                "see docs/operating/disks.md"
            ) from error
        return ports
    starting.cancel()
    await asyncio.wait({starting})
    if not told.done():
        raise ConfigError(
            f"{settings.node_id} did not start within {START_TIMEOUT_S:.0f} s: is the region's metadata "
            f"({', '.join(settings.meta)}) up?"
        )
    return ports


async def _serve(roles: Sequence[Role], told: asyncio.Future[str]) -> int:
    """Until a signal, or until a role can not go on (a failed disk)."""
    failed = [asyncio.ensure_future(role.failed()) for role in roles]
    any_of: list[asyncio.Future[Any]] = [told, *failed]
    await asyncio.wait(any_of, return_when=asyncio.FIRST_COMPLETED)
    code = 0
    for waiter in failed:
        if waiter.done() and (error := waiter.exception()) is not None:
            log.error("process.role_failed", extra={"error": str(error)})
            code = 1
        waiter.cancel()
    return code


async def _stop(roles: Sequence[Role]) -> None:
    for role in reversed(roles):
        try:
            await role.stop()
        except (HeliographError, OSError) as error:
            log.warning("process.stop_failed", extra={"role": type(role).__name__, "error": str(error)})


def _announce(ports: dict[str, int]) -> None:
    print(json.dumps({"ready": True, "ports": ports, "pid": os.getpid()}), flush=True)


def settle_memory() -> None:
    """What start-up made stays; young objects are looked at seldom, and all objects once a quarter of what there was
    has come since (`gc` keeps that rule), a million of them at least: connections that have lived for long are circles
    that nobody else frees.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_LOOKS, 1)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        from region_node.runtime.event_loop import EventLoop
    except ImportError:  # there is no uvloop
        return None
    return EventLoop


# -- the data folder --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _folder(settings: ProcessSettings) -> Iterator[None]:
    """Locks the process's folder and checks its version. A broker alone keeps nothing and needs none."""
    if not settings.data_dir or set(settings.roles) <= {"broker"}:
        yield
        return
    folder = Path(settings.data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a+")
    except OSError as error:
        raise ConfigError(
            f"the data folder {folder} cannot be used ({error.strerror}): make it writable (is its disk mounted, and "
            "not read-only?), or choose another one where nothing was stored there yet"
        ) from error
    with lock:
        _lock(lock, folder)
        _check_version(folder, settings)
        bookie = settings.bookie
        for own in (settings.data_dir, bookie.journal_dir, *bookie.journal_dirs, *bookie.ledger_dirs):
            if own:
                shut(Path(own))
        yield


def _lock(lock: IO[str], folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        holder = lock.read().strip() or "another process"
        raise ConfigError(
            f"the data folder {folder} is in use by {holder}; stop that one, or choose another folder"
        ) from error
    lock.truncate(0)
    lock.write(f"process {os.getpid()}")
    lock.flush()


def _check_version(folder: Path, settings: ProcessSettings) -> None:
    """`version.json` says who wrote the folder: its format, region, and node."""
    path = folder / "version.json"
    mine = {"format": DATA_FORMAT, "region": settings.region, "node": settings.node_id}
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        scratch = path.with_suffix(".new")
        with scratch.open("w") as file:
            json.dump(mine, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(path)
        return
    except ValueError as error:
        raise ConfigError(f"{path} is not readable ({error}); restore it, or choose another folder") from error
    if found.get("format") != DATA_FORMAT:
        raise ConfigError(
            f"the data folder {folder} has format {found.get('format')}, this version reads format {DATA_FORMAT}; run "
            "the version that wrote it"
        )
    if found != mine:
        owner = f"{found.get('node')} of region {found.get('region')}"
        raise ConfigError(f"the data folder {folder} belongs to {owner}, not to {settings.node_id}; choose another one")


# -- errors -----------------------------------------------------------------------------------------------------------


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr, flush=True)
    return 2


def _os_sentence(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"a port is already taken ({error.strerror}); stop what listens there, or set another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"an address to listen on is not one of this machine ({error.strerror}); check `bind` in the settings"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"permission denied ({error.filename or error.strerror}); use a port above 1023 and a folder of your own"
    if error.errno == errno.ENOSPC:
        return f"no space left ({error.filename or error.strerror}); free some, or choose another folder"
    return f"the start failed: {error}"
