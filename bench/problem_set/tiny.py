"""Tiny models of transformers with random weights, from the default configuration of each
architecture. Rules go by the names of fields and arguments: no architecture is known."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from problem_set.pretrained import without_chance
from torchweld.exact.trees import tensors

MOST_PARAMETERS = 30_000_000
BATCH, LENGTH = 2, 13
TEXT_FIRST = 3  # smaller numbers are usually special

# The most that a field of a configuration may be; the first pattern that its name matches counts.
Rules = tuple[tuple[str, int], ...]


def depths(most: int) -> Rules:
    of_layers = r"(num_.*)?(layers?|blocks|depth)$|^n_layers?$|^depths$|blocks_per_stage"
    return (r"block_repeats|stage_num_blocks", 1), (of_layers, most)


COMMON = (
    (r"vocab_size|num_embeddings$|n_words", 96),
    (r"codebook_size|codevectors_per", 64),
    (r"pad_token_id", 0),
    (r"token_(id|index)$", 95),
    (r"(local|routed|moe_num|num)_experts$|expert_num", 4),
    (r"experts_per_tok|top_?k$", 2),
    (r"max_.*positions?|n_positions|position_embeddings", 512),
)


def widths(width: int, head: int, heads_of_keys: int) -> Rules:
    return (
        (r"key_value_heads|kv_heads", heads_of_keys),
        (r"heads?$|^n_head$", 4),
        (r"head_dim|^d_kv$|dim_head|d_head|rope_dim|v_head", head),
        (r"rotary_dim", 8),
        (r"lora_rank", 16),
        (r"intermediate|ffn|mlp_dim|d_ff|inner", 2 * width),
        (r"hidden_size|hidden_dim|d_model|n_embd|emb(ed)?_dim|embedding_size|embedding_dim|^dim$|"
         r"projection_dim|projector_hidden|out_hidden|output_dim|lru_width|query_dim|d_latents",
         width),
    )  # fmt: skip


IMAGES = ((r"image_size", 64), (r"image_embedding_size", 4))  # patches of 16 pixels
SMALL = (*COMMON, *widths(32, 16, 2))
# Ways to make an architecture small, the smallest first. The first that can be called is taken.
# Some need five layers to have one of each kind, some as many heads of keys, some long heads.
RULES = (
    (*depths(1), *SMALL, *IMAGES), (*depths(2), *SMALL), (*depths(5), *SMALL),
    (*depths(2), *COMMON, *widths(32, 16, 4)), (*depths(2), *COMMON, *widths(32, 8, 4)),
    (*depths(5), *COMMON, *widths(512, 128, 4), *IMAGES), (*depths(2), *COMMON, *IMAGES),
    (*depths(2), *COMMON), depths(2),
)  # fmt: skip


class NoModel(Exception):
    """The architecture cannot be made small, or called, by these rules."""


def architectures() -> list[str]:
    """The names of all architectures that have a model."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


@dataclass(frozen=True)
class Tiny:
    """A model, and keyword arguments to call it with."""

    model: nn.Module
    inputs: dict[str, Tensor]


def tiny(name: str, train: bool) -> Tiny:
    """Errors: NoModel with what went wrong last."""
    said: list[str] = []
    for rules in RULES:
        for kind in _classes(name):
            try:
                return _called(kind, _config(kind.config_class, rules), train)
            except Exception as error:  # whatever sizes that do not fit lead to
                said.append(f"{kind.__name__}: {str(error)[:160]}")
    raise NoModel(said[-1] if said else "no class")


def _classes(name: str) -> Iterator[type]:
    """With a head, if there is one; else, and after it, the model alone."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    found = [getattr(auto, f"MODEL_FOR_{head}_MAPPING_NAMES").get(name) for head in
             ("IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM",
              "CAUSAL_LM", "CTC", "IMAGE_CLASSIFICATION")]  # fmt: skip
    for kind in [next(filter(None, found), None), auto.MODEL_MAPPING_NAMES[name]]:
        for each in [kind] if isinstance(kind, str) else kind or ():
            if hasattr(transformers, each):
                yield getattr(transformers, each)


def _config(kind: type, rules: Rules) -> Any:
    config = without_chance(kind(**_smaller(kind(), rules)))
    for part in _parts(config):
        without_chance(part)
    return config


def _smaller(config: Any, rules: Rules) -> dict[str, Any]:
    """Arguments of the configuration's class that differ from `config`, its default."""
    names = inspect.signature(type(config).__init__).parameters
    changed = {}
    for name, value in vars(config).items():
        if hasattr(value, "to_dict"):
            changed[name] = {"model_type": value.model_type} | _smaller(value, rules)
        elif name in names and (most := _most(name, rules)) is not None:
            if type(value) is int and value > most:
                changed[name] = most
            elif isinstance(value, list | tuple) and all(type(v) is int for v in value):
                changed[name] = type(value)(_scaled(value, most))
    return changed


