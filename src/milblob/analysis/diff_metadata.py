"""Differences between the metadata of two models, as text."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..model.metadata import Feature, Metadata
from ..model.model import Model
from .changes import Change, compare_named

_TOOL_KEYS = "com.github.apple.coremltools."


def compare_metadata(a: Model, b: Model) -> tuple[list[Change], list[Change]]:
    """Compare the metadata of two models.

    Returns: (differences, changes of only the date of conversion and the tools). Empty for models without metadata:
    weight files, MIL text without its metadata.json.
    Raises: As `Model.metadata`.
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
        compare_named("user-defined", _user_defined(old, is_tool), _user_defined(new, is_tool))
        for is_tool in (False, True)
    )
    changes += own
    for what, ours, theirs in _signatures(old, new):
        changes += _compare_features(what, ours, theirs)
    if old.producer != new.producer:
        message = f"producer: {old.producer or 'unknown'} in A, {new.producer or 'unknown'} in B"
        tools.insert(0, Change("changed", message))
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
    for name in (name for name in old.functions if name in new.functions):
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
                feature = replace(side[name], **blank)
                text[name] = f"{feature} ({feature.description})" if feature.description else str(feature)
    return compare_named(what, *texts)
