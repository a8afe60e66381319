"""LoRA adapters as PEFT saves them: a folder with adapter_config.json and adapter_model.safetensors."""

import math
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..arguments import as_path
from ..dtypes import DType
from ..errors import FormatError, UnsupportedError
from ..model.elements import Elements, have_equal_bits, starts
from ..model.manifest import read_json
from ..model.stored import Arrays, StoredArray
from ..storage import paths
from ..storage.beneath import Location
from ..values.cast import cast_array
from ..wording import some
from . import safetensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PICKLED = "adapter_model.bin"
_PREFIX = "base_model.model."

_OTHER_METHODS = (
    "use_qalora", "alora_invocation_tokens", "arrow_config", "kasa_config", "monteclora_config", "use_bdlora",
    "layer_replication", "target_parameters", "trainable_token_indices", "megatron_config",
)  # fmt: skip
"""Keys of the config with which PEFT does other arithmetic than W + scale * B A."""
_INITS = (None, True, False, "gaussian", "eva", "orthogonal", "mica")
"""What `init_lora_weights` may be: other methods change the weights of the base too, when PEFT loads the adapter."""

_MAX_NAME = 1000
_MAX_REPEATS, _MAX_GROUPS, _MAX_STEPS = 2, 3, 1_000_000_000
_SET_STEPS = 1_000_000  # to compile one, such as [^a-z]: milliseconds
_REPEATED_GROUP = re.compile(r"\)\s*[*+?{]")
_PART = re.compile(
    r"(?P<module>.+)\.(?:lora_(?P<side>[AB])(?:\.[^.]+)?\.(?P<of>weight|bias)"
    r"|lora_embedding_(?P<embedding>[AB])(?:\.[^.]+)?"
    r"|(?P<magnitude>lora_magnitude_vector)(?:\.[^.]+)?)"
)
_WRAPPED = re.compile(r"\.(?:base_layer|modules_to_save(?:\.[^.]+)?)(?=\.[^.]+$)")


class LowRank(NamedTuple):
    """The change of one weight: W + scale * B A; with DoRA then scaled to a length for each output."""

    a: StoredArray  # the factors, as PEFT stores them: [rank, inputs, ...] and [outputs, rank, ...]
    b: StoredArray
    scale: float  # lora_alpha / rank, or lora_alpha / sqrt(rank)
    magnitude: StoredArray | None  # DoRA's lengths, one for each output; None without DoRA
    is_embedding: bool  # whether the weight has a row for each input, and a column for each output


class AdapterArrays(Arrays[StoredArray]):
    """The arrays of an adapter, by their names in the file without "base_model.model."."""


class Adapter(NamedTuple):
    """An open adapter."""

    path: str  # of its folder
    arrays: AdapterArrays  # all of its arrays
    changes: dict[str, LowRank]  # by the names of the weights in the base model
    # by the names of the biases in the base model: an array, and its factor, that are added
    biases: dict[str, tuple[StoredArray, float]]
    # by the names in the base model, arrays that replace others: modules_to_save, trained biases
    replaced: dict[str, StoredArray]
    is_transposed: bool  # `fan_in_fan_out`: square weights are [inputs, outputs]
    base: str  # the name of the base model in the config, or ""


def is_adapter(path: object) -> bool:
    """Whether a path is that of a folder with an adapter."""
    is_path = isinstance(path, str | os.PathLike)
    return is_path and paths.is_there(os.path.join(as_path(path), CONFIG))  # type: ignore[arg-type]


def open_adapter(path: str, max_nbytes: int | None = None) -> Adapter:
    """Open an adapter. `arrays.close` closes it.

    Raises: OSError: a file cannot be opened. FormatError: a broken file; a config without a key that is needed; arrays
    that are missing, have another rank or hold NaN. UnsupportedError: another method than LoRA and DoRA; weights that
    are not in a safetensors file.
    """
    config = _Config(path)
    file = os.path.join(path, WEIGHTS)
    if not paths.is_there(file) and paths.is_there(os.path.join(path, _PICKLED)):
        message = f"adapter: expected {WEIGHTS}, got {_PICKLED} (load it with PEFT, and save it: save_pretrained)"
        raise UnsupportedError(message, file=path)
    arrays = safetensors.open_arrays(file, max_nbytes)
    try:
        return _Reading(config, arrays, file).adapter()
    except BaseException:
        arrays.close()
        raise


