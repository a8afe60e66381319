"""What takes long to make, made once for all workers of a test run."""

import os

try:
    import fcntl
except ImportError:  # Windows: each worker makes its own
    fcntl = None


def once(tmp_path_factory, name, make):
    """Return a path that `make(path)` wrote, a file or a folder. Whoever asks first makes it, the others wait.

    Args:
        tmp_path_factory: pytest's.
        name: of the file or folder; what it holds follows from it.
        make: called with a path, at which nothing is yet. If it raises, the next one who asks tries again.
    """
    base = tmp_path_factory.getbasetemp()
    if fcntl is not None and "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    path = base / "once" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "a", encoding="utf-8") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            part = path.with_name(f"{name}.part{os.getpid()}")
            make(part)
            part.rename(path)
    return path
