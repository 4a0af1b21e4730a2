"""Cookies: which bookie a directory belongs to, which of its directories it is, and which of them were dropped.

Is: the check before a start touches anything. Isn't: what the directories hold, or whether the region knows this life
of the bookie (`storage.bookie.serving.enrolment`): empty directories say nothing of that, and get their cookies only
once it is known.
Invariants: a directory with a wrong cookie is never written to; a bookie starts with all of its directories, each in
its place, or not at all; one that was dropped after a failure is never used again, and what a ledger had in it is never
said to be absent.

A cookie is the file `cookie` (`small_files.write_small`): version 1 of a bookie with one journal and one ledger
directory, [instance, bookie, salt]; version 2 of any other, [instance, bookie, salt, kind, index, journal directories,
ledger directories]. `dropped`, in the directories that are left, is [[kind, index, reason]...].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from heliograph.model.errors import ConfigError, CorruptData
from heliograph.runtime.clock import Rng
from heliograph.runtime.disk import Disk, is_transient
from storage.bookie.journal.small_files import NEW, read_small, write_small

JOURNAL, LEDGER = "journal", "ledger"
_COOKIE, _DROPPED = "cookie", "dropped"
_VERSIONS = (1, 2)

Where = tuple[str, int]
"""(JOURNAL or LEDGER, index): names one directory of a bookie, counted from 0 within its kind."""


@dataclass(frozen=True, slots=True)
class DirectoryPlace:
    """A directory: its Disk, another Disk over the same directory with a thread of its own for work in the background,
    and its name in messages.
    """

    disk: Disk
    second: Disk | None = None
    name: str = ""

    @property
    def background(self) -> Disk:
        return self.second or self.disk


@dataclass(frozen=True, slots=True)
class Cookie:
    instance: str
    bookie: str
    salt: int
    where: Where | None = None
    """None: of the only one of its kind, in version 1."""
    journals: int = 1
    ledgers: int = 1


def load_cookie(disk: Disk) -> Cookie | None:
    """None where there is none. Raises OSError, CorruptData."""
    found = read_small(disk, _COOKIE, _VERSIONS)
    if found is None:
        return None
    version, fields = found
    try:
        if version == 1:
            instance, bookie, salt = fields
            return Cookie(str(instance), str(bookie), int(salt))
        instance, bookie, salt, kind, index, journals, ledgers = fields
    except ValueError as error:
        raise CorruptData(f"{_COOKIE}: {len(fields)} fields in version {version}") from error
    return Cookie(str(instance), str(bookie), int(salt), (str(kind), int(index)), int(journals), int(ledgers))


def load_dropped(disk: Disk) -> dict[Where, str]:
    """Returns the directories that this one's file names as dropped -> why; {} where there is no file. Blocking; raises
    OSError, CorruptData.
    """
    found = read_small(disk, _DROPPED)
    return {(str(kind), int(index)): str(reason) for kind, index, reason in found[1]} if found else {}


def save_dropped(disk: Disk, dropped: dict[Where, str]) -> None:
    """Blocking; durable when it returns. Raises OSError."""
    write_small(disk, _DROPPED, [[kind, index, reason] for (kind, index), reason in sorted(dropped.items())])


@dataclass(frozen=True, slots=True)
class Claim:
    salt: int
    """Seeds the checksums of all journals of this bookie; drawn at its first start."""
    dropped: dict[Where, str]
    """Directories that are not to be used any more, and why."""
    fresh: bool = False
    """No directory has a cookie: they are empty."""
    missing: list[tuple[Disk, list[object], int]] = field(default_factory=list)
    """(directory, fields, version) of the cookies that are still to be written."""

    def complete(self) -> None:
        """Writes the cookies that are missing. Blocking; durable when it returns. Raises OSError."""
        for disk, fields, version in self.missing:
            write_small(disk, _COOKIE, fields, version=version)
        self.missing.clear()


@dataclass(frozen=True, slots=True)
class DiskIdentity:
    """What the directories of a bookie say of its life."""

    salt: int
    start: int
    """The number of the last start, as the directory says that is furthest behind; 0: there was none."""
    fresh: bool
    """They are empty, and the salt was drawn just now."""
    mark: int = 0
    """The version of the bookie's mark in the metadata (local_meta.metadata_age), as the directory says that is
    furthest behind; 0: none is known.
    """


class _Claiming:
    def __init__(
        self, journals: Sequence[DirectoryPlace], ledgers: Sequence[DirectoryPlace], instance: str, bookie: str
    ) -> None:
        self.instance, self.bookie = instance, bookie
        self.shape = len(journals), len(ledgers)
        self.places: dict[Where, DirectoryPlace] = {
            (kind, at): p for kind, places in ((JOURNAL, journals), (LEDGER, ledgers)) for at, p in enumerate(places)
        }
        self.dropped: dict[Where, str] = {}

    def run(self, rng: Rng) -> Claim:
        cookies: dict[Where, Cookie | None] = {}
        wrong: dict[Where, ConfigError] = {}
        for where, place in self.places.items():
            try:
                cookies[where] = self._cookie(where, place)
            except ConfigError as error:
                wrong[where] = error
            except OSError as error:
                if is_transient(error) or not self._spared(where):
                    raise
                self.dropped[where] = f"it cannot be read: {error}"
        for where in [where for where, cookie in cookies.items() if cookie is not None]:
            try:
                self.dropped |= load_dropped(self.places[where].disk)
            except CorruptData as error:
                raise ConfigError(
                    f"bookie {self.bookie}: in the {self._called(where)}: {error}; keep it, and start a new bookie"
                ) from error
        for where, refusal in wrong.items():
            if where not in self.dropped:
                raise refusal
        held = {where: cookie for where, cookie in cookies.items() if where not in self.dropped}
        known = [cookie.salt for cookie in held.values() if cookie is not None]
        if any(salt != known[0] for salt in known):
            raise ConfigError(
                f"bookie {self.bookie}: the directories belong to two different lives of this bookie; give it those "
                "that belong together"
            )
        salt = known[0] if known else rng.getrandbits(32)
        return Claim(salt, self.dropped, not known, self._missing(held, salt))

    def _spared(self, where: Where) -> bool:
        """Whether the bookie can go on without this one."""
        return any(other[0] == where[0] and other != where and other not in self.dropped for other in self.places)

    def _called(self, where: Where) -> str:
        kind, index = where
        count = self.shape[kind == LEDGER]
        name = self.places[where].name
        return f"{kind} directory" + (f" {index + 1} of {count}" if count > 1 else "") + (f", {name}," if name else "")

    def _cookie(self, where: Where, place: DirectoryPlace) -> Cookie | None:
        called = self._called(where)
        try:
            cookie = load_cookie(place.disk)
        except CorruptData as error:
            raise ConfigError(
                f"bookie {self.bookie}: the {called} is of another format ({error}); this version reads formats 1 and 2"
            ) from error
        if cookie is None:
            return None
        if (cookie.instance, cookie.bookie) != (self.instance, self.bookie):
            raise ConfigError(
                f"bookie {self.bookie} of {self.instance}: the {called} belongs to bookie {cookie.bookie} of "
                f"{cookie.instance}; give it its own"
            )
        if (cookie.journals, cookie.ledgers) != self.shape:
            raise ConfigError(
                f"bookie {self.bookie} was made with {cookie.journals} journal and {cookie.ledgers} ledger "
                f"directories, and is given {self.shape[0]} and "
                f"{self.shape[1]}; they stay as they are: give it those, or start another bookie with the new ones "
                "and decommission this one"
            )
        if cookie.where is not None and cookie.where != where:
            raise ConfigError(
                f"bookie {self.bookie}: the {called} is in the place of {cookie.where[0]} directory "
                f"{cookie.where[1] + 1}; list them in the order they had"
            )
        return cookie

    def _missing(self, held: dict[Where, Cookie | None], salt: int) -> list[tuple[Disk, list[object], int]]:
        """The cookies that a new bookie lacks. Raises ConfigError where one is missing beside data."""
        missing = [where for where, cookie in held.items() if cookie is None]
        if not missing:
            return []
        for where in held:
            if foreign := [name for name in self.places[where].disk.names() if name not in (_COOKIE, _COOKIE + NEW)]:
                raise ConfigError(
                    f"bookie {self.bookie}: the {self._called(missing[0])} has no cookie, but the "
                    f"{self._called(where)} holds {foreign[0]!r}; "
                    "give it the directory it had, or empty ones"
                )
        fields: list[object] = [self.instance, self.bookie, salt]
        if self.shape == (1, 1):
            return [(self.places[where].disk, fields, 1) for where in missing]
        return [(self.places[where].disk, [*fields, *where, *self.shape], 2) for where in missing]


def claim(
    journals: Sequence[DirectoryPlace], ledgers: Sequence[DirectoryPlace], instance: str, bookie: str, rng: Rng
) -> Claim:
    """Makes sure that all directories belong to this bookie, each in its place. Writes nothing.

    Empty ones become this bookie's by `Claim.complete`. Raises ConfigError in one sentence where one is another's, of
    another format, in the wrong place, or has lost its fellows; OSError where the only one of its kind cannot be read.
    """
    return _Claiming(journals, ledgers, instance, bookie).run(rng)
