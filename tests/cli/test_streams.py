"""The standard streams of commands: closed ones, full disks and pipes that nobody reads."""

import os
import subprocess
import sys

import pytest

from paths import DEMO
from thorough import some

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no /dev/full here: broken streams are not tested")

CASES = [
    (["ls", DEMO, DEMO], True),
    (["--version"], True),
    (["hash", DEMO], False),
    (["ls", DEMO, "--json"], False),
    (["check", DEMO, DEMO], True),
    (["stats", "--json-lines", DEMO, DEMO], False),
    (["ls", "--help"], False),
    (["--completion", "bash"], True),
    (["text", DEMO], False),
    ([], True),
]


def run(words, is_unbuffered=False, redirection="", **streams):
    """Run the command in a shell, without stdout and stderr unless they are given."""
    code = "import sys; from milblob_command import main; sys.exit(main())"
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", code, *map(str, words)]
    env = os.environ | {"PYTHONUNBUFFERED": "1" if is_unbuffered else ""}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run(shell, env=env, check=False, timeout=60, **streams)


@pytest.mark.parametrize(("words", "is_unbuffered"), some(CASES, 2))
def test_output_that_is_lost_is_an_error_about_stdout(words, is_unbuffered):
    with open("/dev/full", "wb") as full:
        done = run(words, is_unbuffered, stdout=full)
    assert (done.returncode, done.stderr) == (2, b"milblob: No space left on device: stdout\n")
    done = run(words, is_unbuffered, ">&-")
    assert (done.returncode, done.stderr) == (2, b"milblob: Bad file descriptor: stdout\n")
    reader, writer = os.pipe()
    os.close(reader)
    done = run(words, is_unbuffered, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_messages_that_are_lost_change_no_result():
    good = run(["hash", DEMO])
    closed = run(["hash", DEMO], redirection="2>&- <&-")
    assert (closed.returncode, closed.stdout) == (0, good.stdout)
    for words in (["ls", "no such file"], ["ls", "--no-such-option"]):
        with open("/dev/full", "wb") as full:
            assert run(words, stderr=full).returncode == 2
        closed = run(words, redirection="2>&-")
        assert (closed.returncode, closed.stdout) == (2, b"")


def test_closed_input_is_an_error():
    done = run(["ls", "--files-from", "-"], redirection="<&-")
    assert (done.returncode, done.stderr) == (2, b"milblob: Bad file descriptor\n")


def test_no_file_of_the_user_gets_the_descriptor_of_a_closed_stream(tmp_path):
    """What a library writes to descriptor 2 would be in it."""
    code = """
import os, sys
from milblob.cli.terminal.streams import prepared
with prepared(), open(sys.argv[1], "w") as file:
    file.write(str(file.fileno()))
"""
    path = tmp_path / "x"
    subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code, str(path)], check=True, timeout=60
    )
    assert int(path.read_text()) > 2
