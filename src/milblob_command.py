"""The entry of the command `milblob`: it is outside the package, so that Ctrl-C may come while that is imported."""

import signal


def main() -> int:
    """Import milblob, and run a command of it. Until then Ctrl-C ends the process as if it had no handler."""
    had_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, in a script
    if had_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from milblob.cli import main as run

    if had_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()
