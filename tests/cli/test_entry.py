"""The entry of the command: how the process ends, and what a command imports."""

import subprocess
import sys
import textwrap

import pytest

from milblob.cli import parser
from paths import DEMO


def run(code, *arguments):
    """Run Python code in which `main` is the entry, with what is registered for the exit printed."""
    code = f"""
import atexit, sys, threading
from milblob_command import main
atexit.register(print, "registered")
{textwrap.dedent(code)}
"""
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("arguments", "status"), [(["ls", str(DEMO)], 0), (["ls", "--no-such-option"], 2)])
def test_the_process_ends_after_a_command_with_its_output_and_status(arguments, status):
    done = run("print('before')\nmain()\nprint('after')", *arguments)
    assert done.returncode == status
    assert done.stdout.startswith("before\n") and done.stdout.endswith("registered\n") and "after" not in done.stdout
    assert ("head_bias" in done.stdout) == (status == 0)


def test_the_interpreter_ends_as_usual_while_another_thread_runs():
    code = """
        release = threading.Event()
        threading.Thread(target=lambda: release.wait() and print("thread")).start()
        status = main()
        release.set()
        sys.exit(status)
    """
    done = run(code, "--version")
    assert done.returncode == 0 and "thread\n" in done.stdout and done.stdout.endswith("registered\n")


def test_ls_imports_no_types_results_or_schemes():
    code = "from milblob.cli import main as command\ncommand(sys.argv[1:])\nprint('|', *sys.modules)"
    imported = run(code, "ls", str(DEMO)).stdout.rpartition("|")[2].split()
    assert "milblob.program.view" in imported
    assert not {*imported} & {"milblob.program.types", "milblob.results", "milblob.program.compression"}


def test_one_command_makes_one_parser():
    [commands] = parser._subcommands(parser._parser("ls"))
    assert list(commands.choices) == ["ls"]
    [commands] = parser._subcommands(parser._parser("no such command"))
    assert list(commands.choices) == list(parser.COMMANDS)
