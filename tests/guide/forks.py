"""`heliograph` for many commands: one process that has imported it, forked for each.

Is: the server (`python -m tests.guide.forks FOLDER`), and the program `FOLDER/heliograph`, which hands its arguments,
folder, environment, and files over to it and ends with its exit code. Isn't: another `heliograph`: each command runs
`heliograph.cli.main.main` in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from importlib.metadata import entry_points
from pathlib import Path

_MESSAGE_BYTES_MAX = 1 << 18
_CLIENT = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
    asked.connect({path!r})
    socket.send_fds(asked, [json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])
    sys.exit(int(asked.recv(16) or b"1"))
"""


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
        while True:
            asked, _ = listener.accept()
            if not os.fork():
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                asked.send(b"%d" % _ended(asked, program.main))
                os._exit(0)
            asked.close()


def _ended(asked: socket.socket, main: object) -> int:
    """Runs one command in another fork; returns its exit code."""
    message, files, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES_MAX, 3)
    child = os.fork()
    if child:
        for file in files:
            os.close(file)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    asked.close()
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
