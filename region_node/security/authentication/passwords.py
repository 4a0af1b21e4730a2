"""Users and passwords from an htpasswd file.

Is: the plug-in `basic`; bcrypt and {SHA} lines, the file read again when it has changed. Isn't: MD5 (apr1) or crypt
lines, which are refused by name: no well-kept library makes them, and a graphics card tries billions of them in a
second.
Invariants: bcrypt never runs on the event loop (a check costs up to a quarter of a second of processor time); a
password that was right is remembered only as a keyed hash, and forgotten with its line; an unknown user costs as much
as a known one.
Source: Apache httpd, htpasswd(1).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import bcrypt

from heliograph.model.configuration.revocations import ProvenBy
from heliograph.model.errors import ConfigError, Unauthenticated
from heliograph.runtime.clock import Rng
from region_node.security.authentication.principal import Credentials, Principal

log = logging.getLogger("region_node.security.passwords")

Offload = Callable[[Callable[[bytes, bytes], bool], bytes, bytes, str], Awaitable[bool]]
"""Runs it beside the event loop; last the address that asks, as the addresses take turns. Raises MetadataUnavailable
where too many wait: nothing is known of the password, and the client tries again.
"""

_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}\Z")
_SHA = re.compile(r"\{SHA\}[A-Za-z0-9+/]{27}=\Z")
_COST_MAX = 14
_BYTES_MAX = 1024
_WRONG = "user or password is wrong"
_NOBODY = "$2b$10$jpzYC2mOVhmMLAkk3P.RMuJCks/in1uaWyxsjQ101KbK5poA2lU8m"
"""Checked where the file has no user at all; its answer does not count."""


class PasswordProvider:
    def __init__(self, path: str, offload: Offload, rng: Rng) -> None:
        self._path, self._offload = Path(path), offload
        self._secret = rng.getrandbits(256).to_bytes(32, "big")
        self._known: dict[str, tuple[str, bytes]] = {}
        """User -> (the line's hash, keyed hash of the password that fitted it)."""
        self._stamp = self._now()
        self._users = read_users(self._text())

    async def identify(self, credentials: Credentials) -> Principal:
        user, password = _split(credentials.data)
        self._look_again()
        line = self._users.get(user)
        against = line or self._decoy(user)
        seen = hmac.digest(self._secret, password, "sha256")
        known = self._known.get(user)
        if known is not None and known[0] == line and hmac.compare_digest(known[1], seen):
            return Principal(role=user, proof=ProvenBy(user=user))
        if against.startswith("{SHA}"):
            digest = base64.b64encode(hashlib.sha1(password).digest()).decode()
            right = hmac.compare_digest(against, "{SHA}" + digest) and line is not None
        else:
            # bcrypt sees 72 bytes of a password, and its library refuses longer ones
            fits = len(password) <= 72 and b"\x00" not in password
            right = (
                await self._offload(bcrypt.checkpw, password if fits else b"x", against.encode(), credentials.host)
                and line is not None
                and fits
            )
        if not right:
            raise Unauthenticated(_WRONG)
        assert line is not None
        self._known[user] = (line, seen)
        return Principal(role=user, proof=ProvenBy(user=user))

    def _decoy(self, user: str) -> str:
        """As costly as one of the file's own lines, the same one each time for a name that is not in it."""
        lines = list(self._users.values())
        at = int.from_bytes(hmac.digest(self._secret, user.encode(), "sha256")[:8], "big")
        return lines[at % len(lines)] if lines else _NOBODY

    def _look_again(self) -> None:
        stamp = self._now()
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._users = read_users(self._text())
        except ConfigError as error:
            log.warning("passwords.unreadable", extra={"path": str(self._path), "error": str(error)})
            return
        self._known = {user: entry for user, entry in self._known.items() if self._users.get(user) == entry[0]}
        log.info("passwords.reloaded", extra={"path": str(self._path), "users": len(self._users)})

    def _now(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _text(self) -> str:
        try:
            return self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"security.basic_file: {self._path} cannot be read: {error}") from error


def read_users(text: str) -> dict[str, str]:
    """User -> hash. Raises ConfigError with the number of a line that cannot be used."""
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        user, separator, hashed = line.partition(":")
        found = _BCRYPT.match(hashed)
        if not separator or not user or not (found or _SHA.match(hashed)):
            raise ConfigError(
                f"security.basic_file, line {number}: expected user:hash with a bcrypt or {{SHA}} hash; make the line "
                "again with `htpasswd -B`"
            )
        if found and not 4 <= int(found[1]) <= _COST_MAX:
            raise ConfigError(
                f"security.basic_file, line {number}: a bcrypt cost of {found[1]}; 10 is usual, {_COST_MAX} the most "
                "that is taken"
            )
        users[user] = hashed
    return users


def _split(data: bytes) -> tuple[str, bytes]:
    user, separator, password = data.partition(b":")
    if not separator or len(data) > _BYTES_MAX:
        raise Unauthenticated("expected user:password")
    try:
        return user.decode("utf-8"), password
    except UnicodeDecodeError as error:
        raise Unauthenticated(_WRONG) from error
