"""Results of several files, and what is raised when one of them cannot be written: none of them has changed then."""

import errno
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import milblob
import milblob.tvm
import pair_writers as pairs
from hostile_bytes import write_package
from milblob.cli import main
from milblob.storage import output as files
from outcomes import snapshot
from paths import DATA, ROOT
from peers import WITHOUT
from progress_rows import steps


def refuse(*names, code=errno.EIO):
    """What raises where an output by one of these names takes it, and lets others go on."""

    def refused(self, real):
        if self.path.endswith(names):
            raise OSError(code, os.strerror(code))
        return real(self)

    return refused


@pytest.mark.parametrize("exists", [False, True])
def test_an_output_that_cannot_take_its_name_takes_those_of_the_others_back(tmp_path, monkeypatch, exists, request):
    paths = [str(tmp_path / name) for name in ("a", "b", "c", "d")]
    if exists:
        for path in paths[:3]:
            with open(path, "wb") as file:
                file.write(b"old")
        os.mkdir(paths[3])
    before = snapshot(tmp_path)

    def write(last=lambda: None):
        with files.together() as parts:
            parts += [files.NewFile(paths[0]), files.NewFile(paths[1], force=exists)]
            parts.append(files.NewNamedFile(paths[2], exists))
            parts.append(files.NewDirectory(paths[3], replace=exists))
            for part in parts[:2]:
                os.write(part.fd, b"new")
            for name in (parts[2].name, os.path.join(parts[3].name, "file")):
                with open(name, "wb") as file:
                    file.write(b"new")
            last()

    for step in ("complete", "named"):
        for number in range(4):
            kind = [files.NewFile, files.NewFile, files.NewNamedFile, files.NewDirectory][number]
            real, fails = getattr(kind, step), refuse(paths[number])
            with monkeypatch.context() as patch:
                patch.setattr(kind, step, lambda self, real=real, fails=fails: fails(self, real))
                with pytest.raises(OSError, match="Input/output error"):
                    write()
            assert snapshot(tmp_path) == before, (step, number)
    before_tests = signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests may ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before_tests))
    with pytest.raises(KeyboardInterrupt):
        write(lambda: os.kill(os.getpid(), signal.SIGINT))
    assert snapshot(tmp_path) == before
    write()
    assert [content for _, content in snapshot(tmp_path).values() if content is not None] == [b"new"] * 4
    assert os.listdir(paths[3]) == ["file"] and sorted(os.listdir(tmp_path)) == ["a", "b", "c", "d"]


# ------------------------------------------------------------------------------------------------------------- ONNX


def test_a_conversion_over_another_never_has_its_weights(tmp_path, monkeypatch):
    """Killed when the weights have their name and the .onnx file has not; and three conversions in turn leave two files."""
    pytest.importorskip("onnx", reason=WITHOUT["onnx"])
    import milblob.onnx

    pairs.earlier_conversion(tmp_path)
    model, path, see = tmp_path / "m.mlpackage", tmp_path / "out.onnx", pairs.graph_at("out.onnx")
    before, others = see(tmp_path), {"out.bin", "out.onnx.bin"}

    def convert():
        milblob.onnx.convert(model, path, weights="copy", force=True)

    def die(self, real=files.NewFile.named):
        if self.path.endswith(".onnx"):
            os._exit(9)
        return real(self)

    pid = os.fork()
    if pid == 0:
        files.NewFile.named = die
        convert()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert others <= set(os.listdir(tmp_path)) and see(tmp_path) == before
    for _ in range(3):
        convert()
        (name,) = others & set(os.listdir(tmp_path))
        assert see(tmp_path) not in (before, None) and name.encode() in path.read_bytes()
    (tmp_path / "note.onnx").write_bytes(b"note.bin note.onnx.bin note.onnx.2.bin")
    (tmp_path / "note.onnx.3.bin").write_bytes(b"mine")
    milblob.onnx.convert(model, tmp_path / "note.onnx", weights="copy", force=True)
    assert sorted(name for name in os.listdir(tmp_path) if name.startswith("note")) == ["note.onnx", "note.onnx.3.bin"]


