"""The command line by which one process of ours starts another.

Is: the interpreter, its options, and the module's name. Isn't: what the process is told.
Invariants: an interpreter that has an earlier release understands it, so that an upgrade can be taken back.
"""

from __future__ import annotations

from pathlib import Path

import region_node


def module_command(python: str, module: str, *arguments: str) -> list[str]:
    """The interpreter comes first, so that another one may take its place.

    `-P` keeps the current directory, which is a user's, off the path of the child. In a checkout the directory stays
    in front: who works in another one means the modules that lie there.
    """
    return [python, *(["-P"] if _installed() else []), "-m", module, *arguments]


def _installed() -> bool:
    """Whether this package came by a wheel: its modules lie elsewhere then (`packaging/server/region_node_door.py`)."""
    return list(region_node.__path__) != [str(Path(region_node.__file__).parent)]
