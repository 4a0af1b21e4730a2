"""`heliograph keys`: the keys of encryption at rest.

Is: options, one file, and what is printed. Isn't: a key, but for the line of a new master key in its file.
Source: docs/operating/keys.md.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from heliograph.cli.calls import Call
from heliograph.cli.groups import add, group
from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, iso_time, table
from heliograph.model.admin_paths import path_of
from heliograph.model.errors import ConfigError

_PATH = "/heliograph/v1/keys"
_TENANT = f"{_PATH}/{{tenant}}"
_RESEAL = f"{_TENANT}/reseal"
_POLL_S = 2.0
TenantArgument = Annotated[str, typer.Argument(help="The tenant.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show how far it is, until it has ended.")]


def register(app: typer.Typer) -> None:
    keys = group(app, "keys", "Keys of encryption at rest: master keys in files, data keys of tenants in a region.")
    add(keys, master=master, list=show, rotate=rotate, require=require, rewrap=rewrap, remove=remove)
    add(keys, reseal=reseal, reseal_status=reseal_status)


def master(
    file: Annotated[Path, typer.Argument(help="File of master keys; it is made, or gets another line.")],
    name: Annotated[str, typer.Option(help="Of the key; not given: one made of today's date.")] = "",
) -> None:
    """Put a new master key into a file, as its first line: with it data keys are wrapped from now on. The other lines
    stay, to read with.

    Copy the file to every broker of the region, and keep a copy elsewhere: what was encrypted under keys that are lost
    is lost.
    """
    from region_node.security.certificate_authority import replace
    from storage.sealing.keyring import MasterKeys, new_master_line

    before = ""
    if file.exists():
        before = file.read_text(encoding="utf-8")
        known = MasterKeys.parse(before, str(file)).names
    else:
        known = []
    name = name or f"master-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if name in known:
        raise ConfigError(f"{file} has a master key {name} already: give another --name")
    try:
        replace(file, (new_master_line(name) + before).encode(), 0o600)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    typer.echo(f"{file}: master key {name} first of {len(known) + 1}, readable by you alone")


def show(
    rest: Rest,
    output: Output,
    tenant: Annotated[
        str, typer.Argument(help="Only this one, with the topics that may still need its older keys.")
    ] = "",
) -> None:
    """List the data keys of a region's tenants: which one seals, by which master key each is wrapped, and since when it
    is there.
    """
    answer = rest.get(path_of(_TENANT, tenant=tenant) if tenant else _PATH)
    if output.json:
        output.show(answer)
        return
    found: dict[str, list[dict[str, Any]]] = {tenant: answer["keys"]} if tenant else answer["tenants"]
    rows = [
        (name, key["number"], key["master"], iso_time(key["created_ms"]), _state(key))
        for name, keys in found.items()
        for key in keys
    ]
    if answer.get("required"):
        typer.echo(f"everything of {tenant} has to be encrypted at rest")
    if rows:
        table(("tenant", "key", "master key", "made", "state"), rows)
    else:
        typer.echo("no tenant has a data key: the first one is made with the first topic that has encryptionAtRest")


def _state(key: dict[str, Any]) -> str:
    if key["seals"]:
        return "seals"
    return f"reads; {key['topics']} topics may need it" if "topics" in key else "reads"


def rotate(
    rest: Rest,
    tenant: Annotated[str, typer.Argument(help="The tenant; --all for each that has a key.")] = "",
    everybody: Annotated[bool, typer.Option("--all", help="Each tenant that has a key.")] = False,
) -> None:
    """Make a new data key: what is published from now on is sealed with it. What the older ones sealed stays as it is,
    and can be read, until `heliograph keys reseal`.
    """
    if bool(tenant) == everybody:
        raise ConfigError("give a tenant, or --all")
    for name in rest.get(_PATH)["tenants"] if everybody else [tenant]:
        answer = rest.post(path_of(f"{_TENANT}/rotate", tenant=name))
        typer.echo(
            f"{name}: data key {answer['number']} seals in region {answer['region']}, wrapped by {answer['master']}"
        )


def require(
    rest: Rest,
    tenant: TenantArgument,
    off: Annotated[bool, typer.Option("--off", help="What is set for its namespaces and topics holds again.")] = False,
) -> None:
    """Have everything of a tenant encrypted at rest, in all its regions: its admins cannot switch it off. For what is
    published from now on.
    """
    path = path_of(f"{_TENANT}/required", tenant=tenant)
    if off:
        rest.delete(path)
        typer.echo(f"{tenant}: what is set for its namespaces and topics holds")
        return
    answer = rest.post(path)
    typer.echo(
        f"{tenant}: everything is encrypted at rest from now on in {', '.join(answer['regions'])}; a region without a "
        "master key refuses to write it"
    )


def reseal(
    rest: Rest,
    output: Output,
    tenant: TenantArgument,
    bytes_per_s: Annotated[
        int, typer.Option("--bytes-per-s", help="So much is read; as much is written to each bookie.")
    ] = 8 << 20,
    keep_hours: Annotated[
        float, typer.Option("--keep-hours", help="So long the older copy of a ledger stays beside the newer one.")
    ] = 24.0,
    watch: Watch = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End it: what is read already stays, the rest goes.")
    ] = False,
) -> None:
    """Write what a tenant's older data keys sealed anew under its newest one, ledger by ledger, while topics are in
    use. It goes on whichever broker dies; nothing that names a message changes.

    Topics that were compacted are compacted once more. Give it a day after a rotation, and an older key can be removed.
    Objects in a store are uploaded anew, and the older ones deleted.
    """
    path = path_of(_RESEAL, tenant=tenant)
    if cancel:
        answer = rest.delete(path)
    else:
        answer = rest.post(path, {"bytes_per_s": bytes_per_s, "keep_s": round(keep_hours * 3600)})
    _show_reseal(rest, output, answer, watch)


def reseal_status(
    rest: Rest,
    output: Output,
    tenant: TenantArgument,
    watch: Watch = False,
) -> None:
    """Show how far the last `heliograph keys reseal` of a tenant is, and what it waits for."""
    _show_reseal(rest, output, rest.get(path_of(_RESEAL, tenant=tenant)), watch)


def _show_reseal(rest: Rest, output: Output, answer: dict[str, Any], watch: bool) -> None:
    shown = ""
    while True:
        text = reseal_text(answer)
        if text != shown:
            output.told(answer, text)
        shown = text
        if not watch or answer["state"] not in ("running", "cancelling"):
            return
        time.sleep(_POLL_S)
        answer = rest.get(path_of(_RESEAL, tenant=answer["tenant"]))


def reseal_text(job: dict[str, Any]) -> str:
    """One line of how far a job is, and lines of what it waits for."""
    if not job["counted"]:
        return f"{job['tenant']}: {job['state']}; its ledgers are not counted yet"
    lines = [
        f"{job['tenant']}: {job['state']}; {job['ledgers_done']} ledgers are done, {job['bytes_done'] / 1e6:.1f} MB; "
        f"{job['ledgers_left']} are left, {job['bytes_left'] / 1e6:.1f} MB"
    ]
    if job["ledgers_kept"]:
        lines.append(f"{job['ledgers_kept']} of those that are done still have their older copy")
    if job["ledgers_open"]:
        lines.append(f"{job['ledgers_open']} are open; they are written anew once they are closed")
    if job["ledgers_offloaded"]:
        lines.append(f"{job['ledgers_offloaded']} lie in an object store, and are left as they are")
    if job["objects_left"]:
        lines.append(
            f"{job['objects_left']} have objects in a store that are to be uploaded anew by their topics' owners"
            if job["state"] == "running"
            else f"{job['objects_left']} still have a second object in a store, which their topics' owners let go"
        )
    if job["compacted_left"]:
        lines.append(
            f"of {job['compacted_left']} topics what they were compacted to is left: their owners compact them"
        )
    if job["waits_for"]:
        lines.append(f"it waits for {', '.join(job['waits_for'])}")
    if job["trouble"]:
        lines.append(job["trouble"])
    to_do = "ledgers_left", "ledgers_kept", "ledgers_open", "compacted_left", "objects_left"
    if job["state"] == "running" and not any(job[name] for name in to_do):
        until = iso_time(job["settled_ms"])
        lines.append(f"it looks for more until {until}, when every broker has heard of the newest key")
    return "\n".join(lines)


@Call(
    "POST",
    _PATH,
    said="region {answer[region]}: the keys of {answer[tenants]} tenants are now wrapped by {answer[master]}",
)
def rewrap() -> None:
    """Wrap every data key by the current master key; after it the older master keys may leave the file. Entries stay as
    they are.
    """


@Call("DELETE", f"{_TENANT}/{{number}}", ("force",), said="{tenant}: data key {number} is gone")
def remove(
    tenant: TenantArgument,
    number: Annotated[str, typer.Argument(help="Of the key, as `heliograph keys list` shows it.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also where entries may need it: nobody can read them any more.")
    ] = False,
) -> None:
    """Remove an older data key for ever. Refused while a topic may hold entries that it sealed."""
