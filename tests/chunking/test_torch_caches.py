"""Networks of torch whose caches are states, cut into chunks: the same outputs and the same states, step by step."""

import numpy as np
import pytest

import milblob
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
pytest.importorskip("onnxruntime", reason=WITHOUT["onnxruntime"])
pytest.importorskip("torch", reason=WITHOUT["torch"])

import coremltools as ct
import torch

LAYERS, HEADS, WIDTH, LENGTH = 8, 4, 64, 12


class Attention(torch.nn.Module):
    """Attention over a cache of keys and values, of which one place is written in each step."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, LENGTH, WIDTH))

    def forward(self, x, mask, place):
        def heads(t):
            return t.reshape(1, -1, HEADS, WIDTH // HEADS).transpose(1, 2)

        self.keys[:, :, :] = self.keys * (1 - place) + self.key(x) * place
        self.values[:, :, :] = self.values * (1 - place) + self.value(x) * place
        scores = heads(self.query(x)) @ heads(self.keys).transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        return self.out((torch.softmax(scores + mask, -1) @ heads(self.values)).transpose(1, 2).reshape(1, 1, WIDTH))


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(100, WIDTH)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2 * LAYERS))
        self.layers = torch.nn.ModuleList(Attention() for _ in range(LAYERS))
        self.up = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 2 * WIDTH) for _ in range(LAYERS))
        self.down = torch.nn.ModuleList(torch.nn.Linear(2 * WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, 100)

    def forward(self, token, mask, place):
        x = self.embed(token)
        for i, layer in enumerate(self.layers):
            x = x + layer(self.norms[2 * i](x), mask, place)
            x = x + self.down[i](torch.nn.functional.silu(self.up[i](self.norms[2 * i + 1](x))))
        return self.head(x)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    torch.manual_seed(5)
    network = Decoder().eval()
    example = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, LENGTH), torch.zeros(1, LENGTH, 1)
    names = [name for name, _ in network.named_buffers()]
    path = tmp_path_factory.mktemp("torch") / "decoder.mlpackage"
    model = ct.convert(
        torch.jit.trace(network, example),
        inputs=[
            ct.TensorType("token", (1, 1), np.int32),
            ct.TensorType("mask", (1, 1, 1, LENGTH), np.float32),
            ct.TensorType("place", (1, LENGTH, 1), np.float32),
        ],
        outputs=[ct.TensorType("logits", dtype=np.float32)],
        states=[ct.StateType(ct.TensorType(shape=(1, LENGTH, WIDTH), dtype=np.float16), name=name) for name in names],
        minimum_deployment_target=ct.target.iOS18,
        compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    )
    model.save(str(path))
    return path


def inputs_of(step):
    mask = np.where(np.arange(LENGTH) <= step, 0, -1e4).astype(np.float32).reshape(1, 1, 1, LENGTH)
    place = (np.arange(LENGTH) == step).astype(np.float32).reshape(1, LENGTH, 1)
    return {"token": np.full((1, 1), 7 * step + 3, np.int32), "mask": mask, "place": place}


@pytest.mark.thorough
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_chunks_of_a_decoder_of_torch_compute_the_same_step_by_step(decoder, tmp_path, parts):
    report = milblob.chunk(decoder, tmp_path / "parts", parts=parts)
    paths = [chunk.path for chunk in report.chunks]
    assert sum(len(chunk.states["main"]) for chunk in report.chunks) == 2 * LAYERS
    checked = milblob.verify(decoder, paths, runs=3)
    assert {one.name: one.differing for one in checked.outputs} == {one.name: 0 for one in checked.outputs}
    assert len(checked.outputs) == 1 + 2 * LAYERS

    with milblob.Session(decoder) as whole, milblob.Session(paths) as chain:
        states, others, seen = whole.make_state(), chain.make_state(), []
        for step in range(5):
            expected = whole.predict(inputs_of(step), states)["logits"]
            found = chain.predict(inputs_of(step), others)["logits"]
            np.testing.assert_array_equal(found, expected)
            seen.append(expected)
        assert not np.array_equal(seen[0], seen[1])

    milblob.join(paths, tmp_path / "whole.mlpackage")
    assert milblob.content_hash(tmp_path / "whole.mlpackage").model == milblob.content_hash(decoder).model
