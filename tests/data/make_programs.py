"""ML Programs from coremltools' MIL builder: opsets, control flow, functions, states, pipelines, flexible shapes."""

import json
import os
import shutil

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from coremltools.models import datatypes
from coremltools.models.neural_network import NeuralNetworkBuilder

import mil_printer
import packages
import record

TARGETS = {"ios15": ct.target.iOS15, "ios16": ct.target.iOS16, "ios17": ct.target.iOS17, "ios18": ct.target.iOS18}


def spec(*shape, dtype=types.fp32):
    """Shorthand for a function input."""
    return mb.TensorSpec(shape=shape, dtype=dtype)


def finish(model, folder, note, compiled=None):
    """Saves a package, its compiled form if asked for ("1.0" or "1.3"), and what is expected of them."""
    path = packages.save(model, folder)
    record_package(path, folder, note, compiled)


def record_package(path, folder, note, compiled=None, pymil=True, dense=None):
    """Writes model.mlmodelc beside the package if asked for, and records the case (`dense`: rows and arrays)."""
    paths = ["model.mlpackage"]
    if compiled:
        mil_printer.compile_package(path, os.path.join(folder, "model.mlmodelc"), compiled)
        paths.append("model.mlmodelc")
    record.record_model(folder, paths, note, pymil, dense)


def make_opset(name, half):
    """A little of everything that one opset allows, in one of the two float widths."""
    target, rng = TARGETS[name], np.random.default_rng(15)
    kind = np.float16 if half else np.float32

    @mb.program(input_specs=[spec(1, 8)], opset_version=target)
    def program(x):
        x = mb.cast(x=x, dtype="fp16") if half else x
        weight = mb.const(val=rng.standard_normal((8, 8)).astype(kind), name="fc_weight")
        bias = mb.const(val=rng.standard_normal(8).astype(kind), name="fc_bias")  # below 10 elements: immediate
        y = mb.linear(x=x, weight=weight, bias=bias, name="fc")
        y = mb.add(x=y, y=kind(0.1), name="shift")
        picked = mb.gather(x=y, indices=np.array([7, -1, 0, 3, 3, 1, 2, 6, 5, 4, 0, 1], np.int32), axis=1, name="pick")
        where = mb.select(cond=np.arange(12).reshape(1, 12) % 3 == 0, a=picked, b=kind(-2.5), name="choose")
        if name in ("ios15", "ios16"):  # no operation takes them yet, but the writer stores them
            mb.const(val=rng.integers(-128, 128, 12).astype(np.int8), name="int8_values")
            mb.const(val=rng.integers(0, 256, (2, 6)).astype(np.uint8), name="uint8_values")
        if name in ("ios16", "ios17"):
            table = mb.constexpr_affine_dequantize(
                quantized_data=rng.integers(-128, 128, (12, 3)).astype(np.int8),
                axis=0,
                scale=np.linspace(0.01, 0.12, 12).astype(kind),
                zero_point=np.arange(12).astype(np.int8),
                name="table",
            )
            small = mb.constexpr_affine_dequantize(
                quantized_data=rng.integers(0, 256, (3, 12)).astype(np.uint8),
                axis=0,
                scale=kind(0.5),
                zero_point=np.uint8(128),
                name="table_u8",
            )
            where = mb.matmul(x=mb.matmul(x=where, y=table), y=small, name="tables")
        if name in ("ios17", "ios18"):
            dtype = "fp16" if half else "fp32"
            for sign, low in (("int8", -128), ("uint8", 0)):
                values = rng.integers(low, low + 256, 12).astype(sign)
                wide = mb.cast(x=mb.const(val=values, name=f"{sign}_values"), dtype=dtype)
                where = mb.add(x=where, y=wide, name=f"with_{sign}")
        return mb.cast(x=where, dtype="fp32", name="out")

    model = packages.convert(program, target, half=half)
    model.author, model.short_description, model.license, model.version = "milblob", f"opset {name}", "none", "1.0"
    model.user_defined_metadata["origin"] = "tests/data/make.py"
    return model


def opset_case(name, half):
    """Returns the maker of one opset case."""

    def make(folder):
        compiled = "1.3" if name == "ios18" else "1.0"
        finish(make_opset(name, half), folder, f"{name}, {'fp16' if half else 'fp32'} weights", compiled)

    return make


