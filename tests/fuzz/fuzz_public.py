"""Every public function and every command on models that a fuzzer damages: only milblob's own exceptions come out.

The first byte of an input chooses a sound model, the second one a call, and the others decide what is changed in the model:
`case` of tests/support/public_calls.py. harness.py has the command line.
"""

import sys
from importlib import import_module
from pkgutil import walk_packages

from harness import counted, folder, main

with counted():
    import milblob

    for module in walk_packages(milblob.__path__, "milblob."):  # what functions import when they are called, too
        if not module.name.startswith(("milblob.onnxmltools", "milblob.compat", "milblob.frameworks")):
            import_module(module.name)

import public_calls


class _Case:
    """Runs inputs, all in one directory."""

    def __init__(self):
        self._folder = folder()

    def __call__(self, data):
        name, error = public_calls.case(data, self._folder)
        if error is not None:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            raise error


if __name__ == "__main__":
    main(_Case())
