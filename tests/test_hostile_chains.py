"""Whatever shares its parts is gone through once: every public function and command, in a child with limits.

The timeout is only a guard against a hang: what is exponential or quadratic here takes hours.
"""

import re
import sys

import pytest

import hostile_chains
import milblob
from children import run_fork
from thorough import some

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="Linux has RLIMIT_AS: memory that hostile input takes is not limited here",
)
MEMORY_NBYTES = 3 << 30
TOO_LONG = r"constexpr operations: expected (a chain of at most 32|at most 128 parts of a weight), got more"
CIRCLE = r"constexpr operation: expected parts that are computed before it, got itself among them"

PRELUDE = """
    import contextlib, io, os, pathlib, tempfile
    import numpy as np
    import hostile_chains, milblob
    from hostile_bytes import use_everything
    from milblob.cli import main

    folder = pathlib.Path(tempfile.mkdtemp())
    path, package, new = folder / "m.mlmodel", folder / "p.mlpackage", folder / "new.mlmodel"
    path.write_bytes(hostile_chains.source(sys.argv[1]))
    inside = package / "Data" / "com.apple.CoreML"
    inside.mkdir(parents=True)
    (inside / "model.mlmodel").write_bytes(hostile_chains.source(sys.argv[1]))
    item = '{"path": "com.apple.CoreML/model.mlmodel", "name": "model.mlmodel", "author": "com.apple.CoreML"}'
    (package / "Manifest.json").write_text('{"fileFormatVersion": "1.0.0", "itemInfoEntries": {"A": %s}, "rootModelIdentifier": "A"}' % item)
    said = set()

    def attempt(what, call):
        try:
            call()
        except milblob.MilblobError as error:
            said.add(str(error)[:300].split(" in /")[0])

    def command(*words):
        errors = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            status = main([str(word) for word in words])
        assert status in (0, 1, 2), words
        assert "Traceback" not in errors.getvalue() and "nesting than" not in errors.getvalue(), errors.getvalue()
        return status
"""

FUNCTIONS = """
    attempt("everything", lambda: use_everything(path))
    attempt("load", lambda: milblob.load(path))
    attempt("stored", lambda: milblob.load(path, stored=True, constants=True))
    attempt("hash", lambda: milblob.content_hash(path))
    attempt("dense hash", lambda: milblob.content_hash(path, dense=True))
    attempt("diff", lambda: milblob.diff(path, path))
    attempt("match", lambda: milblob.match(path, path))
    attempt("editing", lambda: milblob.open(path, "r+").close())
    attempt("refit", lambda: milblob.refit(path, milblob.load(path, stored=True), dry_run=True))
    for how in ({}, {"dedupe": True, "canonical": True}, {"select": ["e*", "*"], "externalize": 1}):
        attempt("repack", lambda how=how: milblob.repack(package, folder / "new.mlpackage", force=True, **how))
    attempt("decompress", lambda: milblob.repack(package, folder / "new.mlpackage", force=True, decompress=True))
    attempt("inline", lambda: milblob.repack(path, new, force=True, decompress=True))
    attempt("merge", lambda: milblob.merge_functions([package], folder / "merged.mlpackage", force=True))
    found = milblob.check(path, values=True)
    print(len([f for f in found if f.severity == "error"]))
    print("\\n".join(sorted(said)))
"""

COMMANDS = """
    name = {"e": "e0", "c": "end", "b": "e0"}.get(sys.argv[1][0], "w9")
    for words in (
        ["ls", path], ["ls", path, "--json", "--stored", "--constants"], ["ls", "-p", path], ["show", path], ["show", path, name],
        ["show", path, "no such name"], ["stats", path], ["stats", path, "--histogram", "--json", "--stored"], ["hash", path, "-v"],
        ["hash", path, "--dense"], ["diff", path, package], ["match", package, path, "--json"], ["check", path, package, "--values"],
        ["convert", path, "-o", folder / "out.npz"], ["convert", path, "-o", folder / "w.bin"], ["convert", path, "-o", folder / "out.safetensors"],
        ["repack", package, "-o", folder / "r.mlpackage"], ["repack", package, "-o", folder / "d.mlpackage", "--decompress"],
        ["refit", path, folder / "out.npz", "--dry-run"], ["merge-functions", package, "-o", folder / "merged.mlpackage"],
    ):
        print(command(*words), words[0])
"""


@pytest.mark.parametrize("name", some(hostile_chains.MODELS, 5))
def test_every_function(name):
    """Chains that are refused are so by every function, in the same words, and are a finding of `check`."""
    errors, *said = run_fork(PRELUDE + FUNCTIONS, name, timeout=240, memory_nbytes=MEMORY_NBYTES).split("\n")
    said = [line for line in said if line]
    words = [line for line in said if re.search(f"{TOO_LONG}|{CIRCLE}", line)]
    if name in hostile_chains.REFUSED:
        assert len(words) >= 1 and int(errors) >= 1
        assert all(re.search(CIRCLE if "circle" in name else TOO_LONG, line) for line in words)
    else:
        is_sound = name not in hostile_chains.MALFORMED
        assert words == [] and int(errors) == (0 if is_sound else 300)
        assert (said == []) is is_sound, said


@pytest.mark.parametrize("name", some([name for name in hostile_chains.MODELS if "10,000" not in name], 2))
def test_every_command(name):
    lines = run_fork(PRELUDE + COMMANDS, name, timeout=240, memory_nbytes=MEMORY_NBYTES).splitlines()
    assert len(lines) == 20
    status = {words.split()[1]: int(words.split()[0]) for words in lines}
    assert status["check"] == (1 if name in (*hostile_chains.REFUSED, *hostile_chains.MALFORMED) else 0)
    assert (status["ls"] == 2) is (name in hostile_chains.REFUSED)


def test_check_reports_a_long_chain_and_continues():
    """A chain that nothing reads hides no other problem of the model."""
    ops = [*hostile_chains.line(33), hostile_chains.const(hostile_chains.immediate(11, [3], b""), "short")]
    found = milblob.check(hostile_chains.model(hostile_chains.program(*ops), 9))
    assert {(f.severity, f.code) for f in found} == {("error", "program"), ("error", "MIL016")}
    (chain,) = [f for f in found if f.code == "program"]
    assert re.search(TOO_LONG, str(chain)) and "w32" in chain.where


def test_a_chain_of_the_greatest_length_is_right():
    """Each operation of these leaves what it reads, or takes off an offset that it is: the values are known."""
    with milblob.open(hostile_chains.source("line of 32")) as model:
        assert model["w31"].read().tolist() == [1.0] * 12
    with milblob.open(hostile_chains.source("fan of 300 on 31")) as model:
        assert len(model) == 300
        assert all(tensor.read().tolist() == model["e0"].read().tolist() for tensor in model.values())
