"""The image: the steps of deploy/Dockerfile, one after the other, in a fresh root that debootstrap made of Debian's
packages.

Is: FROM, RUN, COPY, ENV, and USER as a builder would do them, by chroot. Isn't: Docker. Wants root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cache import once
from tests.system import programs

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
TRUSTED = "/etc/ssl/certs/ca-certificates.crt"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def base() -> Path:
    """A minimal Debian, as debian:bookworm-slim is; made once."""
    if os.geteuid() != 0:
        pytest.skip("a fresh root wants root for chroot, which this user is not")
    program = programs.debootstrap()

    def make(scratch: Path) -> None:
        env = {**os.environ, "DEBOOTSTRAP_DIR": str(program.parents[1] / "share" / "debootstrap")}
        command = [
            "nice",
            "sh",
            str(program),
            "--variant=minbase",
            "bookworm",
            str(scratch),
            "http://deb.debian.org/debian",
        ]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a fresh root cannot be made of Debian's packages here: {done.stdout.strip()[-300:]}")

    return once("root-bookworm", make)


def steps() -> list[tuple[str, str]]:
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "root"
    subprocess.run(["cp", "-a", str(base()), str(root)], check=True)
    for name in ("resolv.conf", "hosts"):  # how this machine reaches the network, and whom it trusts there
        if Path(f"/etc/{name}").exists():
            shutil.copy(f"/etc/{name}", root / "etc" / name)
    if Path(TRUSTED).exists():
        shutil.copy(TRUSTED, root / "trusted.crt")
    for folder in ("proc", "dev"):
        subprocess.run(["mount", "--bind", f"/{folder}", str(root / folder)], check=True)
    try:
        yield root
    finally:
        for folder in ("proc", "dev"):
            subprocess.run(["umount", "-l", str(root / folder)], check=True)
        shutil.rmtree(root)


def test_the_steps_of_the_image_give_a_program_that_runs(fresh: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, str(ROOT / "tools" / "wheels.py"), str(tmp_path / "dist")], check=True, capture_output=True
    )
    network = {
        name: value
        for name, value in os.environ.items()
        if name.lower().endswith("_proxy") or name in ("PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT")
    }
    chroot = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin") or "chroot"
    env, user, command = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PIP_CERT": "/trusted.crt", **network}, "root", ""

    def run(text: str) -> str:
        words = [chroot, *(["--userspec", user] if user != "root" else []), str(fresh), "sh", "-c", text]
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{text}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    for word, rest in steps():
        match word:
            case "FROM":
                assert rest == "debian:bookworm-slim"
            case "RUN":
                run(rest)
            case "COPY":
                *sources, target = rest.split()
                (fresh / target.strip("/")).mkdir(parents=True)
                for source in sources:
                    folder = tmp_path if source.startswith("dist/") else ROOT
                    assert [shutil.copy(path, fresh / target.strip("/")) for path in folder.glob(source)], source
            case "ENV":
                name, _, value = rest.partition("=")
                env[name] = value
            case "USER":
                user = f"{rest}:{rest}"
            case "CMD":
                command = rest
            case _:
                raise AssertionError(f"{word}: this test does not know it")
    assert command == '["heliograph", "--help"]' and user != "root:root"
    assert "standalone" in run("heliograph --help")
    assert "usage: region_node.process " in run("python -m region_node.process --help")
    assert run("id -u").strip() == "10001"
    assert not (fresh / "wheels").exists(), "what was copied only to be installed is gone"
