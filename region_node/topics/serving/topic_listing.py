"""Lists of topics that are watched: which names of a namespace match a pattern, and what comes and goes.

Is: one watch of the metadata a namespace, whoever asks; patterns; lists with their hashes, each once for all who watch
the same. Isn't: frames.
Invariants: a watcher gets its list first, then each name that came or went since, each once; changes of one loop pass
come together, and so do those that come while watchers are told, of whom each has a loop pass of its own; no batch
waits behind another.
A pattern cannot keep the broker busy: RE2 matches it without backtracking, in one pass over a name, and it has few
states (a client whose pattern is refused polls and matches by itself).
Source: docs/protocols/pulsar.md, "Topic lists".
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from weakref import WeakValueDictionary

import crc32c
import re2

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import NotAllowed
from heliograph.model.topic_names import TopicName
from local_meta import keys

PATTERN_CHARS_MAX = 50
PATTERN_STATES_MAX = 256
"""What one character of a name costs at most. `.` and each bound of a `{n,m}` count by the bytes of UTF-8."""
NAMES_AT_ONCE = 256
"""Names that are matched between two looks at what else the broker has to do."""
HASHED_AT_ONCE = 4096
"""The same of names that are put into a hash, or an answer: about a millisecond."""
_JAVA_CLASS = re.compile(r"&&|\[\^?[^\]]*\[(?!:)")
"""What Java takes for an intersection, or a union, of classes, and RE2 for plain characters."""
_OPTIONS = re2.Options()
_OPTIONS.max_mem, _OPTIONS.log_errors, _OPTIONS.never_capture = 128 << 10, False, True

OnChange = Callable[[list[str], list[str]], None]
"""(new names, names that are gone)."""


def topics_hash(names: Iterable[str]) -> str:
    """CRC-32C over the sorted names, joined by commas; hex digits of the little-endian bytes."""
    checksum: int = crc32c.crc32c(",".join(sorted(names)).encode())
    return checksum.to_bytes(4, "little").hex()


async def paced_hash(names: Iterable[str]) -> str:
    """The same; whatever else waits goes on between slices."""
    checksum, before = 0, ""
    for some in slices(sorted(names)):
        checksum = crc32c.crc32c((before + ",".join(some)).encode(), checksum)
        before = ","
        await asyncio.sleep(0)
    return checksum.to_bytes(4, "little").hex()


def slices(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """What is done with so many names at once."""
    return (names[at : at + HASHED_AT_ONCE] for at in range(0, len(names), HASHED_AT_ONCE))


class WatchedList:
    """The names of a namespace that match a pattern, sorted, and their hash; all who have the same share it."""

    __slots__ = ("__weakref__", "_after", "_matches", "_shared", "hash", "names")

    def __init__(
        self,
        names: dict[str, None],
        hashed: str,
        matches: Callable[[str], bool],
        shared: Callable[[dict[str, None], str], WatchedList],
    ) -> None:
        """hashed: `topics_hash` of the names. shared: the one list of such names."""
        self.names, self.hash, self._matches, self._shared = names, hashed, matches, shared
        self._after: tuple[list[str], list[str], list[str], list[str], WatchedList | None] | None = None

    def after(self, came: list[str], gone: list[str]) -> tuple[list[str], list[str], WatchedList]:
        """(what is new of the list, what is gone of it, the list then). It is made once for these very lists."""
        made = self._after
        if made is None or made[0] is not came or made[1] is not gone:
            new = [name for name in came if name not in self.names and self._matches(name)]
            old = [name for name in gone if name in self.names]
            following = None
            if new or old:
                without = set(old)
                names = dict.fromkeys(sorted([*(name for name in self.names if name not in without), *new]))
                following = self._shared(names, topics_hash(names))
            made = self._after = came, gone, new, old, following
        return made[2], made[3], made[4] or self


def topic_pattern(text: str) -> Callable[[str], bool]:
    """Whether a topic's full name matches, its domain and its partition left away, as Pulsar does it. Raises
    NotAllowed.
    """
    if len(text) > PATTERN_CHARS_MAX:
        raise NotAllowed(f"a topics pattern has at most {PATTERN_CHARS_MAX} characters here, not {len(text)}")
    bare = text.partition("://")[2] or text
    if _JAVA_CLASS.search(bare):
        raise NotAllowed(f"topics pattern {text!r} has a class within a class: write it as one class")
    try:
        matcher = re2.compile(bare, _OPTIONS)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise NotAllowed(
            f"topics pattern {text!r} is no regular expression that is taken here ({reason}): it may not look around "
            "or back, and its counted repetitions have to be few"
        ) from error
    if matcher.programsize > PATTERN_STATES_MAX:
        raise NotAllowed(
            f"topics pattern {text!r} has {matcher.programsize} states, more than {PATTERN_STATES_MAX}: counted "
            "repetitions and classes of Unicode have many"
        )
    return lambda name: matcher.fullmatch(str(TopicName.parse(name).partitioned).partition("://")[2]) is not None


async def matching(matches: Callable[[str], bool], names: Sequence[str]) -> list[str]:
    """Those of `names` that match, in their order; whatever else waits goes on between slices."""
    found = [name for name in names[:NAMES_AT_ONCE] if matches(name)]
    for at in range(NAMES_AT_ONCE, len(names), NAMES_AT_ONCE):
        await asyncio.sleep(0)
        found += [name for name in names[at : at + NAMES_AT_ONCE] if matches(name)]
    return found


class _Namespace:
    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.watchers: dict[int, OnChange] = {}
        self.came: dict[str, None] = {}
        self.gone: dict[str, None] = {}
        self.telling: deque[tuple[list[int], list[str], list[str]]] = deque()
        """(watchers that are to be told, the last first; new names; names that are gone)."""
        self.joining: list[tuple[int, OnChange, asyncio.Future[list[str]]]] = []
        """Who gets the list once all have been told, so that changes never wait twice."""
        self.scheduled = False
        self.stop: Callable[[], None] = lambda: None


class TopicLists:
    """All lists of one broker that are watched."""

    def __init__(self, meta: MetadataStore, call_soon: Callable[..., object]) -> None:
        self._meta, self._call_soon = meta, call_soon
        self._namespaces: dict[str, _Namespace] = {}
        self._lists = WeakValueDictionary[tuple[str, str, str], WatchedList]()
        self._ids = 0

    async def matched(self, namespace: str, pattern: str, names: Sequence[str]) -> WatchedList:
        """The list of those names, which are sorted, that match. Raises NotAllowed (`topic_pattern`)."""
        matches = topic_pattern(pattern)
        found = dict.fromkeys(await matching(matches, names))

        def shared(names: dict[str, None], hashed: str) -> WatchedList:
            known = self._lists.get((namespace, pattern, hashed))
            if known is None or known.names != names:
                known = self._lists[namespace, pattern, hashed] = WatchedList(names, hashed, matches, shared)
            return known

        return shared(found, await paced_hash(found))

    async def watch(self, namespace: str, on_change: OnChange) -> tuple[list[str], Callable[[], None]]:
        """(all names of the namespace now, "stop"). Changes after that go to `on_change`."""
        found = self._namespaces.get(namespace)
        prefix = keys.managed_ledgers(namespace)
        if found is None:
            found = self._namespaces[namespace] = _Namespace()
            watched = found
            found.stop = self._meta.watch(prefix, lambda key, value, _: self._changed(watched, key, value))
        self._ids += 1
        mine = self._ids
        found.watchers[mine] = _nothing

        def stop() -> None:
            found.watchers.pop(mine, None)
            if not found.watchers and self._namespaces.get(namespace) is found:
                del self._namespaces[namespace]
                found.stop()

        try:
            await self._meta.synced(prefix)
            joined: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
            found.joining.append((mine, on_change, joined))
            if not (found.telling and (found.came or found.gone)):
                self._end_batch(found)
            return await joined, stop
        except BaseException:
            stop()
            raise

    def _changed(self, namespace: _Namespace, key: str, value: bytes | None) -> None:
        name = keys.topic_of(key)
        if (value is not None) == (name in namespace.names):
            return
        if value is not None:
            namespace.names[name] = None
            if namespace.gone.pop(name, self) is self:
                namespace.came[name] = None
        else:
            del namespace.names[name]
            if namespace.came.pop(name, self) is self:
                namespace.gone[name] = None
        if not namespace.scheduled:
            namespace.scheduled = True
            self._call_soon(self._tell, namespace)

    def _end_batch(self, namespace: _Namespace) -> None:
        """What has changed until now goes to those who watch now; who joins gets the list with it."""
        came, gone = sorted(namespace.came), sorted(namespace.gone)
        namespace.came, namespace.gone = {}, {}
        if came or gone:
            watching = [number for number, on_change in namespace.watchers.items() if on_change is not _nothing]
            namespace.telling.append((watching[::-1], came, gone))
        joining, namespace.joining = namespace.joining, []
        names = sorted(namespace.names) if joining else []
        for number, on_change, joined in joining:
            if not joined.done() and number in namespace.watchers:
                namespace.watchers[number] = on_change
            if not joined.done():
                joined.set_result(names)

    def _tell(self, namespace: _Namespace) -> None:
        """Tells one watcher in a loop pass: each makes a hash of its list."""
        if not namespace.telling:
            self._end_batch(namespace)
        while namespace.telling:
            watching, came, gone = namespace.telling[0]
            if not watching:
                namespace.telling.popleft()
            elif (on_change := namespace.watchers.get(watching.pop())) is not None:
                on_change(came, gone)
                break
        namespace.scheduled = bool(namespace.telling or namespace.came or namespace.gone or namespace.joining)
        if namespace.scheduled:
            self._call_soon(self._tell, namespace)

    def close(self) -> None:
        for namespace in self._namespaces.values():
            namespace.stop()
        self._namespaces = {}


def _nothing(came: list[str], gone: list[str]) -> None:
    """Stands for a watcher that does not have its list yet."""
