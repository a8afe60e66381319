"""The networks of the zoo: architectures of torchvision, timm and transformers, with random weights, as small as they come.

A network is a function that returns a torch module and its example inputs. `NETWORKS` has them by name, "library/name".
"""

import torch

SEED = 5

# The torchvision that PyPI has is made for a torch with CUDA: beside another one its operators do not load, and importing it
# fails. No network here runs them, so two that are only named are enough.
_NAMED = torch.library.Library("torchvision", "DEF")
if not hasattr(torch.ops.torchvision, "nms"):
    for _operator in ("nms", "qnms"):
        _NAMED.define(f"{_operator}() -> Tensor")


class First(torch.nn.Module):
    """A network of which one output counts: the first tensor."""

    def __init__(self, inner, *, decoder=False, **options):
        super().__init__()
        self.inner, self.options, self.decoder = inner, options, decoder

    def forward(self, *inputs):
        found = self.inner(*inputs, **self.options)
        while not isinstance(found, torch.Tensor):
            found = next(iter(found.values())) if isinstance(found, dict) else found[0]
        return found


def _image(size, count=3):
    return (torch.randn(1, count, size, size),)


def _torchvision(name, size=64, **options):
    def make():
        import torchvision

        return torchvision.models.get_model(name, weights=None, num_classes=10, **options), _image(size)

    return make


def _timm(name, size=64, **options):
    def make():
        import timm

        return timm.create_model(name, pretrained=False, num_classes=10, **options), _image(size)

    return make


_TINY = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 120,
    "max_position_embeddings": 64,
}  # fmt: skip


def _text(model, config, length=16, **options):
    def make():
        import transformers

        settings = {**_TINY, **options, "attn_implementation": "eager", "use_cache": False}
        network = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return First(network, return_dict=False), (torch.randint(3, 100, (1, length)),)

    return make


def _vision(model, config, size=64, **options):
    def make():
        import transformers

        small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        settings = {**small, "image_size": size, "patch_size": 16, **options, "attn_implementation": "eager"}
        settings = {key: value for key, value in settings.items() if value is not None}
        network = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return First(network, return_dict=False), _image(size)

    return make


def _sound(model, config, shape, **options):
    def make():
        import transformers

        settings = {**options, "attn_implementation": "eager"}
        network = getattr(transformers, model)(getattr(transformers, config)(**settings))
        network = network.encoder if hasattr(network, "encoder") and model.startswith("Whisper") else network
        return First(network, return_dict=False), (torch.randn(shape),)

    return make


_TORCHVISION = {
    "alexnet": {"size": 96}, "vgg11": {}, "vgg11_bn": {}, "resnet18": {}, "resnet50": {}, "resnext50_32x4d": {}, "wide_resnet50_2": {},
    "mobilenet_v2": {}, "mobilenet_v3_small": {}, "mobilenet_v3_large": {}, "efficientnet_b0": {}, "efficientnet_v2_s": {},
    "densenet121": {}, "squeezenet1_0": {"size": 96}, "squeezenet1_1": {"size": 96}, "shufflenet_v2_x0_5": {}, "shufflenet_v2_x1_0": {},
    "regnet_y_400mf": {}, "regnet_x_400mf": {}, "mnasnet0_5": {}, "mnasnet1_0": {}, "convnext_tiny": {}, "swin_t": {},
    "swin_v2_t": {}, "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"size": 128, "aux_logits": False, "init_weights": False},
    "vit_b_16": {"size": 224}, "maxvit_t": {"size": 224},
}  # fmt: skip

