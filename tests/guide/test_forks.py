"""The forked program: it prints and ends as `heliograph` does, also where whoever runs it interrupts it."""

from __future__ import annotations

import signal
import socket
import subprocess

from tests.guide.forks import forked_program


def test_it_prints_and_ends_as_the_program_does() -> None:
    done = subprocess.run([forked_program(), "version"], capture_output=True, text=True, check=True)
    assert done.stdout.count(".") >= 2 and done.stderr == ""
    wrong = subprocess.run([forked_program(), "nonsense"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "nonsense" in wrong.stderr


def test_a_command_is_interrupted_with_its_program() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        admin = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [forked_program(), "topics", "list", "public/default", "--admin", admin]
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        asked, _ = silent.accept()
        with asked:
            asked.settimeout(60)
            assert asked.recv(4)
            program.send_signal(signal.SIGINT)
            said, told = program.communicate(timeout=60)  # at the end of the command, which has its files
            assert program.returncode == 130 and "Traceback" not in told and said == ""
            while asked.recv(65_536):
                pass