# --------------------------------------------------------------------------------------------------- reports and plans


def open_part(folder, name, part):
    """A package whose weights are pruned, with the parts in the Program, one of them of a dimension that is not said."""
    from coremltools.proto import Model_pb2

    milblob.compress(
        DATA / "control_flow" / "model.mlpackage",
        folder / "pruned",
        milblob.Prune(0.5),
        scope=milblob.Scope(min_size=0),
    )
    milblob.repack(folder / "pruned", folder / name, inline=10**6)
    path = next((folder / name).rglob("*.mlmodel"))
    spec = Model_pb2.Model()
    spec.ParseFromString(path.read_bytes())

    def visit(block):
        count = 0
        for operation in block.operations:
            if part in operation.inputs or part in operation.attributes:
                is_input = part in operation.inputs
                value = operation.inputs[part].arguments[0].value if is_input else operation.attributes[part]
                value.type.tensorType.dimensions[0].unknown.variadic = False
                count += 1
            count += sum(visit(inner) for inner in operation.blocks)
        return count

    function = spec.mlProgram.functions["main"]
    assert visit(function.block_specializations[function.opset])
    path.write_bytes(spec.SerializeToString())
    return folder / name


@pytest.mark.parametrize("part", ["nonzero_data", "mask"])
def test_the_report_of_a_compression_is_made_before_its_result(tmp_path, part):
    """The size of a part of open shape is read from the model: after the result had its name, that was closed."""
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    model = open_part(tmp_path, "m.mlpackage", part)
    report = milblob.compress(
        model, tmp_path / "out.mlpackage", milblob.Linear("int8"), recompress=True, scope=milblob.Scope(min_size=0)
    )
    assert report.weights and all(one.nbytes > 0 for one in report.weights)
    assert milblob.compress(model, model, milblob.Linear("int8"), recompress=True, scope=milblob.Scope(min_size=0)).done


@pytest.mark.parametrize("in_place", [False, True])
def test_a_plan_that_cannot_be_written_leaves_the_model_alone(tmp_path, monkeypatch, capsys, in_place):
    pairs.compressed(tmp_path)
    out = tmp_path / ("m.mlpackage" if in_place else "out.mlpackage")
    given = [
        "compress",
        str(tmp_path / "m.mlpackage"),
        "-o",
        str(out),
        "--int8",
        "--min-size",
        "0",
        "--force",
        "--save-plan",
    ]
    before = snapshot(tmp_path)
    assert main([*given, str(tmp_path / "missing" / "plan.json")]) == 2
    assert "plan.json: expected a directory" in capsys.readouterr().err
    assert main([*given, str(out / "plan.json")]) == 2
    assert "expected a place outside the model" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(milblob.CompressPlan, "to_dict", lambda _: {"plan": object()})
        with pytest.raises(TypeError, match="not JSON serializable"):
            milblob.compress(
                tmp_path / "m.mlpackage",
                out,
                milblob.Linear("int8"),
                force=True,
                save_plan=tmp_path / "plan.json",
                scope=milblob.Scope(min_size=0),
            )
    real = files.NewDirectory.named
    with monkeypatch.context() as patch:
        patch.setattr(files.NewDirectory, "named", lambda self: refuse(str(out))(self, real))
        assert main([*given, str(tmp_path / "plan.json")]) == 2
    assert snapshot(tmp_path) == before
    assert main([*given, str(tmp_path / "plan.json")]) == 0 and snapshot(tmp_path) != before


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "directory"])
def test_progress_that_raises_leaves_an_archive_as_it_was(tmp_path, kind):
    """It is called before the archive changes, and once for each parameter."""
    pairs.archive(kind)(tmp_path)
    before, path, seen = snapshot(tmp_path), next(tmp_path.glob("lib*")), []

    def stop(*_):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        milblob.refit(path, tmp_path / "w.npz", progress=stop)
    assert snapshot(tmp_path) == before
    report = milblob.refit(path, tmp_path / "w.npz", progress=lambda *args: seen.append(args))
    assert len(steps(seen)) == len(report.changes) and seen[-1][1] == seen[-1][2]


