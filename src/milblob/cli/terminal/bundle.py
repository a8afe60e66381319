"""Bundles of Core AI as `milblob show` prints them: metadata, functions, and where a tensor is used."""

from typing import Any

_FIELDS = ("author", "license", "description", "producer", "creationDate", "assetVersion")


def asset_document(asset: Any) -> dict[str, Any]:
    """Return what is known of a bundle, as JSON can hold it."""
    functions = {
        name: {key: [port._asdict() for port in getattr(function, key)] for key in ("inputs", "outputs", "states")}
        for name, function in asset.functions.items()
    }
    code = asset.program.bytecode
    return {
        "metadata": asset.metadata,
        "functions": functions,
        "container": code.producer,
        "sections": len(code.sections),
    }


def asset_rows(asset: Any) -> list[tuple[str, str]]:
    """Return the same as lines."""
    metadata = asset.metadata
    rows = [(key, str(metadata[key])) for key in _FIELDS if metadata.get(key)]
    user = metadata.get("creatorDefinedMetadata")
    rows += [("user-defined", f"{key} = {value}") for key, value in user.items()] if isinstance(user, dict) else []
    rows.append(("functions", ", ".join(asset.functions) or "none"))
    for name, function in asset.functions.items():
        of = f" of {name}" if len(asset.functions) > 1 else ""
        for key in ("inputs", "outputs", "states"):
            rows += [(f"{key[:-1]}{of}", f"{port.name}  {port.type}") for port in getattr(function, key)]
    return rows


def tensor_document(tensor: Any) -> dict[str, Any]:
    """Return the fields of a bundle's tensor for JSON."""
    return {
        "function": tensor.function, "op": tensor.op, "ordinal": tensor.ordinal, "label": tensor.label,
        "consumers": [{"op": use.type, "name": use.label, "parameter": use.parameter} for use in tensor.consumers],
        "parts": {key: part.name for key, part in tensor.parts.items()},
        "compressed": tensor.compression.to_dict() if tensor.compression else None,
    }  # fmt: skip


def tensor_rows(tensor: Any) -> list[tuple[str, str]]:
    """Return the same as lines."""
    number = f", number {tensor.ordinal} of {tensor.function}" if tensor.ordinal >= 0 else ""
    rows = [("operation", f"{tensor.op}{number}")]
    if tensor.label:
        rows.append(("made by", tensor.label))
    if tensor.compression:
        rows.append(("compressed", str(tensor.compression)))
    rows += [(f"part {key}", f"{part.dtype_text} {list(part.shape)}") for key, part in tensor.parts.items()]
    return rows + [("used by", f"{use.label}, as {use.parameter}") for use in tensor.consumers]
