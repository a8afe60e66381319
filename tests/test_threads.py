"""Many threads over one Model and one BlobReader, while others open and close theirs."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import milblob
import reference
from children import SANITIZED, run_child
from consumers import uses
from hostile_bytes import FLOATS, const, field, immediate, model
from milblob.storage.mapped import MappedFile
from paths import DATA

PACKAGE = DATA / "constexpr_ios18/model.mlpackage"
FILE = DATA / "blob_all_dtypes/weight.bin"
WORKERS = 8


def at_once(task, times=WORKERS):
    """Run task(number) in threads that start together; exceptions come out."""
    barrier = threading.Barrier(times)

    def run(number):
        barrier.wait()
        return task(number)

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(run, range(times)))


def contents(opened):
    return {name: tensor.read().tobytes() for name, tensor in opened.items() if tensor.dtype != object}


def test_one_model_for_all_threads():
    with milblob.open(PACKAGE, constants=True, stored=True) as single:
        expected = contents(single)
        read = {name: uses(tensor) for name, tensor in single.items()}
    with milblob.open(PACKAGE, constants=True, stored=True) as shared:

        def task(number):
            for _ in range(5):
                assert contents(shared) == expected
                assert {name: uses(tensor) for name, tensor in shared.items()} == read
                assert shared.metadata.spec_version > 0
                assert "no such name" not in shared
            return number

        assert at_once(task) == list(range(WORKERS))


def test_one_reader_for_all_threads():
    with milblob.BlobReader(FILE) as shared:
        expected = [shared.read(record).tobytes() for record in shared]

    with milblob.BlobReader(FILE) as shared:  # its index is built by whoever comes first

        def task(number):
            for _ in range(10):
                assert [shared.read(record).tobytes() for record in shared] == expected
            return len(shared.index)

        assert set(at_once(task)) == {len(expected)}


def test_opening_and_closing_beside_readers():
    with milblob.open(PACKAGE, constants=True, stored=True) as shared:
        expected = contents(shared)

        def task(number):
            for turn in range(10):
                if number % 2:
                    assert contents(shared) == expected
                elif turn % 2:
                    with milblob.open(PACKAGE, constants=True, stored=True) as own:
                        assert contents(own) == expected
                else:
                    with pytest.raises(milblob.MilblobError):
                        milblob.load(b"no model" * 20)

        at_once(task)


def test_closing_under_readers():
    """A read gives the values or says that the model is closed; what was read stays."""
    with milblob.open(PACKAGE, constants=True, stored=True) as single:
        expected = contents(single)
    for _ in range(20):
        shared = milblob.open(PACKAGE, constants=True, stored=True)
        kept = []

        def task(number, shared=shared, kept=kept):
            if number == 0:
                shared.close()
                return
            for name, tensor in shared.items():
                try:
                    tensor.consumers  # noqa: B018
                    kept.append((name, tensor.read()))
                except ValueError as error:
                    assert "closed" in str(error)
                    return

        at_once(task, 4)
        assert all(values.tobytes() == expected[name] for name, values in kept if values.dtype != object)


def test_closing_a_reader_under_readers(tmp_path):
    """Likewise, while the numbers of its descriptors go to other files at once."""
    with milblob.BlobWriter(tmp_path / "w.bin") as blobs:
        offsets = [blobs.write(np.full(40, number, np.uint16)) for number in range(200)]
    other = tmp_path / "other"
    other.write_bytes(bytes(1 << 16))
    with milblob.BlobReader(tmp_path / "w.bin") as single:
        rows = single.index.tobytes()
    for _ in range(25):
        shared = milblob.BlobReader(tmp_path / "w.bin")
        kept, started = [], threading.Event()

        def task(number, shared=shared, kept=kept, started=started):
            if number == 0:
                started.wait(10)
                shared.close()
                for _ in range(20):
                    with open(other, "rb"), open(other, "rb"):
                        pass
                return
            try:
                while True:
                    records, good, error = shared.records_at(offsets)
                    started.set()
                    assert good == len(offsets) and error is None and records.tobytes() == rows
                    assert shared.index.tobytes() == rows
                    kept.extend(shared.read(offset) for offset in offsets[:: 20 * number])
            except ValueError as error:
                assert "closed" in str(error) and not isinstance(error, milblob.MilblobError)

        at_once(task, 4)
        assert all(len(set(values.tolist())) == 1 for values in kept)
        with pytest.raises(ValueError, match="closed"):
            shared.read(64)


def test_a_descriptor_is_kept_open_while_it_is_used(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    mapping = MappedFile(tmp_path / "a")
    with mapping.held() as fd:
        mapping.close()
        assert os.fstat(fd).st_size == 3
        with pytest.raises(ValueError, match="closed"), mapping.held():
            pass
    with pytest.raises(OSError, match="Bad file descriptor|9"):
        os.fstat(fd)
    assert mapping.fd == -1
    with pytest.raises(ValueError, match="closed"):
        mapping.read_at([0], 1)


def test_large_values_are_decoded_side_by_side():
    """Kernels run without the GIL: they must not share anything."""
    numbers = np.random.default_rng(1).integers(-(1 << 31), 1 << 31, 200_000)
    value = reference.pack_tensor_value("ints", numbers[:20_000].tolist())
    bits = np.random.default_rng(2).integers(0, 64, 100_000, dtype=np.uint8)
    packed = milblob.pack_tensor(bits, "uint6")

    def task(number):
        for _ in range(5):
            assert np.array_equal(milblob.unpack_tensor(value, "int32", (20_000,)), numbers[:20_000])
            assert np.array_equal(milblob.unpack_tensor(packed, "uint6", (100_000,)), bits)
            assert milblob.pack_tensor(numbers.astype(np.int32)) == milblob.pack_tensor(numbers.astype(np.int32))

    at_once(task)


def test_first_use_of_protobuf_in_many_threads():
    code = """
        import threading
        from paths import DATA
        import milblob
        kinds, barrier = [], threading.Barrier(8)
        with milblob.open(DATA / "opset_ios16_fp16/model.mlpackage") as shared:
            def task():
                barrier.wait()
                kinds.append(type(shared.program))
            threads = [threading.Thread(target=task) for _ in range(8)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        print(len(kinds), len(set(kinds)))
    """
    assert run_child(code).split() == ["8", "1"]


def test_depth_limits_hold_in_a_thread_with_a_small_stack(tmp_path):
    """The deepest that is allowed, in 512 KiB: what macOS gives to threads that do not ask for more. Sanitizers need more."""
    value = immediate(11, [10], FLOATS)
    for _ in range(199):
        value = field(3, field(3, field(1, value)))
    block = field(3, const(value))
    for _ in range(199):
        block = field(3, field(1, "cond") + field(3, field(1, "c")) + field(4, block))
    deep = field(1, 1) + field(2, field(1, "main") + field(2, field(3, field(1, "CoreML7") + field(2, block))))
    text = b"program(1.0) { func f<ios16>() { " + b"c() { " * 99 + b"} -> (); " * 99 + b"} -> (); }"
    code = """
        import threading
        import milblob
        threading.stack_size(int(sys.argv.pop(1)) << 10)
        found = []
        sources = [open(path, "rb").read() for path in sys.argv[1:]]
        count = lambda: found.extend(len(milblob.open(source, constants=True)) for source in sources)
        thread = threading.Thread(target=count)
        thread.start()
        thread.join()
        print(found)
    """
    paths = [tmp_path / "deep.mlmodel", tmp_path / "deep.mil"]
    paths[0].write_bytes(model(deep))
    paths[1].write_bytes(text)
    assert run_child(code, 8192 if SANITIZED else 512, *paths).strip() == "[1, 0]"
