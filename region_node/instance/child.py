"""Starts one process of an instance so that it ends when its supervisor does, even where that was killed.

Is: a few lines before the role's own entry point (or, with `--exec`, before another program). Isn't: anything the role
needs.
Source: prctl(2), PR_SET_PDEATHSIG; it survives exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """From here on SIGTERM comes when the parent is gone. Ends this process where it is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit("the supervisor is gone")


def main(parent: int = 0) -> None:
    """parent: its process id, of whoever forks this process; a program asks for it."""
    end_with_parent(parent or os.getppid())
    if sys.argv[1:2] == ["--exec"]:
        os.execv(sys.argv[2], sys.argv[2:])
    from region_node.process.role_process import main as process_main

    process_main()


if __name__ == "__main__":
    main()
