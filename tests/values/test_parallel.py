"""threads.py and values/parallel.py: how many threads run, and that results do not depend on it."""

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

import milblob
import reference
from children import run_child
from milblob import FormatError, _codec, threads
from milblob.threads import each, ordered
from milblob.values import parallel
from milblob.values.cast import cast_array
from milblob.values.tensorvalue import INTS

CAN_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here: what a forked child does is not tested")


@pytest.fixture(params=["1", "2", "5"])
def several(request, monkeypatch):
    """So many threads, also for small arrays."""
    monkeypatch.setenv("MILBLOB_THREADS", request.param)
    for module in (threads, parallel):
        monkeypatch.setattr(module, "PIECE_NBYTES", 4096)
    monkeypatch.setattr(parallel, "VARINTS_NBYTES", 4096)
    return int(request.param)


@pytest.fixture
def three(monkeypatch):
    monkeypatch.setenv("MILBLOB_THREADS", "3")


# ------------------------------------------------------------------------------------------------------------- how many


def test_how_many(monkeypatch):
    monkeypatch.setattr(threads, "processors", lambda: 6)
    for text, number in (("", 6), ("0", 6), ("00", 6), ("1", 1), ("17", 17)):
        monkeypatch.setenv("MILBLOB_THREADS", text)
        assert threads.count() == number
    monkeypatch.delenv("MILBLOB_THREADS")
    assert threads.count() == 6


@pytest.mark.parametrize("words", ["-1", "x", "1.5", " 2", "\u0663", "100000", "\u00b2"])
def test_a_wrong_number(monkeypatch, words):
    monkeypatch.setenv("MILBLOB_THREADS", words)
    with pytest.raises(
        ValueError, match=r"^MILBLOB_THREADS: expected a number of threads, 0 for one on each processor, got "
    ):
        threads.count()


def test_none_of_our_own_inside_a_pool(monkeypatch):
    """Of threads: whoever has a pool has the processors busy. Whoever sets the variable is believed."""
    monkeypatch.setattr(threads, "processors", lambda: 6)
    monkeypatch.delenv("MILBLOB_THREADS", raising=False)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(threads.count).result() == 1
        monkeypatch.setenv("MILBLOB_THREADS", "0")
        assert pool.submit(threads.count).result() == 1
        monkeypatch.setenv("MILBLOB_THREADS", "4")
        assert pool.submit(threads.count).result() == 4


@pytest.mark.parametrize("method", [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()])
def test_none_in_a_worker_process(method):
    code = f"""
        import concurrent.futures, multiprocessing, os
        from milblob import threads
        os.environ.pop("MILBLOB_THREADS", None)
        threads.processors = lambda: 6
        context = multiprocessing.get_context({method!r})
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            print(threads.count(), pool.submit(threads.count).result())
    """
    assert run_child(code).split() == ["6", "1"]


def test_processors(monkeypatch):
    if hasattr(os, "sched_getaffinity"):
        assert 1 <= threads.processors() <= len(os.sched_getaffinity(0))
    for quota, number in ((1, 1), (3, 3), (7, 4)):
        monkeypatch.setattr(os, "process_cpu_count", lambda: 5, raising=False)
        monkeypatch.setattr(threads, "_quota", lambda *_, quota=quota: quota)
        monkeypatch.setattr(threads, "_cores", lambda *_: 4)
        assert threads.processors() == number
    monkeypatch.setattr(os, "process_cpu_count", lambda: None, raising=False)
    assert threads.processors() == 1


