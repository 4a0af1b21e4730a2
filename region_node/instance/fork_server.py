"""A process that has imported what nodes need, and forks the first nodes of an instance from itself.

Is: `python -m region_node.instance.fork_server FD ROOM`. FD is a socket on which `region_node.instance.nodes.forks`
asks; ROOM is a word as long as a node's command line, which takes its place in what `ps` shows.
Isn't: a supervisor; it tells how a node ended, and starts none by itself.
Invariants: it has one thread, no event loop, and no open file of a node; a node has nothing of it but imported modules.
Who asked is gone: it ends, and so do its nodes, as they would with their supervisor.
Source: fork(2), unix(7), "SCM_RIGHTS".
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from typing import Any

from region_node.instance import child

COMMON = ("region_node.process.role_process", "uvloop")
MODULES = {
    "meta": ("region_node.security.tls", "local_meta.node", "heliograph.kv.engine.lmdb_check"),
    "config": ("global_config.node", "global_config.transport.grpc_transport"),
    "bookie": (
        "storage.bookie.maintenance.block_refill",
        "storage.bookie.maintenance.garbage_collector",
        "storage.bookie.serving.bookie_server",
        "storage.bookie.serving.enrolment",
        "storage.bookie.serving.registration",
        "region_node.bookie.http_face",
        "region_node.security.revocation_copies",
    ),
    "broker": (
        "region_node.process.broker_role",
        "region_node.faces.admin.server.admin_server",
        "region_node.faces.kafka.connection.kafka_listener",
        "region_node.faces.pulsar.connection.pulsar_listener",
        "region_node.tiering.broker_tier",
        "replicator.receiving.link_receiver",
        "storage.managed_ledger.log.managed_ledger_factory",
    ),
}
"""Role -> modules that bring, beside COMMON, nearly all that such a node imports while it starts; it imports the rest
by itself.
"""
REQUEST_BYTES = 65_536
"""The most of one request: the words of a node's command line, as JSON."""


def import_for(roles: list[str]) -> None:
    """Imports what nodes of `roles` need, where that has not happened yet."""
    for module in (*COMMON, *(module for role in roles for module in MODULES.get(role, ()))):
        with contextlib.suppress(Exception):  # the node says what is wrong, if it needs it
            importlib.import_module(module)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    _show("region_node.instance.fork_server")
    os.set_inheritable(channel.fileno(), False)
    child.end_with_parent(os.getppid())
    os.close(os.pidfd_open(os.getpid()))  # where that cannot be, nothing is forked
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it goes to a whole terminal; the supervisor decides
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
                _tell_ends(channel)
            if channel.fileno() in ready:
                asked, files, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 2)
                if not asked:
                    return
                request: dict[str, Any] = json.loads(asked)
                words: list[str] = request["words"]
                import_for(words[words.index("--role") + 1].split(","))
                gc.freeze()  # a collection in a node would write to every page that it shares
                own = os.getpid()
                try:
                    pid = os.fork()
                except OSError as error:
                    _answer(channel, {"id": request["id"], "failed": str(error)})
                    pid = -1
                if pid == 0:
                    selector.close()
                    signal.set_wakeup_fd(-1)
                    for each in (channel.detach(), woken, wake):
                        os.close(each)
                    _become(own, words, *files)
                for each in files:
                    os.close(each)
                if pid > 0:
                    _hand_over(channel, request["id"], pid)


def _hand_over(channel: socket.socket, request: int, pid: int) -> None:
    """Sends the node's handle; a node without one is nobody's, and ends."""
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        _answer(channel, {"id": request, "failed": str(error)})
        return
    _answer(channel, {"id": request, "pid": pid}, handle)
    os.close(handle)


def _answer(channel: socket.socket, told: dict[str, Any], *files: int) -> None:
    socket.send_fds(channel, [json.dumps(told).encode()], files)


def _tell_ends(channel: socket.socket) -> None:
    """Collects the nodes that have ended, and sends the exit code of each, or minus the number of its signal."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _answer(channel, {"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _become(parent: int, words: list[str], stdout: int, stderr: int) -> None:
    """Goes on as `python -m region_node.instance.child WORDS` would."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, stdout, stderr)):
        os.dup2(file, number)
        os.close(file)
    _show("region_node.instance.child", *words)
    sys.argv = [str(child.__file__), *words]
    code = 1
    try:
        child.main(parent)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _show(*words: str) -> None:
    """This process's command line becomes `python -m WORDS`, as far as there is room. Source: proc(5)."""
    with contextlib.suppress(OSError), open("/proc/self/stat") as stat, open("/proc/self/mem", "r+b", 0) as memory:
        fields = stat.read().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
        line = "\0".join((sys.executable, "-m", *words)).encode()[: end - start - 1]
        memory.seek(start)
        memory.write(line.ljust(end - start, b"\0"))


if __name__ == "__main__":
    main()
