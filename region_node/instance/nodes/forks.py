"""ForkServer: the first nodes of an instance, forked from one process that has imported what they need.

Is: asking that process (`region_node.instance.fork_server`), and its nodes as `Processes` takes any process. Isn't:
needed; where it cannot be had, is gone, or is closed, a node is started as a program.
Invariants: a node is signalled by its pidfd, never by a number that may be another's by now; a node whose server is
gone has ended with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from region_node.runtime.module_command import module_command

TITLE_BYTES = 512
"""Room for a node's command line in the server's own, of which `ps` shows it."""
_NODE = "region_node.instance.child"
_GONE = "the process from which nodes are forked is gone"


class Forked:
    """A node, with what of an `asyncio.subprocess.Process` is used of it."""

    def __init__(self, pid: int, handle: int) -> None:
        """handle: its pidfd, closed once it has ended."""
        self.pid, self.stdout = pid, asyncio.StreamReader()
        self.returncode: int | None = None
        self._handle, self._ended = handle, asyncio.Event()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Raises ProcessLookupError where it has ended."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._handle, number)

    def end(self, code: int) -> None:
        """It has ended, with this code."""
        if self.returncode is None:
            self.returncode = code
            os.close(self._handle)
            self._ended.set()

    def end_unheard(self) -> None:
        """Whoever would tell its end is gone: it ends with that one, and its handle tells when."""
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(self._handle)
            self.end(-signal.SIGTERM)

        loop.add_reader(self._handle, ended)


class ForkServer:
    """One for an instance. `fork` serves until `finish`; what was forked is told of until `close`."""

    def __init__(self, data: Path, environment: dict[str, str]) -> None:
        """data: the current directory of what is forked. environment: of the same."""
        self._data, self._environment = data, environment
        self._channel: socket.socket | None = None
        self._starting = asyncio.Lock()
        self._finished = False
        self._server: asyncio.subprocess.Process | None = None
        self._forked: dict[int, Forked] = {}
        self._asked: dict[int, asyncio.Future[Forked]] = {}
        self._requests = 0

    def takes(self, command: Sequence[str]) -> bool:
        """Whether a process of this command line may be forked: a node's, of this very release."""
        own = module_command(sys.executable, _NODE, "--role")
        return sys.platform == "linux" and not self._finished and list(command[: len(own)]) == own

    async def fork(self, command: Sequence[str], stderr: int) -> Forked:
        """A node of `command`, which `takes` has looked at. Raises OSError: then no node was made."""
        async with self._starting:
            if self._channel is None and not self._finished:
                await self._start()
        if self._channel is None:
            raise OSError(_GONE)
        loop = asyncio.get_running_loop()
        self._requests += 1
        request, answer = self._requests, loop.create_future()
        self._asked[request] = answer
        asked = {"id": request, "words": command[len(module_command(sys.executable, _NODE)) :]}
        ours, theirs = _pipe()
        try:
            with theirs:
                socket.send_fds(self._channel, [json.dumps(asked).encode()], [theirs.fileno(), stderr])
                forked: Forked = await answer
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(forked.stdout), ours)
        except BaseException:
            ours.close()
            raise
        finally:
            del self._asked[request]
        return forked

    def finish(self) -> None:
        """Forks no more: whoever starts later may be of a release that was installed meanwhile."""
        self._finished = True

    async def close(self) -> None:
        """The server ends, and with it whatever of its nodes is left."""
        self._finished = True
        self._gone()
        if self._server is not None:
            await self._server.wait()

    def _gone(self) -> None:
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()
        self._channel, self._finished = None, True
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(OSError(_GONE))
        for forked in self._forked.values():
            forked.end_unheard()
        self._forked.clear()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, (self._data / "logs" / "supervisor.log").open("ab") as log:
            self._server = await asyncio.create_subprocess_exec(
                *module_command(
                    sys.executable, "region_node.instance.fork_server", str(theirs.fileno()), "-" * TITLE_BYTES
                ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self._data,
                env=self._environment,
                pass_fds=(theirs.fileno(),),
            )
        ours.setblocking(False)
        self._channel = ours
        asyncio.get_running_loop().add_reader(ours, self._hear)

    def _hear(self) -> None:
        assert self._channel is not None
        while True:
            try:
                said, files, _, _ = socket.recv_fds(self._channel, 4096, 1)
            except BlockingIOError:
                return
            except OSError:
                said, files = b"", []
            if not said:
                self._gone()
                return
            told: dict[str, Any] = json.loads(said)
            if "code" in told:
                self._forked.pop(told["pid"]).end(told["code"])
            else:
                self._take(told, files)

    def _take(self, told: dict[str, Any], files: list[int]) -> None:
        """An answer. Nobody waits for it: what was forked ends."""
        answer = self._asked.get(told["id"])
        waits = answer is not None and not answer.done()
        if "failed" in told:
            if answer is not None and waits:
                answer.set_exception(OSError(told["failed"]))
            return
        forked = self._forked[told["pid"]] = Forked(told["pid"], files[0])
        if answer is not None and waits:
            answer.set_result(forked)
        else:
            forked.send_signal(signal.SIGKILL)


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    """Its reading and its writing end."""
    reading, writing = os.pipe()
    return open(reading, "rb", buffering=0), open(writing, "wb", buffering=0)
