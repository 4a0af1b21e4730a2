"""The door to the servers' modules: what the wheel has as `region_node` among the packages that everybody imports.

Is: the one name by which our processes begin (`python -m region_node.process`, the entry point of the commands). The
five packages lie beside it, in the folder `heliograph_server`, by whose name nobody imports anything. Isn't: in a
checkout, at whose top the five lie.
Invariants: who imports `region_node` has all five of ours, whatever lies in the current directory, on PYTHONPATH, or in
front of it by other finders, and whatever comes there later; who does not has none of them. sys.path stays as it is, so
that no child gets ours from it.
Source: decision 199.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_FOLDER = Path(__file__).absolute().parent.parent / "heliograph_server"
_BESIDE = ("global_config", "local_meta", "storage", "replicator")


def _take(name: str) -> None:
    """Imports a package from the folder under its own name. Raises ImportError."""
    spec = PathFinder.find_spec(name, [str(_FOLDER)])
    if spec is None or spec.loader is None:
        raise ImportError(f"the servers' package {name} is not in {_FOLDER}: install heliograph-server again")
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)


def _places(name: str) -> list[str]:
    """The folders of a package that is imported already, or the file of such a module."""
    module = sys.modules[name]
    return list(getattr(module, "__path__", [])) or [str(getattr(module, "__file__", "no file"))]


_present = {name: _places(name) for name in _BESIDE if name in sys.modules}
for _name, _found in _present.items():
    if _found != [str(_FOLDER / _name)]:
        raise ImportError(
            f"Heliograph's servers have a package {_name}, and this process has imported another one by that name from "
            f"{_found[0]}: start them in a process of their own (`heliograph`, `python -m region_node.process`)"
        )
for _name in _BESIDE:
    if _name not in _present:
        _take(_name)
__path__ = [str(_FOLDER / "region_node")]
