"""Language models of transformers whose caches are states, in two functions: Llama, Qwen2 and Whisper, with random weights.

The layers are those of transformers. What calls them is written here, because converters trace tensors: the caches are
buffers, and the mask and the positions of the tokens are inputs.
"""

import coremltools
import numpy as np
import torch
import transformers

transformers.utils.import_utils._torchvision_available = False  # not needed, and often of another version of torch

LENGTH, PROMPT, SOUND = 24, 6, 40
"""Tokens that a cache holds; tokens of one call of the function prefill; columns of Whisper's spectrogram."""


class Caches(torch.nn.Module):
    """Keys and values of each layer, as the attention of transformers reads and writes them: each is a buffer."""

    def __init__(self, prefix, layers, *shape):
        super().__init__()
        self.names = [(f"{prefix}keys{layer}", f"{prefix}values{layer}") for layer in range(layers)]
        for name in sum(self.names, ()):
            self.register_buffer(name, torch.zeros(shape))

    def update(self, keys, values, layer, options):
        """Write what was computed for new tokens to their place, and return all that is there."""
        start = options["cache_position"]
        place = slice(None) if start is None else slice(start, start + keys.shape[2])
        for name, new in zip(self.names[layer], (keys, values), strict=True):
            getattr(self, name)[:, :, place, :] = new
        return [getattr(self, name) for name in self.names[layer]]

    @property
    def key_cache(self):
        return [getattr(self, keys) for keys, _ in self.names]

    @property
    def value_cache(self):
        return [getattr(self, values) for _, values in self.names]


class Text(torch.nn.Module):
    """A Llama or a Qwen2."""

    def __init__(self, network, is_prefill):
        super().__init__()
        self.network, config = network, network.config
        width = config.hidden_size // config.num_attention_heads
        self.caches = Caches("", config.num_hidden_layers, 1, config.num_key_value_heads, LENGTH, width)

    def forward(self, tokens, positions, mask):
        inner = self.network.model
        values = inner.embed_tokens(tokens)
        angles = inner.rotary_emb(values, positions)
        for layer in inner.layers:
            values = layer(
                values, attention_mask=mask, position_ids=positions, past_key_value=self.caches,
                position_embeddings=angles, cache_position=positions[0, 0],
            )[0]  # fmt: skip
        return self.network.lm_head(inner.norm(values))


class Speech(torch.nn.Module):
    """A Whisper. Its function prefill encodes the sound too, and keeps the keys and values that the decoder makes of it."""

    def __init__(self, network, is_prefill):
        super().__init__()
        self.network, self.is_prefill, config = network, is_prefill, network.config
        heads, width = config.decoder_attention_heads, config.d_model // config.decoder_attention_heads
        self.self_attention_cache = Caches("", config.decoder_layers, 1, heads, LENGTH, width)
        self.cross_attention_cache = Caches("sound_", config.decoder_layers, 1, heads, SOUND // 2, width)

    def forward(self, tokens, positions, mask, sound=None):
        decoder = self.network.model.decoder
        values = decoder.embed_tokens(tokens) + decoder.embed_positions.weight[positions]
        heard = self.network.model.encoder(sound)[0] if self.is_prefill else values
        self.is_updated = dict.fromkeys(range(len(decoder.layers)), not self.is_prefill)
        for layer in decoder.layers:
            values = layer(
                values, attention_mask=mask, encoder_hidden_states=heard, past_key_value=self, use_cache=True,
                cache_position=positions[0, 0],
            )[0]  # fmt: skip
        return self.network.proj_out(decoder.layer_norm(values))


def llama(width, vocabulary):
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=2,
        num_attention_heads=max(width // 64, 2), num_key_value_heads=max(width // 256, 1), attn_implementation="eager",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def qwen2(width, vocabulary):
    config = transformers.Qwen2Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=2,
        num_attention_heads=max(width // 64, 2), num_key_value_heads=max(width // 448, 1), attn_implementation="eager",
        tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.Qwen2ForCausalLM(config)


def whisper(width, vocabulary):
    heads = max(width // 64, 2)
    config = transformers.WhisperConfig(
        vocab_size=vocabulary, d_model=width, encoder_layers=2, decoder_layers=2, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, num_mel_bins=16,
        max_source_positions=SOUND // 2, max_target_positions=LENGTH, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, attn_implementation="eager", tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


MAKERS = {"llama": (llama, Text), "qwen2": (qwen2, Text), "whisper": (whisper, Speech)}


def make(name, width, vocabulary=512, seed=0):
    """Return a network whose norms and biases are random too."""
    torch.manual_seed(seed)
    network = MAKERS[name][0](width, vocabulary)
    with torch.no_grad():
        for key, value in network.named_parameters():
            if key.endswith("bias") or "norm" in key:
                value.add_(torch.randn(value.shape) * 0.1)
    return network.eval()


def inputs_of(name, function, start, seed=0):
    """Return the inputs of a call: tokens from a place on, and the mask that lets each see what came before it."""
    random, count = np.random.default_rng((seed, start)), PROMPT if function == "prefill" else 1
    positions = np.arange(start, start + count, dtype=np.int32)
    mask = np.where(np.arange(LENGTH) <= positions[:, None], 0, -1e4).astype(np.float16)[None, None]
    found = {"tokens": random.integers(0, 512, (1, count), np.int32), "positions": positions[None], "mask": mask}
    if name == "whisper" and function == "prefill":
        found["sound"] = random.standard_normal((1, 16, SOUND)).astype(np.float16)
    return found


def trained(model, seed):
    """Give all parameters that PEFT trains random values, and the base too where PEFT has made ones or zeros of them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.requires_grad:
                noise = torch.randn(value.shape, generator=generator) * 0.1
                value.copy_(value + noise if "magnitude" in name or "lora_" not in name else noise)


def convert(name, network, function, path):
    """Write the package of one function, converted by coremltools."""
    model = MAKERS[name][1](network, function == "prefill").eval()
    arrays = inputs_of(name, function, 0)
    example = [
        torch.from_numpy(array if array.dtype == np.int32 else array.astype(np.float32)) for array in arrays.values()
    ]
    with torch.no_grad():
        traced = torch.jit.trace(model, tuple(example), check_trace=False)
    inputs = [coremltools.TensorType(key, array.shape, array.dtype.type) for key, array in arrays.items()]
    states = [
        coremltools.StateType(coremltools.TensorType(shape=tuple(one.shape), dtype=np.float16), name=key)
        for key, one in model.named_buffers()
        if "cache" in key
    ]
    converted = coremltools.convert(
        traced, inputs=inputs, outputs=[coremltools.TensorType("logits", dtype=np.float16)], states=states,
        minimum_deployment_target=coremltools.target.iOS18, skip_model_load=True,
    )  # fmt: skip
    converted.save(str(path))
    return path


def join_functions(packages, path):
    """Write one package of several functions, {function: package}, by coremltools."""
    descriptor = coremltools.utils.MultiFunctionDescriptor()
    for function, package in packages.items():
        descriptor.add_function(str(package), "main", function)
    descriptor.default_function_name = next(iter(packages))
    coremltools.utils.save_multifunction(descriptor, str(path))
    return path
