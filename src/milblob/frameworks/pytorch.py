"""Weights as tensors of PyTorch."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arguments import Names, as_mapping, names_in, require_flags
from ..closeness import hint
from ..dtypes import DType
from ..errors import UnsupportedError
from ..extras import require
from ..model.lazy import LazyTensor
from ..model.writable import WritableArrays
from ..remote.cache import CacheLike
from ..selection import Select
from .memory import Array, bytes_as_integers, opened, refuse

_VIEWED = {DType.BFLOAT16: "int16", DType.FLOAT8E4M3FN: "uint8", DType.FLOAT8E5M2: "uint8"}
"""Types that NumPy lacks -> the type of the same size under which PyTorch takes their bits."""
_MAX_NAMES = 5


def load(
    source: Any,
    *,
    select: Select = None,
    device: Any = "cpu",
    writable: bool = True,
    constants: bool = False,
    stored: bool = False,
    mmap: bool = True,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> dict[str, Any]:
    """Read the weights of a model as PyTorch tensors: name -> torch.Tensor.

    Args:
        source: what `milblob.open` or `milblob.open_arrays` takes, or what they returned.
        select: the weights to read: a glob, several, or a function that is called with a name.
        device: where the tensors are to be: what `torch.Tensor.to` takes.
        writable: False returns inference tensors, which take no part in training. PyTorch has no tensors that are
            read-only: of these it reports a change in place as an error, but only after it has changed them.
        constants, stored, mmap, max_nbytes, storage_options, cache: as for `milblob.open`.

    Returns:
        dict in the order of the file. bfloat16 and fp8 are PyTorch's own types; integers below a byte are int8 or
        uint8, one to a byte. On the CPU, tensors are views of a private mapping of the weight file wherever the stored
        bytes are the values: nothing is read until it is touched, and a page that is written becomes a copy of this
        process. The file never changes. All others (compressed weights, other formats) are in memory of their own.
        Tensors remain valid after the model is closed.

    Raises:
        As `milblob.open` and `Tensor.read`; ImportError: torch is not installed. SelectionError: nothing is selected.
        UnsupportedError: strings, which PyTorch has no tensors of.

    Examples:
        >>> weights = milblob.torch.load("demo.mlpackage", select="head_*")
        >>> weights["head_weight"].shape, weights["head_weight"].dtype
        (torch.Size([96, 48]), torch.float32)
    """
    torch = require("torch")
    require_flags(writable=writable)
    options: dict[str, Any] = {"constants": constants, "stored": stored, "mmap": mmap, "max_nbytes": max_nbytes}
    with opened(source, select, **options, storage_options=storage_options, cache=cache) as tensors:
        arrays = WritableArrays().arrays(tensors)
        with contextlib.nullcontext() if writable else torch.inference_mode():
            return {name: of_array(torch, array, tensors[name], device) for name, array in arrays}


def of_array(torch: Any, array: Array, tensor: LazyTensor, device: Any) -> Any:
    """Return an array of values, or of some values, of a tensor as a torch.Tensor that shares its memory on the CPU.

    `array`: writable, with strides that are not negative. `tensor`: whose dtype it has.
    Raises: UnsupportedError: strings.
    """
    if tensor.mil_dtype is DType.STRING:
        raise refuse(tensor, "PyTorch")
    viewed = _VIEWED.get(tensor.mil_dtype)
    if viewed is None:
        found = torch.from_numpy(bytes_as_integers(array))
    else:
        found = torch.from_numpy(array.view(viewed)).view(getattr(torch, array.dtype.name))
    return found if device == "cpu" else found.to(device)


def load_into(
    module: Any,
    source: Any,
    *,
    mapping: Mapping[str, Names] | None = None,
    strict: bool = True,
    assign: bool = False,
    select: Select = None,
    constants: bool = False,
    mmap: bool = True,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> tuple[list[str], list[str]]:
    """Read the weights of a model into the parameters and buffers of a torch.nn.Module.

    A weight belongs to the parameter of the same name, or of the name that coremltools makes of it: "layers.0.weight"
    is "layers_0_weight" in a model, or "layers_0_weight_to_fp16".

    Args:
        module: to be changed; not at all after an error.
        source, select, constants, mmap, max_nbytes, storage_options, cache: as for `load`.
        mapping: name in the module -> name in the model, where they have other names: such as
            `milblob.match(source, module.state_dict()).refit_mapping`. None leaves a parameter as it is, such as one
            that the converter transposed or folded something into. Of several names all weights must be equal.
        strict: raise if a parameter has no weight, or a weight no parameter.
        assign: make the loaded tensors themselves the parameters, in the dtypes of the model and without a copy; else
            copy the values, with a cast to the dtype of each parameter.

    Returns:
        (missing, unexpected): names of parameters and buffers that were not loaded, and of weights that were not used.
        As in safetensors, a parameter that shares its memory with a loaded one is not missing.

    Raises:
        ValueError: names that do not fit, with `strict`; a weight of another shape; weights of one parameter that
            differ. As `load`.

    Examples:
        >>> import torch
        >>> module = torch.nn.ModuleDict({"head": torch.nn.Linear(48, 96)})
        >>> milblob.torch.load_into(module, "demo.mlpackage", select="head_*")
        ([], [])
    """
    torch = require("torch")
    require_flags(strict=strict, assign=assign)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module: expected a torch.nn.Module, got {type(module).__name__}")
    given = as_mapping("mapping", mapping, "a mapping from names in the module to names in the model")
    state = module.state_dict()
    options: dict[str, Any] = {"constants": constants, "mmap": mmap, "max_nbytes": max_nbytes}
    with opened(source, select, **options, storage_options=storage_options, cache=cache) as tensors:
        named, others = _named(state, tensors, given)
        unexpected = sorted(tensors.keys() - named.values() - {name for names in others.values() for name in names})
        missing = _missing(state, named)
        if strict and (missing or unexpected):
            raise ValueError(_misfit(missing, unexpected))
        for target, name in named.items():
            if tuple(state[target].shape) != tensors[name].shape:
                wanted = list(state[target].shape)
                raise ValueError(f"{target}: expected shape {wanted}, got {list(tensors[name].shape)} of {name}")
        for target, names in others.items():
            for name in names:
                if not _is_equal(tensors[named[target]], tensors[name]):
                    raise ValueError(f"{target}: expected equal weights, got {named[target]} and {name}, which differ")
        memory = WritableArrays()
        values = {
            target: of_array(torch, memory.array(tensors[name]), tensors[name], "cpu") for target, name in named.items()
        }
    _require_assignable(state, values, assign)
    module.load_state_dict(values, strict=False, assign=assign)
    return missing, unexpected


def _named(
    state: Mapping[str, Any], tensors: Mapping[str, Any], given: Mapping[str, Names]
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return name in the module -> name in the model, and -> further names, of weights that must be equal."""
    named, others = {}, {}
    for target, names in given.items():
        if target not in state:
            raise ValueError(f"mapping: the module has no {target!r:.200}{hint(target, state)}")
        found = [name for name in names_in(names) if name in tensors]  # the others are not selected
        if found:
            named[target], others[target] = found[0], found[1:]
    for target in state.keys() - given.keys():
        plain = re.sub(r"\W", "_", target)
        name = next((name for name in (target, plain, f"{plain}_to_fp16") if name in tensors), None)
        if name is not None:
            named[target] = name
    return {target: named[target] for target in state if target in named}, others


