"""The file of tokens: who is signed in, for each admin address.

Is: reading and writing it, and who may see it. Isn't: when a token is renewed.
Invariants: the file and its folder are their owner's alone; one that others may read, or that somebody else owns, is
not read; it is replaced as a whole.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from heliograph.model.errors import ConfigError

_BYTES_MAX = 1 << 20
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """One person at one admin address. `expires_ms`: of the token, 0 never; `refresh_token`: "" where none was given.
    `scope`, `audience`: as they were asked for.
    """

    issuer: str
    client_id: str
    token: str
    refresh_token: str = ""
    expires_ms: int = 0
    scope: str = ""
    audience: str = ""


def address(admin: str) -> str:
    """An admin URL in the one form by which its token is found. Raises ConfigError."""
    try:
        parts = urlsplit(admin)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        host, port = None, 0
    if not host or not port or parts.scheme not in _PORTS:
        raise ConfigError(f"--admin: expected http://host:port, not {admin!r}")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}{parts.path.rstrip('/')}"


def tokens_file() -> Path:
    """Where this user's tokens lie. Raises ConfigError where the user has no folder."""
    try:
        above = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    except RuntimeError as error:
        raise ConfigError("this user has no home folder: set HOME, or XDG_CONFIG_HOME") from error
    return above / "heliograph" / "tokens.json"


class TokenStore:
    """`path`: the file; it and its folder are made with the first token."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, admin: str) -> SignIn | None:
        """Who is signed in there. Raises ConfigError where others may see the file."""
        return self._all().get(address(admin))

    def write(self, admin: str, found: SignIn | None) -> None:
        """None: nobody is signed in there any more. Wants `locked`."""
        every = self._all()
        every.pop(address(admin), None)
        if found is not None:
            every[address(admin)] = found
        text = json.dumps({name: asdict(one) for name, one in sorted(every.items())}, indent=1)
        scratch = self.path.with_name(f"{self.path.name}.new")
        try:
            scratch.unlink(missing_ok=True)
            with open(_opened(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self.path)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One command at a time changes the file, or uses up a refresh token, which some issuers take once."""
        lock = self.path.with_name(f"{self.path.name}.lock")
        try:
            self.path.parent.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self.path.parent.mkdir(mode=0o700)
            handle = _opened(lock, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise ConfigError(f"{lock} cannot be written: {error.strerror}") from error
        with open(handle, "w"):
            _check(self.path.parent, os.stat(self.path.parent), "700")
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _all(self) -> dict[str, SignIn]:
        try:
            handle = _opened(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from error
        with open(handle, "rb") as file:
            _check(self.path.parent, os.stat(self.path.parent), "700")
            _check(self.path, os.fstat(file.fileno()), "600")
            text = file.read(_BYTES_MAX)
        known = {entry.name for entry in fields(SignIn)}
        try:
            found: dict[str, dict[str, Any]] = json.loads(text)
            return {
                name: SignIn(**{key: value for key, value in row.items() if key in known})
                for name, row in found.items()
            }
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self.path} is no file of tokens: delete it, and sign in again with `heliograph login`"
            ) from error


def _opened(path: Path, flags: int) -> int:
    """A file that is no link to another place; made, it is its owner's alone, whatever the umask."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _check(path: Path, found: os.stat_result, wanted: str) -> None:
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{path} belongs to somebody else: tokens are not read from it; move it away, and sign in")
    if found.st_mode & 0o077:
        raise ConfigError(
            f"{path} is open to others on this machine: `chmod {wanted} {path}`; where somebody else uses this "
            "machine, give `heliograph logout` behind that, and sign in again"
        )
