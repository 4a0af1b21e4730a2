"""`heliograph certificates`: an instance's certificates, renewed while everything runs.

Is: options, and what is printed. Isn't: the steps (`region_node.security.certificate_renewal`).
Source: docs/operating/keys.md, "Certificates".
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heliograph.cli.groups import add, group
from heliograph.cli.show import table

Folder = Annotated[
    Path,
    typer.Argument(
        help="The folder with ca.pem and ca.key: DATA/tls of an instance on this machine, or the one of `hosts render "
        "--ca`."
    ),
]


def register(app: typer.Typer) -> None:
    certificates = group(app, "certificates", "Certificates of an instance: what there is, new ones, another CA.")
    add(certificates, list=show, renew=renew, authority=authority, retire=retire)


def show(folder: Folder) -> None:
    """List the certificates: role, region, until when, and by which CA."""
    from region_node.security import certificate_renewal

    rows = [
        (
            leaf.role,
            leaf.region,
            leaf.expires.date().isoformat(),
            leaf.authority or "not in ca.pem",
            "signs" if leaf.signed else "older",
        )
        for leaf in certificate_renewal.leaves(folder)
    ]
    table(("role", "region", "until", "CA", ""), rows)


def renew(folder: Folder, region: Annotated[str, typer.Option(help="Only this region's.")] = "") -> None:
    """Make new keys and certificates for every role; processes that read this folder follow within tls.reload_s, others
    when you have copied it.
    """
    from region_node.security import certificate_renewal

    typer.echo(f"new: {', '.join(certificate_renewal.renew(folder, region))}")


def authority(folder: Folder) -> None:
    """Make another CA, trusted beside the old one. Then, when every host has the new ca.pem: renew, and then retire."""
    from region_node.security import certificate_renewal

    typer.echo(
        f"CA {certificate_renewal.another_authority(folder)} signs from now on; the older one is trusted until "
        f"`heliograph certificates retire {folder}`"
    )


def retire(folder: Folder) -> None:
    """Take the older CA out of ca.pem. Refused while a certificate here is signed by it."""
    from region_node.security import certificate_renewal

    typer.echo(f"{certificate_renewal.retire(folder)} older CA taken out")
