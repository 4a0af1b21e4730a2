"""`heliograph support dump` of a real region: everything is in it, and none of the secrets and payloads that were
planted.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.region_node.live import provisioned
from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

PAYLOAD = b"planted-payload-of-a-message"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.cGxhbnRlZC1zaWduYXR1cmU"
PLANTED = ("planted-password", "planted words of a key", JWT, "MIIEplanted", "planted-own-token")


def dump(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "heliograph.cli.main", "support", "dump", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            entry.name.partition("/")[2]: found.read().decode()
            for entry in archive.getmembers()
            if (found := archive.extractfile(entry)) is not None
        }


def plant(region: Region, folder: Path) -> None:
    """A payload in a topic, and secrets where people leave them: in settings and in logs."""
    rest = Rest(region.admin_url())
    body = {"schemaVersion": 0, "producerName": "p", "messages": [{"payload": base64.b64encode(PAYLOAD).decode()}]}
    assert rest("POST", "/topics/persistent/public/default/orders", body)[0] == 200
    tokens = [{"algorithms": ["HS256"], "secret_file": "/etc/key"}]
    secret = {"security": {"tokens": tokens}, "broker": {"policies": {"s3CredentialSecret": "planted-password"}}}
    (folder / "extra.json").write_text(json.dumps(secret))
    (folder / "broken.json").write_text('{"password": "planted words of a key"')
    lines = (
        f"connection.refused error=Bearer {JWT}",
        '{"fields": {"password": "planted words of a key"}}',
        "x" * 40_000 + " password=planted-password",
    )
    pem = "-----BEGIN PRIVATE KEY-----\nMIIEplanted\n-----END PRIVATE KEY-----\nlast.line seen=yes\n"
    (folder / "old.log").write_text("\n".join(lines) + "\n" + pem)


def test_a_dump_has_the_state_and_no_secret_and_no_payload(tmp_path: Path) -> None:
    with provisioned(tmp_path) as region:
        plant(region, tmp_path)
        output = tmp_path / "support.tar.gz"
        where = (
            "--admin",
            region.admin_url(),
            "--admin",
            "http://127.0.0.1:1",
            "--settings",
            str(tmp_path),
            "--logs",
            str(tmp_path),
        )
        done = dump("-o", str(output), *where, "--token", "planted-own-token")
        assert done.returncode == 0, done.stderr
        found = contents(output)
        at = region.admin_url().removeprefix("http://").replace(":", "-")
        assert "public/default/orders" in found[f"topics/{at}.json"] and '"links"' in found[f"regions/{at}/status.json"]
        assert any("heliograph_" in text for name, text in found.items() if name.startswith("metrics/"))
        assert json.loads(found["versions.json"])["heliograph"]
        assert json.loads(found["settings/extra.json"])["security"]["tokens"][0]["secret_file"] == "/etc/key"
        assert "process.ready" in found["logs/us-broker-0.log"] and "last.line seen=yes" in found["logs/old.log"]
        missing = json.loads(found["manifest.json"])["missing"]
        assert (
            "no broker answers" in missing["regions/127.0.0.1-1/status.json"]
            and "is no JSON" in missing["settings/broken.json"]
        )
        everything = "\n".join(found.values()) + done.stdout + done.stderr
        forms = (PAYLOAD.decode(), base64.b64encode(PAYLOAD).decode(), *PLANTED)
        assert not [secret for secret in forms if secret in everything]
        assert output.stat().st_mode & 0o077 == 0 and not output.with_name("support.tar.gz.part").exists()
        again = dump("-o", str(output), *where)
        assert again.returncode == 2 and "--force" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "says"), [(("--data", "nowhere"), "--admin"), (("--admin", "ftp://x"), "expected http")]
)
def test_wrong_use_is_a_sentence_and_leaves_nothing(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = dump("-o", str(tmp_path / "s.tar.gz"), *arguments)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
