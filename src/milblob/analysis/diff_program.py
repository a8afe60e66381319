"""Differences between two Programs and between two models' metadata, as text. Does not examine values of weights."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from .. import _codec
from ..dtypes import BY_MIL_CODE, DType
from ..model.metadata import Feature, Metadata
from ..model.model import Model
from ..model.package import Source
from ..model.tensor import Tensor, make_tensor
from ..program.scan import Program

WEIGHT_COUNT = 10
_MAX_SHOWN = 8
_TOOL_KEYS = "com.github.apple.coremltools."
_OPSETS = {f"coreml{number}": f"ios{number + 10}" for number in range(5, 9)}

_WEIGHT = "a weight"

Key = tuple[str, Any]
"""Which constant or compressed weight of a model it is: prefix of the Program, and where in the Program it is."""


def key_of(tensor: Tensor) -> Key | None:
    """Return the key of a tensor of a model; None of one in a bare weight file."""
    if tensor.program is None:
        return None
    group = tensor.chain
    return tensor.program.prefix, tensor.constant.value if group is None else (group.op.block, group.op.name)


class Change(NamedTuple):
    """One difference.

    Attributes:
        kind: "removed" (only in A), "added" (only in B) or "changed".
        words: its description.
    """

    kind: str
    words: str

    def __str__(self) -> str:
        return self.words


class _Value(NamedTuple):
    """A constant: where it is. Small ones are compared by value, not by serialization."""

    source: Source
    program: Program
    rows: tuple[Any, ...]

    def keys(self) -> list[Key]:
        """The constants that it consists of; several form a list."""
        return [(self.program.prefix, row.value) for row in self.rows]

    def is_weight(self) -> bool:
        """Whether the comparison of tensors handles it."""
        return any(map(_is_large, self.rows))

    def data(self, number: int) -> bytes | None:
        """Return a row's Value message as stored; None if the values are not in it."""
        offset, nbytes = self.rows[number].value
        is_blob = self.rows[number].storage == _codec.BLOB
        return None if is_blob else bytes(memoryview(self.program.buffer)[offset : offset + nbytes])

    def read(self, model: Model, number: int) -> tuple[str, tuple[int, ...], list[Any], bytes]:
        """Return (dtype, shape, values, bytes) of a row."""
        row = self.rows[number]
        tensor = make_tensor(model.package, self.source, self.program, row.key, row)
        values = tensor.read()
        flat = values.reshape(-1).tolist()
        data = repr(flat).encode() if values.dtype == object else values.tobytes()
        return str(tensor.mil_dtype), values.shape, flat, data

    def words(self, model: Model) -> str:
        """Return a readable description."""
        if self.is_weight():
            return _WEIGHT
        return " and ".join(_value_words(*self.read(model, number)[:3]) for number in range(len(self.rows)))


class _WeightRef(NamedTuple):
    """A compressed weight."""

    key: Key

    def keys(self) -> list[Key]:
        """The key of the weight."""
        return [self.key]

    def is_weight(self) -> bool:
        """Whether the comparison of tensors handles it."""
        return True

    def words(self, model: Model) -> str:
        """Return a readable description."""
        return _WEIGHT


class _Both(NamedTuple):
    """The compared models, and what `compare_programs` gets and returns about their tensors."""

    a: Model
    b: Model
    paired: Collection[tuple[Key, Key]]
    seen: tuple[set[Key], set[Key]]


class _Op(NamedTuple):
    type: str
    output: str
    arguments: dict[str, list[Any]]  # names as str, _Value or _WeightRef


class _Function(NamedTuple):
    opset: str
    inputs: dict[str, str]
    outputs: list[str]
    ops: dict[str, _Op]


def compare_programs(
    a: Model, b: Model, paired: Collection[tuple[Key, Key]] = (), seen: tuple[set[Key], set[Key]] | None = None
) -> list[Change]:
    """Compare the Programs of two models: functions, inputs and outputs, operations by the name of their output.

    The order of operations, names of constants, and how and where constants are stored do not count. Constants of
    WEIGHT_COUNT elements or more, and the operations that decompress them, are left to the comparison of tensors.
    Operations without inputs are not compared.

    Args:
        a, b: the models.
        paired: keys of tensors of A and B that are compared elsewhere, and not reported here.
        seen: two sets, to which the keys of all smaller constants of A and B compared here are added.

    Raises:
        FormatError, ResolveError, UnsupportedError: as reading the models does.
    """
    both = _Both(a, b, paired, (set(), set()) if seen is None else seen)
    first, second = dict(_functions(a)), dict(_functions(b))
    changes: list[Change] = []
    if len(first) == len(second) == 1 and first.keys() != second.keys():
        (old,), (new,) = first, second
        changes.append(Change("changed", f"function: {old!r} in A, {new!r} in B"))
        second = {old: second[new]}
    changes += _only(f"function {name!r}" for name in first if name not in second)
    several = len(first) > 1
    for name, function in first.items():
        if name in second:
            found = _compare_functions(both, function, second[name])
            changes += [Change(c.kind, f"{name}: {c.words}") for c in found] if several else found
    return changes + _only((f"function {name!r}" for name in second if name not in first), "added")


