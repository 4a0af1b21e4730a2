"""`heliograph` for many commands: one process that has imported it, forked for each.

Is: the server (`python -m tests.guide.forks FOLDER`), and the program `FOLDER/heliograph`, which hands its arguments,
folder, environment, and files over to it and ends with its exit code; `forked_program`, one for all tests of a process.
Isn't: another `heliograph`: each command runs `heliograph.cli.main.main` in a process of its own. Where the program is
interrupted or killed, its command is interrupted.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

_MESSAGE_BYTES_MAX = 1 << 18
_CLIENT = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
    asked.connect({path!r})
    socket.send_fds(asked, [json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])
    try:
        code = int(asked.recv(16) or b"1")
    except KeyboardInterrupt:
        code = 130
sys.exit(code)
"""


@functools.cache
def forked_program() -> str:
    """The path of the program whose server lives as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="forks"))
    server = begin(folder)
    assert server.stdout is not None and server.stdout.readline() == b"ready\n"

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.communicate()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return str(folder / "heliograph")


def begin(folder: Path, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """A server of `folder`, which says so once it is ready. prefix: of its command line, say `ip netns exec NAME`."""
    command = [*prefix, sys.executable, "-m", "tests.guide.forks", str(folder)]
    where, pipe = Path(__file__).parents[2], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=where, start_new_session=True)


def serve(folder: Path) -> None:
    from heliograph.cli import main as program

    for point in entry_points(group="heliograph.commands"):
        point.load()
    path = str(folder / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(16)
        client = folder / "heliograph"
        client.write_text(_CLIENT.format(python=sys.executable, path=path))
        client.chmod(0o755)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        print("ready", flush=True)
        while sys.stdin.fileno() not in select.select([listener, sys.stdin], [], [])[0]:  # it ends with who began it
            asked, _ = listener.accept()
            if not os.fork():
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                code = _ended(asked, program.main)
                with contextlib.suppress(BrokenPipeError):  # it was interrupted
                    asked.send(b"%d" % code)
                os._exit(0)
            asked.close()


def _ended(asked: socket.socket, main: object) -> int:
    """Runs one command in another fork; returns its exit code."""
    message, files, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES_MAX, 3)
    child = os.fork()
    if child:
        for file in files:
            os.close(file)
        handle = os.pidfd_open(child)
        if handle not in select.select([handle, asked], [], [])[0]:  # whoever asked is gone
            os.kill(child, signal.SIGINT)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    asked.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for at, file in enumerate(files):
        os.dup2(file, at)
        os.close(file)
    arguments, cwd, environment = json.loads(message)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["heliograph", *arguments]
    code = 0
    try:
        assert callable(main)
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.modules["__main__"].__package__ = ""  # else messages of use name `python -m tests.guide.heliograph`
    serve(Path(sys.argv[1]))
