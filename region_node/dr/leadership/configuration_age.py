"""ConfigurationAge: whether the global configuration has gone back, as it does where a majority of its voters' disks
are put back to older copies, and what becomes of its leaderships and operations then.

Is: a mark of this region in the configuration, whose version the region's own metadata keeps, and what a broker does
that finds an older one. Isn't: a copy of one voter's disk, which the others know (`heliograph.raft.starts`), or a
restore from a backup, which says so itself (`global_config.backup`).
Invariants: whoever finds that the configuration went back has everything ask that a restored backup lets ask, and says
so last (`keys.RESTORED`): so others do not do it again, and one that was interrupted is gone on with by the next.
What either number says is skipped where it cannot be read, or is more than a day ahead of the clock: the mark
alone decides then.
Not seen is what was put back to a state behind the last mark, and whatever every region has lost together with its
metadata.
Source: docs/protocols/leadership.md, docs/decisions/0240.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from global_config import keys as config_keys
from global_config.backup import DOUBTED, RESTORED_AHEAD_MS, restored_ms, restored_value
from global_config.write_retries import Tries
from heliograph.kv.metadata_store import ABSENT, Check, MetadataStore, Put, pages_under
from heliograph.kv.unreadable_records import readable
from heliograph.model.configuration.leadership import FLOOR
from heliograph.model.errors import CorruptData, MetadataUnavailable, VersionConflict
from heliograph.runtime.clock import Rng
from local_meta import keys
from local_meta.metadata_age import MetadataWentBack, check_mark, put_mark

log = logging.getLogger("region_node.dr")

_AT_ONCE = 100
"""So many rows are changed by one transaction."""
WHY = "the configuration was put back to an earlier state"


class ConfigurationAge:
    """Looks for one broker, whenever it is asked."""

    def __init__(
        self,
        config: MetadataStore,
        meta: MetadataStore,
        region: str,
        wall_ms: Callable[[], int],
        rng: Rng | None = None,
    ) -> None:
        """config: the global configuration; meta: the metadata of `region`. rng: spreads tries that collided."""
        self._config, self._meta, self._wall_ms, self._rng = config, meta, wall_ms, rng
        self._mark = config_keys.seen_by(region)
        self._restored: int | None = None

    async def look(self, *, anew: bool) -> bool:
        """Looks whether it went back. anew: puts the mark anew, too, and keeps that: a configuration that forgets what
        was written until now is known as one. One that has forgotten something asks when this returns. Returns whether
        it is another one than this broker knew, which at first knows none: versions that were heard before say nothing
        any more. Raises HeliographError.
        """
        async for _ in Tries(self._rng):
            kept = await self._meta.get(keys.CONFIGURATION_SEEN)
            seen, known = (0, 0) if kept is None else readable(_numbers, keys.CONFIGURATION_SEEN, kept[0]) or (0, 0)
            found = await self._config.get(config_keys.RESTORED)
            restored = 0 if found is None else readable(restored_ms, config_keys.RESTORED, found[0])
            most = self._wall_ms() + RESTORED_AHEAD_MS
            known = known if known <= most else 0
            if restored is None or restored > most:  # the mark says whether it went back
                restored = known
            try:
                if (new := await self._marked(seen, known, restored, anew)) is None:
                    await self._doubt(known, ABSENT if found is None else found[1])
                    continue
                if anew:
                    value = json.dumps([new, restored]).encode()
                    await self._meta.put(keys.CONFIGURATION_SEEN, value, expected=ABSENT if kept is None else kept[1])
            except VersionConflict:  # another broker looks, too
                continue
            before, self._restored = self._restored, restored
            return before != restored
        raise MetadataUnavailable("others look at the age of the configuration all the time: try again")

    async def _marked(self, seen: int, known: int, restored: int, anew: bool) -> int | None:
        """The version of the mark; None: the configuration went back. Raises VersionConflict."""
        try:
            if restored < known:
                raise MetadataWentBack(f"it was restored at {known}, and knows nothing of that")
            work = put_mark if anew else check_mark
            return await work(self._config, self._mark, seen if restored == known else 0)
        except MetadataWentBack as error:
            log.error("config.went_back", extra={"error": str(error)})
            return None

    async def _doubt(self, known: int, version: int) -> None:
        """Has everything ask that was written earlier, as after a restore, and says that last. version: of RESTORED.
        Raises VersionConflict, where another broker has said it meanwhile, too: what stands there now is not earlier.
        """
        now_ms = max(self._wall_ms(), known + 1)
        for prefix in DOUBTED:
            async for rows in pages_under(self._config, prefix):
                changed = [
                    Put(key, new, at)
                    for key, value, at in rows
                    if (new := restored_value(key, value, now_ms, WHY)) != value
                ]
                for start in range(0, len(changed), _AT_ONCE):
                    await self._config.txn([*changed[start : start + _AT_ONCE], Check(config_keys.RESTORED, version)])
        last = [Put(config_keys.RESTORED, b"%d" % now_ms, version)]
        if await self._config.get(FLOOR) is None:  # of a namespace that was made active-passive since
            last.append(Put(FLOOR, b"%d" % now_ms, ABSENT))
        await self._config.txn(last)


def _numbers(value: bytes) -> tuple[int, int]:
    """(the version of the mark, when the configuration was restored last, in wall ms). Raises CorruptData."""
    try:
        seen, restored = json.loads(value)
        return int(seen), int(restored)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptData(f"what is known of the configuration's age: {error}") from error