def _is_equal(a: LazyTensor, b: LazyTensor) -> bool:
    if (a.mil_dtype, a.shape) != (b.mil_dtype, b.shape):
        return False
    first, second = (np.ascontiguousarray(one.read()).reshape(-1).view(np.uint8) for one in (a, b))
    return np.array_equal(first, second)


def _missing(state: Mapping[str, Any], named: Mapping[str, str]) -> list[str]:
    """Return the names that are not loaded, and do not share their memory with one that is."""

    def memory(tensor: Any) -> tuple[Any, ...]:
        place = tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset()
        return (*place, tuple(tensor.shape), tensor.stride())

    loaded = {memory(state[target]) for target in named}
    return [target for target in state if target not in named and memory(state[target]) not in loaded]


def _misfit(missing: list[str], unexpected: list[str]) -> str:
    lists = ((missing, "no weights for"), (unexpected, "no parameters for"))
    words = [
        f"{what} {', '.join(names[:_MAX_NAMES])}{f' and {len(names) - _MAX_NAMES} more' * (len(names) > _MAX_NAMES)}"
        for names, what in lists
        if names
    ]
    return f"module: expected a weight for each parameter, got {'; '.join(words)} (see mapping=, select= and strict=)"


def _require_assignable(state: Mapping[str, Any], values: Mapping[str, Any], assign: bool) -> None:
    """Refuse what PyTorch would refuse after it has changed a part of the module."""
    for target, tensor in values.items():
        if assign and state[target].is_floating_point() and not tensor.is_floating_point():
            message = f"{target}: expected a weight of a floating-point type with assign=True, got {tensor.dtype}"
            raise UnsupportedError(message)
