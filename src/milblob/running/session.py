"""milblob.Session: run a model by onnxruntime, under the names, types and states that Core ML has for it."""

import os
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..arguments import as_count, as_mapping, as_path, require, require_flags
from ..budget import Budget
from ..closeness import hint, unknown
from ..errors import UnsupportedError
from ..onnx.conversion import opened
from ..onnx.registry import Converter
from ..storage.mapped import Opened
from ..wording import escape, some
from .ports import SessionInput, SessionOutput
from .runtime import CPU, make_options
from .stage import Stage, make_replaceable, stage_of_file, stage_of_model

if TYPE_CHECKING:
    from ..model.model import Model


class SessionState(MutableMapping[str, "np.ndarray[Any, Any]"]):
    """The states of one run of predictions, such as the cache of a language model: state -> array.

    Made by `Session.make_state`. A prediction replaces the arrays; what is assigned is checked and copied.

    Examples:
        >>> session = milblob.Session("states.mlpackage")
        >>> state = session.make_state()
        >>> outputs = session.predict({"x": np.ones((1, 16), np.float16)}, state)
        >>> {name: values.shape for name, values in state.items()}
        {'cache': (1, 16)}
    """

    def __init__(self, kinds: Mapping[str, SessionInput], budget: Budget) -> None:
        self._kinds = kinds
        budget.require(sum(one.dtype.itemsize * prod(n or 0 for n in one.shape) for one in kinds.values()))
        self._arrays = {name: np.zeros([n or 0 for n in one.shape], one.dtype) for name, one in kinds.items()}
        self.lock = threading.Lock()

    def __getitem__(self, name: str) -> "np.ndarray[Any, Any]":
        self._require(name)
        return self._arrays[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._require(name)
        self._arrays[name] = np.array(self._kinds[name].convert(value, "state"))

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"state {name}: expected a new value, got a deletion; a model always has all of its states")

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def read_state(self, name: str) -> "np.ndarray[Any, Any]":
        """Return a copy of a state, as coremltools' MLState does."""
        return self[name].copy()

    def write_state(self, name: str, value: Any) -> None:
        """Set a state, as coremltools' MLState does."""
        self[name] = value

    def arrays(self) -> dict[str, "np.ndarray[Any, Any]"]:
        """Return the arrays themselves, for `Session`; it changes this dict."""
        return self._arrays

    def fits(self, kinds: Mapping[str, SessionInput]) -> bool:
        """Whether these are the states of a session that has `kinds`."""
        return self._kinds is kinds or self._kinds == kinds

    def _require(self, name: object) -> None:
        if name not in self._kinds:
            raise KeyError(unknown("state", name, self._kinds, "the model"))

    def __repr__(self) -> str:
        return f"<SessionState: {', '.join(f'{name} {one}' for name, one in self._kinds.items()) or 'none'}>"


