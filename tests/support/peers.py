"""Other libraries that tests compare milblob with: what is not tested where one is not installed."""

_UNTESTED = {
    "axe_playwright_python": "the accessibility of reports is not checked",
    "backports.zstd": "patches of models are neither made nor applied",
    "chromium": "reports are not opened in a browser: drawing, sorting, filtering, colours, keyboard and policy",
    "coremltools": "what coremltools makes, reads or answers is not compared with milblob",
    "distributed": "work is not given to the workers of Dask",
    "gguf": "files of GGUF are not read",
    "huggingface_hub": "hf:// is not tested",
    "jax": "weights are not read as arrays of JAX",
    "kmeans1d": "the errors of palettes are not compared with the least ones",
    "matplotlib": "plots are not drawn",
    "mlx": "weights are not read as arrays of MLX",
    "moto": "s3:// is not tested",
    "mpld3": "reports are not written",
    "nbclient": "the notebook in examples/ is not run",
    "onnx": "ONNX models are not made or read by its own library",
    "onnxmltools": "conversion through ONNXMLTools is not run",
    "onnxruntime": "converted models are not run",
    "peft": "merged adapters are not compared with those of PEFT",
    "playwright": "reports are not opened in a browser: drawing, sorting, filtering, colours, keyboard and policy",
    "pty": "what milblob prints to a terminal is not tested",
    "ray": "work is not given to the workers of Ray",
    "rich": "progress bars of rich are not tested",
    "s3fs": "s3:// is not tested",
    "safetensors": "files of safetensors are not compared with its own",
    "sklearn": "palettes are not compared with those of scikit-learn",
    "sphinx": "the site is not built",
    "torch": "that torch takes tensors, and weights read as tensors of torch, are not tested",
    "transformers": "adapters are not merged into real architectures",
}
WITHOUT = {name: f"{name} is not installed: {words}" for name, words in _UNTESTED.items()}
"""Package -> the reason to skip a test without it."""
