"""The workers of an `executor` argument, imported only where one is given: multiprocessing takes long to import."""

TYPE_CHECKING = False  # as that of typing

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from .executors import Workers


def workers_of(executor: "Executor | None") -> "Workers | None":
    """Return the workers of an `executor` argument; None for None. Raises: TypeError: not an executor."""
    if executor is None:
        return None
    from .executors import Workers

    return executor if isinstance(executor, Workers) else Workers(executor)