class _Config:
    """adapter_config.json, checked."""

    def __init__(self, path: str) -> None:
        self.file, self._steps = os.path.join(path, CONFIG), 0
        found = read_json(Location(self.file), "config of adapter", unique=True, code="")
        if not isinstance(found, dict):
            raise FormatError("config of adapter: expected an object, got another document", file=self.file)
        self.values: dict[str, Any] = found
        kind = self._need("peft_type")
        if kind != "LORA":
            raise UnsupportedError(f"peft_type of adapter: expected LORA, got {kind!r:.100}", file=self.file)
        used = [key for key in _OTHER_METHODS if found.get(key)]
        if used:
            message = f"config of adapter: expected LoRA or DoRA, got {some(used)}"
            raise UnsupportedError(message, file=self.file)
        init = found.get("init_lora_weights", True)
        if not isinstance(init, str | bool | None) or init not in _INITS:
            message = (
                f"init_lora_weights of adapter: expected a method that keeps the base's weights, got {init!r:.100}"
            )
            advice = "PEFT's save_pretrained converts it: path_initial_model_for_weight_conversion"
            raise UnsupportedError(f"{message} ({advice})", file=self.file)
        self.rank, self.alpha = self._rank("r", self._need("r")), self._alpha("lora_alpha", self._need("lora_alpha"))
        self.ranks, self.alphas = self._patterns("rank_pattern"), self._patterns("alpha_pattern")
        for text, (_, value) in self.ranks.items():
            self._rank(f"rank_pattern {text!r:.100}", value)
        for text, (_, value) in self.alphas.items():
            self._alpha(f"alpha_pattern {text!r:.100}", value)
        self.is_rank_stable = self._flag("use_rslora")
        self.is_transposed = self._flag("fan_in_fan_out")
        self.has_magnitudes = self._flag("use_dora")
        base = found.get("base_model_name_or_path")
        self.base = base if isinstance(base, str) else ""

    def rank_and_scale(self, module: str) -> tuple[int, float]:
        """Return the rank of a module's factors, and what their product is multiplied by."""
        rank = self._find(self.ranks, module, self.rank)
        alpha = self._find(self.alphas, module, self.alpha)
        return rank, alpha / math.sqrt(rank) if self.is_rank_stable else alpha / rank

    def _need(self, key: str) -> Any:
        if key not in self.values:
            raise FormatError(f"config of adapter: expected a key {key}, got none", file=self.file)
        return self.values[key]

    def _flag(self, key: str) -> bool:
        value = self.values.get(key) or False
        if type(value) is not bool:
            raise FormatError(f"{key} of adapter: expected true or false, got {value!r:.100}", file=self.file)
        return value

    def _rank(self, what: str, value: Any) -> int:
        if type(value) is not int or not 0 < value < 1 << 31:
            raise FormatError(f"{what} of adapter: expected a rank of at least 1, got {value!r:.100}", file=self.file)
        return value

    def _alpha(self, what: str, value: Any) -> float:
        if type(value) not in (int, float) or not abs(value) < 1 << 100:  # not NaN either
            raise FormatError(f"{what} of adapter: expected a number, got {value!r:.100}", file=self.file)
        return float(value)

    def _patterns(self, key: str) -> dict[str, tuple[re.Pattern[str], Any]]:
        """Return rank_pattern or alpha_pattern, its keys as PEFT matches them with the ends of names of modules.

        Raises: FormatError, UnsupportedError: expressions that are broken, or that may take exponential time.
        """
        found = self.values.get(key) or {}
        if not isinstance(found, dict):
            raise FormatError(f"{key} of adapter: expected an object, got {found!r:.100}", file=self.file)
        patterns = {}
        for text, value in found.items():
            repeats, groups = _repeats_and_groups(text)
            if repeats > _MAX_REPEATS or groups > _MAX_GROUPS or _REPEATED_GROUP.search(text):
                message = f"{key} of adapter: expected names, or expressions with few repetitions and groups"
                raise UnsupportedError(f"{message}, got {text!r:.100}", file=self.file)
            self._count(text.count("[") * _SET_STEPS)
            try:
                patterns[text] = (re.compile(rf"(.*\.)?({text})$"), value)
            except (re.error, RecursionError, OverflowError) as error:
                message = f"{key} of adapter: expected a regular expression, got {text!r:.100}: {error}"
                raise FormatError(message, file=self.file) from None
        return patterns

    def _find(self, patterns: Mapping[str, tuple[re.Pattern[str], Any]], module: str, default: Any) -> Any:
        """Return the value of the first pattern that matches a module."""
        for text, (pattern, value) in patterns.items():
            repeats, groups = _repeats_and_groups(text)
            self._count((module.count(".") + 1) * len(module) ** repeats * (text.count("|") + 1) ** groups)
            if pattern.match(module):
                return value
        return default

    def _count(self, steps: int) -> None:
        """Count what patterns take. Raises: UnsupportedError: too much."""
        self._steps += steps
        if self._steps > _MAX_STEPS:
            message = "patterns of adapter: expected some that can be matched in seconds, got too many"
            raise UnsupportedError(message, file=self.file)


def _repeats_and_groups(text: str) -> tuple[int, int]:
    """Count what makes a regular expression slow: its repetitions, and its groups."""
    plain = text.replace("(?", "(")
    return sum(plain.count(sign) for sign in "*+{?"), plain.count("(")


