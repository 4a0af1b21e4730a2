"""The age of a metadata: whether it has gone back, as one does whose disk or machine is put back to a snapshot.

Is: the mark that whoever deletes by a metadata keeps in it: a key of its own, put anew at each look. Isn't: where the
version of that put is kept, durably and outside of the metadata, or what follows.
Invariants: a mark is put anew only by who finds it at the version of the last put, or a later one that it did not hear
of; so a metadata that went back to before that put shows another version, or no mark, however far it has come since.
Not seen is what came and went between two looks; and nothing of it where the metadata's id changed as well, as after a
restore, which says so itself (local_meta.metadata_id).
"""

from __future__ import annotations

from heliograph.kv.metadata_store import ABSENT, MetadataStore
from heliograph.model.errors import MetadataError


class MetadataWentBack(MetadataError):
    """It shows an earlier state than one that was seen."""


async def check_mark(meta: MetadataStore, mark: str, known: int) -> int:
    """The version of the mark now; ABSENT: there is none. known: the version that its last put returned; 0: none is
    known, and any is good. Raises MetadataWentBack; what the metadata raises.
    """
    found = await meta.get(mark)
    version = ABSENT if found is None else found[1]
    if known and version < known:
        shown = "without it" if found is None else f"at version {version}"
        raise MetadataWentBack(
            f"the metadata went back: the mark {mark} was put there at version {known}, and is {shown}; its disk or "
            "machine was put back to an earlier state, and what was made since looks deleted"
        )
    return version


async def put_mark(meta: MetadataStore, mark: str, known: int, kept: int | None = None) -> int:
    """Puts the mark anew, with the version that was kept until now. Returns the next one, to be kept durably before
    anything is deleted. Raises MetadataWentBack; VersionConflict where another one does so just now; what the metadata
    raises.

    kept: the version that is kept in every place, where it is kept in several; None: `known`.
    """
    said = b"%d" % (known if kept is None else kept)
    return await meta.put(mark, said, expected=await check_mark(meta, mark, known))


async def kept_later(meta: MetadataStore, mark: str, known: int) -> bool:
    """Whether a later version of the mark was kept than this one, so that it is of an older copy of where it was kept.
    Of the last put nobody knows whether it came to be kept. Raises what the metadata raises.
    """
    found = await meta.get(mark)
    return bool(known) and found is not None and known < int(found[0] or 0)
