"""How many bytes and round trips reading from afar costs: counts, which no machine changes."""

import numpy as np
import pytest

import milblob
from children import run_child
from far_model import COUNT, NBYTES, WEIGHT, far_package
from milblob.cli import main
from peers import WITHOUT
from remote_server import serving


@pytest.fixture
def server():
    with serving(far_package(), delay=0.05) as server:
        server.model = f"{server.url}/m.mlpackage"
        yield server


def test_listing_costs_the_program(server, capsys):
    assert main(["ls", server.model, "--json"]) == 0
    assert capsys.readouterr().out.count('"name"') == COUNT
    assert server.round_trips() <= 6 and server.moved() < 1_500_000
    assert server.moved("weight.bin") == 0
    with milblob.open(server.model) as model:
        assert len(model) == COUNT and sum(tensor.nbytes for tensor in model.values()) > NBYTES * 0.99


def test_tensor_costs_its_own_bytes(server):
    with milblob.open(server.model) as model:
        before = server.moved()
        array = model[WEIGHT].read()
        assert array.shape == (1 << 18,) and np.all(array == 1)
        assert (1 << 20) <= server.moved() - before < (1 << 20) + (128 << 10)
    assert server.round_trips() <= 6


def test_several_tensors_are_fetched_at_once(server):
    with milblob.open(server.model) as model:
        from milblob.model.fetching import fetch

        server.log.clear()
        fetch([model[f"w{number}"] for number in (7, 20, 100, 299)])
        assert server.round_trips() <= 4, "the pieces of several weights run side by side"
        assert np.all(model["w299"].read() == 0)


def test_check_fetches_records_and_no_values(server):
    server.delay = 0.02
    report = milblob.check(server.model)
    assert report.is_sound and server.moved("weight.bin") < (64 << 10) + COUNT * 256
    assert server.round_trips() < 50, "records are fetched side by side, and not one after another"


ARRAYS = {name: np.random.default_rng(number).random(250_000).astype("<f4") for number, name in enumerate("abcd")}


def array_file(path):
    if path.suffix == ".gguf":
        gguf = pytest.importorskip("gguf", reason=WITHOUT["gguf"])
        writer = gguf.GGUFWriter(path, "test")
        writer.add_array("words", [f"word {number}" for number in range(20_000)])
        for name, array in ARRAYS.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    elif path.suffix == ".npz":
        np.savez(path, **ARRAYS)
    else:
        milblob.save(ARRAYS, path)
    return path.read_bytes()


@pytest.mark.parametrize("suffix", [".npz", ".gguf", ".safetensors"])
def test_array_of_a_file_costs_its_own_bytes(tmp_path, suffix):
    with serving({f"x{suffix}": array_file(tmp_path / f"x{suffix}")}, delay=0.02) as server:
        url = f"{server.url}/x{suffix}"
        milblob.convert(url, tmp_path / "one.npz", select="c")
        assert np.array_equal(np.load(tmp_path / "one.npz")["c"], ARRAYS["c"])
        assert server.moved() < 1_000_000 + 750_000
        server.log.clear()
        milblob.convert(url, tmp_path / "all.npz")
        assert all(np.array_equal(np.load(tmp_path / "all.npz")[name], array) for name, array in ARRAYS.items())
        assert server.moved() < 4_000_000 + 1_000_000
        assert server.round_trips() <= 8, "arrays are fetched side by side"


def test_import_of_milblob_imports_nothing_for_it():
    out = run_child("""
        import sys
        import milblob
        loaded = [m for m in sys.modules if m.split(".")[0] in ("fsspec", "http", "ssl", "socket", "urllib")]
        print(loaded, [m for m in sys.modules if m.startswith("milblob.remote.") and m != "milblob.remote.reading"])
    """)
    assert "[] []" in (out if isinstance(out, str) else out.stdout), out
