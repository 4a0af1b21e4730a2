"""Real programs that tests run beside ours: built by Go or unpacked from Debian once, kept in ~/.cache/heliograph.

Is: OpenTofu, helm, kubeconform, promtool, and sshd, each by its name, at one version. Isn't: installed into the machine; nothing outside the cache is
touched. What cannot be had here skips the test in one sentence.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

CACHE = Path("~/.cache/heliograph").expanduser()
BIN = CACHE / "bin"
TOFU, HCL = "v1.12.6", "v2.20.2-0.20251021132045-587d123c2828"
HELM, KUBECONFORM = "v4.3.0", "v0.8.0"
_BUILD_S = 1800


def tofu() -> Path:
    """OpenTofu. Its own go.mod replaces the HCL library, and `go install` does not follow that: so it is built as a dependency of an empty module."""

    def build(go: Callable[..., None], scratch: Path) -> None:
        go("mod", "init", "tofu")
        go("mod", "edit", "-replace", f"github.com/hashicorp/hcl/v2=github.com/opentofu/hcl/v2@{HCL}")
        go("get", f"github.com/opentofu/opentofu/cmd/tofu@{TOFU}")
        version = f"-X github.com/opentofu/opentofu/version.dev=no -X github.com/opentofu/opentofu/version.version={TOFU.removeprefix('v')}"
        go("build", "-ldflags", f"-s -w {version}", "-o", str(scratch / "program"), "github.com/opentofu/opentofu/cmd/tofu")

    return _built(f"tofu-{TOFU}", build)


def helm() -> Path:
    return _built(f"helm-{HELM}", _installing(f"helm.sh/helm/v4/cmd/helm@{HELM}", "helm"))


def kubeconform() -> Path:
    return _built(f"kubeconform-{KUBECONFORM}", _installing(f"github.com/yannh/kubeconform/cmd/kubeconform@{KUBECONFORM}", "kubeconform"))


def promtool() -> Path:
    return _unpacked("prometheus") / "usr" / "bin" / "promtool"


def prometheus() -> Path:
    return _unpacked("prometheus") / "usr" / "bin" / "prometheus"


def debootstrap() -> Path:
    """A shell script; its own files are beside it, in share/debootstrap."""
    return _unpacked("debootstrap") / "usr" / "sbin" / "debootstrap"


def sshd() -> Path:
    """OpenSSH's server, to be run with `LD_LIBRARY_PATH` of `libraries`; wants root, as it changes users."""
    return _unpacked("openssh-server", "libwrap0") / "usr" / "sbin" / "sshd"


def libraries(program: Path) -> str:
    """Of a program that was unpacked here: where its own libraries are."""
    return ":".join(str(path) for path in sorted((program.parents[2] / "usr" / "lib").glob("*-linux-gnu")))


def _installing(package: str, name: str) -> Callable[[Callable[..., None], Path], None]:
    def build(go: Callable[..., None], scratch: Path) -> None:
        go("install", "-ldflags", "-s -w", package)
        (scratch / name).rename(scratch / "program")

    return build


def _built(name: str, build: Callable[[Callable[..., None], Path], None]) -> Path:
    """~/.cache/heliograph/bin/NAME; two test runs do not build it twice. Sources and objects, gigabytes, are deleted again."""
    program = BIN / name
    if program.exists():
        return program
    if shutil.which("go") is None:
        pytest.skip(f"{name} has to be built by Go 1.24 or newer, which is absent")
    BIN.mkdir(parents=True, exist_ok=True)
    with (BIN / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        scratch = CACHE / f"building-{name}"
        if not program.exists():
            try:
                scratch.mkdir(parents=True, exist_ok=True)
                build(lambda *words: _run(["nice", "go", *words], scratch), scratch)
                (scratch / "program").rename(program)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"{name} cannot be built here: {str(error.stderr).strip()[-300:]}")
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return program


def _run(words: Sequence[str], scratch: Path) -> None:
    folders = {"GOBIN": str(scratch), "GOCACHE": str(scratch / "objects"), "GOMODCACHE": str(scratch / "modules")}
    settings = {"GOTOOLCHAIN": "local", "GOFLAGS": "-p=1 -modcacherw -trimpath -buildvcs=false", "CGO_ENABLED": "0", "GOWORK": "off"}
    subprocess.run(words, cwd=scratch, env={**os.environ, **folders, **settings}, check=True, capture_output=True, text=True, timeout=_BUILD_S)


def _unpacked(package: str, *also: str) -> Path:
    """A Debian package's files, and those of what it wants beside what every machine has, without installing any."""
    folder = CACHE / f"debian-{package}"
    if folder.is_dir():
        return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip(f"{package} has to be unpacked from Debian's package, and apt-get is absent")
    scratch = CACHE / f"debian-{package}.{os.getpid()}"
    scratch.mkdir(parents=True)
    try:
        subprocess.run(["apt-get", "download", package, *also], cwd=scratch, check=True, capture_output=True, text=True, timeout=300)
        for file in scratch.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(file), str(scratch / "files")], check=True, capture_output=True, text=True)
        if not folder.exists():
            (scratch / "files").rename(folder)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{package} cannot be had from Debian here: {str(error.stderr).strip()[-200:]}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def digest(*files: Path) -> str:
    """Names what was made from these files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def go_module(path: str, version: str) -> Path:
    """The files of a Go module, from the module proxy."""
    if shutil.which("go") is None:
        pytest.skip(f"{path} has to be fetched by Go, which is absent")
    done = subprocess.run(["go", "mod", "download", "-json", f"{path}@{version}"], capture_output=True, text=True, cwd="/")
    if done.returncode:
        pytest.skip(f"{path} {version} cannot be fetched here: {done.stdout[-200:]}{done.stderr[-200:]}")
    return Path(json.loads(done.stdout)["Dir"])
