"""Files of other formats, as their own writers make them: the first bytes of each."""

import gzip
import io
import lzma
import struct
import tarfile
import zipfile

import numpy as np

LFS_POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12345\n".encode()


def zip_of(*names, data=b"x" * 40):
    """A zip archive whose members have these names."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, data)
    return stream.getvalue()


def _npy():
    stream = io.BytesIO()
    np.save(stream, np.arange(12, dtype=np.float32))
    return stream.getvalue()


def _npz():
    stream = io.BytesIO()
    np.savez(stream, w=np.arange(12, dtype=np.float32), b=np.zeros(3, np.float32))
    return stream.getvalue()


def _tar():
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.mlpackage/Manifest.json"))
    return stream.getvalue()


_GGUF = b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"w", 1, 2, 0, 0).ljust(60, b"\0") + bytes(8)
_SAFETENSORS = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'

# torch 2.13 (`torch.save`, and with _use_new_zipfile_serialization=False), onnx 1.20, gguf 0.19, h5py 3.15: what their
# writers begin a file with. ("x/data.pkl" has its size after its data.)
TORCH = b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\n\0\x18\0x/data.pklFB\x14\0ZZZZZZZZZZZZZZZZZZZZ\x80\x02}q\0."
LEGACY_TORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e80024de9032e80027d71002858")
ONNX = (
    b'\x08\x0e:P\n\x0e\n\x01x\n\x01w\x12\x01y"\x03Add\x12\x01g*\x19\x08\x04\x10\x01B\x01wJ\x10\0\0\0\0\0\0\x80?\0\0\0@\0\0@@'
    b"Z\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x04b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x04B\x02\x10\x1c"
)

# File name: its bytes, what it is called, words of the advice, the code of the error.
OTHERS = {
    "w.safetensors": (len(_SAFETENSORS).to_bytes(8, "little") + _SAFETENSORS + bytes(8), "safetensors", "milblob ls"),
    "w.npz": (_npz(), "npz", "milblob ls"),
    "w.npy": (_npy(), "npy", "milblob ls"),
    "w.dat": (_npy(), "npy", "if its name ends in .npy"),
    "p.dat": (struct.pack("<4Q", 0xF7E58D4F05049CB7, 0, 0, 0), "params", "if its name ends in .params"),
    "x.pt": (TORCH, "pytorch", "safetensors.torch.save_file"),
    "old.pth": (LEGACY_TORCH, "pytorch", "safetensors.torch.save_file"),
    "pytorch_model.bin": (TORCH, "pytorch", "safetensors.torch.save_file"),
    "script.pt": (zip_of("net/code/net.py", "net/constants.pkl"), "pytorch", "safetensors.torch.save_file"),
    "x.pkl": (b"\x80\x04\x95\xf1\0\0\0\0\0\0\0}\x94(\x8c\x01w\x94.", "pickle", "safetensors"),
    "a.zipped": (zip_of("m.mlpackage/Manifest.json", "m.mlpackage/Data/x"), "zip", "unzip"),
    "zipped.mlpackage": (zip_of("Manifest.json", "Data/x"), "zip", "name it"),
    "b.zip": (zip_of("readme.txt"), "zip", "unzip"),
    "net.keras": (zip_of("metadata.json", "config.json", "model.weights.h5"), "keras", "npz"),
    "weight.bin.gz": (gzip.compress(b"x" * 100), "compressed", "gunzip"),
    "weight.bin.xz": (lzma.compress(b"x" * 100), "compressed", "unxz"),
    "m.bin": (_tar(), "tar", "tar xf"),
    "net.onnx": (ONNX, "onnx", "milblob ls"),
    "net.dat": (ONNX, "onnx", "if its name ends in .onnx"),
    "net.tflite": (b"\x20\0\0\0TFL3" + bytes(60), "tflite", "Core ML"),
    "m.gguf": (_GGUF, "gguf", "milblob ls"),
    "m.h5": (b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0" + bytes(60), "hdf5", "npz"),
    "page.html": (b"<!DOCTYPE html>\n<html><head><title>404</title></head>", "html", "download"),
    "weight.bin": (b"\xef\xbb\xbf\n<html lang=en>" + bytes(100), "html", "download"),
    "model.mlmodel": (b"<!doctype HTML>" + b" " * 100, "html", "download"),
    "page.mil": (b"<html></html>", "html", "download"),
    "answer.xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "xml", ""),
    "answer.json": (b'{"error": "Repository not found"}', "json", "Repository not found"),
    "answer.bin": (b"Entry not found", "text", "Entry not found"),
}
TEXTS = ("xml", "json", "text")


def code_of(kind):
    """The code of the error about a file of this kind."""
    return "web-page" if kind == "html" else "not-a-model" if kind in TEXTS else "other-format"
