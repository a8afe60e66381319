"""Bundles of Apple's Core AI, `.aimodel`: MLIR bytecode that holds a program and all its weights.

    with milblob.open("Model.aimodel") as asset:     # name -> AssetTensor, views of the mapped file
        asset["main/conv2d_0.weight"].read()

It reads, checks, compares and changes them on any system, without Apple's library. docs/aimodel.md has the format.
"""

from .asset import Asset, open_asset
from .program import AssetFunction
from .tensors import AssetTensor

__all__ = ["Asset", "AssetFunction", "AssetTensor", "open_asset"]