_TIMM = {
    "fastvit_t8": {}, "efficientformer_l1": {"size": 224}, "efficientformerv2_s0": {"size": 224}, "repvgg_a0": {}, "mobileone_s0": {}, "mobileone_s1": {},
    "levit_128s": {"size": 224}, "gernet_s": {}, "nfnet_l0": {}, "resnetv2_50": {}, "resnetv2_50x1_bit": {}, "mixer_s32_224": {"size": 224},
    "poolformer_s12": {}, "edgenext_xx_small": {}, "mobilevit_xxs": {}, "mobilevitv2_050": {}, "ghostnet_050": {}, "ghostnetv2_100": {},
    "hardcorenas_a": {}, "tinynet_e": {}, "semnasnet_050": {}, "lcnet_050": {}, "mobilenetv4_conv_small": {}, "mobilenetv3_small_050": {},
    "efficientnet_lite0": {}, "mixnet_s": {}, "fbnetc_100": {}, "spnasnet_100": {}, "rexnet_100": {}, "res2net50_26w_4s": {},
    "resnest14d": {}, "skresnet18": {}, "seresnet18": {}, "ecaresnet26t": {}, "resnetrs50": {}, "dla34": {}, "dpn48b": {},
    "hrnet_w18_small": {}, "cspresnet50": {}, "cspdarknet53": {}, "darknet21": {}, "selecsls42b": {}, "vovnet39a": {},
    "xception41": {}, "legacy_seresnet18": {}, "regnetz_005": {}, "nf_resnet50": {}, "dm_nfnet_f0": {}, "convnext_atto": {},
    "convnextv2_atto": {}, "convmixer_768_32": {}, "convit_tiny": {"size": 224}, "deit_tiny_patch16_224": {"size": 224},
    "deit3_small_patch16_224": {"size": 224, "depth": 3}, "vit_tiny_patch16_224": {"size": 224, "depth": 3},
    "beit_base_patch16_224": {"size": 224, "depth": 2}, "cait_xxs24_224": {"size": 224, "depth": 2}, "crossvit_tiny_240": {"size": 240},
    "coat_tiny": {"size": 224}, "pit_ti_224": {"size": 224}, "pvt_v2_b0": {}, "twins_svt_small": {"size": 224},
    "swin_tiny_patch4_window7_224": {"size": 224, "depths": (1, 1, 1, 1)}, "swinv2_cr_tiny_ns_224": {"size": 224, "depths": (1, 1, 1, 1)},
    "xcit_nano_12_p16_224": {"size": 224, "depth": 2}, "visformer_tiny": {"size": 224}, "volo_d1_224": {"size": 224},
    "gmlp_s16_224": {"size": 224}, "resmlp_12_224": {"size": 224}, "tnt_s_patch16_224": {"size": 224, "depth": 2},
    "repghostnet_050": {}, "repvit_m0_9": {}, "inception_next_atto": {}, "starnet_s1": {}, "mambaout_femto": {}, "focalnet_tiny_srf": {"size": 64},
    "davit_tiny": {"size": 64, "depths": (1, 1, 1, 1)}, "efficientvit_b0": {}, "efficientvit_m0": {"size": 224}, "tiny_vit_5m_224": {"size": 224},
    "hiera_tiny_224": {"size": 224}, "eva02_tiny_patch14_224": {"size": 224, "depth": 2}, "sequencer2d_s": {"size": 224, "layers": (1, 1, 1, 1)},
    "maxvit_rmlp_pico_rw_256": {"size": 256}, "coatnet_nano_rw_224": {"size": 224}, "haloregnetz_b": {"size": 224}, "lambda_resnet26t": {"size": 256},
    "botnet26t_256": {"size": 256}, "gcresnet33ts": {}, "eca_botnext26ts_256": {"size": 256}, "tresnet_m": {}, "test_resnet": {}, "test_vit": {"size": 160},
}  # fmt: skip

_TEXT = {
    "bert": ("BertModel", "BertConfig", {}),
    "bert_classifier": ("BertForSequenceClassification", "BertConfig", {}),
    "bert_long": ("BertModel", "BertConfig", {"max_position_embeddings": 512}),
    "distilbert": ("DistilBertModel", "DistilBertConfig", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}),
    "roberta": ("RobertaModel", "RobertaConfig", {}),
    "electra": ("ElectraModel", "ElectraConfig", {"embedding_size": 64}),
    "albert": ("AlbertModel", "AlbertConfig", {"embedding_size": 32}),
    "mobilebert": ("MobileBertModel", "MobileBertConfig", {"embedding_size": 32, "intra_bottleneck_size": 32}),
    "deberta_v2": ("DebertaV2Model", "DebertaV2Config", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "mpnet": ("MPNetModel", "MPNetConfig", {}),
    "xlm_roberta": ("XLMRobertaModel", "XLMRobertaConfig", {}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4}),
    "gpt_neo": ("GPTNeoModel", "GPTNeoConfig", {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {}),
    "opt": ("OPTForCausalLM", "OPTConfig", {"ffn_dim": 128, "word_embed_proj_dim": 64}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"num_key_value_heads": 2}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"num_key_value_heads": 2}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {"num_key_value_heads": 2}),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {"num_key_value_heads": 2, "head_dim": 16}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {"num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16}),
    "phi": ("PhiForCausalLM", "PhiConfig", {}),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", {}),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", {"num_key_value_heads": 2}),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"n_head": 4, "n_layer": 2}),
    "t5_encoder": ("T5EncoderModel", "T5Config", {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}),
    "convbert": ("ConvBertModel", "ConvBertConfig", {"embedding_size": 64}),
    "squeezebert": ("SqueezeBertModel", "SqueezeBertConfig", {"embedding_size": 64}),
    "nystromformer": ("NystromformerModel", "NystromformerConfig", {"segment_means_seq_len": 16, "num_landmarks": 4}),
    "fnet": ("FNetModel", "FNetConfig", {}),
    "clip_text": ("CLIPTextModel", "CLIPTextConfig", {}),
}  # fmt: skip

