"""`restore` on the folders of an instance: which are filled, which are refused, and that voters start from them."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from global_config import keys as config_keys
from global_config.admin import ConfigAdmin
from global_config.node import ConfigNode
from heliograph.kv.backup_file import BackedUpStore
from heliograph.kv.metadata_client import MetaClient
from heliograph.model.errors import ConfigError
from heliograph.raft.disk.snapshot_file import load_snapshot
from heliograph.runtime.clock import SystemClock
from heliograph.runtime.system_disk import SystemDisk
from local_meta import keys
from local_meta.node import LocalMetaNode
from region_node.commands.storage import backup_commands
from region_node.instance.plan.layout import make_plan, save_plan
from storage.sealing.backup_seal import BackupSeal
from storage.sealing.keyring import MasterKeys, new_master_line

REGIONS = ["us", "eu", "ap"]


def command(*arguments: str) -> Any:
    app = typer.Typer()
    backup_commands.register(app)
    done = CliRunner().invoke(app, [*arguments, "--json"])
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


def instance(folder: Path) -> Path:
    save_plan(folder, make_plan(REGIONS, brokers=dict.fromkeys(REGIONS, 1), bookies=2, wan="none"))
    return folder


def config_node(folder: Path) -> ConfigNode:
    return ConfigNode(
        node_id="us", peers=["us"], disk=SystemDisk(folder), transport=None, clock=SystemClock(), rng=random.Random(1)
    )


def meta_node(folder: Path, name: str = "us-meta-0") -> LocalMetaNode:
    return LocalMetaNode(node_id=name, disk=SystemDisk(folder), clock=SystemClock(), rng=random.Random(1))


def client(port: int) -> MetaClient:
    return MetaClient([f"127.0.0.1:{port}"], clock=SystemClock(), rng=random.Random(2))


async def backup_of(
    node: ConfigNode | LocalMetaNode, store: BackedUpStore, out: Path, seal: BackupSeal | None = None
) -> None:
    await backup_commands._back_up(store, "us", f"127.0.0.1:{node.port}", out, None, seal, lambda size: None)
    await node.stop()


def folders(data: Path, part: str) -> list[Path]:
    return [data / name / "meta-0" / part for name in REGIONS]


def test_the_global_configuration_comes_back_in_every_region(tmp_path: Path) -> None:
    async def make() -> None:
        (tmp_path / "old").mkdir()
        node = config_node(tmp_path / "old")
        await node.start()
        store = client(node.port)
        admin = ConfigAdmin(store)
        for name in REGIONS:
            await admin.create_region(name)
        store.close()
        await backup_of(node, BackedUpStore.GLOBAL, tmp_path / "config.backup")

    async def look(folder: Path) -> None:
        node = config_node(folder)
        await node.start()
        store = client(node.port)
        assert [key for key, _, _ in await store.range("/regions/", "/regions0")] == [
            "/regions/ap",
            "/regions/eu",
            "/regions/us",
        ]
        assert (await ConfigAdmin(store).create_region("new")).number > 1000
        assert await store.get(config_keys.region_number(1)) is not None
        store.close()
        await node.stop()

    asyncio.run(make())
    data = instance(tmp_path / "data")
    made = command("restore", str(tmp_path / "config.backup"), "--data", str(data))
    assert made["folders"] == [str(folder) for folder in folders(data, "config")]
    snapshots = [
        load_snapshot(SystemDisk(folder), next(folder.glob("snapshot-*")).name) for folder in folders(data, "config")
    ]
    assert len({snapshot[0] for snapshot in snapshots}) == 1 and snapshots[0][0].config.voters == ("ap", "eu", "us")
    with pytest.raises(ConfigError, match="not empty"):
        command("restore", str(tmp_path / "config.backup"), "--data", str(data))
    command("restore", str(tmp_path / "config.backup"), "--to", str(tmp_path / "alone"), "--voter", "us")
    asyncio.run(look(tmp_path / "alone" / "config"))
    two = make_plan(["us", "eu"], brokers={"us": 1, "eu": 1}, bookies=2, wan="none", witness="oslo")
    save_plan(tmp_path / "two", two)
    (*_, last) = command("restore", str(tmp_path / "config.backup"), "--data", str(tmp_path / "two"))["folders"]
    assert last == str(tmp_path / "two" / "oslo" / "witness" / "config"), "a witness is a voter as the others"
    found, _ = load_snapshot(SystemDisk(last), next(Path(last).glob("snapshot-*")).name)
    assert found.config.voters == ("eu", "oslo", "us")


def test_the_local_metadata_comes_back_in_its_own_region_only(tmp_path: Path) -> None:
    async def make() -> None:
        (tmp_path / "old").mkdir()
        node = meta_node(tmp_path / "old")
        await node.start()
        store = client(node.port)
        await store.put("/schemas/public/default/t", b"s")
        await store.next_ids(keys.LEDGER_IDS, 10)
        store.close()
        await backup_of(node, BackedUpStore.LOCAL, tmp_path / "us.backup")

    async def look(folder: Path) -> None:
        node = meta_node(folder)
        await node.start()
        store = client(node.port)
        assert (await store.get("/schemas/public/default/t") or (b"", 0))[0] == b"s"
        assert await store.next_ids(keys.LEDGER_IDS) > 1_000_000_000
        assert await store.get(keys.INSTANCE) is not None
        store.close()
        await node.stop()

    asyncio.run(make())
    data, out = instance(tmp_path / "data"), str(tmp_path / "us.backup")
    with pytest.raises(ConfigError, match="is of region us, not of eu"):
        command("restore", out, "--data", str(data), "--region", "eu")
    with pytest.raises(ConfigError, match="there is no backup"):
        command("restore", str(tmp_path / "none"), "--data", str(data))
    with pytest.raises(ConfigError, match="no instance"):
        command("restore", out, "--data", str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="--voter"):
        command("restore", out, "--to", str(tmp_path / "alone"))
    raw = (tmp_path / "us.backup").read_bytes()
    (tmp_path / "cut").write_bytes(raw[:-1])
    with pytest.raises(ConfigError, match="cannot be restored: the backup is cut off"):
        command("restore", str(tmp_path / "cut"), "--data", str(data))
    assert command("restore", out, "--data", str(data))["folders"] == [str(folders(data, "meta")[0])]
    assert sorted(path.name.partition("-")[0] for path in folders(data, "meta")[0].iterdir()) == ["life", "snapshot"]
    assert not folders(data, "meta")[1].exists()
    asyncio.run(look(folders(data, "meta")[0]))


def test_a_sealed_backup_comes_back_with_its_key_alone_and_one_in_clear_without(tmp_path: Path) -> None:
    keys, others, open_to_all = tmp_path / "keys", tmp_path / "others", tmp_path / "open"
    for file in (keys, others, open_to_all):
        file.write_text(new_master_line("k"))
        file.chmod(0o600)
    open_to_all.chmod(0o644)

    async def make(name: str, seal: BackupSeal | None) -> str:
        node = config_node(tmp_path / f"old-{name}")
        await node.start()
        store = client(node.port)
        await ConfigAdmin(store).create_region("us")
        store.close()
        await backup_of(node, BackedUpStore.GLOBAL, tmp_path / name, seal)
        return str(tmp_path / name)

    for name in ("sealed", "clear"):
        (tmp_path / f"old-{name}").mkdir()
    sealed = asyncio.run(make("sealed", BackupSeal.new(MasterKeys.parse(keys.read_text(), "keys"), "keys")))
    clear = asyncio.run(make("clear", None))
    assert b"/regions/us" in Path(clear).read_bytes() and b"/regions/us" not in Path(sealed).read_bytes()

    def restored(file: str, to: str, *more: str) -> bool:
        return bool(command("restore", file, "--to", str(tmp_path / to), "--voter", "us", *more)["sealed"])

    for more, why in (
        ((), "sealed with the key k: give the file that has it with --key-file"),
        (("--key-file", str(others)), "is not the one that sealed this backup"),
        (("--key-file", str(open_to_all)), "chmod 600"),
        (("--key-file", str(tmp_path / "none")), "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=why):
            restored(sealed, "refused", *more)
    assert not (tmp_path / "refused").exists(), "nothing is made before the key is known"
    assert restored(sealed, "a", "--key-file", str(keys))
    assert not restored(clear, "b") and not restored(clear, "c", "--key-file", str(keys))
    a, b = (next((tmp_path / to / "config").glob("snapshot-*")) for to in "ab")
    (first, rows), (second, others_rows) = (load_snapshot(SystemDisk(each.parent), each.name)[:2] for each in (a, b))
    assert first.config == second.config and rows is not None and others_rows is not None


@pytest.mark.parametrize("more", [(), ("--unsealed", "--key-file", "keys")])
def test_a_backup_is_sealed_or_somebody_says_that_it_is_not(tmp_path: Path, more: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--key-file FILE, which `heliograph keys master FILE` makes, or --unsealed"):
        command("backup", "--address", "127.0.0.1:1", "--out", str(tmp_path / "out"), *more)
    assert not list(tmp_path.iterdir())