@pytest.mark.parametrize(
    ("groups", "files", "number"),
    [
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "100000 100000"}, 1),
        ("0::/outside/of/it", {"cpu.max": "400000 100000"}, 4),
        ("4:cpuset:/\n3:cpu,cpuacct:/x\n0::/", {"cpu/x/cpu.cfs_quota_us": "250000", "cpu/x/cpu.cfs_period_us": "100000"}, 3),
        ("3:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("0::/../../etc", {"cpu.max": "words"}, None),
        ("0::/", {"cpu.max": "0 0"}, None),
        ("0::/", {"cpu.max": "² ³"}, None),
        ("nonsense", {}, None),
        (None, {}, None),
    ],
)  # fmt: skip
def test_quotas_of_control_groups(tmp_path, groups, files, number):
    if groups is not None:
        (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    found = threads._quota(str(tmp_path / "groups"), str(tmp_path / "root"))
    assert found == number if number is not None else found > 1 << 20


@pytest.mark.parametrize(
    ("siblings", "number"),
    [
        ({0: "0", 1: "1"}, 2),
        ({0: "0-1", 1: "0-1"}, 1),
        ({0: "0,4", 1: "1,5", 4: "0,4"}, 2),
        ({0: "0,4", 4: "0,4", 5: None}, 2),  # a processor that the system says nothing about
        ({0: None, 7: None}, 2),
    ],
)
def test_processors_that_share_a_core_are_one(tmp_path, siblings, number):
    for cpu, text in siblings.items():
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        if text is not None:
            (folder / "thread_siblings_list").write_text(text + "\n")
    assert threads._cores(frozenset(siblings), str(tmp_path)) == number


@pytest.mark.parametrize(
    ("text", "is_free"),
    [
        ("0.10 0.20 0.30 1/130 5\n", True),
        ("9.00 9.00 9.00 3/130 5\n", True),
        ("0.00 0.00 0.00 4/130 5\n", False),
        ("0.00 0.00 0.00 44/130 5\n", False),
        ("0.00 0.00 0.00 0/0 0\n", True),  # of a sandbox
        ("", True),
        ("words", True),
        (None, True),
    ],
)
def test_whether_a_processor_is_free(tmp_path, monkeypatch, text, is_free):
    """By how many threads of the machine run now, this one among them, and not by averages of minutes."""
    monkeypatch.setattr(threads, "_cpu_count", lambda: 4)
    if text is not None:
        (tmp_path / "loadavg").write_text(text)
    assert threads._is_free(str(tmp_path / "loadavg")) == is_free


@pytest.mark.parametrize(("running", "own", "expected"), [(1, 8, 4), (1, 3, 3), (3, 8, 2), (4, 8, 1), (40, 2, 1)])
def test_threads_with_a_core_of_their_own(monkeypatch, running, own, expected):
    """Of four processors, those that other work keeps busy are left out; this thread has one."""
    monkeypatch.setattr(threads, "_cpu_count", lambda: 4)
    monkeypatch.setattr(threads, "processors", lambda: own)
    monkeypatch.setattr(threads, "_text", lambda path: f"0.10 0.20 0.30 {running}/130 5\n")
    assert threads.unused() == expected


# --------------------------------------------------------------------------------------------------------- sharing out


def require_no_threads():
    """A thread ends soon after its last item: it needs a processor for that."""
    end = time.monotonic() + 10
    while threads._end.lives:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_in_order(several):
    def work(item):
        time.sleep(0.001 * (item % 3))
        return item, threads.count()

    for number in (0, 1, 2, 3, 40):
        found = list(ordered(work, iter(range(number))))
        assert [item for item, _ in found] == list(range(number))
        assert several == 1 or all(inner == 1 for _, inner in found)  # no threads inside of threads
    assert threads.count() == several
    require_no_threads()


def test_items_are_done_by_several_threads(three):
    """Each waits for the others: this ends only if three are at work at once."""
    barrier, seen, running, most = threading.Barrier(3, timeout=30), set(), [], []

    def work(item):
        running.append(item)
        most.append(len(running))
        barrier.wait()
        seen.add(threading.get_ident())
        running.remove(item)

    each(work, range(9))
    # A thread that finds nothing to do ends, and another one may begin later: never more than three at a time.
    assert len(seen) >= 3 and threading.get_ident() in seen and max(most) == 3


def test_threads_start_once_a_processor_is_free(monkeypatch):
    """Until then, the caller's thread works alone, and asks again; a number that was chosen is not asked about."""
    monkeypatch.delenv("MILBLOB_THREADS", raising=False)
    monkeypatch.setattr(threads, "processors", lambda: 3)
    asked = []

    def is_free():
        asked.append(len(done))
        return len(done) >= 20

    def work(item):
        time.sleep(0.001)
        done.append(threading.get_ident())

    monkeypatch.setattr(threads, "_is_free", is_free)
    done: list[int] = []
    each(work, range(60))
    assert set(done[:20]) == {threading.get_ident()} and len(set(done)) > 1
    assert 2 < len(asked) < 25 and len(done) == 60
    monkeypatch.setattr(threads, "_is_free", lambda: False)
    done.clear()
    each(work, range(20))
    assert set(done) == {threading.get_ident()}
    monkeypatch.setenv("MILBLOB_THREADS", "2")
    done.clear()
    each(work, range(60))
    assert len(set(done)) > 1


def test_a_thread_without_a_processor_holds_nobody_up(three):
    """One that loses it in an item: the others do the rest. It waits here for them, and so fails if they wait for it."""
    done, is_stuck, rest = [], threading.Event(), threading.Event()

    def work(item):
        if threading.current_thread() is not threading.main_thread() and not is_stuck.is_set():
            is_stuck.set()
            assert rest.wait(30)
        else:
            is_stuck.wait(0.01)
        done.append(item)
        if len(done) >= 45:
            rest.set()

    each(work, range(50))
    assert sorted(done) == list(range(50)) and is_stuck.is_set()


def test_nobody_waits_for_a_thread_to_start(three, monkeypatch):
    calls = []
    monkeypatch.setattr(threads, "start_new_thread", lambda *call: calls.append(call))
    assert set(ordered(lambda item: threading.get_ident(), range(30))) == {threading.get_ident()}
    assert len(calls) == 2
    for run, given in calls:  # now they get a processor: nothing is left, nor kept in memory
        run(*given)
    require_no_threads()


def test_an_interrupt_while_a_thread_starts_does_not_keep_the_process_from_ending(three, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(threads, "start_new_thread", interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(ordered(lambda item: item, range(30)))
    assert not threads._end.lives  # the exit waits for each


def test_little_takes_no_threads(three):
    for items, is_much in ((range(1), True), (range(50), False)):
        assert set(ordered(lambda _: threading.get_ident(), items, is_much)) == {threading.get_ident()}


def test_only_a_few_are_taken_ahead(three):
    taken = []

    def items():
        for item in range(1000):
            assert threading.current_thread() is threading.main_thread()
            taken.append(item)
            yield item

    results = ordered(lambda item: item, items())
    assert [next(results) for _ in range(10)] == list(range(10))
    assert len(taken) < 20
    results.close()
    assert len(taken) < 20


def test_the_first_error_is_the_one(several):
    """By the order of the items, not by time; what comes before it is yielded."""

    def work(item):
        if item in (4, 5, 7):
            time.sleep(0.01 * (7 - item))
            raise KeyError(item)
        return item

    for _ in range(5):
        results, seen = ordered(work, range(20)), []
        with pytest.raises(KeyError, match="^4$"):
            seen.extend(results)
        with pytest.raises(KeyError, match="^4$"):
            seen.extend(ordered(work, range(20)))
        assert seen == [0, 1, 2, 3] * 2


def test_an_error_of_the_items(several):
    def items():
        yield from range(7)
        raise LookupError("no more")

    seen = []
    with pytest.raises(LookupError, match="no more"):
        seen.extend(ordered(lambda item: item, items()))
    assert seen == list(range(7))


def test_nothing_starts_after_an_error(three):
    started = []

    def work(item):
        started.append(item)
        time.sleep(0.002)
        if item == 3:
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        each(work, range(1000))
    count = len(started)
    assert count < 12
    time.sleep(0.02)
    assert len(started) == count


def test_an_exit_in_a_worker_is_the_callers(three):
    def work(item):
        time.sleep(0.001)
        if threading.current_thread() is not threading.main_thread():
            raise SystemExit(7)
        return item

    with pytest.raises(SystemExit):
        each(work, range(50))


def test_without_new_threads(three, monkeypatch):
    """A system that has no more of them, and an interpreter that shuts down, refuse with a RuntimeError."""

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "start_new_thread", refuse)
    assert list(ordered(lambda item: (item, threading.get_ident()), range(30))) == [
        (i, threading.get_ident()) for i in range(30)
    ]


def test_errors_are_in_no_cycle(three):
    """A traceback that held itself would keep arrays, and so files, until the next garbage collection."""
    import gc
    import weakref

    class Thing:
        pass

    def work(item):
        thing.append(weakref.ref(own := Thing()))
        if item:
            raise ValueError(own)

    gc.disable()
    try:
        for _ in range(5):
            thing = []
            with pytest.raises(ValueError) as caught:
                each(work, [0, 1])
            del caught
            assert all(ref() is None for ref in thing)
    finally:
        gc.enable()


# ------------------------------------------------------------------------------- interruption, processes and shutdown

PREAMBLE = """
        import os, signal, threading, time
        os.environ["MILBLOB_THREADS"] = "3"
        import numpy as np
        from milblob import threads, _codec
        from milblob.values import parallel
        from milblob.threads import each, ordered
"""


def test_keyboard_interrupt():
    """It comes out at once, when what was started has ended; also if the keys are pressed twice."""
    code = (
        PREAMBLE
        + """
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored, as in a job in the background
        started, ended = [], []
        def work(item):
            started.append(item)
            if item == 2:
                os.kill(os.getpid(), signal.SIGINT)
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                if item == 3 and threading.current_thread() is not threading.main_thread() and len(started) < 99:
                    started.extend(range(100))
                    time.sleep(0.05)
                    os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
            ended.append(item)
        try:
            each(work, range(1000))
        except KeyboardInterrupt:
            count = len(ended)
            time.sleep(0.4)
            print("interrupted", count < 12, len(ended) == count)
        print(len(list(ordered(lambda item: item, range(9)))))
    """
    )
    if os.name == "nt":
        pytest.skip("no POSIX signals here: an interrupted read is not tested")
    assert run_child(code).split() == ["interrupted", "True", "True", "9"]


@CAN_FORK
def test_a_fork_after_use():
    code = (
        PREAMBLE
        + """
        bits = np.random.default_rng(1).bytes(6 << 20)
        def unpacked():
            out = np.empty(12 << 20, np.uint8)
            parallel.unpack_bits(_codec.Buffer(bits), 0, out.size, 4, out)
            return out.tobytes()
        before = unpacked()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if unpacked() == before and not threads._end.lives else 1)
        print(os.waitpid(pid, 0)[1], unpacked() == before)
    """
    )
    assert run_child(code).split() == ["0", "True"]


@CAN_FORK
def test_a_fork_in_the_middle():
    """The child has none of the threads: it goes on by itself. It may also leave what it was doing."""
    code = (
        PREAMBLE
        + """
        def work(item):
            if item == 19:
                raise KeyError("the last")
            time.sleep(0.002)
            return item * item
        for number in range(8):
            results, seen, rest = ordered(work, range(20)), [], []
            for result in results:
                seen.append(result)
                if len(seen) == number + 1:
                    break
            pid = os.fork()
            if pid == 0 and number % 2:
                results.close()
                os._exit(0)
            try:
                for result in results:
                    rest.append(result)
            except KeyError:
                good = seen + rest == [i * i for i in range(19)]
            if pid == 0:
                os._exit(0 if good else 1)
            print(good, os.waitpid(pid, 0)[1])
    """
    )
    assert run_child(code).split() == ["True", "0"] * 8


def test_while_the_interpreter_ends():
    """At exit, in destructors, and with results that nobody asked for any more: it ends, and in time."""
    code = (
        PREAMBLE
        + """
        import atexit
        print(sum(ordered(lambda item: item, range(20))))
        left = ordered(lambda item: time.sleep(0.01), range(1000))
        next(left)
        class Late:
            def __del__(self):
                print("late", sum(ordered(lambda item: item, range(20))), flush=True)
        late = Late()
        late.itself = late
        atexit.register(lambda: print("exit", sum(ordered(lambda item: item, range(20)))))
    """
    )
    assert run_child(code).split() == ["190", "exit", "190", "late", "190"]


# -------------------------------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("nbits", [1, 2, 3, 4, 6])
def test_bits(several, nbits):
    rng = np.random.default_rng(nbits)
    for count in (0, 1, 4096, 4097, 30_011):
        elements = rng.integers(0, 1 << nbits, count, dtype=np.uint8)
        whole = np.zeros((count * nbits + 7) // 8, np.uint8)
        _codec.pack_bits(elements, whole, nbits, 0, (1 << nbits) - 1)
        packed = np.zeros_like(whole)
        parallel.pack_bits(elements, packed, nbits, 0, (1 << nbits) - 1)
        assert packed.tobytes() == whole.tobytes()
        out = np.empty((count, 1), np.uint8)
        parallel.unpack_bits(_codec.Buffer(b"xyz" + packed.tobytes()), 3, count, nbits, out)
        assert out.tobytes() == elements.tobytes()
    elements[[17_000, 29_000]] = 255
    with pytest.raises(OverflowError, match=f"^element 18000: expected 0 to {(1 << nbits) - 1}, got 255$"):
        parallel.pack_bits(elements, packed, nbits, 0, (1 << nbits) - 1, 1000)


def varints(name):
    """Enough elements for many parts, of 1 to 10 bytes each, and their TensorValue."""
    random = np.random.default_rng(7)
    dtype = np.dtype(name)
    if name == "bool":
        values = random.integers(0, 2, 20_011, np.uint8).view(bool)
    else:
        info = np.iinfo(dtype)
        values = (np.exp2(random.uniform(0, info.bits, 20_011)) * random.choice([-1, 1], 20_011)).clip(
            info.min, info.max / 2
        )
        values = values.astype(dtype)
        values[5_000:9_000] &= 0x7F
    field = {"bool": "bools", "int64": "longInts", "uint64": "longInts"}.get(name, "ints")
    numbers = (values.view(np.int64) if name == "uint64" else values).tolist()
    return values, reference.pack_tensor_value(field, [int(number) for number in numbers])


@pytest.mark.parametrize("name", ["bool", "int16", "uint16", "int32", "int64", "uint64"])
def test_varints(several, name):
    values, message = varints(name)
    if name in ("int16", "uint16"):  # which the library stores as bytes
        got = parallel.pack_varints(
            INTS, values.view(np.uint8), {"int16": _codec.PACK_I16, "uint16": _codec.PACK_U16}[name]
        )
    else:
        got = milblob.pack_tensor(values)
    assert got == message
    out = np.zeros((1, values.size), values.dtype)
    for into in (None, out):
        assert np.array_equal(milblob.unpack_tensor(message, name, out.shape, out=into)[0], values)


@pytest.mark.parametrize("name", ["int16", "int32", "int64"])
def test_errors_of_varints_are_those_of_one_part(several, monkeypatch, name):
    values, message = varints(name)
    wide, narrow = "int64" if name == "int64" else "int32", "int8"
    broken = bytearray(message)
    broken[40_000:40_020] = bytes([0x80] * 20)
    for data, dtype, count in (
        (message, narrow, values.size),  # the first element outside, in the first part
        (message, wide, values.size - 1),
        (message, wide, values.size + 1),
        (message, wide, 10),
        (bytes(broken), wide, values.size),
        (message[:-1] + b"\x80", wide, values.size),
    ):
        found = []
        for threads_count in (str(several), "1"):
            monkeypatch.setenv("MILBLOB_THREADS", threads_count)
            with pytest.raises(FormatError) as error:
                milblob.unpack_tensor(data, dtype, count)
            found.append((str(error.value), error.value.offset))
        assert found[0] == found[1]
    values[[11_000, 19_000]] = 200
    values[:11_000] = 1
    message = milblob.pack_tensor(values.astype(wide))
    with pytest.raises(FormatError, match=r"element 11000: expected -128 to 127, got 200"):
        milblob.unpack_tensor(message, narrow, values.size)


def test_memory_of_another_part_is_refused(several):
    """Each part has its own piece of `out`, which may be the stored bytes of a later one."""
    message = np.frombuffer(milblob.pack_tensor(np.full(20_000, -1, np.int32)), np.uint8)
    memory = np.concatenate((message, np.zeros(80_000, np.uint8)))
    before = memory.tobytes()
    for at in (1 << 14, message.size // 4 * 4 - 4000):
        out = memory[at : at + 80_000].view(np.int32)
        with pytest.raises(ValueError, match="^out: expected memory of its own, got a part of the buffer$"):
            milblob.unpack_tensor(memory[: message.size], "int32", 20_000, out=out)
        with pytest.raises(ValueError, match="^out: expected memory of its own, got a part of the buffer$"):
            parallel.unpack_bits(_codec.Buffer(memory), 0, 40_000, 4, memory[10_000:50_000])
    assert memory.tobytes() == before


def test_elements_that_change_between_count_and_encoding(several, monkeypatch):
    values = np.zeros(20_000, np.int32)
    begin = _codec.tensor_begin

    def change(*given):
        values[15_000] = -1
        return begin(*given)

    monkeypatch.setattr(_codec, "tensor_begin", change)
    with pytest.raises(FormatError, match="bytes of the elements: expected"):
        milblob.pack_tensor(values)


def test_varints_outside_their_message():
    message, at = _codec.tensor_begin(INTS, 8)
    array = np.ones(8, np.int32)
    for place, nbytes in ((at + 1, 8), (at, 9), ((1 << 64) - 1, 8), (at, (1 << 64) - 1)):
        with pytest.raises(ValueError, match=rf"^message: expected {place} \+ {nbytes} bytes, got {len(message)}$"):
            _codec.varint_encode(array, _codec.PACK_I32, message, place, nbytes)
    assert _codec.varint_nbytes(array, _codec.PACK_I32) == 8


def test_casts(several):
    values = np.random.default_rng(1).normal(0, 3e4, 40_003).astype(np.float32)
    got, counts = cast_array(values, "float16", overflow="inf")
    with np.errstate(over="ignore"):
        assert got.tobytes() == values.astype(np.float16).tobytes()
    assert counts == (int(np.isinf(got).sum()), 0, int(((got == 0) & (values != 0)).sum()))
    assert cast_array(got, "bfloat16")[0].tobytes() == got.astype(ml_dtypes.bfloat16).tobytes()
    values[values > 65000] = 0
    values[values < -65000] = 0
    values[[30_000, 20_000]] = 1e9
    with pytest.raises(OverflowError, match="^element 20000: expected at most 65504 in magnitude, got 1e"):
        cast_array(values, "float16")
    memory = np.zeros(100_000, np.uint8)
    with pytest.raises(
        ValueError, match="^dst: expected memory of its own, got a part of src$"
    ):  # not of the same part
        parallel.cast(_codec.CAST_F32_F16, _codec.Buffer(memory), 0, 20_000, memory[60_000:], False)


def test_equality(several):
    data = np.random.default_rng(1).bytes(50_000)
    for at in (0, 4096, 31_000, 49_999):
        other = bytearray(data)
        assert parallel.equal_bytes(_codec.Buffer(data), 1, _codec.Buffer(bytes(other)), 1, len(data) - 1)
        other[at] ^= 1
        assert not parallel.equal_bytes(_codec.Buffer(data), 0, _codec.Buffer(bytes(other)), 0, len(data))


def test_parts():
    for total in (0, 1, 63, 64, 65, 1 << 20, (1 << 20) + 1, 12_345_678):
        found = list(threads.parts(total, 4, threads.PIECE_NBYTES))
        assert [begin for begin, _ in found] == [0, *np.cumsum([count for _, count in found])[:-1]]
        assert sum(count for _, count in found) == total
        assert all(count % 64 == 0 and count for _, count in found[:-1])
        assert all(4 * count <= threads.PIECE_NBYTES for _, count in found)
        assert len(found) == max(-(-total * 4 // threads.PIECE_NBYTES), 1)
