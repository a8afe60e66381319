"""Whether the table of writers has everything that writes, and what is left to do when a result has its name."""

import argparse
import ast
import functools
import importlib
import inspect
import itertools
import pathlib
import pkgutil
import sys
import threading
from typing import NamedTuple

import pytest

import milblob
from faults import modules_for
from milblob.cli import commands
from milblob.cli.parser import parse
from syntax import parsed, unparse
from writers import WRITERS, act, make

SOURCE = pathlib.Path(milblob.__file__).parent
OUTPUTS = {"NewFile", "NewDirectory", "NewNamedFile"}
RENAMES = {"os.link", "os.rename", "os.replace"}
NAMED = {("storage/output.py", f"{kind}.named") for kind in OUTPUTS} | {
    ("storage/journal.py", "_finish"), ("blobs/writer.py", "BlobWriter._count_in"),
}  # fmt: skip
"""What returns when a result has its name, or is in its file."""

LETTING_GO = {
    "Archive.close", "Arrays.__exit__", "Arrays.close", "BlobWriter.__del__", "BlobWriter._let_go", "Compressing.close",
    "EditableModel.__del__", "EditableModel.__exit__", "EditableModel._close_fds", "EditableModel._forget",
    "EditableModel._give_back", "EditableModel._release", "EditableModel._unlock", "EditableModel.close",
    "ModelFiles.__exit__", "ModelFiles.close", "PatchReader.__exit__", "PatchReader.close", "_Applying._locked",
    "OpenLibrary.__exit__", "OpenLibrary.close", "Model.__exit__", "Model.close", "Module.reload", "Package.close",
    "ModelView.release", "OpenProgram.release", "Package.require_sound", "Process.is_here", "ProgramScan.release", "ProgramView.release",
    "_all_problems", "_resting_collector", "new_values", "opened",  # the ends of their blocks
    "EditableModel.commit", "EditableModel._write_assigned", "EditableModel.flush", "BlobWriter._to_disk",
}  # fmt: skip
SAYING = {
    "CompressReport.plan", "ConvertReport.nbytes", "Frontier.bits", "Matching.refit_mapping", "RefitReport.nbytes", "RepackReport.counts",
    "WeightReport.relative", "WeightReport.sqnr", "_counted", "of_norm", "of_power", "save", "short", "shown", "summary",
}  # fmt: skip
"""Sums and words of a report that is made. All else that a report holds is asked for before anything has its name."""


class Seen(NamedTuple):
    """Functions of milblob that a writer calls, as (file, name): all, and those after the last result has its name."""

    called: set
    after: set


@functools.cache
def place_of(code):
    """(file, name) of a function of milblob; None of others."""
    path = pathlib.Path(code.co_filename)
    return (path.relative_to(SOURCE).as_posix(), code.co_qualname) if path.is_relative_to(SOURCE) else None


def watched(name, folder):
    """Run a writer, and see what it calls."""
    called, after, is_named = set(), set(), False

    def see(frame, event, _):
        nonlocal is_named
        key = place_of(frame.f_code)
        if key is None:
            return
        if event == "call":
            called.add(key)
            if is_named:
                after.add(key)
        elif event == "return" and key in NAMED:
            is_named = True
            after.clear()

    make(name, folder)
    for module in modules_for(name):
        importlib.import_module(module)
    threading.setprofile(see)
    sys.setprofile(see)
    try:
        act(name, folder)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Seen(called, after)


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    """What all writers call."""
    place = tmp_path_factory.mktemp("writers")
    return {name: watched(name, place / str(number)) for number, name in enumerate(WRITERS)}


