"""Generation file: which generation a member's folder is of, where its log does not say it: a small file beside it.

Is: writing and reading it, and setting aside what is in a folder that was left behind. Isn't: what follows from it
(`core`).
Invariants: "adopted" is durable before the first entry of that generation; what is set aside is renamed within the
folder to a name that nothing has, and never read, written, or removed again; the file says last that it is, so that
what was interrupted is gone on with, and which generation it was for, so that nothing of an earlier one is heard.

    numbers as `checksummed_file` keeps them: the generation; stage 1: adopted, 2: superseded, 3: superseded, and to be
    set aside
"""

from __future__ import annotations

from itertools import chain, count

from heliograph.model.errors import CorruptData
from heliograph.raft.disk import checksummed_file, starts_file
from heliograph.raft.generations import Standing
from heliograph.runtime.disk import Disk, is_transient

GENERATION = "generation"
ASIDE = "aside-"
_ADOPTED, _SUPERSEDED, _SET_ASIDE = 1, 2, 3


def write(disk: Disk, standing: Standing) -> bool:
    """Durable when it returns; False: the disk is full, and nothing is changed. Blocking. Raises OSError."""
    if standing.superseded:
        number, stage = standing.superseded, _SET_ASIDE if standing.set_aside else _SUPERSEDED
    else:
        number, stage = standing.adopted, _ADOPTED
    try:
        checksummed_file.replace_numbers(disk, GENERATION, number, stage, ())
    except (OSError, MemoryError) as error:
        if not is_transient(error):
            raise
        return False
    return True


def read(disk: Disk) -> Standing:
    """What lies there; blocking. Raises OSError, CorruptData."""
    if (found := checksummed_file.read_numbers(disk, GENERATION)) is None:
        return Standing()
    number, stage, _ = found
    if stage not in (_ADOPTED, _SUPERSEDED, _SET_ASIDE):
        raise CorruptData(f"the file {GENERATION} has the stage {stage}, which is not known to this program")
    return Standing(adopted=number) if stage == _ADOPTED else Standing(0, number, stage == _SET_ASIDE)


def begin(disk: Disk) -> Standing:
    """As `read`, of a folder that is empty behind it where it was to be set aside, but for the numbers of its starts:
    with an earlier one it would be taken for an older copy. It has gone over then to the generation that left it
    behind. Blocking. Raises OSError, CorruptData.
    """
    standing = read(disk)
    if not standing.set_aside:
        return standing
    names = disk.names()
    for name in names:
        if name not in (GENERATION, starts_file.STARTS) and not name.startswith(ASIDE):
            disk.rename(name, _free_name(f"{ASIDE}{standing.superseded:016x}-{name}", names))
    disk.sync_directory()
    over = Standing(standing.superseded)
    checksummed_file.replace_numbers(disk, GENERATION, over.adopted, _ADOPTED, ())
    return over


def _free_name(name: str, names: list[str]) -> str:
    """What was set aside before, for the same generation, stays."""
    return next(free for free in chain((name,), (f"{name}-{n}" for n in count(2))) if free not in names)
