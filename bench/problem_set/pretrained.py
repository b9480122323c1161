"""Models of transformers and timm, a few layers each, with random weights: nothing is downloaded.

`transformers` and `timm` are imported when one of their models is built.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from problem_set.core import Made, Problem, add

DECODER = dict(vocab_size=8192, hidden_size=1024, num_hidden_layers=4, num_attention_heads=16,
               intermediate_size=2816, use_cache=False)  # fmt: skip
ENCODER = dict(vocab_size=8192, hidden_size=768, num_hidden_layers=4, num_attention_heads=12,
               intermediate_size=3072)  # fmt: skip
T5 = dict(vocab_size=8192, d_model=768, d_kv=64, d_ff=2048, num_layers=4, num_heads=12,
          feed_forward_proj="gated-gelu")  # fmt: skip
DEBERTA = ENCODER | dict(
    relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=128, share_att_key=True,
    norm_rel_ebd="layer_norm",
)
GROUPED = DECODER | dict(num_key_value_heads=4)
MAMBA = dict(vocab_size=8192, hidden_size=768, num_hidden_layers=2, state_size=16, use_cache=False)
_RANDOM = ("dropout", "pdrop", "layerdrop", "drop_path", "mask_time_prob", "mask_feature_prob")


def ids(length: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randint(0, 8192, (batch, length))


def images(side: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randn(batch, 3, side, side)


def transformers_problem(
    name: str, model: str, config: dict, inputs: Callable[[int], Tensor], scale: int,
    config_class: str = "",
) -> None:  # fmt: skip
    """`model`: the name of the class; `inputs(batch)`; `scale`: the batch on a GPU."""

    def make(batch: int) -> Made:
        import transformers

        kind = config_class or model.removesuffix("ForCausalLM") + "Config"
        chosen = without_chance(getattr(transformers, kind)(**config))
        return getattr(transformers, model)(chosen), [inputs(batch)]

    add(Problem(name, "transformers", make, scale, needs="transformers", low=True))


def without_chance(config):
    """The configuration with every probability of dropping or masking something set to 0."""
    for field, value in vars(config).items():
        if isinstance(value, float) and any(word in field for word in _RANDOM):
            setattr(config, field, 0.0)
    return config


def timm_problem(name: str, scale: int = 16) -> None:
    def make(batch: int) -> Made:
        import timm

        return timm.create_model(name), [torch.randn(batch, 3, 224, 224)]

    add(Problem(name, "timm", make, scale, needs="timm", low=True))


def decoders() -> None:
    for name, model, config in (
        ("qwen3", "Qwen3", GROUPED | dict(head_dim=64)),
        ("gemma2", "Gemma2", GROUPED | dict(head_dim=64)),
        ("phi3", "Phi3", GROUPED | dict(pad_token_id=0)),
        ("mixtral", "Mixtral", GROUPED | dict(num_local_experts=4, intermediate_size=1024)),
        ("olmo2", "Olmo2", GROUPED),
        ("gpt_neox", "GPTNeoX", DECODER),
        ("bloom", "Bloom", DECODER | dict(n_head=16)),
        ("falcon", "Falcon", DECODER),
    ):
        transformers_problem(name, f"{model}ForCausalLM", config, ids(512), 4)
    transformers_problem("mamba", "MambaForCausalLM", MAMBA, ids(64), 2)


def encoders() -> None:
    for name, model, config, length, scale in (
        ("t5_encoder", "T5EncoderModel", T5, 256, 8),
        ("deberta", "DebertaV2Model", DEBERTA, 256, 8),
        ("distilbert", "DistilBertModel", dict(vocab_size=8192, n_layers=4), 128, 32),
        ("albert", "AlbertModel", ENCODER, 256, 16),
    ):
        kind = f"{model.removesuffix('Model').removesuffix('Encoder')}Config"
        transformers_problem(name, model, config, ids(length), scale, kind)


def seeing_and_hearing() -> None:
    four = dict(num_hidden_layers=4)
    for name, model, config, side, scale in (
        ("swin", "SwinModel", {}, 224, 16),
        ("dinov2", "Dinov2Model", four, 224, 16),
        ("clip_vision", "CLIPVisionModel", four, 224, 16),
        ("segformer", "SegformerForSemanticSegmentation", {}, 256, 4),
    ):
        kind = f"{model.removesuffix('ForSemanticSegmentation').removesuffix('Model')}Config"
        transformers_problem(name, model, config, images(side), scale, kind)
    add(Problem("wav2vec2", "transformers", wav2vec2, 4, needs="transformers", low=True))


def wav2vec2(batch: int) -> Made:
    """Its encoder of features is frozen, as for fine-tuning. Otherwise its forward asks for a
    gradient of the sound, which eager refuses where the sound has one."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    model = Wav2Vec2Model(without_chance(Wav2Vec2Config(num_hidden_layers=2)))
    model.freeze_feature_encoder()
    return model, [torch.randn(batch, 32000)]


decoders()
encoders()
seeing_and_hearing()
for _name in ("convnext_tiny", "efficientnet_b0", "mobilenetv3_large_100", "regnety_016",
              "mixer_b16_224", "densenet121", "resnet18"):  # fmt: skip
    timm_problem(_name)
