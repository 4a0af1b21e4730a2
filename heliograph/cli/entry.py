"""Where the program begins: Ctrl-C ends it silently while the rest is being imported.

Is: the first module that the installed command imports; so it imports nothing else at its top.
"""

import signal


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from heliograph.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
