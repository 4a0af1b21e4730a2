"""Builds both wheels into a folder, and the bill of materials beside them (`tools/sbom.py`): `python tools/wheels.py
dist`. Uses the checkout's locked build tools, no isolation.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import sbom

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve()
    for folder in (ROOT, ROOT / "packaging" / "server"):
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"building the wheel of {folder.name} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    for wheel in sorted(target.glob("*.whl")):
        print(wheel)
    print(sbom.write(target))


if __name__ == "__main__":
    main()