def _most(name: str, rules: Rules) -> int | None:
    return next((most for pattern, most in rules if re.search(pattern, name)), None)


def _scaled(values: list[int], most: int) -> list[int]:
    """One size for each stage: the largest becomes about `most`, their ratios stay."""
    if most <= 2 or max(values, default=0) <= most:
        return [min(v, most) for v in values]
    by = math.gcd(*values) if most <= 4 else 2 ** round(math.log2(max(values) / (4 * most)))
    return [max(v // max(by, 1), 1) for v in values]


def _called(kind: type, config: Any, train: bool) -> Tiny:
    """The model, if it can be called."""
    with torch.device("meta"):
        count = sum(p.numel() for p in kind(config).parameters())
    if count > MOST_PARAMETERS:
        raise NoModel(f"{count} parameters")
    torch.manual_seed(0)
    model = kind(config).train(train)
    for rich in (False, True):
        try:
            given = _inputs(model, config, rich)
            with torch.no_grad():
                results = tensors(model(**given)).values()
            if any(r.isnan().any() for r in results):
                raise NoModel("NaN")
            return Tiny(model, given)
        except Exception:
            if rich:
                raise
    raise AssertionError


# -- inputs --


def _inputs(model: nn.Module, config: Any, rich: bool) -> dict[str, Tensor]:
    """What has no default, and the main input; if `rich`, all that there is a rule for."""
    taken = inspect.signature(model.forward).parameters
    plain = {n: p for n, p in taken.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    wanted = {n for n, p in plain.items() if p.default is p.empty} | {model.main_input_name}
    if rich:
        wanted |= plain.keys() & INPUTS.keys()
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in taken:
        wanted.add("decoder_input_ids")
    if unknown := [name for name in wanted if name not in INPUTS]:
        raise NoModel(f"no rule for the argument {unknown[0]}")
    sizes = _Sizes(config)
    return {name: INPUTS[name](sizes) for name in sorted(wanted)}


@dataclass(frozen=True)
class _Sizes:
    """Fields of a configuration or, where it has none of the name, of its parts."""

    config: Any

    def of(self, default: Any, *names: str) -> Any:
        for part in _parts(self.config):
            for name in names:
                if isinstance(found := getattr(part, name, None), int | list | tuple):
                    return found
        return default

    def number(self, default: int, *names: str) -> int:
        found = self.of(default, *names)
        return found if isinstance(found, int) else found[-1]


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "to_dict"):
            yield from _parts(value)


def _ids(sizes: _Sizes) -> Tensor:
    most = sizes.number(96, "vocab_size", "decoder_vocab_size")
    return torch.randint(TEXT_FIRST, max(most - 8, TEXT_FIRST + 1), (BATCH, LENGTH))


def _pixels(sizes: _Sizes) -> Tensor:
    side = sizes.of(64, "image_size")
    height, width = (side, side) if isinstance(side, int) else side[:2]
    return torch.randn(BATCH, sizes.number(3, "num_channels", "in_channels"), height, width)


def _video(sizes: _Sizes) -> Tensor:
    pixels = _pixels(sizes)
    return pixels[:, None].repeat(1, sizes.number(4, "num_frames"), 1, 1, 1)


def _features(sizes: _Sizes) -> Tensor:
    """Spectra: most models want mel bins before time, those with a feature size after it."""
    bins = sizes.number(80, "num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim")
    most = sizes.of(None, "max_source_positions")
    return torch.randn(BATCH, bins, 2 * most) if most else torch.randn(BATCH, 64, bins)


INPUTS: dict[str, Callable[[_Sizes], Tensor]] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "pixel_values": _pixels,
    "pixel_values_videos": _video,
    "input_values": lambda sizes: torch.randn(BATCH, 4000),
    "input_features": _features,
    "attention_mask": lambda sizes: torch.ones(BATCH, LENGTH, dtype=torch.long),
    "bbox": lambda sizes: torch.randint(0, 50, (BATCH, LENGTH, 1)).repeat(1, 1, 4),
    "past_values": lambda sizes: torch.randn(
        BATCH, sizes.number(32, "context_length"), sizes.number(1, "num_input_channels")),
}  # fmt: skip
