"""The servers' commands: `standalone`, `up`, `status`, `down`, `wan`, `demo`.

Is: options, and what a person sees. Isn't: the supervisor (`region_node.instance.supervisor`), which these start and
ask.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from heliograph.cli.groups import add
from heliograph.cli.servers import autoscale, forced_quorum, metadata_members
from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError
from region_node.commands import (
    certificate_commands,
    chaos_commands,
    host_commands,
    key_commands,
    process_commands,
    region_commands,
    rolling_commands,
    support_commands,
    token_commands,
    topic_commands,
    wan_commands,
)
from region_node.commands.instance_options import DEFAULT_DATA, Data
from region_node.commands.storage import (
    backup_commands,
    bookie_commands,
    ledger_commands,
    tier_commands,
    unknown_ledger_commands,
)
from region_node.instance import toxiproxy_program
from region_node.instance.control import call
from region_node.instance.launch import start_background, stop_background
from region_node.instance.plan.layout import InstancePlan, load_plan, make_plan, save_plan
from region_node.instance.plan.loopback_ports import LoopbackPorts
from region_node.runtime.private_files import keep_files_private
from replicator.health.incoming_stats import SILENT_S

RestartOption = Annotated[bool, typer.Option("--restart/--no-restart", help="Start processes again when they die.")]
TlsOption = Annotated[
    bool, typer.Option("--tls", help="TLS for clients beside the plain ports, and mutual TLS between all processes.")
]
PinOption = Annotated[
    bool,
    typer.Option(
        "--pin", help="A core of its own for each broker, as far as there are some; the other processes share the rest."
    ),
]


def register(app: typer.Typer) -> None:
    """Adds these commands to the program. Called by the entry point `heliograph.commands`."""
    add(app, standalone=standalone, up=up, status=status, down=down, demo=demo)
    wan_commands.register(app)
    process_commands.register(app)
    chaos_commands.register(app)
    bookie_commands.register(app)
    host_commands.register(app)
    certificate_commands.register(app)
    key_commands.register(app)
    token_commands.register(app)
    topic_commands.register(app)
    tier_commands.register(app)
    backup_commands.register(app)
    unknown_ledger_commands.register(app)
    ledger_commands.register(app)
    metadata_members.register(app)
    forced_quorum.register(app)
    region_commands.register(app)
    rolling_commands.register(app)
    autoscale.register(app)
    support_commands.register(app)


# -- starting and stopping --------------------------------------------------------------------------------------------


def standalone(
    data: Data = DEFAULT_DATA,
    service_port: Annotated[int, typer.Option(help="Where Pulsar clients connect.", min=1, max=65535)] = 6650,
    admin_port: Annotated[int, typer.Option(help="Where the admin REST listens.", min=1, max=65535)] = 8080,
    brokers: Annotated[int, typer.Option(help="Broker processes; they share the two ports.", min=1, max=16)] = 1,
    bookies: Annotated[int, typer.Option(help="Bookie processes; each entry is kept by two.", min=2, max=16)] = 2,
    tls: TlsOption = False,
    pin: PinOption = False,
    restart: RestartOption = True,
) -> None:
    """One region with everything on this machine, in the foreground until Ctrl-C.

    Tenant `public` and namespace `default` are ready, no authentication; clients connect to pulsar://127.0.0.1:6650.
    """
    data = data.resolve()
    wanted = {
        "brokers": {"standalone": brokers},
        "bookies": bookies,
        "wan": "none",
        "service_port": service_port,
        "admin_port": admin_port,
        "tls": tls,
    }
    with LoopbackPorts() as ports:
        plan = _pinned(data, _plan(data, ["standalone"], wanted, ports, standalone=True), pin)
        _check_standalone(data, plan, service_port, admin_port)
        _run_supervisor(data, plan, lambda: _say_standalone(data, plan), restart=restart)


def _check_standalone(data: Path, plan: InstancePlan, service_port: int, admin_port: int) -> None:
    region = plan.regions[0]
    if (region.service_port, region.admin_port) != (service_port, admin_port):
        region_ports = {"service_port": service_port, "admin_port": admin_port}
        raise ConfigError(
            f"the data folder {data} belongs to an instance on ports {region.service_port} and {region.admin_port}, "
            "not on "
            f"{region_ports['service_port']} and {region_ports['admin_port']}: give those, or another folder with "
            "--data"
        )


def _say_standalone(data: Path, plan: InstancePlan) -> None:
    region = plan.regions[0]
    console = Console()
    where = f"service pulsar://127.0.0.1:{region.service_port}  admin http://127.0.0.1:{region.admin_port}"
    console.print(f"[bold]heliograph standalone is ready[/]  {where}", soft_wrap=True)
    if plan.tls:
        console.print(
            f"TLS: pulsar+ssl://127.0.0.1:{region.service_tls_port}, trusted by {data / 'tls' / 'ca.pem'}",
            soft_wrap=True,
        )
    console.print(f"data and logs in {data}; Ctrl-C stops it")


def up(
    data: Data = DEFAULT_DATA,
    regions: Annotated[str, typer.Option(help="Names, comma separated.")] = "us,eu,ap",
    wan: Annotated[
        str, typer.Option(help="Round trips between regions: default, none (no proxy), or a JSON file.")
    ] = "default",
    brokers: Annotated[str, typer.Option(help="Broker processes: a number, or by region such as us=2,eu=1.")] = "1",
    bookies: Annotated[int, typer.Option(help="Bookie processes in each region.", min=2, max=16)] = 3,
    witness: Annotated[
        str,
        typer.Option(
            help="The name of a witness, such as oslo: a vote beside two regions, so that one of them may be lost."
        ),
    ] = "",
    proxied: Annotated[
        bool,
        typer.Option(
            "--proxied",
            help="Clients reach brokers, and brokers bookies, through Toxiproxy, too: for `heliograph wan`.",
        ),
    ] = False,
    tls: TlsOption = False,
    pin: PinOption = False,
    restart: RestartOption = True,
    *,
    output: Output,
) -> None:
    """Start an instance of several regions on this machine, and leave it running.

    Prints where each region is. `heliograph status` shows it again, `heliograph down` stops it; a second `up` on the
    same folder continues.
    """
    data = data.resolve()
    names = [name.strip() for name in regions.split(",") if name.strip()]
    wanted = {
        "brokers": _broker_counts(brokers, names),
        "bookies": bookies,
        "wan": wan,
        "tls": tls,
        "witness": witness,
        "proxied": proxied,
    }
    with LoopbackPorts() as ports:
        _pinned(data, _plan(data, names, wanted, ports), pin)
        start_background(data, Console(stderr=True, quiet=output.json), restart=restart)
    _status(data, output)


def _pinned(data: Path, plan: InstancePlan, pin: bool) -> InstancePlan:
    """Whether processes are pinned is said anew at each start."""
    if plan.pin != pin:
        plan.pin = pin
        save_plan(data, plan)
    return plan


def _broker_counts(text: str, regions: list[str]) -> dict[str, int]:
    """`2`, or `us=2,eu=1`; regions not named get one."""
    try:
        if text.isdigit():
            return dict.fromkeys(regions, int(text))
        given = {name.strip(): int(count) for name, _, count in (part.partition("=") for part in text.split(","))}
    except ValueError as error:
        raise ConfigError(f"--brokers {text}: expected a number, or counts by region such as us=2,eu=1") from error
    unknown = sorted(set(given) - set(regions))
    if unknown:
        raise ConfigError(f"--brokers {text}: no region {', '.join(unknown)} in --regions {','.join(regions)}")
    return {name: given.get(name, 1) for name in regions}


def _plan(
    data: Path, regions: list[str], wanted: dict[str, Any], ports: LoopbackPorts, *, standalone: bool = False
) -> InstancePlan:
    """The plan of the folder, or a new one, whose ports are kept in `ports`. Raises ConfigError where the folder holds
    another instance.
    """
    plan = load_plan(data)
    if plan is None:
        if data.exists() and any(p.name not in ("lock", "logs") for p in data.iterdir()):
            raise ConfigError(
                f"the folder {data} is not empty and holds no instance of heliograph: choose another with --data"
            )
        plan = make_plan(regions, standalone=standalone, ports=ports, **wanted)
        try:
            save_plan(data, plan)
        except OSError as error:
            raise ConfigError(
                f"the data folder {data} cannot be written ({error.strerror}); choose another with --data"
            ) from error
        return plan
    have, witness = [r.name for r in plan.regions], wanted.get("witness", "")
    like = (wanted["wan"], wanted["tls"], wanted.get("proxied", False))
    if witness and (plan.witness is None or plan.witness.region != witness):
        there = f"the witness {plan.witness.region}" if plan.witness is not None else "no witness"
        raise ConfigError(
            f"the data folder {data} belongs to an instance with {there}: leave --witness out; `heliograph witness "
            "join` adds one while the instance runs, `witness leave` takes it away"
        )
    if plan.founders and regions in (have, plan.began_with()) and (plan.wan, plan.tls, plan.proxied) == like:
        return plan  # regions have joined or left since, each of a size of its own
    if plan.standalone != standalone or have != regions:
        kind = "a standalone" if plan.standalone else f"an instance of regions {','.join(have)}"
        raise ConfigError(
            f"the data folder {data} belongs to {kind}: start it as that, or give another folder with --data"
        )
    begun = {r.name: tuple(r.begun or r.sizes) for r in plan.regions}  # some may have been added or removed since
    fits = all((wanted["brokers"][r.name], wanted["bookies"]) in (r.sizes, begun[r.name]) for r in plan.regions)
    if not fits or (plan.wan, plan.tls, plan.proxied) != like:
        bookies = begun[plan.regions[0].name][1]
        shape = ",".join(f"{name}={brokers}" for name, (brokers, _) in begun.items())
        raise ConfigError(
            f"the data folder {data} belongs to an instance with --brokers {shape} --bookies {bookies} --wan "
            f"{plan.wan}{' --tls' if plan.tls else ''}{' --proxied' if plan.proxied else ''}: "
            "give the same, or another folder with --data"
        )
    return plan


def _run_supervisor(data: Path, plan: InstancePlan, announce: Callable[[], None], *, restart: bool) -> None:
    """In the foreground; returns after Ctrl-C or `heliograph down`."""
    from region_node.instance.lock import InstanceLock
    from region_node.instance.supervisor import Supervisor

    console = Console(stderr=True)
    keep_files_private()
    lock = InstanceLock(data)

    async def main() -> None:
        with console.status("starting") as spinner:
            supervisor = Supervisor(
                data,
                plan,
                toxiproxy=toxiproxy_program.found(),
                progress=lambda text: spinner.update(text),
                restart=restart,
            )

            async def ready() -> None:
                spinner.stop()
                announce()

            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, supervisor.stop)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            await supervisor.run(ready)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # half an event loop cannot be told from a failure
    try:
        asyncio.run(main())
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        lock.release()
    console.print("stopped")


def down(data: Data = DEFAULT_DATA) -> None:
    """Stop a running instance; its data stays."""
    data = data.resolve()
    with Console(stderr=True).status("stopping"):
        stop_background(data)
    typer.echo("stopped")


# -- looking ----------------------------------------------------------------------------------------------------------


def status(output: Output, data: Data = DEFAULT_DATA) -> None:
    """Show regions, processes, and links with their backlog and age."""
    _status(data.resolve(), output)


def _status(data: Path, output: Output) -> None:
    answer = call(data, "status")
    if output.json:
        output.show(answer)
    else:
        _show(answer, data)


def _show(answer: dict[str, Any], data: Path) -> None:
    console = Console()
    console.print(f"instance in {data}")
    for name, region in answer["regions"].items():
        console.print(f"[bold]{name}[/]  service {region['service_url']}  admin {region['admin_url']}")
    table = Table()
    for column in ("process", "pid", "port", "state"):
        table.add_column(column, overflow="fold")
    witness = {"witness": {"processes": [answer["witness"]]}} if "witness" in answer else {}
    for region in (answer["regions"] | witness).values():
        for row in region["processes"]:
            state = "[green]up[/]" if row["ready"] else "[red]down[/]"
            restarts = f", restarted {row['restarts']}x" if row["restarts"] else ""
            table.add_row(row["name"], str(row["pid"] or "-"), str(row["port"]), state + restarts)
    console.print(table)
    if len(answer["regions"]) > 1 and answer.get("config") is None:
        console.print(
            "global configuration: [red]nobody leads[/]: a majority of its voters must run and reach each other"
        )
    elif answer.get("config"):
        config, voters = (
            answer["config"],
            [row["member"] for row in answer["config"]["members"] if row["role"] == "voter"],
        )
        took = f", half of its writes take {config['writes']['p50_ms']:g} ms" if config["writes"]["count"] else ""
        console.print(
            f"global configuration: led by {config['leader']}{took}; voters {', '.join(voters)}", soft_wrap=True
        )
    if answer.get("wan"):
        proxies = ", ".join(f"{pair} {address}" for pair, address in answer["wan"]["links"].items())
        console.print(f"wide-area links through Toxiproxy at {answer['wan']['toxiproxy']}: {proxies}")
    if answer["links"]:
        console.print(links_table(answer["links"]))


def links_table(links: list[dict[str, Any]]) -> Table:
    """One row a link and topic."""
    table = Table(title="links", title_justify="left")
    for column in ("link", "topic", "state", "cause"):
        table.add_column(column, overflow="fold")
    for column in ("backlog msgs", "backlog bytes", "age s", "silent s", "out msgs/s"):
        table.add_column(column, justify="right")
    for link in sorted(links, key=lambda x: (x["topic"], x["source"], x["target"])):
        state = "[green]connected[/]" if link["connected"] else f"[red]{link['state']}[/]"
        numbers = (
            str(link["backlog_messages"]),
            str(link["backlog_bytes"]),
            f"{link['age_s']:.1f}",
            f"{silent_s:.1f}" if (silent_s := link.get("silent_s") or 0.0) > SILENT_S else "-",
            f"{link.get('rate_out', 0.0):.0f}",
        )
        table.add_row(f"{link['source']} → {link['target']}", link["topic"], state, link.get("cause") or "", *numbers)
    return table


# -- seeing it ---------------------------------------------------------------------------------------------------------


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data folder and its logs.")] = False,
    seconds: Annotated[float, typer.Option(help="How long each publishing phase lasts.", min=2, max=600)] = 6,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Run the Spark job on the local copy of ap.")
    ] = True,
) -> None:
    """Three regions on this machine: publish and consume in each, cut a link, kill a bookie and a broker, compare every
    copy.

    Leaves no process, port, or folder behind; exit code 1 if any check failed.
    """
    from region_node.commands.demo import run_demo

    raise typer.Exit(run_demo(keep=keep, phase_s=seconds, with_spark=spark))
