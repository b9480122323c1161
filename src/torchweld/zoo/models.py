"""Real architectures with random weights, nothing downloaded: builders, configurations and sizes.

All have dropout 0, so that runs can be compared number by number, and no key-value cache: they are
forward passes, not generation.
`transformers` is imported when one of its models is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from torchweld.core.errors import EnvironmentProblem, UsageError
from torchweld.zoo.targets import Loss, Target, prepare, regression_loss, tensors

SizeName = Literal["cpu", "cuda", "tiny"]


@dataclass(frozen=True)
class Size:
    """`length`: tokens a row, or 0 where the model has no such dimension. `config`: what differs
    from the full architecture."""

    batch: int
    length: int = 0
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """`build(config)` -> module; `inputs(size, model)` -> positional arguments; `config`: the full
    architecture; then the sizes for a GPU, for a CPU and for tests."""

    what: str
    build: Callable[[dict], nn.Module]
    inputs: Callable[[Size, nn.Module], tuple[torch.Tensor, ...]]
    loss: Loss
    config: dict[str, Any]
    cuda: Size
    cpu: Size
    tiny: Size
    channels_last: bool = False


class GegluMlp(nn.Module):
    """down(gelu_tanh(gate(x)) * up(x)) over the last dimension."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.product(self.gate(x), self.up(x)))

    def product(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.gelu(gate, approximate="tanh") * up


def load(
    name: str,
    size: SizeName = "cpu",
    *,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
    train: bool = False,
    batch: int | None = None,
    length: int | None = None,
    seed: int = 0,
) -> Target:
    """The named model with random weights and inputs, the same for the same seed and device.
    `batch` and `length` replace those of the size. Errors: UsageError for an unknown name,
    EnvironmentProblem if `transformers` is missing."""
    entry = TABLE.get(name)
    if entry is None:
        raise UsageError(
            f"the zoo has no {name!r}",
            do=f"choose from {', '.join(TABLE)}, or name path/to/file.py:function",
        )
    chosen = getattr(entry, size)
    chosen = replace(chosen, batch=batch or chosen.batch, length=length or chosen.length)
    with torch.random.fork_rng(), torch.device(device):  # a billion weights drawn where they stay
        torch.manual_seed(seed)
        model = entry.build(entry.config | chosen.config)
        args = entry.inputs(chosen, model)
    if entry.channels_last and device != "cpu":
        model = model.to(memory_format=torch.channels_last)
        args = tuple(a.to(memory_format=torch.channels_last) for a in args)
    return prepare(name, model, args, None, entry.loss, dtype=dtype, device=device, train=train)


def shifted_cross_entropy(output: Any, ids: torch.Tensor) -> torch.Tensor:
    """Float32 cross-entropy of each position's logits [b, s, v] with the next token of [b, s]."""
    logits = tensors(output)[0][:, :-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def classification_loss(output: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Float32 cross-entropy of logits [b, classes] with class = row number."""
    logits = tensors(output)[0]
    classes = torch.arange(pixels.shape[0], device=logits.device) % logits.shape[-1]
    return F.cross_entropy(logits.float(), classes)


def _transformers(model_class: str, config_class: str) -> Callable[[dict], nn.Module]:
    def build(config: dict) -> nn.Module:
        try:
            import transformers
        except ImportError as error:
            raise EnvironmentProblem(
                "the zoo needs the package transformers", do="pip install 'torchweld[zoo]'"
            ) from error
        return getattr(transformers, model_class)(getattr(transformers, config_class)(**config))

    return build


def _whisper_encoder(config: dict) -> nn.Module:
    return _transformers("WhisperModel", "WhisperConfig")(config | dict(decoder_layers=1)).encoder


def _token_ids(size: Size, model: nn.Module) -> tuple[torch.Tensor, ...]:
    return (torch.randint(model.config.vocab_size, (size.batch, size.length)),)


def _images(size: Size, model: nn.Module) -> tuple[torch.Tensor, ...]:
    side = getattr(model.config, "image_size", size.length or 224)
    return (torch.randn(size.batch, model.config.num_channels, side, side),)


def _mel_frames(size: Size, model: nn.Module) -> tuple[torch.Tensor, ...]:
    return (
        torch.randn(size.batch, model.config.num_mel_bins, 2 * model.config.max_source_positions),
    )


def _rows(size: Size, model: nn.Module) -> tuple[torch.Tensor, ...]:
    return (torch.randn(size.batch, size.length, model.gate.in_features),)


NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
GPT2 = dict(use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
LLAMA_1B = dict(use_cache=False, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
                max_position_embeddings=4096, tie_word_embeddings=True)
WHISPER = dict(d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048,
               decoder_attention_heads=8, dropout=0.0)

TINY = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
TINY_TEXT = TINY | dict(vocab_size=101, max_position_embeddings=16)
TINY_GPT2 = dict(n_embd=32, n_layer=2, n_head=2, vocab_size=101, n_positions=16,
                 bos_token_id=0, eos_token_id=0)
TINY_RESNET = dict(embedding_size=8, hidden_sizes=[16, 24], depths=[1, 2], num_labels=5)
TINY_WHISPER = dict(d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=48,
                    num_mel_bins=8, max_source_positions=9, vocab_size=51, pad_token_id=0,
                    decoder_ffn_dim=8, decoder_attention_heads=1, bos_token_id=0, eos_token_id=0,
                    decoder_start_token_id=0)

TABLE: dict[str, Entry] = {
    "geglu-mlp": Entry(
        "gated MLP, 768 -> 3072 -> 768",
        lambda config: GegluMlp(**config), _rows, regression_loss, dict(dim=768, hidden=3072),
        cuda=Size(64, 128), cpu=Size(8, 128), tiny=Size(2, 5, dict(dim=24, hidden=40))),
    "bert-base": Entry(
        "encoder, 12 layers of 768",
        _transformers("BertModel", "BertConfig"), _token_ids, regression_loss, NO_DROPOUT,
        cuda=Size(32, 128), cpu=Size(8, 128), tiny=Size(2, 7, TINY_TEXT)),
    "gpt2": Entry(
        "decoder with logits, 12 layers of 768",
        _transformers("GPT2LMHeadModel", "GPT2Config"), _token_ids, shifted_cross_entropy, GPT2,
        cuda=Size(8, 1024), cpu=Size(2, 128), tiny=Size(2, 7, TINY_GPT2)),
    "llama-1b": Entry(
        "decoder with logits, 16 layers of 2048 (4 on the CPU), grouped-query attention",
        _transformers("LlamaForCausalLM", "LlamaConfig"), _token_ids, shifted_cross_entropy,
        LLAMA_1B,
        cuda=Size(1, 2048), cpu=Size(1, 128, dict(num_hidden_layers=4)),
        tiny=Size(2, 7, TINY_TEXT | dict(num_attention_heads=4, num_key_value_heads=2))),
    "vit-b16": Entry(
        "image classifier, 12 layers of 768, patches of 16",
        _transformers("ViTForImageClassification", "ViTConfig"), _images, classification_loss,
        NO_DROPOUT | dict(num_labels=1000),
        cuda=Size(64), cpu=Size(4),
        tiny=Size(2, config=TINY | dict(image_size=12, patch_size=4, num_labels=5))),
    "resnet50": Entry(
        "convolutional image classifier",
        _transformers("ResNetForImageClassification", "ResNetConfig"), _images,
        classification_loss, dict(num_labels=1000),
        cuda=Size(64), cpu=Size(4), tiny=Size(2, 33, TINY_RESNET), channels_last=True),
    "whisper-encoder": Entry(
        "speech encoder (base), 6 layers of 512 over 1500 frames",
        _whisper_encoder, _mel_frames, regression_loss, WHISPER,
        cuda=Size(16), cpu=Size(1), tiny=Size(2, config=TINY_WHISPER)),
}
