"""The entry of the command `milblob`: it is outside the package, so that Ctrl-C may come while that is imported."""

import atexit
import os
import signal
import sys


def main() -> int:
    """Import milblob, and run a command of it. Until then Ctrl-C ends the process as if it had no handler."""
    had_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, in a script
    if had_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from milblob.cli import main as run

    if had_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    status = run()
    _end(status)
    return status


def _end(status: int) -> None:
    """End the process without removing the objects of the interpreter one by one, which takes longer than `milblob ls`.

    Functions that are registered for the exit run first. With other threads, under a profiler, or if a stream cannot be
    flushed it returns, and the interpreter ends as usual.
    """
    threading = sys.modules.get("threading")
    if (threading is not None and threading.active_count() > 1) or sys.getprofile() or sys.gettrace():
        return
    try:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except Exception:
        return
    os._exit(status)