class Session(Opened):
    """A model that runs: NumPy arrays, PIL images and labels in and out, under the model's own names.

    It runs the conversion of `milblob.onnx.convert` in onnxruntime. Nothing is written, and weights in the model's
    files are not copied: they are mapped from where they are. The models of a pipeline run in turn, and so do several
    models, such as those that `milblob.chunk` made: each takes inputs, and outputs of earlier ones, by their names.

    Several threads may predict at once, each with a state of its own; predictions with one state wait for each other.

    Args:
        model: a path, an open model, or the path of an .onnx file. An open model may be closed afterwards. Or a list of
            models that run one after another; the outputs are those of all of them.
        function: its name; default: the model's default function.
        states: state -> what it holds at first; default: zeros.
        optimize: let onnxruntime change the graph, decode weights and copy them into a form of its own. Predictions are
            faster then, and their last bits differ; the start takes longer, and memory holds all weights.
        threads: how many one operation may use; default: $MILBLOB_THREADS, or one for each processor of this process
            that is idle now: beside other work, another thread makes predictions slower.
        providers: of onnxruntime, the preferred first.
        converters: as for `convert`.
        replaceable: let `predict` take other values for weights.
        round_each: round what each operation of float16 computes to float16. Without it, onnxruntime keeps float32
            between operations, so the last bits depend on where a model is cut, and larger numbers than float16 has may
            pass. Not together with `optimize`, and not for .onnx files.
        max_nbytes: as for `open`; includes states and the results of a conversion. An open model has its own.

    Attributes:
        inputs: name -> SessionInput, in the order of the description.
        weights: name -> SessionInput of what `predict` can replace: weights of floats that the graph reads as they are
            stored. Empty without `replaceable`, and for .onnx files.
        outputs: name -> SessionOutput.
        is_chain: whether it was made of a list of models.
        states: the SessionState of predictions that name none.
        budget: how many bytes may be made for the model: its states, random inputs.

    Raises:
        ImportError: onnxruntime is not installed. MilblobError: onnxruntime cannot open it. As `convert`.

    Examples:
        >>> session = milblob.Session("demo.mlpackage")
        >>> outputs = session.predict({"tokens": np.zeros((1, 16), np.int32)})
        >>> outputs["logits"].shape, outputs["logits"].dtype
        ((1, 16, 96), dtype('float32'))
    """

    def __init__(
        self,
        model: "str | os.PathLike[str] | Model | Sequence[str | os.PathLike[str] | Model]",
        *,
        function: str | None = None,
        states: Mapping[str, Any] | None = None,
        optimize: bool = False,
        threads: int | None = None,
        providers: Sequence[str] = CPU,
        converters: Mapping[str, Converter] | None = None,
        replaceable: bool = False,
        round_each: bool = False,
        max_nbytes: int | None = None,
    ) -> None:
        require_flags(optimize=optimize, replaceable=replaceable, round_each=round_each)
        if optimize and round_each:
            raise ValueError("round_each: expected False with optimize, which leaves out casts, got True")
        threads = None if threads is None else as_count("threads", threads, 1, nbits=31)
        require("providers", providers, list | tuple, "a list of names")
        self.is_chain: bool = not isinstance(model, str | os.PathLike) and isinstance(model, Sequence)
        path = as_path(model) if isinstance(model, str | os.PathLike) else None
        wanted: list[str] = []
        self._optimize, self._threads, self._providers = optimize, threads, tuple(providers)
        self._round_each = round_each
        if path is not None and path.lower().endswith(".onnx"):
            if function is not None:
                raise ValueError(
                    f"function: expected none of an .onnx file, which is one function, got {function!r:.100}"
                )
            if converters:
                raise ValueError(
                    f"converters: expected none of an .onnx file, which is converted already, got {[*converters]}"
                )
            if round_each:
                raise ValueError("round_each: expected False for an .onnx file, which is converted already, got True")
            self.stages: list[Stage] = [stage_of_file(path, self._options(), self._providers)]
            self.budget: Budget = Budget(max_nbytes, path)
            constants = (value.const_value for value in self.stages[0].model.graph.initializers.values())
            self.budget.add_file(None, sum(one.nbytes for one in constants if one is not None))
        elif not isinstance(model, os.PathLike | str) and isinstance(model, Sequence):
            path = self._open_chain(model, function, converters, replaceable, max_nbytes)
        else:
            with opened(model, max_nbytes) as source:
                self.stages = self._stages_of(source, function, converters, replaceable)
                self.budget = source.package.budget
                if len(self.stages) > 1:
                    wanted = [feature.name for feature in source.metadata.outputs]
        self.path = path if path is not None else self.stages[0].file
        self.inputs: dict[str, SessionInput] = {}
        self.outputs: dict[str, SessionOutput] = {}
        made: set[str] = set()
        for stage in self.stages:
            for name, one in stage.inputs.items():
                if name not in made:
                    self.inputs.setdefault(name, one)
            self.outputs |= stage.outputs
            made |= set(stage.outputs)
        if made.issuperset(wanted):  # of a pipeline: what its own description lists
            self.outputs = {name: self.outputs[name] for name in wanted} or self.outputs
        self.weights: dict[str, SessionInput] = {
            name: one for stage in self.stages for name, one in stage.weights.items()
        }
        self._state_kinds = {name: one for stage in self.stages for name, one in stage.states.items()}
        self.states: SessionState = self.make_state(states)

    def _open_chain(
        self,
        models: "Sequence[str | os.PathLike[str] | Model]",
        function: str | None,
        converters: Mapping[str, Converter] | None,
        replaceable: bool,
        max_nbytes: int | None,
    ) -> str:
        """Open models that run one after another; return their paths for messages."""
        if not models:
            raise ValueError("models: expected one or several that run one after another, got none")
        self.stages = []
        self.budget = Budget(max_nbytes)
        names = []
        for model in models:
            with opened(model, max_nbytes) as source:
                self.stages += self._stages_of(source, function, converters, replaceable)
                for mapping in source.package.mappings:
                    self.budget.add_file(mapping.name, mapping.nbytes, mapping.identity)
                names.append(str(source.path))
        every = [name for stage in self.stages for name in stage.states]
        twice = sorted({name for name in every if every.count(name) > 1})
        if twice:
            raise ValueError(f"states: expected each in one of the models, got {some(twice)} in several")
        return ", ".join(names)

    def _options(self) -> Any:
        return make_options(self._optimize, self._threads)

    def _stages_of(
        self, source: "Model", function: str | None, converters: Mapping[str, Converter] | None, replaceable: bool
    ) -> list[Stage]:
        others = source.package.others
        is_whole = function is None and (len(source.parts) > 1 or others)
        if is_whole and others:
            words = ", ".join(f"{prefix.rstrip('/')} ({kind})" for prefix, kind in others)
            raise UnsupportedError(f"pipeline: expected ML Programs only, got also {words}", file=source.path)
        names = [_default(source, part.prefix) for part in source.parts] if is_whole else [function]
        change = make_replaceable if replaceable else None
        return [
            stage_of_model(source, name, self._options(), self._providers, converters, change, self._round_each)
            for name in names
        ]

    def make_state(self, values: Mapping[str, Any] | None = None) -> SessionState:
        """Return new states: zeros, or what `values` gives for some of them.

        Raises:
            KeyError: no such state. ValueError: a shape or dtype that does not fit. LimitError: states that
                are larger than the budget of the model.
        """
        state = SessionState(self._state_kinds, self.budget)
        if values is not None:
            require("states", values, Mapping, "arrays by name of state")
            for name, value in values.items():
                state[name] = value
        return state

    def predict(
        self,
        inputs: Mapping[str, Any],
        state: SessionState | None = None,
        *,
        raw: bool = False,
        weights: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Compute the outputs once.

        Args:
            inputs: name -> array (or what NumPy makes one of), PIL image. Floats are rounded to the model's dtype, and
                integers and bools become any dtype that holds them; nothing else is cast.
            state: from `make_state`; default: `states`. It holds the new values afterwards.
            raw: arrays only, also for images, labels and probabilities.
            weights: name -> values for this prediction, of `replaceable` sessions.

        Returns:
            name -> array; PIL image for an image; label and {label: probability} of a classifier.

        Raises:
            ValueError: names, shapes or dtypes that do not fit; the message lists what is expected.
            MilblobError: onnxruntime cannot compute it.
        """
        require_flags(raw=raw)
        stages = self.stages  # keep them: another thread may close the session
        if not stages:
            raise ValueError("operation on closed session")
        values = self.convert_inputs(inputs)
        replaced = self._convert_weights(as_mapping("weights", weights, "arrays by name of weight"))
        chosen = self.states if state is None else state
        require("state", chosen, SessionState, "what make_state returned")
        if not chosen.fits(self._state_kinds):
            raise ValueError(
                escape(f"state: expected one of this model, with {_listed(self._state_kinds)}, got {chosen!r}")
            )
        outputs: dict[str, Any] = {}
        with chosen.lock:
            arrays = dict(chosen.arrays())
            for stage in stages:
                feeds = values
                if len(stages) > 1:
                    feeds = {name: one.convert(values[name]) for name, one in stage.inputs.items() if name in values}
                if replaced:
                    feeds |= {name: array for name, array in replaced.items() if name in stage.weights}
                found = stage.compute(feeds, arrays)
                values |= found
                outputs |= found
            chosen.arrays().update(arrays)  # only when all went well
        return {name: outputs[name] if raw else one.convert(outputs[name]) for name, one in self.outputs.items()}

    def __call__(self, **inputs: Any) -> dict[str, Any]:
        """Compute the outputs once: `session(x=array)` is `session.predict({"x": array})`."""
        return self.predict(inputs)

    def run(self, outputs: Sequence[str] | None, inputs: Mapping[str, Any]) -> list[Any]:
        """Compute the outputs once, as `run` of onnxruntime's InferenceSession does: a list of arrays.

        Args:
            outputs: names of those that are returned, in this order; None: all, as in `outputs`.
            inputs: as for `predict`.

        Returns:
            Arrays, also for images, labels and probabilities (see `raw` of `predict`).

        Raises:
            ValueError: an unknown output. As `predict`.
        """
        require("outputs", outputs, list | tuple | None, "a list of names, or None for all")
        names = list(self.outputs) if outputs is None else list(outputs)
        for name in names:
            if name not in self.outputs:
                message = f"outputs: expected some of {_listed(self.outputs)}, got {name!r:.100}"
                raise ValueError(escape(f"{message}{hint(str(name), self.outputs)}"))
        found = self.predict(inputs, raw=True)
        return [found[name] for name in names]

    def _convert_weights(self, weights: Mapping[str, Any]) -> dict[str, "np.ndarray[Any, Any]"]:
        for name in weights:
            if name not in self.weights:
                message = (
                    "a weight that can be replaced" if self.weights else "none, but of a session with replaceable=True"
                )
                raise ValueError(
                    escape(f"weights: expected {message}, got {name!r:.100}{hint(str(name), self.weights)}")
                )
        return {name: self.weights[name].convert(value, "weight") for name, value in weights.items()}

    def convert_inputs(self, inputs: Mapping[str, Any]) -> dict[str, "np.ndarray[Any, Any]"]:
        """Return inputs as `predict` feeds them; raises what it raises of names, shapes and dtypes."""
        require("inputs", inputs, Mapping, "arrays by name of input")
        if inputs.keys() != self.inputs.keys():
            unknown = [name for name in inputs if name not in self.inputs]
            missing = [name for name, one in self.inputs.items() if name not in inputs and not one.is_optional]
            if unknown or missing:
                got = f"the unknown {unknown[0]!r:.100}{hint(str(unknown[0]), self.inputs)}" if unknown else ""
                got = got or f"no {', '.join(missing)}"
                raise ValueError(escape(f"inputs: expected {_listed(self.inputs)}; got {got}"))
        return {name: self.inputs[name].convert(value) for name, value in inputs.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the weights; no prediction is possible afterwards."""
        self.stages = []

    def __repr__(self) -> str:
        return f"<Session {self.path or 'buffer'}: {_listed(self.inputs)} -> {_listed(self.outputs)}>"


def _default(model: "Model", prefix: str) -> str:
    """The function of a pipeline's model that runs: main, or its only one."""
    names = [name for name in model.functions if name.startswith(prefix)]
    main = f"{prefix}main"
    if main in names or len(names) != 1:
        return main
    return names[0]


def _listed(ports: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} ({one})" for name, one in ports.items()) or "none"
