"""Real programs that tests run beside ours: built by Go or unpacked from Debian once, kept in ~/.cache/heliograph.

Is: OpenTofu, helm, kubeconform, promtool, sshd, and others, each by its name, at one version. Isn't: installed into the
machine; nothing outside the cache is touched, but for Debian's lists of packages where there are none. What cannot be
had here skips the test in one sentence.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.cache import CACHE, once

TOFU, HCL = "v1.12.6", "v2.20.2-0.20251021132045-587d123c2828"
HELM, KUBECONFORM = "v4.3.0", "v0.8.0"
PULSARCTL = "v0.5.0"
"""The newest of which the checksum database knows: later ones have versions that a Go module of that name cannot
have.
"""
_BUILD_S = 1800
_TRIES, _PAUSE_S = 3, 5.0


def fetch(
    words: Sequence[str], folder: Path, *, env: Mapping[str, str] | None = None, timeout_s: float = _BUILD_S
) -> str:
    """Runs what asks a registry, in that folder; returns what it prints.

    A registry that does not answer is asked again after a while, and a machine that has no lists of Debian's packages
    yet gets them.
    Raises subprocess.SubprocessError; `reason` says it in a few words.
    """
    for left in reversed(range(_TRIES)):
        try:
            return subprocess.run(
                words, cwd=folder, env=env, check=True, capture_output=True, text=True, timeout=timeout_s
            ).stdout
        except subprocess.CalledProcessError:
            if not left:
                raise
            if words[0] == "apt-get":
                subprocess.run(["apt-get", "update", "-q"], capture_output=True, timeout=timeout_s)
            time.sleep(_PAUSE_S)
    raise AssertionError("the last attempt returns or raises")


def reason(error: subprocess.SubprocessError) -> str:
    """The end of what a program said that failed."""
    return str(error.stderr if isinstance(error, subprocess.CalledProcessError) else error).strip()[-300:]


def tofu() -> Path:
    """OpenTofu. Its own go.mod replaces the HCL library, and `go install` does not follow that: so it is built as a
    dependency of an empty module.
    """

    def build(go: Callable[..., None], scratch: Path) -> None:
        go("mod", "init", "tofu")
        go("mod", "edit", "-replace", f"github.com/hashicorp/hcl/v2=github.com/opentofu/hcl/v2@{HCL}")
        go("get", f"github.com/opentofu/opentofu/cmd/tofu@{TOFU}")
        version = (
            "-X github.com/opentofu/opentofu/version.dev=no -X "
            f"github.com/opentofu/opentofu/version.version={TOFU.removeprefix('v')}"
        )
        go(
            "build",
            "-ldflags",
            f"-s -w {version}",
            "-o",
            str(scratch / "made"),
            "github.com/opentofu/opentofu/cmd/tofu",
        )

    return _built(f"tofu-{TOFU}", build)


def helm() -> Path:
    return _built(f"helm-{HELM}", _installing(f"helm.sh/helm/v4/cmd/helm@{HELM}", "helm"))


def kubeconform() -> Path:
    return _built(
        f"kubeconform-{KUBECONFORM}",
        _installing(f"github.com/yannh/kubeconform/cmd/kubeconform@{KUBECONFORM}", "kubeconform"),
    )


def pulsarctl() -> Path:
    """The module proxy has this version, and no list of them, which `go install` and `go get` ask for: so it is a
    dependency of an empty module.
    """

    def build(go: Callable[..., None], scratch: Path) -> None:
        go("mod", "init", "pulsarctl")
        go("mod", "edit", "-require", f"github.com/streamnative/pulsarctl@{PULSARCTL}")
        go(
            "build",
            "-mod",
            "mod",
            "-ldflags",
            "-s -w",
            "-o",
            str(scratch / "made"),
            "github.com/streamnative/pulsarctl",
        )

    return _built(f"pulsarctl-{PULSARCTL}", build)


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


def fiu() -> Path:
    """`fiu-ctrl`, which makes system calls of a process fail; `fiu_preload` is what that process loads."""
    return _unpacked("fiu-utils", "libfiu0") / "usr" / "bin" / "fiu-ctrl"


def fiu_preload() -> dict[str, str]:
    """The environment of a process whose system calls can be made to fail."""
    libraries = fiu().parents[1] / "lib"
    return {
        "LD_PRELOAD": " ".join(
            str(libraries / "fiu" / name) for name in ("fiu_run_preload.so", "fiu_posix_preload.so")
        ),
        "LD_LIBRARY_PATH": str(libraries),
    }


def rsyslogd() -> Path:
    """rsyslog, to be run with `LD_LIBRARY_PATH` of `libraries`; its modules are in lib/*/rsyslog beside them."""
    return (
        _unpacked("rsyslog", "rsyslog-relp", "librelp0", "libestr0", "libfastjson4", "liblognorm5")
        / "usr"
        / "sbin"
        / "rsyslogd"
    )


def haproxy() -> Path:
    """HAProxy, to be run with `LD_LIBRARY_PATH` of `libraries`."""
    also = ("liblua5.3-0", "libopentracing1", "libopentracing-c-wrapper0")
    return _unpacked("haproxy", *also) / "usr" / "sbin" / "haproxy"


def dnsmasq() -> Path:
    """dnsmasq, to be run with `LD_LIBRARY_PATH` of `libraries`."""
    also = ("libnetfilter-conntrack3", "libnfnetlink0", "libnftables1", "libnftnl11")
    return _unpacked("dnsmasq-base", *also) / "usr" / "sbin" / "dnsmasq"


def redis_server() -> Path:
    """Redis, to be run with `LD_LIBRARY_PATH` of `libraries`."""
    return (
        _unpacked("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1")
        / "usr"
        / "bin"
        / "redis-server"
    )


def clickhouse_server() -> Path:
    """ClickHouse of 2018, the one that Debian has, to be run with `LD_LIBRARY_PATH` of `libraries`."""
    also = (
        "clickhouse-common libcapnp-0.9.2 libcctz2 libcpuinfo0 libdouble-conversion3 libfarmhash0 libjemalloc2 "
        "libmariadb3 libmetrohash1 libpcre3 libltdl7"
    )
    also += " libodbc2 librdkafka1 libre2-9 libboost-filesystem1.74.0 libboost-program-options1.74.0 libicu72"
    poco = "foundation data dataodbc net mongodb crypto json xml util netssl"
    return (
        _unpacked("clickhouse-server", *also.split(), *(f"libpoco{each}80" for each in poco.split()))
        / "usr"
        / "sbin"
        / "clickhouse-server"
    )


def python_packages(*pinned: str) -> Path:
    """A folder for sys.path with just these packages, `name==version` each, without what they depend on. For what is
    too large for the environment.
    """

    def make(scratch: Path) -> None:
        try:
            fetch(
                [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(scratch), *pinned], scratch
            )
        except subprocess.SubprocessError as error:
            pytest.skip(f"{pinned[0]} cannot be installed here: {reason(error)}")

    return once(pinned[0].replace("==", "-"), make)


def libraries(program: Path) -> str:
    """Of a program that was unpacked here: where its own libraries are."""
    root = program.parents[2]
    return ":".join(
        str(path) for lib in (root / "usr" / "lib", root / "lib") for path in sorted(lib.glob("*-linux-gnu"))
    )


def _installing(package: str, name: str) -> Callable[[Callable[..., None], Path], None]:
    def build(go: Callable[..., None], scratch: Path) -> None:
        go("install", "-ldflags", "-s -w", package)
        (scratch / name).rename(scratch / "made")

    return build


def go_program(source: Path, package: str, version: str) -> Path:
    """A program of one file of ours, which uses one package of the module proxy. What it says is part of its name."""

    def build(go: Callable[..., None], scratch: Path) -> None:
        shutil.copy(source, scratch)
        go("mod", "init", source.stem)
        go("get", f"{package}@{version}")
        go("build", "-o", str(scratch / "made"), ".")

    says = hashlib.sha256(source.read_bytes()).hexdigest()[:8]
    return _built(f"{source.stem}-{version}-{says}", build)


def _built(name: str, build: Callable[[Callable[..., None], Path], None]) -> Path:
    """~/.cache/heliograph/bin/NAME; two test runs do not build it twice. Its sources are deleted again."""

    def make(scratch: Path) -> None:
        if shutil.which("go") is None:
            pytest.skip(f"{name} has to be built by Go 1.24 or newer, which is absent")
        try:
            build(lambda *words: _run(["nice", "go", *words], scratch), scratch)
        except subprocess.SubprocessError as error:
            pytest.skip(f"{name} cannot be built here: {reason(error)}")

    return once(f"bin/{name}", make)


def _run(words: Sequence[str], scratch: Path) -> None:
    fetch(words, scratch, env=go_environment(scratch))


def go_environment(scratch: Path) -> dict[str, str]:
    """Of a `go` that builds below `scratch`.

    What is built runs for seconds: a compiler that optimizes nothing takes half the time. All builds have one cache of
    objects, so that Go's own library, 40 s of it, is compiled once.
    """
    return {
        **os.environ,
        "GOBIN": str(scratch),
        "GOMODCACHE": str(scratch / "modules"),
        "GOCACHE": str(CACHE / "go-build"),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-p=1 -modcacherw -trimpath -buildvcs=false '-gcflags=all=-N -l -dwarf=false'",
        "CGO_ENABLED": "0",
        "GOWORK": "off",
    }


def _unpacked(package: str, *also: str) -> Path:
    """A Debian package's files, and those of what it wants beside what every machine has, without installing any."""

    def make(scratch: Path) -> None:
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            pytest.skip(f"{package} has to be unpacked from Debian's package, and apt-get is absent")
        try:
            unpack_debian((package, *also), scratch)
        except subprocess.SubprocessError as error:
            pytest.skip(f"{package} cannot be had from Debian here: {reason(error)}")

    return once(f"debian-{package}", make)


def unpack_debian(packages: Sequence[str], folder: Path) -> None:
    """Raises subprocess.SubprocessError."""
    fetch(["apt-get", "download", *packages], folder)
    for file in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(file), str(folder)], check=True, capture_output=True, text=True)
        file.unlink()


def digest(*files: Path) -> str:
    """Names what was made from these files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def go_module(path: str, version: str) -> Path:
    """The files of a Go module, from the module proxy."""
    if shutil.which("go") is None:
        pytest.skip(f"{path} has to be fetched by Go, which is absent")
    try:
        said = fetch(["go", "mod", "download", "-json", f"{path}@{version}"], Path("/"))
    except subprocess.SubprocessError as error:
        pytest.skip(f"{path} {version} cannot be fetched here: {reason(error)}")
    return Path(json.loads(said)["Dir"])
