"""The order of the folders of src/milblob: which may import which."""

# The folders of src/milblob from the ground up; "" is the ground itself. A module imports from its own folder and from those
# before it.
FOLDERS = [
    "",
    "storage",
    "remote",
    "values",
    "lossy",
    "blobs",
    "program",
    "model",
    "formats",
    "frameworks",
    "rules",
    "analysis",
    "matching",
    "rewrite",
    "chunking",
    "updating",
    "refitting",
    "compressing",
    "tvm",
    "aimodel",
    "onnx",
    "running",
    "onnxmltools",
    "compat",
    "batching",
    "reporting",
    "plot",
    "cli",
]
