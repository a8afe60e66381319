"""milblob.blobs.equal: the same answer as a dictionary of the bytes, exactly; linear in work, whatever is in the file."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milblob import _codec
from milblob.blobs import equal as dedupe
from milblob.blobs.equal import Stretch, first_equal
from milblob.errors import FormatError
from thorough import PROFILE


def stretches_of(contents, kinds=None):
    """Stretches of a buffer that has all the contents one after another, at odd offsets."""
    data, places = bytearray(b"x"), []
    for content in contents:
        places.append((len(data), len(content)))
        data += content + b"y"
    buffer = _codec.Buffer(bytes(data))
    return [Stretch(buffer, *place, kind) for place, kind in zip(places, kinds or [None] * len(places), strict=True)]


def by_dictionary(contents, kinds=None):
    first = {}
    return [
        first.setdefault((kind, bytes(content)), index)
        for index, (content, kind) in enumerate(zip(contents, kinds or [None] * len(contents), strict=True))
    ]


@PROFILE
@given(st.lists(st.tuples(st.binary(max_size=4), st.sampled_from(["a", "b"]), st.integers(0, 3)), max_size=60))
def test_like_a_dictionary(rows):
    contents = [content * (1, 1, 50, 500)[repeat] for content, _, repeat in rows]
    kinds = [kind for _, kind, _ in rows]
    assert first_equal(stretches_of(contents, kinds)) == by_dictionary(contents, kinds)


@PROFILE
@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 2)), max_size=60))
def test_like_a_dictionary_where_one_byte_differs(rows):
    contents = []
    for position, value in rows:
        contents.append(bytearray(1000))
        contents[-1][position] = value
    assert first_equal(stretches_of(contents)) == by_dictionary(contents)


def test_kinds_and_buffers():
    one, two = _codec.Buffer(b"abcabc"), _codec.Buffer(bytearray(b"abcabc"))
    stretches = [
        Stretch(one, 0, 3),
        Stretch(one, 3, 3),
        Stretch(two, 0, 3),
        Stretch(two, 0, 3, "other"),
        Stretch(one, 1, 3),
        Stretch(two, 3, 3, "other"),
    ]
    assert first_equal(stretches) == [0, 0, 0, 3, 4, 3]
    assert first_equal([]) == []
    empty = _codec.Buffer(b"")
    assert first_equal([Stretch(empty, 0, 0), Stretch(one, 6, 0), Stretch(one, 0, 1)]) == [0, 0, 2]


def test_past_the_end():
    buffer = _codec.Buffer(b"abc")
    with pytest.raises(FormatError, match="expected to lie inside the buffer"):
        first_equal([Stretch(buffer, 0, 3), Stretch(buffer, 1, 3)])


class Counted:
    """Counts the calls and the bytes that go through the codec and the strong hash."""

    def __init__(self, monkeypatch):
        self.calls = self.nbytes = self.strong = 0
        equal, fast, digest = _codec.equal_bytes, _codec.hash_bytes, hashlib.blake2b

        def count_equal(a, a_offset, b, b_offset, nbytes):
            self.calls += 1
            self.nbytes += nbytes
            return equal(a, a_offset, b, b_offset, nbytes)

        def count_fast(buffer, offset, nbytes, seed):
            self.calls += 1
            self.nbytes += nbytes
            return 7 if self.collide else fast(buffer, offset, nbytes, seed)

        def count_strong(view, **options):
            self.strong += 1
            self.nbytes += len(view)
            return digest(view, **options)

        self.collide = False
        monkeypatch.setattr(dedupe._codec, "equal_bytes", count_equal, raising=True)
        monkeypatch.setattr(dedupe._codec, "hash_bytes", count_fast)
        monkeypatch.setattr(hashlib, "blake2b", count_strong)


@pytest.fixture
def counted(monkeypatch):
    return Counted(monkeypatch)


def hostile(count, nbytes=1000, place=300):
    """Different stretches of one size with equal samples; each a second time at the end."""
    contents = []
    for number in range(count):
        contents.append(bytearray(nbytes))
        contents[-1][place : place + 4] = number.to_bytes(4, "little")
    return contents + contents


@pytest.mark.parametrize("collide", [False, True])
def test_equal_samples_take_linear_time(counted, collide):
    """Also with a fast hash that somebody has made collide."""
    counted.collide = collide
    work = []
    for count in (50, 100, 200, 400):
        counted.calls = counted.nbytes = 0
        contents = hostile(count)
        assert first_equal(stretches_of(contents)) == by_dictionary(contents)
        assert counted.nbytes <= 20 * sum(map(len, contents))
        work.append(counted.calls / count)
    assert max(work) <= 20 and work[-1] <= work[0] * 1.2
    assert (counted.strong > 0) == collide


def test_what_differs_from_the_beginning_is_not_hashed(counted):
    contents = [np.random.default_rng(number).bytes(5000) for number in range(100)] * 2
    assert first_equal(stretches_of(contents)) == by_dictionary(contents)
    assert counted.strong == 0
    assert counted.calls < 1000  # direct comparisons: one for each pair, and a few until there are too many


def test_what_has_a_size_of_its_own_is_not_read(counted):
    contents = [bytes(number) for number in range(300)]
    assert first_equal(stretches_of(contents)) == list(range(300))
    assert counted.calls == counted.nbytes == 0


def test_hashes_are_of_all_bytes_and_of_the_seed():
    """Every byte counts, at every length and alignment; what follows does not."""
    data = np.random.default_rng(1).integers(0, 256, 200, np.uint8)
    for nbytes in range(130):
        values = set()
        for flipped in range(-1, nbytes):
            changed = data.copy()
            if flipped >= 0:
                changed[3 + flipped] ^= 1 << flipped % 8
            changed[3 + nbytes :] = flipped & 255
            values.add(_codec.hash_bytes(_codec.Buffer(changed), 3, nbytes, 5))
        assert len(values) == nbytes + 1
    buffer = _codec.Buffer(data)
    assert len({_codec.hash_bytes(buffer, 0, 100, seed) for seed in range(100)}) == 100
    assert len({_codec.hash_bytes(_codec.Buffer(bytes(nbytes)), 0, nbytes, 0) for nbytes in range(300)}) == 300
    with pytest.raises(FormatError):
        _codec.hash_bytes(buffer, 101, 100)


def test_equal_bytes():
    a, b = _codec.Buffer(bytes(range(100))), _codec.Buffer(b"xx" + bytes(range(100)))
    assert _codec.equal_bytes(a, 0, b, 2, 100) and _codec.equal_bytes(a, 100, b, 5, 0)
    assert not _codec.equal_bytes(a, 0, b, 1, 100)
    for place in ((a, 1, b, 2, 100), (a, 0, b, 3, 100), (a, (1 << 64) - 1, b, 0, 2)):
        with pytest.raises(FormatError, match="inside the buffer"):
            _codec.equal_bytes(*place)
