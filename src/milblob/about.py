"""milblob.info: versions, build, kernels, threads, and the environment variables that change them."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass

from . import _codec, threads
from .results import Result
from .version import VERSION

_VARIABLES = {"MILBLOB_TIER": "which kernels", threads.VARIABLE: "how many threads"}


@dataclass(frozen=True, repr=False)
class Info(Result):
    """This installation of milblob. `print` shows one fact per line, `to_dict` is JSON-able.

    Attributes:
        version: of milblob.
        python: version of Python.
        packages: name -> version of the packages that milblob uses; None if one is not installed.
        platform: operating system and processor, as in the names of wheels.
        compiler: the one that built the extension.
        abi: "abi3 from 3.11 on" if the extension works with every later Python, else the ABI that it was built for.
        is_free_threaded: whether this is a free-threaded build of Python.
        has_gil: whether the global interpreter lock is on; always true unless the build is free-threaded.
        tier: the kernels in use. tiers: all that this processor supports, the fastest last.
        threads: how many share large work that starts in the calling thread.
        processors: how many this process may use.
        variables: MILBLOB_* environment variables that are set, including unknown ones, which may be typos.

    Examples:
        >>> about = milblob.info()
        >>> about.version == milblob.__version__, about.tier in about.tiers
        (True, True)
    """

    version: str
    python: str
    packages: dict[str, str | None]
    platform: str
    compiler: str
    abi: str
    is_free_threaded: bool
    has_gil: bool
    tier: str
    tiers: tuple[str, ...]
    threads: int
    processors: int
    variables: dict[str, str]

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield (title, text) for printing."""
        yield "milblob", self.version
        yield (
            "python",
            f"{self.python}{' free-threaded' if self.is_free_threaded else ''}"
            + (", with the global lock" if self.is_free_threaded and self.has_gil else ""),
        )
        for name, version in self.packages.items():
            yield name, version or "not installed"
        yield "platform", self.platform
        yield "extension", f"{self.abi}, by {self.compiler}"
        yield "kernels", f"{self.tier} (of {', '.join(self.tiers)})"
        yield "threads", f"{self.threads} ({self.processors} processor{'' if self.processors == 1 else 's'} to use)"
        for name, value in self.variables.items():
            yield name, f"{value} ({_VARIABLES.get(name, 'not one that milblob reads')})"

    def __str__(self) -> str:
        rows = list(self.lines())
        width = max(len(what) for what, _ in rows)
        return "\n".join(f"{what:{width}}  {words}" for what, words in rows)


def info() -> Info:
    """Return versions, build, kernels and threads of this installation.

    Raises:
        ValueError: MILBLOB_THREADS is not a number.

    Examples:
        >>> milblob.info().threads > 0
        True
    """
    compiler, stable = _codec.build()
    tiers, tier = _codec.tiers()
    return Info(
        version=VERSION,
        python=sys.version.split()[0],
        packages={name: _version(name) for name in ("numpy", "ml_dtypes", "protobuf")},
        platform=sysconfig.get_platform(),
        compiler=compiler,
        abi=f"abi3 from {stable >> 24}.{stable >> 16 & 0xFF} on" if stable else str(sys.implementation.cache_tag),
        is_free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        has_gil=bool(getattr(sys, "_is_gil_enabled", lambda: True)()),
        tier=tier,
        tiers=tuple(tiers),
        threads=threads.count(),
        processors=threads.processors(),
        variables={name: value for name, value in sorted(os.environ.items()) if name.startswith("MILBLOB_")},
    )


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