def test_unknown_sizes_end_a_command_before_it_writes(tmp_path, monkeypatch):
    def fail(_):
        raise milblob.LimitError("values: expected fewer")

    (tmp_path / "m").mkdir()
    package = write_package(tmp_path / "m", (DATA / "immediates" / "model.mlmodel").read_bytes())
    monkeypatch.setattr("milblob.model.tensor.Tensor.nbytes", property(fail))
    assert main(["convert", str(package), "-o", str(tmp_path / "out.npz")]) == 2
    assert not (tmp_path / "out.npz").exists()


# ---------------------------------------------------------------------------------------------------------- small ones


def test_a_full_disk_names_the_file_and_its_size(tmp_path):
    """Where the file system has so little room: one of 64 KiB, if it can be mounted; else the limit of a process."""
    code = f"""
        import resource, signal, sys
        from milblob.cli import main
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        sys.exit(main(["repack", {str(ROOT / "examples" / "demo.mlpackage")!r}, "-o", {str(tmp_path / "out.mlpackage")!r}]))
    """
    lines = "\n".join(line.strip() for line in code.strip().splitlines())
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert "File too large; expected room for " in done.stderr and f": {tmp_path / 'out.mlpackage'}" in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_ignored", [False, True])
def test_ctrl_c_while_milblob_is_imported_prints_no_traceback(tmp_path, is_ignored):
    (tmp_path / "numpy.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise ImportError('went on')\n"
    )
    code = "import signal, sys; from milblob_command import main; "
    code += f"signal.signal(signal.SIGINT, signal.{'SIG_IGN' if is_ignored else 'default_int_handler'}); "
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", f"{code}sys.exit(main())", "info"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    if is_ignored:
        assert "went on" in done.stderr
    else:
        assert done.returncode in (-signal.SIGINT, 130) and done.stderr == ""


def test_a_name_that_contradicts_the_values_is_refused(tmp_path, capsys):
    np.savez(tmp_path / "w.npz", a=np.zeros(3, "<f4"))
    pairs.package("control_flow")(tmp_path)
    milblob.write_weights({"a": np.zeros(3, "<f4")}, tmp_path / "w.bin", listing=tmp_path / "w.json")
    np.savez(tmp_path / "none.npz")
    for kind in ("tar", "directory"):
        pairs.archive(kind)(tmp_path)
    before, model, weights = snapshot(tmp_path), tmp_path / "m.mlpackage", tmp_path / "w.bin"
    for argv, names in (
        (["repack", model, "-o"], ("x.mlpackage.zip", "x.tar.gz", "x.npz", "x.onnx", "x.mlmodelc")),
        (["compress", model, "--int8", "--min-size", "0", "-o"], ("x.mlpackage.zip", "x.zip/")),
        (["refit", model, tmp_path / "none.npz", "-o"], ("x.mlpackage.zip", "x.bin")),
        (["refit", weights, tmp_path / "none.npz", "-o"], ("x.zip", "x.mlpackage")),
        (["repack", weights, "-o"], ("x.zip", "x.npz")),
        (["convert", tmp_path / "w.npz", "-o"], ("x.zip", "x.gguf", "x.onnx")),
        (["convert", model, "-o"], ("x.zip", "x.mlpackage")),
        (["merge-functions", model, "-o"], ("x.mlpackage.zip",)),
        (["tvm", "params", tmp_path / "lib", "--with", tmp_path / "w.npz", "-o"], ("x.tar", "x.tar.gz", "x.zip")),
        (["tvm", "params", tmp_path / "lib.tar", "--with", tmp_path / "w.npz", "-o"], ("x.tar.gz", "x.zip", "x.npz")),
    ):
        for name in names:
            assert main([*map(str, argv), str(tmp_path / name)]) == 2, (argv, name)
            assert f"{name.rstrip('/')}: expected" in capsys.readouterr().err
            assert snapshot(tmp_path) == before, (argv, name)
