"""TLS of the commands that speak to metadata nodes and bookies themselves: `backup`, `restore`, `confirm-restore`,
`unknown-ledgers`.

Is: the options with which a command is given certificates, and those that an instance on this machine has anyway.
Isn't: a listener's side (`region_node.security.tls`).
Invariants: a command that is given nothing speaks plainly; where an instance's processes speak TLS inside, it presents
the broker's certificate of the region, which may ask metadata nodes, bookies, and configuration nodes.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from heliograph.model.errors import ConfigError
from region_node.instance.plan.layout import InstancePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """What a command presents to the processes of an instance. All of them are given, or none."""

    ca: Annotated[
        str,
        typer.Option(
            "--tls-ca", envvar="HELIOGRAPH_TLS_CA", help="The instance's CA, where its processes speak TLS inside."
        ),
    ] = ""
    cert: Annotated[
        str,
        typer.Option(
            "--tls-cert", envvar="HELIOGRAPH_TLS_CERT", help="A certificate of that CA, of role broker in the region."
        ),
    ] = ""
    key: Annotated[str, typer.Option("--tls-key", envvar="HELIOGRAPH_TLS_KEY", help="Its key.")] = ""

    def context(self) -> ssl.SSLContext | None:
        """None: none of them was given. Raises ConfigError where only some are, or a file cannot be used."""
        from region_node.security.tls import client_context

        if not (self.ca or self.cert or self.key):
            return None
        if not (self.ca and self.cert and self.key):
            raise ConfigError("--tls-ca, --tls-cert, and --tls-key belong together: give all of them")
        return client_context(self.ca, self.cert, self.key)


def of_instance(plan: InstancePlan, data: Path, region: str) -> ssl.SSLContext | None:
    """Returns the context with which an instance on this machine is asked, by its broker's certificate; None: it speaks
    plainly inside.
    """
    from region_node.security.tls import client_context

    folder = data / "tls"
    return (
        client_context(
            str(folder / "ca.pem"), str(folder / f"broker.{region}.pem"), str(folder / f"broker.{region}.key")
        )
        if plan.tls
        else None
    )
