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
# One of each of most families of timm.
TIMM_FAMILIES = """
    beit_base_patch16_224 halo2botnet50ts_256 gcresnet33ts cait_xxs24_224 coat_lite_small
    convit_small convmixer_768_32 crossvit_15_240 cs3darknet_l davit_tiny deit3_small_patch16_224
    dla60_res2net dpn68b edgenext_base efficientformer_l1 efficientformerv2_l efficientvim_m3
    efficientvit_b2 efficientvit_m4 eva02_tiny_patch14_224 fasternet_s fastvit_t12 focalnet_tiny_srf
    gcvit_xtiny ghostnetv2_130 hgnet_small hiera_tiny_224 hrnet_w18_ssld inception_next_tiny
    inception_resnet_v2 inception_v3 levit_256 mambaout_tiny coatnet_0_224 maxvit_tiny_rw_224
    caformer_s18 gmlp_s16_224 resmlp_12_224 fbnetv3_g mobilevit_s mobilevitv2_100 mvitv2_tiny
    nest_tiny nextvit_small dm_nfnet_f0 pit_s_224 pvt_v2_b2_li regnetv_040 repvit_m1_5
    res2net50_14w_8s resnest26d resnetv2_34 rexnet_200 selecsls42 legacy_seresnet34 sequencer2d_s
    shvit_s4 skresnet34 starnet_s4 swiftformer_l1 swinv2_tiny_window8_256 swinv2_cr_tiny_224
    tiny_vit_11m_224 tnt_s_patch16_224 tresnet_m twins_pcpvt_small vgg11_bn visformer_tiny
    volo_d1_224 eca_vovnet39b legacy_xception xception41p xcit_tiny_12_p16_224
"""
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


def timm_problem(name: str, group: str = "timm", scale: int = 16) -> None:
    def make(batch: int) -> Made:
        import timm

        model = timm.create_model(name)
        return model, [torch.randn(batch, *model.default_cfg["input_size"])]

    add(Problem(name, group, make, scale, needs="timm", low=True))


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
for _name in TIMM_FAMILIES.split():
    timm_problem(_name, "timm_families")
