"""`heliograph tokens`: keys for tokens, tokens, and what a broker would say to one.

Is: options, and files. Isn't: signing (`region_node.security.authentication.token_issuing`) or verifying
(`region_node.security.authentication.tokens`): `validate` asks exactly what a broker asks.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from heliograph.cli.groups import add, group
from heliograph.model.errors import ConfigError, Unauthenticated
from heliograph.runtime.clock import SystemClock, system_rng

_EXPIRES = "24h"

SecretOption = Annotated[Path | None, typer.Option("--secret", help="File of the secret.")]
PrivateOption = Annotated[Path | None, typer.Option("--private", help="File of the private key, PEM or DER.")]
PublicOption = Annotated[Path | None, typer.Option("--public", help="File of the public key, PEM or DER.")]


def register(app: typer.Typer) -> None:
    tokens = group(app, "tokens", "Make keys and tokens, and ask what a broker would say to a token.")
    add(tokens, keys=keys, list=show, remove=remove, create=create, validate=validate)


def keys(
    algorithm: Annotated[
        str, typer.Option(help="HS256, HS384, HS512 for a secret; RS, PS, ES with 256, 384, 512 for a key pair.")
    ] = "ES256",
    secret: SecretOption = None,
    private: PrivateOption = None,
    public: PublicOption = None,
    jwks: Annotated[
        Path | None,
        typer.Option(help="Key set to which the public key is added; the brokers read it again by themselves."),
    ] = None,
) -> None:
    """Make a secret, or a key pair. Nothing is overwritten; a key set is added to."""
    from region_node.security.authentication.token_issuing import new_key_pair, new_secret, with_key

    if secret is not None:
        if private or public or jwks:
            raise ConfigError("give --secret for an HS algorithm, or --private and --public for a key pair")
        _write(secret, new_secret(algorithm, system_rng()), secret=True)
        return
    if private is None or not (public or jwks):
        raise ConfigError(
            "give --secret FILE for an HS algorithm; or --private FILE, with --public FILE, --jwks FILE, or both"
        )
    for path in (private, *([public] if public else [])):
        _absent(path)
    inner, outer = new_key_pair(algorithm)
    key_set = None if jwks is None else with_key(_read(jwks) if jwks.exists() else b"", outer)
    _write(private, inner, secret=True)
    if public is not None:
        _write(public, outer, secret=False)
    if jwks is not None and key_set is not None:
        _replace(jwks, key_set)


def show(jwks: Annotated[Path, typer.Option(help="File of a key set.")]) -> None:
    """List the keys of a key set: the id that stands in the tokens of each, and its kind."""
    for key in json.loads(_read(jwks)).get("keys", ()):
        typer.echo(f"{key.get('kid', '(without an id)')}  {key.get('kty')} {key.get('crv', '')}".rstrip())


def remove(
    kid: Annotated[str, typer.Argument(help="Id of the key, as `heliograph tokens list` shows it.")],
    jwks: Annotated[Path, typer.Option(help="File of the key set; the brokers read it again by themselves.")],
) -> None:
    """Take a public key out of a key set: from then on its tokens open nothing new."""
    from region_node.security.authentication.token_issuing import without_key

    _replace(jwks, without_key(_read(jwks), kid))


def _replace(jwks: Path, key_set: bytes) -> None:
    scratch = jwks.with_name(jwks.name + ".new")
    try:
        scratch.write_bytes(key_set)
        scratch.replace(jwks)
    except OSError as error:
        raise ConfigError(f"{jwks} cannot be written: {error.strerror}") from error
    typer.echo(f"{jwks}: {len(json.loads(key_set)['keys'])} keys")


def create(
    subject: Annotated[str, typer.Option("--subject", "-s", help="The role.")],
    secret: SecretOption = None,
    private: PrivateOption = None,
    algorithm: Annotated[str, typer.Option(help="Else the one that is usual for the key.")] = "",
    expires: Annotated[str, typer.Option(help="30m, 12h, 7d, 1y; `never` is for tests.")] = _EXPIRES,
    not_before: Annotated[str, typer.Option(help="Valid only after so long.")] = "",
    issuer: str = "",
    audience: str = "",
    claim: Annotated[list[str] | None, typer.Option(help="Another claim, name=value; several times.")] = None,
) -> None:
    """Print a signed token that names the role as its subject."""
    from region_node.security.authentication.token_issuing import read_signing_key, seconds, signed

    path = _one(secret=secret, private=private)
    key, usual = read_signing_key(_read(path), private=private is not None)
    now = SystemClock().wall_ms() // 1000
    claims: dict[str, Any] = dict(_pair(text) for text in claim or ())
    claims = {"jti": f"{system_rng().getrandbits(96):024x}", **claims, "sub": subject, "iat": now}
    if expires != "never":
        claims["exp"] = now + seconds(expires)
    if not_before:
        claims["nbf"] = now + seconds(not_before)
    claims |= {name: value for name, value in (("iss", issuer), ("aud", audience)) if value}
    typer.echo(signed(key, algorithm or usual, claims))


def validate(
    token: Annotated[str, typer.Argument(help="The token; absent or -, it is read from stdin.")] = "-",
    secret: SecretOption = None,
    public: PublicOption = None,
    jwks: Annotated[Path | None, typer.Option(help="File of a key set.")] = None,
    algorithm: Annotated[
        list[str] | None, typer.Option(help="Those that the broker accepts; several times. Else all that fit the key.")
    ] = None,
    issuer: str = "",
    audience: str = "",
    role_claim: str = "sub",
    role_prefix: str = "",
) -> None:
    """Say what a broker with this key would say: prints the role and the claims, or ends with 1 and the reason."""
    from region_node.security.authentication.authentication_service import MachinePorts, build_authentication
    from region_node.security.authentication.principal import Credentials
    from region_node.security.settings import ASYMMETRIC, SECRET_BYTES_MIN, SecuritySettings, TokenSettings

    path = _one(secret=secret, public=public, jwks=jwks)
    fitting = (
        ASYMMETRIC
        if secret is None
        else tuple(name for name, size in SECRET_BYTES_MIN.items() if path.stat().st_size >= size)
    )
    source = TokenSettings(
        algorithms=tuple(algorithm or fitting),
        issuer=issuer,
        secret_file=str(secret or ""),
        public_key_file=str(public or ""),
        jwks_file=str(jwks or ""),
        audience=audience,
        role_claim=role_claim,
        role_prefix=role_prefix,
    )
    text = (sys.stdin.read() if token == "-" else token).strip()
    ports = MachinePorts(clock=SystemClock(), rng=system_rng(), fetch=_nothing_to_fetch, offload=_nothing_to_offload)
    authentication = build_authentication(SecuritySettings(authentication=("token",), tokens=(source,)), ports)
    try:
        principal = asyncio.run(authentication.identify(Credentials(method="token", data=text.encode())))
    except Unauthenticated as error:
        typer.echo(f"refused: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(json.dumps({"role": principal.role, "expires_ms": principal.expires_ms}))


async def _nothing_to_fetch(url: str) -> bytes:
    raise ConfigError(f"{url}: keys are read from files here")


async def _nothing_to_offload(*_: Any) -> bool:
    raise ConfigError("no passwords are checked here")


# -- files ------------------------------------------------------------------------------------------------------------


def _one(**paths: Path | None) -> Path:
    given = [path for path in paths.values() if path is not None]
    if len(given) != 1:
        raise ConfigError(f"give exactly one of {', '.join(f'--{name}' for name in paths)}")
    if not given[0].is_file():
        raise ConfigError(f"the file {given[0]} does not exist; `heliograph tokens keys` makes one")
    return given[0]


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ConfigError(f"--claim {text}: expected name=value")
    return name, value


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _absent(path: Path) -> None:
    if path.exists():
        raise ConfigError(
            f"{path} exists: a key that is overwritten makes every token of it worthless; choose another name, or "
            "remove it first"
        )


def _write(path: Path, data: bytes, *, secret: bool) -> None:
    try:
        path.touch(mode=0o600 if secret else 0o644, exist_ok=False)
        path.write_bytes(data)
    except FileExistsError:
        _absent(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    typer.echo(f"{path}: written{', readable by you alone' if secret else ''}")