def make_wide_integers(folder):
    """iOS18 integer blobs: int8 to uint32, and the same below 10 elements as immediates."""
    rng = np.random.default_rng(18)

    @mb.program(input_specs=[spec(1, 12)], opset_version=ct.target.iOS18)
    def program(x):
        for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32"):
            info = np.iinfo(dtype)
            for count, size in (("many", 12), ("few", 4)):
                values = rng.integers(info.min, info.max, size, dtype, endpoint=True)
                values[:2] = info.min, info.max
                mb.const(val=values, name=f"{dtype}_{count}")
        return mb.identity(x=x, name="out")

    finish(packages.convert(program, ct.target.iOS18), folder, "iOS18 integer constants, in blobs and inline", "1.3")


def make_control_flow(folder):
    """Nests cond inside while_loop; weights in every block, two with one name."""
    rng = np.random.default_rng(21)

    def array(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    @mb.program(input_specs=[spec(1, 4)], opset_version=ct.target.iOS17)
    def program(x):
        def condition(i, state):
            return mb.less(x=i, y=np.int32(3), name="go_on")

        def body(i, state):
            w = mb.const(val=array(4, 4), name="body_weight")
            state = mb.matmul(x=state, y=w, name="body_matmul")
            even = mb.equal(x=mb.mod(x=i, y=np.int32(2)), y=np.int32(0), name="even")

            def when_even():
                weight = mb.const(val=array(4, 4), name="then_weight")
                return mb.matmul(x=state, y=weight, name="even_result")

            def when_odd():
                weight = mb.const(val=array(4, 4), name="else_weight")
                mask = mb.const(val=np.arange(12) % 2 == 1, name="odd_mask")
                kept = mb.matmul(x=state, y=weight, name="odd_product")
                return mb.select(cond=mb.slice_by_size(x=mask, begin=[0], size=[4]), a=kept, b=state, name="odd_result")

            state = mb.cond(pred=even, _true_fn=when_even, _false_fn=when_odd, name="branch")
            return mb.add(x=i, y=np.int32(1), name="next_i"), state

        start = mb.const(val=np.int32(0), name="start")
        _, result = mb.while_loop(_cond=condition, _body=body, loop_vars=(start, x), name="loop")
        return mb.identity(x=result, name="out")

    path = packages.save(packages.convert(program, ct.target.iOS17), folder)

    def one_name(model):
        """Gives the weights of both branches the same name, as SSA scoping allows."""
        for outer in model.mlProgram.functions["main"].block_specializations["CoreML7"].operations:
            for op in outer.blocks[1].operations if outer.blocks else []:
                for nested in op.blocks:
                    for inner in nested.operations:
                        if inner.outputs[0].name in ("then_weight", "else_weight"):
                            inner.outputs[0].name = "branch_weight"
                        for argument in inner.inputs.values():
                            for binding in argument.arguments:
                                if binding.name in ("then_weight", "else_weight"):
                                    binding.name = "branch_weight"

    packages.edit(path, one_name)
    note = (
        "cond inside while_loop; branch_weight in both branches (renamed in the spec: the builder keeps names unique)"
    )
    record_package(path, folder, note)


def make_list_loop(folder):
    """make_list, list_write, list_gather: list types with unknown lengths."""

    @mb.program(input_specs=[spec(3, 12)], opset_version=ct.target.iOS15)
    def program(x):
        items = mb.make_list(init_length=3, dynamic_length=True, elem_shape=(12,), dtype="fp32", name="items")
        value = mb.const(val=np.linspace(-1, 1, 12).astype(np.float32), name="row")
        items = mb.list_write(ls=items, index=np.int32(1), value=value, name="written")
        rows = mb.list_gather(ls=items, indices=np.array([0, 1, 2], np.int32), name="rows")
        return mb.add(x=rows, y=x, name="out")

    finish(packages.convert(program, ct.target.iOS15), folder, "list types", "1.0")


def make_functions(folder):
    """Two functions that share their weights through one blob each."""
    rng = np.random.default_rng(31)
    base = rng.standard_normal((12, 12)).astype(np.float32)

    def part(name, extra):
        @mb.program(input_specs=[spec(1, 12)], opset_version=ct.target.iOS18)
        def program(x):
            y = mb.linear(x=x, weight=mb.const(val=base, name="base_weight"), name="base")
            delta = mb.const(val=np.full((12, 12), extra, np.float32), name="adapter_weight")
            return mb.linear(x=y, weight=delta, name="out")

        path = os.path.join(folder, name)
        packages.convert(program, ct.target.iOS18).save(path)
        return path

    descriptor = ct.utils.MultiFunctionDescriptor()
    for i, name in enumerate(("alpha", "beta")):
        descriptor.add_function(part(f"{name}.mlpackage", i + 0.5), "main", name)
    descriptor.default_function_name = "alpha"
    path = os.path.join(folder, "model.mlpackage")
    ct.utils.save_multifunction(descriptor, path)
    for name in ("alpha", "beta"):
        shutil.rmtree(os.path.join(folder, f"{name}.mlpackage"))
    packages.settle(path)
    record_package(path, folder, "two functions, base_weight shared through one blob", "1.3")


def make_states(folder):
    """A stateful model: read_state and write_state."""

    @mb.program(
        input_specs=[spec(1, 16, dtype=types.fp16), mb.StateTensorSpec((1, 16), dtype=types.fp16)],
        opset_version=ct.target.iOS18,
    )
    def program(x, cache):
        old = mb.read_state(input=cache, name="old")
        scale = mb.const(val=np.linspace(0, 1, 16).astype(np.float16).reshape(1, 16), name="scale")
        new = mb.add(x=mb.mul(x=old, y=scale, name="scaled"), y=x, name="new")
        kept = mb.coreml_update_state(state=cache, value=new, name="kept")
        mb.coreml_update_state(state=cache, value=mb.add(x=kept, y=np.float16(1.5), name="last"), name="unread")
        return mb.identity(x=kept, name="out")

    finish(
        packages.convert(program, ct.target.iOS18, half=True),
        folder,
        "state<...> input, read_state, write_state",
        "1.3",
    )


def make_pipeline(folder):
    """A pipeline of two ML Programs made by coremltools: one weights folder, several files."""
    rng = np.random.default_rng(41)

    def linear(x, name):
        weight = mb.const(val=rng.standard_normal((12, 12)).astype(np.float32), name="weight")
        bias = mb.const(val=rng.standard_normal(12).astype(np.float32), name="bias")
        return mb.linear(x=x, weight=weight, bias=bias, name=name)

    @mb.program(input_specs=[spec(1, 12)], opset_version=ct.target.iOS16)
    def first(x):
        return linear(x, "mid")

    @mb.program(input_specs=[spec(1, 12)], opset_version=ct.target.iOS16)
    def second(mid):
        return linear(mid, "out")

    model = ct.utils.make_pipeline(*(packages.convert(part, ct.target.iOS16) for part in (first, second)))
    finish(model, folder, "pipeline of two ML Programs; the same tensor names in both", "1.0")


def make_flexible(folder):
    """Unknown dimensions: RangeDim inputs."""

    @mb.program(
        input_specs=[mb.TensorSpec(shape=(1, ct.converters.mil.mil.get_new_symbol(), 12), dtype=types.fp32)],
        opset_version=ct.target.iOS16,
    )
    def program(x):
        weight = mb.const(val=np.arange(144, dtype=np.float32).reshape(12, 12) / 7, name="weight")
        return mb.reduce_mean(x=mb.matmul(x=x, y=weight, name="product"), axes=[1], keep_dims=False, name="out")

    shape = ct.Shape((1, ct.RangeDim(lower_bound=1, upper_bound=64, default=5), 12))
    model = packages.convert(program, ct.target.iOS16, inputs=[ct.TensorType(name="x", shape=shape)])
    finish(model, folder, "unknown dimensions (RangeDim)", "1.0")


def classifier_case(labels, note):
    """Returns the maker of a classifier, whose labels are values inside the `classify` operation."""

    def make(folder):
        @mb.program(input_specs=[spec(1, 4)], opset_version=ct.target.iOS15)
        def program(x):
            weight = mb.const(val=np.arange(12, dtype=np.float32).reshape(3, 4) / 3, name="weight")
            return mb.softmax(x=mb.linear(x=x, weight=weight, name="logits"), axis=-1, name="probabilities")

        config = ct.ClassifierConfig(labels)
        finish(packages.convert(program, ct.target.iOS15, classifier_config=config), folder, note, "1.0")

    return make


def small_package(folder):
    """Saves a package of one weight; returns its path."""

    @mb.program(input_specs=[spec(1, 12)], opset_version=ct.target.iOS16)
    def program(x):
        return mb.add(x=x, y=mb.const(val=np.linspace(0, 1, 12).astype(np.float32), name="w"), name="out")

    return packages.save(packages.convert(program, ct.target.iOS16), folder)


def edit_manifest(package, change):
    """Applies change(manifest object) to Manifest.json."""
    path = os.path.join(package, "Manifest.json")
    with open(path, encoding="utf-8") as file:
        manifest = json.load(file)
    change(manifest)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=4)
        file.write("\n")