def _only(subjects: Iterable[str], kind: str = "removed") -> list[Change]:
    where = "A" if kind == "removed" else "B"
    return [Change(kind, f"{subject}: only in {where}") for subject in subjects]


def _compare_functions(both: _Both, old: _Function, new: _Function) -> list[Change]:
    changes = []
    if old.opset != new.opset:
        changes.append(Change("changed", f"opset: {old.opset} in A, {new.opset} in B"))
    changes += _compare_named("input", old.inputs, new.inputs)
    if old.outputs != new.outputs:
        words = f"outputs: {', '.join(old.outputs)} in A, {', '.join(new.outputs)} in B"
        changes.append(Change("changed", words))
    changes += _only(f"operation {op.type} {name!r}" for name, op in old.ops.items() if name not in new.ops)
    for name, op in old.ops.items():
        if name in new.ops:
            changes += _compare_ops(both, name, op, new.ops[name])
    changes += _only((f"operation {op.type} {name!r}" for name, op in new.ops.items() if name not in old.ops), "added")
    return changes


def _compare_named(what: str, old: dict[str, str], new: dict[str, str]) -> list[Change]:
    changes = _only(f"{what} {name!r}" for name in old if name not in new)
    changes += [
        Change("changed", f"{what} {name!r}: {text or 'nothing'} in A, {new[name] or 'nothing'} in B")
        for name, text in old.items()
        if name in new and new[name] != text
    ]
    return changes + _only((f"{what} {name!r}" for name in new if name not in old), "added")


def _compare_ops(both: _Both, name: str, old: _Op, new: _Op) -> list[Change]:
    if old.type != new.type:
        return [Change("changed", f"operation {name!r}: {old.type} in A, {new.type} in B")]
    subject = f"operation {old.type} {name!r}"
    changes = []
    if old.output != new.output:
        changes.append(Change("changed", f"{subject}: gives {old.output} in A, {new.output} in B"))
    for key in [*old.arguments, *(key for key in new.arguments if key not in old.arguments)]:
        ours, theirs = old.arguments.get(key), new.arguments.get(key)
        for seen, arguments in zip(both.seen, (ours, theirs), strict=True):
            for x in arguments or ():
                if isinstance(x, _Value) and not x.is_weight():
                    seen.update(x.keys())
        if ours is None or theirs is None:
            kind, where = ("added", "B") if ours is None else ("removed", "A")
            changes.append(Change(kind, f"{subject}, {key}: only in {where}"))
        elif not _are_equal(both, ours, theirs):
            words = f"{_words(both.a, ours)} in A, {_words(both.b, theirs)} in B"
            changes.append(Change("changed", f"{subject}, {key}: {words}"))
    return changes


def _are_equal(both: _Both, ours: list[Any], theirs: list[Any]) -> bool:
    if len(ours) != len(theirs):
        return False
    return all(
        x == y if isinstance(x, str) or isinstance(y, str) else _are_equal_constants(both, x, y)
        for x, y in zip(ours, theirs, strict=True)
    )


def _are_equal_constants(both: _Both, x: "_Value | _WeightRef", y: "_Value | _WeightRef") -> bool:
    if isinstance(x, _Value) and isinstance(y, _Value) and not (x.is_weight() and y.is_weight()):
        return len(x.rows) == len(y.rows) and all(_are_equal_rows(both, x, y, number) for number in range(len(x.rows)))
    return (x.is_weight() and y.is_weight()) or (x.keys()[0], y.keys()[0]) in both.paired


