"""From afar: list a package, and read one tensor, over HTTP with 50 ms added to each request.

The package has a Program of 1 MB and 300 weights of 640 MB; the server is on loopback, so that bytes cost little and
round trips decide. The rival reads a safetensors file of the same weights in the same way: its header by range requests,
then the bytes of one tensor. The whole download is what is done today. Round trips and bytes are in the notes of the
rows; tests/remote/test_counts.py asserts them.
"""

import json
import struct
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import milblob

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from far_model import COUNT, WEIGHT, far_package, far_safetensors
from remote_server import Server

LIST = "list a package of 640 MB over HTTP, 50 ms each request"
READ = "one tensor of 1 MiB of it, opened for that"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The package and the rival's file."""
    found = Server({**far_package(), "m.safetensors": far_safetensors()}, delay=0.05)
    yield found
    found.close()


def listed(got: Any) -> None:
    """All names are there."""
    assert len(got) == COUNT


def is_ones(got: Any) -> None:
    """The tensor has the values that are served."""
    assert len(bytes(got)) == 1 << 20
    assert bytes(got)[:8] == b"\0\0\x80\x3f" * 2


def counted(server: Server) -> Any:
    """Facts of the row: what the last call cost."""

    def facts() -> dict[str, Any]:
        return {"requests": len(server.log), "round_trips": server.round_trips(), "moved_nbytes": server.moved()}

    return facts


def get(url: str, begin: int, end: int) -> bytes:
    """One range."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={begin}-{end - 1}"})
    with urllib.request.urlopen(request) as answer:
        return bytes(answer.read())


def safetensors_header(url: str) -> tuple[dict[str, Any], int]:
    """As huggingface_hub reads the header of a remote file: the first 100 kB, and the rest if it is longer."""
    head = get(url, 0, 100_000)
    nbytes = struct.unpack("<Q", head[:8])[0]
    if 8 + nbytes > len(head):
        head += get(url, len(head), 8 + nbytes)
    return json.loads(head[8 : 8 + nbytes]), 8 + nbytes


def bench_list_milblob(row: Any, server: Server) -> None:
    """Names, dtypes and shapes."""

    def run() -> list[tuple[Any, ...]]:
        server.log.clear()
        with milblob.open(f"{server.url}/m.mlpackage") as model:
            return [(name, tensor.dtype, tensor.shape) for name, tensor in model.items()]

    row(LIST, "milblob", run, check=listed, role="milblob", rounds=5, memory=False, facts=counted(server))


def bench_list_safetensors(row: Any, server: Server) -> None:
    """The header of a safetensors file."""

    def run() -> list[str]:
        server.log.clear()
        return list(safetensors_header(f"{server.url}/m.safetensors")[0])

    row(LIST, "safetensors header by range", run, check=listed, rounds=5, memory=False, facts=counted(server))


def bench_list_whole(row: Any, server: Server, tmp_path: Path) -> None:
    """All bytes to a directory, then a local listing."""

    def run() -> list[str]:
        server.log.clear()
        done = milblob.download(f"{server.url}/m.mlpackage", tmp_path, force=True)
        with milblob.open(done.path) as model:
            return list(model)

    row(LIST, "whole download", run, check=listed, rounds=1, memory=False, facts=counted(server))


def bench_read_milblob(row: Any, server: Server) -> None:
    """Open and read."""

    def run() -> Any:
        server.log.clear()
        with milblob.open(f"{server.url}/m.mlpackage") as model:
            return model[WEIGHT].read()

    row(READ, "milblob", run, check=is_ones, role="milblob", rounds=5, memory=False, facts=counted(server))


def bench_read_safetensors(row: Any, server: Server) -> None:
    """The header, then the tensor."""
    url = f"{server.url}/m.safetensors"

    def run() -> bytes:
        server.log.clear()
        header, start = safetensors_header(url)
        begin, end = header[WEIGHT]["data_offsets"]
        return get(url, start + begin, start + end)

    row(READ, "safetensors header by range", run, check=is_ones, rounds=5, memory=False, facts=counted(server))