def functions_that_write():
    """(file, name) of every function of milblob that makes an output, renames, or changes files through a journal."""
    for path in sorted(SOURCE.rglob("*.py")):
        stack = [("", parsed(path))]
        while stack:
            name, node = stack.pop()
            for child in ast.iter_child_nodes(node):
                inner = name
                if isinstance(child, ast.FunctionDef | ast.ClassDef):
                    between = ".<locals>." if isinstance(node, ast.FunctionDef) else "." if name else ""
                    inner = f"{name}{between}{child.name}"
                elif isinstance(child, ast.Call):
                    called = unparse(child.func)
                    file = path.relative_to(SOURCE).as_posix()
                    renames = called in RENAMES and not file.startswith("storage/")
                    if called in OUTPUTS or renames or called.endswith("journal.commit"):
                        yield file, name
                stack.append((inner, child))


def public_functions_that_write():
    """(file, name) of every public function that may replace files, or opens something to write to it."""
    for module in (milblob, importlib.import_module("milblob.onnx"), importlib.import_module("milblob.tvm")):
        for name in module.__all__:
            found = getattr(module, name)
            for function in vars(found).values() if inspect.isclass(found) else [found]:
                function = inspect.unwrap(function) if inspect.isfunction(function) else function
                if inspect.isfunction(function) and {"force", "mode"} & set(inspect.signature(function).parameters):
                    file = pathlib.Path(inspect.getsourcefile(function))
                    if file.is_relative_to(SOURCE):
                        yield file.relative_to(SOURCE).as_posix(), function.__qualname__


def commands_with_outputs():
    """(module of a command, names of the outputs in its arguments)."""
    for module in pkgutil.iter_modules(commands.__path__, "milblob.cli.commands."):
        command = importlib.import_module(module.name)
        is_batch = module.name.endswith(".batch")  # its outputs are those of other commands; tests/batching kills it
        if hasattr(command, "add_arguments") and hasattr(command, "run") and not is_batch:
            parser = argparse.ArgumentParser()
            command.add_arguments(parser)
            outputs = {action.dest for action in parser._actions if getattr(action, "is_output", False)} - {"download"}
            forces = any("--force" in action.option_strings for action in parser._actions)
            assert bool(outputs) == forces, f"{module.name}: what replaces files has outputs, by options.add_output"
            if outputs:
                yield command, outputs


def test_every_function_that_writes_is_in_the_table(every):
    called = set().union(*(seen.called for seen in every.values()))
    writing = {*functions_that_write(), *public_functions_that_write()}
    assert len(writing) > 30
    from_a_server = {  # tests/remote interrupts them; what a mirror names is in its own temporary folder
        ("remote/mirror.py", "Mirror._add"), ("rewrite/download.py", "_Work._note"), ("rewrite/download.py", "download"),
            ("remote/cache_directory.py", "CacheDirectory._key"),
    }  # fmt: skip
    of_batches = {("batching/work.py", "write_json")}  # tests/batching/test_kill.py
    assert sorted(writing - called - from_a_server - of_batches) == []


def test_every_output_of_a_command_is_in_the_table():
    """Each of them, and those together that a command can write together."""
    given = [parse(writer.act.argv) for writer in WRITERS.values() if hasattr(writer.act, "argv")]
    apart = {frozenset(["frontier", other]) for other in ("output", "save_plan")}
    for command, outputs in commands_with_outputs():
        written = [
            {name for name in outputs if getattr(one, name) is not None} for one in given if one.run is command.run
        ]
        for wanted in [{name} for name in outputs] + [set(pair) for pair in itertools.combinations(outputs, 2)]:
            assert frozenset(wanted) in apart or any(wanted <= names for names in written), (command.__name__, wanted)


def test_nothing_is_left_to_do_when_a_result_has_its_name(every):
    """So an exception finds the destination as it was. What flush opens again is told by a state of its own."""
    left = {
        (name, *function)
        for name, seen in every.items()
        for function in seen.after
        if not function[0].startswith(("storage/", "cli/", "wording.py"))
        and function[1].split(".<locals>")[0] not in LETTING_GO | SAYING
        and not name.startswith("edit ")
    }
    assert sorted(left) == []
    assert all(seen.called for seen in every.values())