_VISION = {
    "vit": ("ViTModel", "ViTConfig", {}),
    "deit": ("DeiTModel", "DeiTConfig", {}),
    "beit": ("BeitModel", "BeitConfig", {"use_relative_position_bias": True, "use_absolute_position_embeddings": True}),
    "clip_vision": ("CLIPVisionModel", "CLIPVisionConfig", {}),
    "dinov2": ("Dinov2Model", "Dinov2Config", {"patch_size": 14, "size": 56}),
    "siglip_vision": ("SiglipVisionModel", "SiglipVisionConfig", {}),
    "segformer": ("SegformerModel", "SegformerConfig", {"hidden_size": None, "num_hidden_layers": None, "num_attention_heads": [1, 2, 2, 4], "intermediate_size": None, "patch_size": None, "depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64]}),
    "swin": ("SwinModel", "SwinConfig", {"hidden_size": None, "patch_size": 4, "embed_dim": 24, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4, "num_hidden_layers": None, "num_attention_heads": None, "intermediate_size": None}),
    "convnext": ("ConvNextModel", "ConvNextConfig", {"hidden_size": None, "num_hidden_layers": None, "num_attention_heads": None, "intermediate_size": None, "patch_size": 4, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}),
    "mobilevit": ("MobileViTModel", "MobileViTConfig", {"hidden_size": None, "num_hidden_layers": None, "intermediate_size": None, "patch_size": 2, "hidden_sizes": [32, 48, 64], "neck_hidden_sizes": [8, 16, 24, 32, 48, 64, 96]}),
    "dpt": ("DPTModel", "DPTConfig", {}),
    "poolformer": ("PoolFormerModel", "PoolFormerConfig", {"hidden_size": None, "num_hidden_layers": None, "num_attention_heads": None, "intermediate_size": None, "patch_size": 7, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}),
    "regnet": ("RegNetModel", "RegNetConfig", {"hidden_size": None, "num_hidden_layers": None, "num_attention_heads": None, "intermediate_size": None, "patch_size": None, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "groups_width": 8}),
    "resnet": ("ResNetModel", "ResNetConfig", {"hidden_size": None, "num_hidden_layers": None, "num_attention_heads": None, "intermediate_size": None, "patch_size": None, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}),
    "yolos": ("YolosModel", "YolosConfig", {"image_size": [64, 64], "num_detection_tokens": 10}),
    "levit": ("LevitModel", "LevitConfig", {"hidden_size": None, "num_hidden_layers": None, "image_size": 64, "hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1], "key_dim": [8, 8, 8], "intermediate_size": None}),
}  # fmt: skip

_SOUND = {
    "whisper_encoder": ("WhisperModel", "WhisperConfig", (1, 80, 200), {"d_model": 64, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_source_positions": 100, "vocab_size": 120, "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 1}),
    "wav2vec2": ("Wav2Vec2Model", "Wav2Vec2Config", (1, 3200), {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "conv_dim": (32, 32, 32), "conv_stride": (5, 4, 4), "conv_kernel": (10, 4, 4), "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 3}),
    "hubert": ("HubertModel", "HubertConfig", (1, 3200), {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "conv_dim": (32, 32, 32), "conv_stride": (5, 4, 4), "conv_kernel": (10, 4, 4), "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 3}),
    "ast": ("ASTModel", "ASTConfig", (1, 64, 32), {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "max_length": 64, "num_mel_bins": 32}),
}  # fmt: skip

NETWORKS = {
    **{f"torchvision/{name}": _torchvision(name, **options) for name, options in _TORCHVISION.items()},
    **{f"timm/{name}": _timm(name, **options) for name, options in _TIMM.items()},
    **{f"transformers/{name}": _text(model, config, **options) for name, (model, config, options) in _TEXT.items()},
    **{f"transformers/{name}": _vision(model, config, **options) for name, (model, config, options) in _VISION.items()},
    **{
        f"transformers/{name}": _sound(model, config, shape, **options)
        for name, (model, config, shape, options) in _SOUND.items()
    },
}
"""Name -> a function without arguments that returns a torch module and a tuple of its inputs."""


def random_weights(network, seed):
    """Give every parameter and buffer of floats other values, of sizes with which the network still computes.

    Batch norms get means and variances that are not trivial; nothing stays zeros or ones.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(like):
        return torch.randn(like.shape, generator=generator)

    with torch.no_grad():
        for name, value in network.state_dict().items():
            if not value.is_floating_point():
                continue
            last = name.rpartition(".")[2]
            if last in ("inv_freq", "original_inv_freq"):
                continue  # a table in a buffer: no training changes it
            if "running_var" in last:
                new = 0.5 + torch.rand(value.shape, generator=generator)
            elif "running_mean" in last:
                new = 0.2 * noise(value)
            elif value.numel() > 1 and bool((value == value.reshape(-1)[0]).all()):
                new = value + 0.1 * noise(value)
            elif value.numel() == 1:
                new = value * (1 + 0.1 * noise(value)) + 0.01 * noise(value)
            else:
                new = value * (1 + 0.2 * noise(value)) + 0.2 * value.std() * noise(value)
            value.copy_(new)
