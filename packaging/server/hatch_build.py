"""Puts the five server packages, which lie at the top of the repository, into one folder of the wheel, and a door to
them beside it; an editable install finds them at the top by itself.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("global_config", "local_meta", "storage", "replicator", "region_node")


class ServerPackages(BuildHookInterface):  # type: ignore[type-arg]
    """`editable`: nothing to include. `standard`: the packages, by their place in the repository, and the door."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        top = Path(self.root).parent.parent
        if version == "editable":
            build_data["pth"] = [str(top)]
            return
        for name in PACKAGES:
            for source in sorted((top / name).rglob("*")):
                if source.is_file() and "__pycache__" not in source.parts:
                    build_data["force_include"][str(source)] = str(source.relative_to(top))
