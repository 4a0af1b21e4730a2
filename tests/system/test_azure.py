"""Tiered storage in Azure's Blob service, against Azurite (Microsoft's emulator, from npm): the rules of a store, and a
topic that is offloaded, read back, and restored into an empty region from the container alone.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from benchmarks.servers import free_port
from tests.storage.tiered.objects.store_cases import MAKE, check_whole_or_not_at_all
from tests.system.started import Started
from tests.system.tier_round_trip import offloaded_and_restored

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

CACHE = Path("~/.cache/heliograph/azurite").expanduser()
AZURITE = "azurite@3.35.0"
ACCOUNT, CONTAINER = "devstoreaccount1", "tiers"
KEY = base64.b64encode(b"a key that is no secret, of the length that accounts have: 64 bytes").decode()


def azurite() -> Path:
    program = CACHE / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("Azurite, Azure's emulator, is absent, and so is npm, which would bring it")
        CACHE.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["nice", npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", AZURITE],
            cwd=CACHE,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(
                "Azurite, Azure's emulator, is absent and cannot be installed here: "
                f"{done.stderr.strip().splitlines()[-1:]}"
            )
    return program


def create_container(endpoint: str) -> None:
    """By a shared-key request, as obstore creates none."""
    date = formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:2021-08-06\n"
    resource = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    text = "PUT" + "\n" * 12 + headers + resource
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    request = urllib.request.Request(f"{endpoint}/{CONTAINER}?restype=container", method="PUT")
    request.add_header("x-ms-date", date)
    request.add_header("x-ms-version", "2021-08-06")
    request.add_header("Authorization", f"SharedKey {ACCOUNT}:{signature}")
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 201


@pytest.fixture
def options(tmp_path: Path) -> Iterator[dict[str, str]]:
    port = free_port()
    command = [
        str(azurite()),
        "--location",
        str(tmp_path / "azurite"),
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
        "--silent",
        "--skipApiVersionCheck",
    ]
    process = Started(
        command,
        {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}", "PATH": "/usr/local/bin:/usr/bin:/bin"},
        tmp_path / "azurite.log",
    )
    try:
        process.wait_listening(port)
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        create_container(endpoint)
        yield {"account_name": ACCOUNT, "account_key": KEY, "endpoint": endpoint}
    finally:
        process.stop()


def test_the_container_keeps_the_rules_of_a_store(options: dict[str, str]) -> None:
    asyncio.run(check_whole_or_not_at_all(MAKE(f"az://{CONTAINER}/some/prefix", options, 10.0)))


def test_a_topic_goes_there_is_read_from_there_and_comes_back_from_there(
    options: dict[str, str], tmp_path: Path
) -> None:
    offloaded_and_restored(
        {"store": f"az://{CONTAINER}/region", "options": options, "tick_s": 0.2, "manifest_s": 0}, tmp_path
    )
