"""Where the program begins: Ctrl-C ends it silently while the rest is being imported.

Is: the first module that the installed command imports; so it imports nothing else at its top. Commands that have to
answer soon on a busy machine import what they need, and no other area.
"""

import signal
import sys

ALONE = {"dr": "heliograph.cli.regions.disaster_recovery"}
"""A group of commands -> the module that has all of them: nobody else adds to it."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if alone := ALONE.get(sys.argv[1] if len(sys.argv) > 1 else ""):
        from importlib import import_module

        from heliograph.cli.root import app
        from heliograph.cli.root import run as run

        import_module(alone).register(app)
    else:
        from heliograph.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
