"""Which of many names mean the same: those where the words of the one are among the words of the other."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

_MAX_WORDS, _MAX_NCHARS = 32, 1024  # of a name, for it to be like another one


def agreeing(
    given: Iterable[str], names: Iterable[str], first_of: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Pair names where one is the other with something before or behind it ("fc.weight", "model_fc_weight_to_fp16").

    The same name counts most, then the longest one; nothing is paired where that leaves a choice.

    Args:
        given: names in the weights that were given.
        names: of weights in the model.
        first_of: of each of `names`, the first weight that is the same blob: a given name may be several of these.
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


class _Alike:
    """Which of some names has the words of another one among its own, or has its own among those.

    Runs of words are looked up in tables, so that the time grows with the number of names, not with that of pairs.
    Names of more than _MAX_WORDS words, or more than _MAX_NCHARS characters, are like the same ones only.

    Args:
        ours: name -> its words, as `_words` gives them.
        theirs: words of all that will be asked for.
    """

    def __init__(self, ours: Mapping[str, str], theirs: Iterable[str]) -> None:
        self._ours: dict[str, list[str]] = defaultdict(list)
        for name, text in ours.items():
            self._ours[text].append(name)
        self._lengths = {text.count("_") for text in self._ours}
        asked = set(theirs)
        lengths = {text.count("_") for text in asked}
        self._around: dict[str, list[str]] = defaultdict(list)  # words -> two of those that have them among their own
        for text, names in self._ours.items():
            for run in {text, *_runs(text, lengths)} & asked:
                self._around[run] += names[: 2 - len(self._around[run])]

    def find(self, text: str) -> str | None:
        """Return the name with the longest words that are among those of `text`, or have them; None if several do."""
        fitting = self._around.get(text)
        if not fitting:
            runs = [run for run in _runs(text, self._lengths) if run in self._ours]
            most = max(map(len, runs), default=0)
            fitting = [name for run in set(runs) if len(run) == most for name in self._ours[run][:2]]
        return fitting[0] if len(fitting) == 1 else None


def _runs(text: str, lengths: Collection[int]) -> Iterator[str]:
    """Yield every run of a name's words, with marks around it, that has one of some numbers of marks."""
    if len(text) > _MAX_NCHARS or text.count("_") > _MAX_WORDS:
        return
    marks = [place for place, letter in enumerate(text) if letter == "_"]
    for length in lengths:
        for first in range(len(marks) - length + 1):
            yield text[marks[first] : marks[first + length - 1] + 1]


def _words(name: str) -> str:
    """A name as its words, with marks around them."""
    return f"_{'_'.join(word for word in re.split(r'[^A-Za-z0-9]+', name.lower()) if word)}_"