def _are_equal_rows(both: _Both, x: _Value, y: _Value, number: int) -> bool:
    if (x.keys()[number], y.keys()[number]) in both.paired:
        return True
    is_large, is_other_large = _is_large(x.rows[number]), _is_large(y.rows[number])
    if is_large or is_other_large:
        return is_large and is_other_large
    data = x.data(number)
    if data is not None and data == y.data(number):
        return True
    values, others = x.read(both.a, number), y.read(both.b, number)
    return values[:2] == others[:2] and values[3] == others[3]


def _words(model: Model, arguments: list[Any]) -> str:
    return ", ".join(x if isinstance(x, str) else x.words(model) for x in arguments)


def _value_words(dtype: str, shape: tuple[int, ...], values: list[Any]) -> str:
    shown = ", ".join(
        f"{v!r:.60}" if isinstance(v, str) else f"{v:.9g}" if isinstance(v, float) else str(v)
        for v in values[:_MAX_SHOWN]
    )
    more = ", ..." if len(values) > _MAX_SHOWN else ""
    return f"{dtype} [{shown}{more}]" if shape else f"{dtype} {shown}"


# ------------------------------------------------------------------------------------------------------------- programs


def _functions(model: Model) -> Iterator[tuple[str, _Function]]:
    """Yield every function of a model, with the parts that are compared."""
    for source, program in model.scans:
        source.mapping.check_size()
        every, uses = program.scan_again(_codec.SCAN_ALL), program.scan_again(_codec.SCAN_USES)
        names = _Names(source, program, every)
        for row in [*uses.constants, *every.constants]:
            names.add(row)
        for function, (name, _, _) in zip(names.functions, every.functions, strict=True):
            yield program.prefix + name, function


class _Names:
    """Resolves the names in a Program while its operations are collected."""

    def __init__(self, source: Source, program: Program, every: _codec.Scan) -> None:
        self.functions = [
            _Function(_OPSETS.get(opset.lower(), opset.lower()), _inputs(program, span), [], {})
            for _, opset, span in every.functions
        ]
        self._source, self._program, self._scan = source, program, every
        self._by_message: dict[tuple[int, int], _Op] = {}
        self._tops = Counter(row[1] for row in every.blocks if row[2] < 0)
        self._constants: dict[tuple[int, str], list[Any]] = {}
        self._paths: dict[tuple[int, int], str] = {}
        self._nchars = 0
        self._unnamed: Counter[tuple[int, str, str]] = Counter()
        for op in every.ops:
            if op.type.startswith("constexpr_"):
                self._constants[op.block, op.name] = []
        for c in every.constants:
            if c.op is not None and c.op.type == "const" and c.key == "val":
                self._constants.setdefault((c.block, c.op.name), []).append(c)

    def add(self, row: Any) -> None:
        """Add the content of a scan's row: an argument of an operation, or an output of a block."""
        op = row.op
        if row.owner == _codec.RETURN:
            self.functions[row.function].outputs.append(self._path(row.function, row.block) + row.text)
            self._nchars += len(self.functions[row.function].outputs[-1])
            self._program.require_texts(self._nchars)
            return
        if op is None or op.type == "const" or op.type.startswith("constexpr_"):
            return
        if row.storage != _codec.NAME and row.owner == _codec.ATTRIBUTE and row.key == "name":
            return
        known = self._by_message.get(op.message)
        if known is None:
            known = self._by_message[op.message] = _Op(op.type, _type_words(op), {})
            path = self._path(row.function, row.block)
            name = op.name
            if not name:
                key = (row.function, path, op.type)
                self._unnamed[key] += 1
                name = f"#{self._unnamed[key]}"
            self.functions[row.function].ops[path + name] = known
            self._nchars += len(path) + len(name)
            self._program.require_texts(self._nchars)  # each repeats the names of the blocks around it
        arguments = known.arguments.setdefault(row.key, [])
        if row.storage == _codec.NAME:
            arguments.append(self._meaning(row.block, row.text))
        else:
            arguments.append(_Value(self._source, self._program, (row,)))

    def _meaning(self, block: int, name: str) -> Any:
        at = block
        while at >= 0:
            rows = self._constants.get((at, name))
            if rows:
                return _Value(self._source, self._program, tuple(rows))
            if rows is not None:
                return _WeightRef((self._program.prefix, (at, name)))
            at = self._scan.blocks[at][2]
        return name

    def _path(self, function: int, block: int) -> str:
        """Return the blocks around an operation, "" in a function's own block."""
        found = self._paths.get((function, block))
        if found is None:
            name = self._scan.functions[function][0]
            found = self._program.scope(function, block, self._tops[function] > 1)[len(name) :].removeprefix("/")
            self._paths[function, block] = found
        return found


