"""How much slow tests do: what `make test` has time for, or all of it (`make thorough`, which sets MILBLOB_THOROUGH=1).

The same tests with the same assertions; only counts of random inputs and sizes of large files differ.
"""

import os


def sized(quick, thorough):
    """Return the second of two counts or sizes when everything is to be done, otherwise the first."""
    return thorough if os.environ.get("MILBLOB_THOROUGH") == "1" else quick
