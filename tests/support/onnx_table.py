"""The table of operations in docs/onnx-operations.md, made of the registry; `python tests/support/onnx_table.py` writes it there."""

import logging
import pathlib
import sys

BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def all_operations():
    """Every operation of MIL that coremltools knows, and what else Programs have."""
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    import coremltools  # noqa: F401
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

    return sorted((set(SSAOpRegistry.core_ops) | {"coreml_update_state", "write_state"}) - {"_const_symbolic"})


def lines():
    """The rows: the operation, its ONNX operators, the first ONNX opset where that is not 18, and its limits."""
    from milblob.onnx import registry

    registry.load()
    own = {type: max(rows, key=lambda row: row.since_opset) for type, rows in registry._converters.items()}
    rows = ["| operation | in ONNX | limits |", "|---|---|---|"]
    for type in all_operations():
        entry = own.get(type)
        text = "an initializer" if type == "const" else "not yet" if entry is None else entry.mapping
        since = f" (opset {entry.since_opset} and later)" if entry is not None and entry.since_opset > 18 else ""
        rows.append(f"| `{type}` | {text}{since} | {entry.limits if entry is not None else ''} |")
    return rows


def main():
    page = pathlib.Path(__file__).parents[2] / "docs" / "onnx-operations.md"
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n" + "\n".join(lines()) + f"\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