def make_xcode(folder):
    """A package as Xcode leaves it after its description was edited: two overlay files more."""
    path = small_package(folder)
    overlays = {
        "Metadata.json": {
            "MLModelAuthorKey": "overlay author",
            "MLModelDescriptionKey": "--",
            "MLModelVersionStringKey": "--",
        },
        "FeatureDescriptions.json": {
            "Inputs": {"x": {"MLFeatureShortDescription": "overlay"}},
            "Outputs": {},
            "TrainingInputs": {},
        },
    }

    def add(manifest):
        for number, name in enumerate(overlays):
            manifest["itemInfoEntries"][f"00000000-0000-4000-8000-{number:012}"] = {
                "author": "com.apple.CoreML",
                "description": "External Overlay",
                "name": name,
                "path": f"com.apple.CoreML/{name}",
            }

    for name, content in overlays.items():
        with open(os.path.join(path, "Data", "com.apple.CoreML", name), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
    edit_manifest(path, add)
    record_package(path, folder, "an Xcode-edited package: overlay files in the manifest")


def make_elsewhere(folder):
    """A package whose manifest names another folder and file: only the manifest tells where the model is."""
    path = small_package(folder)
    record_package(path, folder, "the manifest says org.example/other.mlmodel; weights beside it")
    data = os.path.join(path, "Data")
    os.rename(os.path.join(data, "com.apple.CoreML"), os.path.join(data, "org.example"))
    os.rename(os.path.join(data, "org.example", "model.mlmodel"), os.path.join(data, "org.example", "other.mlmodel"))

    def move(manifest):
        for item in manifest["itemInfoEntries"].values():
            item["path"] = (
                item["path"].replace("com.apple.CoreML", "org.example").replace("model.mlmodel", "other.mlmodel")
            )

    edit_manifest(path, move)


def make_neural_network(folder):
    """A neuralNetwork, as .mlmodel and inside an .mlpackage: not ours, to be refused by name."""
    features = [("x", datatypes.Array(3))], [("y", datatypes.Array(2))]
    builder = NeuralNetworkBuilder(*features, disable_rank5_shape_mapping=True)
    builder.add_inner_product("fc", np.ones((2, 3)), np.zeros(2), 3, 2, True, "x", "y")
    path = os.path.join(folder, "model.mlmodel")
    packages.save_spec(builder.spec, path)
    ct.utils.save_spec(builder.spec, os.path.join(folder, "model.mlpackage"))
    packages.settle(os.path.join(folder, "model.mlpackage"))
    record.record_model(folder, ["model.mlmodel", "model.mlpackage"], "neuralNetwork: refuse by name")


CASES = {
    **{f"opset_{name}_{kind}": opset_case(name, kind == "fp16") for name in TARGETS for kind in ("fp32", "fp16")},
    "wide_integers": make_wide_integers,
    "control_flow": make_control_flow,
    "lists": make_list_loop,
    "functions": make_functions,
    "states": make_states,
    "pipeline": make_pipeline,
    "flexible": make_flexible,
    "classifier_strings": classifier_case(["cat", "猫", 'quote " and \\ slash'], "string labels as an input value"),
    "classifier_integers": classifier_case([7, -1, 1 << 40], "int64 labels as an input value"),
    "xcode": make_xcode,
    "elsewhere": make_elsewhere,
    "neural_network": make_neural_network,
}
