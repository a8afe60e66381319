"""How far a call travels: the functions, modules and folders that each public function enters. `make figures` prints it.

The calls are made, on the example model and under a profiler, so what is counted is what runs: the functions of milblob that are
entered (each once), and the calls in which a module calls one of a folder that comes after its own (a climb: a callback, or a method
of an object that a later folder made). Calls of the compiled core, and what other threads do, are not seen.
"""

import pathlib
import shutil
import sys
import tempfile

import milblob

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = str(pathlib.Path(milblob.__file__).resolve().parent) + "/"
MODEL = ROOT / "examples" / "demo.mlpackage"


def folder_of(module):
    """Return the folder of `storage/paths.py`: `storage`; of a module that is in none: nothing."""
    return module.partition("/")[0] if "/" in module else ""


def journey(call, folders):
    """Return how many functions, modules and folders a call enters, and the calls that climb.

    Args:
        call: a function without arguments.
        folders: the order of the folders, the lowest first.

    """
    floors = {folder: number for number, folder in enumerate(folders)}
    functions, climbs = set(), set()

    def module_of(frame):
        name = frame.f_code.co_filename
        return name[len(SOURCE) :].replace("\\", "/") if name.startswith(SOURCE) else None

    def entered(frame, event, _):
        module = module_of(frame) if event == "call" else None
        if module is None or frame.f_code.co_name in ("<module>", "__del__"):
            return
        functions.add((module, frame.f_code.co_qualname))
        caller = frame.f_back
        while caller is not None and module_of(caller) is None:
            caller = caller.f_back
        if caller is not None and floors[folder_of(module)] > floors[folder_of(module_of(caller))]:
            climbs.add((module_of(caller), caller.f_code.co_name, module, frame.f_code.co_name))

    sys.setprofile(entered)
    try:
        call()
    finally:
        sys.setprofile(None)
    modules = {module for module, _ in functions}
    return len(functions), len(modules), len({folder_of(module) for module in modules}), sorted(climbs)


def journeys(folders):
    """Yield what each public function does on the example model: a name, and what `journey` returns."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        copy, half = folder / "copy.mlpackage", folder / "half.mlpackage"
        shutil.copytree(MODEL, copy)
        milblob.repack(MODEL, half, cast="float16")
        weights = {name: array + array.dtype.type(1) for name, array in milblob.load(MODEL).items()}
        calls = {
            "open": lambda: milblob.open(MODEL).close(),
            "load": lambda: milblob.load(MODEL),
            "check": lambda: milblob.check(MODEL, values=True),
            "diff": lambda: milblob.diff(MODEL, half),
            "repack": lambda: milblob.repack(MODEL, folder / "repacked.mlpackage", cast="float16"),
            "compress": lambda: milblob.compress(MODEL, folder / "small.mlpackage", milblob.Linear("int8")),
            "refit": lambda: milblob.refit(copy, weights),
        }
        for name, call in calls.items():
            call()  # imports what it needs; the call that is counted imports nothing
            if name == "refit":
                weights = {key: array + array.dtype.type(1) for key, array in weights.items()}
            for made in ("repacked.mlpackage", "small.mlpackage"):
                shutil.rmtree(folder / made, ignore_errors=True)
            yield name, journey(call, folders)
