"""RecordBuffer, where new records of a weight file wait, and Turn, which keeps two calls apart."""

import threading

import numpy as np
import pytest

from milblob import _codec

CODES = {np.dtype(np.uint8): 3, np.dtype(np.float32): 2}


def buffer(nbytes=4096, align=64):
    made = _codec.RecordBuffer(_codec.Turn("thing"), nbytes, align, np.ndarray, CODES)
    made.base = made.end = 64
    made.takes = True
    return made


def test_records_are_those_of_the_format():
    records = buffer()
    arrays = [np.arange(3, dtype=np.uint8), np.arange(4, dtype=np.float32), np.zeros(0, np.uint8), np.float32([[1]])]
    offsets = [records.add(array) for array in arrays]
    again = buffer()
    assert again.add_all(arrays, 0, found := []) == 4 and found == offsets and again.memory == records.memory
    expected = bytearray()
    for array, offset in zip(arrays, offsets, strict=True):
        expected += bytes(offset - 64 - len(expected))
        expected += _codec.blob_metadata(CODES[array.dtype], array.nbytes, offset + 64) + array.tobytes()
    assert records.memory[: len(expected)] == expected and not any(records.memory[len(expected) :])
    assert (records.base, records.end, records.count) == (64, 64 + len(expected), 4)


def test_memory_is_filled_to_the_last_byte_and_no_further():
    for room in range(21):
        records = buffer(nbytes=64 + room)  # 64 for the metadata
        assert records.add(np.ones(room + 1, np.uint8)) == 0 and records.end == 64
        assert records.add(np.ones(room, np.uint8)) == 64 and records.end == 64 + len(records.memory)
        assert records.add(np.ones(0, np.uint8)) == 0 and records.count == 1
    assert buffer(nbytes=63).add(np.ones(0, np.uint8)) == buffer(nbytes=400, align=4096).add(np.ones(0, np.uint8)) == 0


def test_what_needs_more_than_a_copy_is_left():
    class Own(np.ndarray):
        pass

    records = buffer()
    for other in (
        None, [1], 1.5, b"abc", np.float32(1), np.arange(3), np.arange(6, dtype=np.uint8)[::2], np.zeros(3, np.uint8).view(Own),
        np.zeros((2, 3), np.float32).T, np.zeros(1025, np.uint8), np.zeros(3, ">f4"), memoryview(b"abc"),
    ):  # fmt: skip
        assert records.add(other) == 0
        assert records.add_all([np.uint8([1]), other], 1, found := []) == 1 and found == []
    assert (records.end, records.count) == (64, 0)


def test_a_state_that_cannot_be_is_left():
    for base, end in ((65, 64), (64, 1 << 63), (0, 4097), (0, (1 << 64) - 1), ((1 << 64) - 1, (1 << 64) - 1)):
        records = buffer()
        records.base, records.end = base, end
        assert records.add(np.uint8([1])) == 0 and (records.base, records.end) == (base, end)
    records = buffer()
    assert records.add(np.uint8([1]))
    memory = records.memory
    records.release()
    assert records.add(np.uint8([1])) == 0 and memory[:4] == b"\xef\xbe\xad\xde"


def test_nothing_is_taken_while_a_call_is_going_on():
    turn = _codec.Turn("thing")
    records = _codec.RecordBuffer(turn, 4096, 64, np.ndarray, CODES)
    records.base = records.end = 64
    records.takes = True
    with turn:
        assert records.add(np.uint8([1])) == 0
        assert records.add_all([np.uint8([1])], 0, []) == 1
    assert records.add(np.uint8([1])) == 192


def test_turn_is_for_one_thread_and_one_call():
    turn, taken, waited = _codec.Turn("thing"), threading.Event(), []

    def wait():
        taken.set()
        turn.when_free(lambda: waited.append(1))

    with turn:
        with pytest.raises(RuntimeError, match="^thing: expected one call at a time, got another inside of it$"), turn:
            pass
        with pytest.raises(RuntimeError, match="inside of it"):
            turn.when_free(list)
        other = threading.Thread(target=wait)
        other.start()
        assert taken.wait(30) and not waited
        refused = []

        def enter():
            with pytest.raises(RuntimeError) as caught, turn:
                pass
            refused.append(str(caught.value))

        third = threading.Thread(target=enter)
        third.start()
        third.join(30)
        assert refused == ["thing: expected one thread at a time, got another before a call ended"]
    other.join(30)
    assert waited
    assert turn.when_free(list) == []
    with pytest.raises(ZeroDivisionError):
        turn.when_free(lambda: 1 // 0)
    with turn:
        pass


def test_a_call_while_an_array_is_laid_out_is_one_inside_of_it():
    """Of the last dtype that goes: its metadata may hold any object."""
    turn, refused = _codec.Turn("thing"), []

    class Last:
        def __del__(self):
            for call in (turn.__enter__, lambda: turn.when_free(list)):
                try:
                    call()
                except RuntimeError as error:
                    refused.append(str(error))

    records = _codec.RecordBuffer(turn, 4096, 64, np.ndarray, CODES)
    records.base = records.end = 64
    records.takes = True
    assert records.add(np.zeros(3, np.dtype("<f4", metadata={"last": Last()}))) == 64
    assert records.add(np.zeros(3, np.uint8)) == 192
    assert refused == ["thing: expected one call at a time, got another inside of it"] * 2


def test_turn_keeps_threads_apart():
    turn, state, failures = _codec.Turn("thing"), [0, 0], []

    def work():
        for _ in range(3000):
            try:
                with turn:
                    state[0] += 1
                    inside = state[0]
                    for _ in range(20):
                        pass
                    if state[0] != inside:
                        failures.append(inside)
                    state[1] += 1
            except RuntimeError as error:
                if "one thread at a time" not in str(error):
                    failures.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and state[0] == state[1] >= 3000
