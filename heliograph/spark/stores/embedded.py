"""ClickHouse's engine of the package `chdb`, for tables in a folder: in a process of its own, which a driver talks to
over pipes.

    request    4 bytes, its length; SQL, behind an INSERT's FORMAT the rows.
               Length 0: let go of the folder, without an answer
    answer     4 bytes, its length; a byte of `_DONE`, `_REFUSED`, `_BUSY`; what the engine gives, or why it does not

Is: both ends. Isn't: SQL (`clickhouse`).
Why a process: an engine that opens a second folder in one process, or in a driver that forks beside its threads, stands
still for ever, and with it the micro-batch, and a JVM that waits for that. It also keeps the engine's memory out of the
driver.
Invariants: between batches a folder is not held, so others may read it; one process at a time has it, by a lock in it,
and who waits for that waits a minute at most. The process ends with the driver, however that ends, and by itself when
it was not asked for a minute. One that dies takes nothing back: the batch is delivered again.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import IO, Any

from heliograph.model.errors import ConfigError, MetadataUnavailable

_DONE, _REFUSED, _BUSY = b"\0", b"\1", b"\2"
_LOCK = "heliograph.lock"
_LOCK_S = 60.0
_IDLE_S = 60.0
_END_S = 30.0


class ChdbEngine:
    """The driver's end. The engine's process begins with the first `run`, and again where it ended."""

    def __init__(self, folder: str) -> None:
        if importlib.util.find_spec("chdb") is None:
            raise ConfigError("store clickhouse without url wants the package chdb; run: pip install 'chdb>=4'")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._held = False

    def run(self, sql: str, data: bytes = b"") -> bytes:
        request = sql.encode() + (b"\n" + data if data else b"")
        answer = self._ask(request)
        if (
            answer is None and not self._held
        ):  # it had ended by itself, and read nothing; or it ends at its first statement each time
            self._forget()
            answer = self._ask(request)
        if answer is None:
            where, code = self._folder, self._forget()
            raise MetadataUnavailable(
                f"ClickHouse's engine for {where} ended in the middle of a statement (exit code {code}); the batch is "
                "delivered again"
            )
        kind, text = answer[:1], answer[1:]
        if kind == _BUSY:
            raise MetadataUnavailable(
                f"another process has {self._folder} for more than {_LOCK_S:.0f} s; the batch is delivered again"
            )
        self._held = True
        if kind == _REFUSED:
            raise ConfigError(f"ClickHouse refuses: {text[:500].decode(errors='replace').strip()}")
        return text

    def release(self) -> None:
        if self._held and self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(bytes(4))
                self._process.stdin.flush()
            except OSError:
                self._forget()
        self._held = False

    def close(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        self._forget()

    def _ask(self, request: bytes) -> bytes | None:
        """None: nobody is there to answer."""
        if self._process is None:
            self._process = _spawn(self._folder)
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(len(request).to_bytes(4, "big") + request)
            self._process.stdin.flush()
        except OSError:
            return None
        return _frame(self._process.stdout)

    def _forget(self) -> int | None:
        """The exit code of the process, which is no more."""
        process, self._process, self._held = self._process, None, False
        if process is None:
            return None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what could not be written
                    pipe.close()
        return process.wait()


def _spawn(folder: str) -> subprocess.Popen[bytes]:
    """Python finds there what it finds here, in the same order: of archives that came with a job, too."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-m", "heliograph.spark.stores.embedded", folder]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"},
    )


def _frame(pipe: IO[bytes] | FileIO) -> bytes | None:
    """None where the other end is gone."""
    head = _exactly(pipe, 4)
    return None if head is None else _exactly(pipe, int.from_bytes(head, "big"))


def _exactly(pipe: IO[bytes] | FileIO, size: int) -> bytes | None:
    body = bytearray()
    while len(body) < size:
        more = pipe.read(size - len(body))
        if not more:
            return None
        body += more
    return bytes(body)


class _Held:
    """The folder, while this process has it: its lock, and the engine's session."""

    def __init__(self, folder: Path, connect: Callable[[str], Any], lock_s: float) -> None:
        """Raises BlockingIOError where another process kept it for longer than `lock_s`, RuntimeError and OSError where
        it cannot be opened.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / _LOCK).open("a")
        until = time.monotonic() + lock_s
        try:
            while not _locked(self._lock):
                if time.monotonic() > until:
                    raise BlockingIOError
                time.sleep(0.05)
            self._session = connect(str(folder))
        except BaseException:
            self._lock.close()
            raise

    def answer(self, statement: str) -> bytes:
        try:
            found: str = self._session.query(statement, "TabSeparated").data()
        except RuntimeError as error:
            return _REFUSED + str(error).encode()
        return _DONE + found.encode()

    def close(self) -> None:
        self._session.close()
        self._lock.close()


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def serve(
    folder: Path,
    requests: FileIO,
    answers: IO[bytes],
    connect: Callable[[str], Any],
    *,
    lock_s: float = _LOCK_S,
    idle_s: float = _IDLE_S,
) -> None:
    """Until the driver is gone, or has not asked for `idle_s`. requests: not buffered. connect: makes a session of the
    engine on a folder. lock_s: how long another process's hold of the folder is waited for.
    """
    held: _Held | None = None
    while held is not None or select.select([requests], [], [], idle_s)[0]:
        request = _frame(requests)
        if not request:
            if held is not None:
                held.close()
                held = None
            if request is None:
                return
            continue
        try:
            held = held or _Held(folder, connect, lock_s)
            answer = held.answer(request.decode())
        except BlockingIOError:
            answer = _BUSY
        except (RuntimeError, OSError) as error:
            answer = _REFUSED + str(error).encode()
        answers.write(len(answer).to_bytes(4, "big") + answer)
        answers.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the driver says when it is over
    requests, answers = FileIO(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the engine prints is no answer
    import chdb.session  # type: ignore[import-not-found, unused-ignore]

    with contextlib.suppress(BrokenPipeError):
        serve(Path(sys.argv[1]), requests, answers, chdb.session.Session)
    os._exit(0)  # whatever threads the engine has left


if __name__ == "__main__":
    main()
