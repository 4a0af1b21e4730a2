"""Puts the five server packages, which lie at the top of the repository, into one folder of the wheel, and a door to
them beside it; an editable install finds them at the top by itself.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("global_config", "local_meta", "storage", "replicator", "region_node")
FOLDER = "heliograph_server"
DOOR = "region_node_door.py"


class ServerPackages(BuildHookInterface):  # type: ignore[type-arg]
    """`editable`: nothing to include. `standard`: the packages, by their place in the repository, and the door."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        here = Path(self.root)
        top = here.parent.parent
        if version == "editable":
            build_data["pth"] = [str(top)]
            return
        included = build_data["force_include"]
        included[str(here / DOOR)] = "region_node/__init__.py"
        for name in PACKAGES:
            for source in sorted((top / name).rglob("*")):
                if source.is_file() and "__pycache__" not in source.parts:
                    included[str(source)] = f"{FOLDER}/{source.relative_to(top)}"
