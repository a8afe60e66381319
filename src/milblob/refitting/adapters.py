"""LoRA adapters as the new weights of a `refit`: merged into a base, or for weights that are an adapter themselves."""

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ..arguments import Names, as_float, as_path
from ..closeness import ambiguous
from ..errors import FormatError
from ..formats.peft import CONFIG, Adapter, AdapterArrays, is_adapter, open_adapter
from ..model.model import Model
from ..selection import Select
from ..wording import escape, some
from .from_base import Rebased, rebase, tensors_of
from .merging import merge
from .pairs import How, weight_names

_MAX_SCALE = 1e30
_ENDING = re.compile(r"_to_(?:fp16|fp32|bf16)$|_(?:quantized|palettized|sparsified)$")
_ADAPTER_NAME = re.compile(r"(lora_(?:embedding_)?[AB])_[A-Za-z0-9]+(_weight|_bias)$")


def opened_adapters(
    weights: Any, scale: Any, stack: contextlib.ExitStack, max_nbytes: int | None
) -> list[tuple[Adapter, float]]:
    """Open what was given as weights if it is an adapter, or a list of them; return each with its factor.

    Raises: TypeError, ValueError: another list, or a scale that does not fit. As `open_adapter`.
    """
    is_list = isinstance(weights, list | tuple) and all(isinstance(one, str | os.PathLike) for one in weights)
    given = list(weights) if is_list else [weights] if is_adapter(weights) else []
    if not given:
        if scale is not None or is_list:
            raise ValueError(f"{'weights' if scale is None else 'scale'}: expected an adapter, got none")
        return []
    several = scale if isinstance(scale, Sequence) else [1.0 if scale is None else scale] * len(given)
    scales = [as_float("scale", one) for one in several]
    for one in scales:
        if not abs(one) <= _MAX_SCALE:
            raise ValueError(f"scale: expected a number, got {one!r}")
    if len(scales) != len(given):
        raise ValueError(f"scale: expected one for each of {len(given)} adapters, got {len(scales)}")
    for path in given:
        if not is_adapter(path):
            raise FormatError(f"adapter: expected a folder with {CONFIG}, got none", file=as_path(path))
    found = []
    for path, factor in zip(given, scales, strict=True):
        adapter = open_adapter(as_path(path), max_nbytes)
        stack.callback(adapter.arrays.close)
        found.append((adapter, factor))
    return found


def rebase_adapters(
    path: str,
    adapters: Sequence[tuple[Adapter, float]],
    base: Mapping[str, Any],
    how: How,
    leave: Select,
    epsilon: float | None,
) -> Rebased:
    """As `rebase`, with a base that adapters are merged into as the new checkpoint; only weights they change are new.

    Raises: As `merge` and `rebase`; of another base, the error has the name of the base in the config too.
    """
    old = tensors_of(base)
    new, note = merge(old, adapters, how.overflow)
    try:
        found = rebase(path, new, old, how, leave, epsilon)
    except ValueError as error:
        names = ", ".join(dict.fromkeys(adapter.base for adapter, _ in adapters if adapter.base))
        raise ValueError(f"{error}; base of the adapter: {escape(names)}" if names else str(error)) from None
    return found._replace(note="; ".join(text for text in (note, found.note) if text))


def scales_kept(adapter: Adapter) -> str:
    """Return a note on the scales of an adapter's products, which are numbers of the Program and no arrays."""
    scales = sorted({change.scale for change in adapter.changes.values()})
    if not scales:
        return ""
    return f"scales in the model are kept; those of the adapter are {some(f'{scale:g}' for scale in scales)}"


def named_weights(model: Model, arrays: AdapterArrays, how: How) -> dict[str, Names]:
    """Return the weights of a model that have the names of an adapter's arrays, as a mapping of them.

    A converter makes names of those in the checkpoint: other signs than letters and digits become "_", and endings
    such as "_to_fp16" come after them. Prefixes and the name of the adapter ("default") may differ.

    Raises: KeyError: several weights for one array; `select` chooses.
    """
    exact: dict[str, list[str]] = defaultdict(list)
    longer: dict[str, list[str]] = defaultdict(list)
    for name in filter(how.is_selected, weight_names(model)):
        plain = _plain(name.rpartition("/")[2])
        exact[plain].append(name)
        for tail in _tails(plain):
            longer[tail].append(name)
    found: dict[str, Names] = {}
    for name in arrays:
        plain = _plain(name)
        tails = [plain, *(tail for tail in _tails(plain) if "lora_" in tail)]
        names = next((exact[tail] for tail in tails if tail in exact), None) or longer.get(plain, [])
        if len(names) > 1:
            raise KeyError(f"{ambiguous(name, names)} (--select chooses)")
        if names:
            found[name] = names[0]
    if arrays and not found and not how.mapping:
        message = "base: expected the checkpoint to merge the adapter into (--base), got none"
        raise ValueError(escape(f"{message}; {model.path} has no weights with the adapter's names"))
    return found


def _plain(name: str) -> str:
    """Return the name of an array as converters write it, without what they append and the adapter's name."""
    plain = re.sub(r"\W", "_", name)
    while (found := _ENDING.search(plain)) is not None:
        plain = plain[: found.start()]
    return _ADAPTER_NAME.sub(r"\1\2", plain)


def _tails(plain: str) -> list[str]:
    """Return the ends of a name that begin after a "_"."""
    parts = plain.split("_")
    return ["_".join(parts[count:]) for count in range(1, min(len(parts), 20))]
