"""Matching names by their words: two names agree if the words of one are among the words of the other."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

_MAX_WORDS, _MAX_NCHARS = 32, 1024  # limits for a name to agree with a different one


def agreeing(
    given: Iterable[str], names: Iterable[str], first_of: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Pair names where one is the other with a prefix or suffix ("fc.weight", "model_fc_weight_to_fp16").

    An identical name takes precedence, then the longest one; ambiguous names are not paired.

    `first_of`: for each of `names`, the first weight that is the same blob: one given name may match several.
    """
    ours, theirs = {name: _words(name) for name in given}, {name: _words(name) for name in names}
    alike = _Alike(ours, theirs.values())
    choices: dict[str, list[str]] = defaultdict(list)
    for name, text in theirs.items():
        if name in ours:
            choices[name].insert(0, name)
        elif (old := alike.find(text)) is not None:
            choices[old].append(name)
    pairs: list[tuple[str, str]] = []
    for old, new in choices.items():
        blobs = [name if first_of is None else first_of[name] for name in new]
        if new[0] == old or len(set(blobs)) == 1:
            pairs += [(old, name) for name, blob in zip(new, blobs, strict=True) if blob == blobs[0]]
    return pairs


def is_name_of(new: str, old: str) -> bool:
    """Whether the name of a weight is that of an array, with other words only before it and a dtype after it.

    coremltools makes up names such as "linear_0_bias_0", in which the name of an array may occur by accident.
    """
    ours, theirs = _words(old), re.sub(r"_to_(fp16|fp32|bf16)_$", "_", _words(new))
    return any(letter.isalpha() for letter in ours) and (ours.endswith(theirs) or theirs.endswith(ours))


class _Alike:
    """Finds names that contain all words of another name, or whose words it contains.

    Runs of words are looked up in tables, so the time grows with the number of names, not of pairs. A name of more than
    _MAX_WORDS words or _MAX_NCHARS characters agrees only with an identical one.

    `ours`: name -> its words, as `_words` gives them. `theirs`: words of all names that will be looked up.
    """

    def __init__(self, ours: Mapping[str, str], theirs: Iterable[str]) -> None:
        self._ours: dict[str, list[str]] = defaultdict(list)
        for name, text in ours.items():
            self._ours[text].append(name)
        self._lengths = {text.count("_") for text in self._ours}
        asked = set(theirs)
        lengths = {text.count("_") for text in asked}
        self._around: dict[str, list[str]] = defaultdict(list)  # words -> up to two names that contain them
        for text, names in self._ours.items():
            for run in {text, *_runs(text, lengths)} & asked:
                self._around[run] += names[: 2 - len(self._around[run])]

    def find(self, text: str) -> str | None:
        """Return the longest name that `text` contains, or that contains `text`, by words; None if several do."""
        fitting = self._around.get(text)
        if not fitting:
            runs = [run for run in _runs(text, self._lengths) if run in self._ours]
            most = max(map(len, runs), default=0)
            fitting = [name for run in set(runs) if len(run) == most for name in self._ours[run][:2]]
        return fitting[0] if len(fitting) == 1 else None


def _runs(text: str, lengths: Collection[int]) -> Iterator[str]:
    """Yield every run of a name's words, with separators around it, that has one of the given numbers of separators."""
    if len(text) > _MAX_NCHARS or text.count("_") > _MAX_WORDS:
        return
    marks = [place for place, letter in enumerate(text) if letter == "_"]
    for length in lengths:
        for first in range(len(marks) - length + 1):
            yield text[marks[first] : marks[first + length - 1] + 1]


def _words(name: str) -> str:
    """Return a name as its words, with separators around them."""
    return f"_{'_'.join(word for word in re.split(r'[^A-Za-z0-9]+', name.lower()) if word)}_"