def _is_large(row: Any) -> bool:
    return bool(row.count >= WEIGHT_COUNT and BY_MIL_CODE.get(row.mil_code) not in (DType.BOOL, DType.STRING))


def _type_words(op: Any) -> str:
    more = f" and {op.output_count - 1} more" if op.output_count > 1 else ""
    if op.shape is None:
        return f"no tensor{more}" if op.output_count else "nothing"
    return f"{BY_MIL_CODE[op.mil_code]} [{', '.join('?' if n is None else str(n) for n in op.shape)}]{more}"


def _inputs(program: Program, span: tuple[int, int]) -> dict[str, str]:
    from ..program import schema

    view = memoryview(program.buffer)
    messages = [
        schema.parse("NamedValueType", view[offset : offset + nbytes], file=program.buffer.name)
        for number, wire, _, offset, nbytes in _codec.wire_fields(program.buffer, *span)
        if number == 1 and wire == 2
    ]
    found = Metadata.from_function(messages)
    return {feature.name: str(feature) for feature in (*found.inputs, *found.states)}


# ------------------------------------------------------------------------------------------------------------- metadata


def compare_metadata(a: Model, b: Model) -> tuple[list[Change], list[Change]]:
    """Compare the metadata of two models.

    Returns:
        (differences, those that only concern when and by which tools a model was made). Empty for models without
        metadata: weight files, MIL text without its metadata.json.

    Raises:
        As `Model.metadata`.
    """
    old, new = a.metadata, b.metadata
    if not old.spec_version or not new.spec_version:
        return [], []
    texts = [{name: getattr(m, name) for name in ("author", "description", "license", "version")} for m in (old, new)]
    for text, m in zip(texts, (old, new), strict=True):
        text["specification version"] = str(m.spec_version)
        if old.default_function and new.default_function:
            text["default function"] = m.default_function
    changes = [
        Change("changed", f"{name}: {_quoted(text)} in A, {_quoted(texts[1][name])} in B")
        for name, text in texts[0].items()
        if text != texts[1][name]
    ]
    own, tools = (
        _compare_named("user-defined", _user_defined(old, is_tool), _user_defined(new, is_tool))
        for is_tool in (False, True)
    )
    changes += own
    for what, ours, theirs in _signatures(old, new):
        changes += _compare_features(what, ours, theirs)
    if old.producer != new.producer:
        words = f"producer: {old.producer or 'unknown'} in A, {new.producer or 'unknown'} in B"
        tools.insert(0, Change("changed", words))
    return changes, tools


def _user_defined(metadata: Metadata, is_tool: bool) -> dict[str, str]:
    """Return what converters record about themselves, or everything else."""
    return {key: text for key, text in metadata.user_defined.items() if key.startswith(_TOOL_KEYS) is is_tool}


def _quoted(text: str) -> str:
    return f"{text!r:.200}" if text else "nothing"


def _signatures(old: Metadata, new: Metadata) -> Iterator[tuple[str, Any, Any]]:
    yield "model input", old.inputs, new.inputs
    yield "model output", old.outputs, new.outputs
    yield "model state", old.states, new.states
    for name in old.functions.keys() & new.functions.keys():
        for number, what in enumerate(("input", "output")):
            yield f"{what} of {name}", old.functions[name][number], new.functions[name][number]
        yield f"state of {name}", old.function_states.get(name, ()), new.function_states.get(name, ())


def _compare_features(what: str, old: tuple[Feature, ...], new: tuple[Feature, ...]) -> list[Change]:
    if not old or not new:  # compiled models omit what the default function states
        return []
    ours, theirs = {f.name: f for f in old}, {f.name: f for f in new}
    texts: list[dict[str, str]] = [{}, {}]
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        found = [side[name] for side in (ours, theirs) if name in side]
        blank: dict[str, Any] = {}
        if any(feature.shape is None for feature in found):  # not every producer states it
            blank["shape"] = None
        if any(feature.dtype == "unknown" for feature in found):
            blank["dtype"] = ""
        if what.startswith(("model state", "state of")):
            blank["type"] = "state"  # "multiArray" in compiled models
        for side, text in zip((ours, theirs), texts, strict=True):
            if name in side:
                text[name] = _feature_words(replace(side[name], **blank))
    return _compare_named(what, *texts)


def _feature_words(feature: Feature) -> str:
    return f"{feature} ({feature.description})" if feature.description else str(feature)