class _Reading:
    """Sorts the arrays of an adapter by the weights that they are for."""

    def __init__(self, config: _Config, arrays: Arrays[StoredArray], file: str) -> None:
        self._config, self._arrays, self._file = config, arrays, file

    def adapter(self) -> Adapter:
        """Return the adapter, all of its arrays checked."""
        parts: dict[str, dict[str, StoredArray]] = {}
        replaced: dict[str, StoredArray] = {}
        names: dict[str, str] = {}
        for name in self._arrays:
            if len(name) > _MAX_NAME:
                message = f"adapter: expected names of at most {_MAX_NAME} characters, got {name!r:.100}"
                raise FormatError(message, file=self._file)
            plain = name.removeprefix(_PREFIX)
            if ".original_module." in plain:  # of the base; what replaces it is here too
                continue
            array = self._checked(self._arrays[name])
            found = _PART.fullmatch(plain)
            if found is None and (".lora_" in plain or "token_adapter." in plain):
                raise UnsupportedError(f"adapter: expected arrays of LoRA or DoRA, got {name!r:.200}", file=self._file)
            if found is None:
                into, key = replaced, _WRAPPED.sub("", plain)
            else:
                into, key = parts.setdefault(found["module"], {}), _key(found)
            if key in into and not are_equal(into[key], array):  # PEFT saves a trained bias under two names
                raise FormatError(f"adapter: expected one array for {name!r:.200}, got two", file=self._file)
            into[key] = array
            names[plain] = name
        changes, biases = {}, {}
        for module, own in parts.items():
            changes[f"{module}.weight"] = change = self._low_rank(module, own)
            if "bias" in own:
                biases[f"{module}.bias"] = (own["bias"], change.scale)
        if not names:
            raise FormatError("adapter: expected arrays, got none", file=self._file)
        renamed = AdapterArrays(names, lambda _, name: self._arrays[name], self._arrays.close)
        config = self._config
        path = os.path.dirname(self._file)
        return Adapter(path, renamed, changes, biases, replaced, config.is_transposed, config.base)

    def _low_rank(self, module: str, found: Mapping[str, StoredArray]) -> LowRank:
        rank, scale = self._config.rank_and_scale(module)
        is_embedding = "embedding_A" in found or "embedding_B" in found
        keys = ("embedding_A", "embedding_B") if is_embedding else ("A", "B")
        needed = (*keys, "magnitude") if self._config.has_magnitudes else keys
        missing = [key for key in needed if key not in found]
        extra = [key for key in found if key not in needed and not (key == "bias" and not is_embedding)]
        if missing or extra:
            message = f"arrays of {module}: expected lora {' and '.join(needed)}, got {some(found)}"
            raise FormatError(message, file=self._file)
        a, b = found[keys[0]], found[keys[1]]
        fits = a.ndim >= 2 and b.ndim >= 2 and a.shape[0] == rank == b.shape[1]
        if not fits or (is_embedding and (a.ndim, b.ndim) != (2, 2)) or any(size != 1 for size in b.shape[2:]):
            message = f"factors of {module}: expected A [{rank}, ...] and B [..., {rank}] for a rank of {rank}"
            raise FormatError(f"{message}, got {list(a.shape)} and {list(b.shape)}", file=self._file)
        return LowRank(a, b, scale, found.get("magnitude"), is_embedding)

    def _checked(self, array: StoredArray) -> StoredArray:
        """Return an array of finite floats, which those of an adapter must be."""
        if not array.mil_dtype.is_float:
            message = f"dtype of {array.name}: expected floats, got {array.mil_dtype}"
            raise FormatError(message, file=self._file)
        elements = Elements(array)
        for begin in starts(elements.count):
            values = elements.read(begin, min(starts(elements.count).step, elements.count - begin))
            if not np.isfinite(values).all():
                message = f"values of {array.name}: expected finite numbers, got NaN or infinity"
                raise FormatError(message, file=self._file)
        return array


def _key(found: re.Match[str]) -> str:
    """Return the part that an array is: A, B, bias, embedding_A, embedding_B or magnitude."""
    if found["magnitude"]:
        return "magnitude"
    if found["embedding"]:
        return f"embedding_{found['embedding']}"
    return str(found["side"]) if found["of"] == "weight" else "bias" if found["side"] == "B" else "A_bias"


def are_equal(a: StoredArray, b: StoredArray) -> bool:
    """Whether two arrays have the same dtype, shape and bits."""
    return (a.mil_dtype, a.shape) == (b.mil_dtype, b.shape) and have_equal_bits(Elements(a), Elements(b))


def as_float32(array: StoredArray) -> np.ndarray[Any, Any]:
    """Return the values as float32, as PEFT loads them."""
    values = np.asarray(array.read())
    return values if array.mil_dtype is DType.FLOAT32 else cast_array(values, DType.FLOAT32)[0]
