"""Caches in generate(): of an encoder and a decoder, with windows, and of states."""

from __future__ import annotations

import copy
import functools

import pytest
import torch

import torchweld
from torchweld.capture.decoding import store as stores

transformers = pytest.importorskip("transformers")
from torchweld.capture.decoding import layers  # noqa: E402

TOKENS = dict(vocab_size=96, bos_token_id=None, eos_token_id=None, pad_token_id=0)
SIZES = TOKENS | dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
    num_key_value_heads=2, max_position_embeddings=512, sliding_window=8,
)  # fmt: skip
PROMPTS = [(1, 5), (1, 1), (3, 17), (3, 1)]  # batch, positions


def t5():
    sizes = dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
    config = transformers.T5Config(**TOKENS, **sizes)
    return transformers.T5ForConditionalGeneration(config)


def bart():
    sizes = dict(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
        decoder_start_token_id=2, forced_eos_token_id=None, max_position_embeddings=128,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**TOKENS, **sizes))


def whisper():
    sizes = dict(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8,
        max_source_positions=30, max_target_positions=64, decoder_start_token_id=2,
    )  # fmt: skip
    config = transformers.WhisperConfig(**TOKENS, **sizes)
    return transformers.WhisperForConditionalGeneration(config)


def gemma2():
    """Every other layer has a window of eight positions."""
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SIZES))


def mistral():
    """Each layer has."""
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES))


def mamba():
    sizes = dict(hidden_size=32, state_size=8, num_hidden_layers=2)
    return transformers.MambaForCausalLM(transformers.MambaConfig(**TOKENS, **sizes))


def lfm2():
    """One layer has states, the other keys and values."""
    types = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
    sizes = {name: size for name, size in SIZES.items() if name != "sliding_window"}
    return transformers.Lfm2ForCausalLM(transformers.Lfm2Config(**sizes, **types))


@functools.cache
def pair_of(kind, calls: str = ""):
    """One for all tests of a model with equal `calls`: the graphs of one serve the others."""
    torch.manual_seed(0)
    model = kind().eval()
    for weight in model.parameters():  # what is predicted varies from token to token
        weight.data.mul_(3 if weight.dim() > 1 else 1)
    return model, torchweld.fuse(model)


def tokens(batch: int, positions: int) -> torch.Tensor:
    return torch.randint(3, 96, (batch, positions), generator=torch.manual_seed(positions))


def prompt(kind, batch: int, positions: int) -> dict:
    if kind is whisper:
        return {"input_features": torch.randn(batch, 8, 60, generator=torch.manual_seed(batch))}
    mask = torch.ones(batch, positions, dtype=torch.int64)
    if kind not in (mamba, lfm2):  # whose states padding changes
        mask[0, : positions // 3] = 0
    return {"input_ids": tokens(batch, positions), "attention_mask": mask}


def same(model, fused, **options) -> None:
    """Both generate the same, logits included."""
    told = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True}
    wanted, made = (m.generate(**told | {"output_logits": True} | options) for m in (model, fused))
    assert torch.equal(made.sequences, wanted.sequences)
    if wanted.logits is not None:
        ours, theirs = torch.stack(made.logits), torch.stack(wanted.logits)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def kinds(fused) -> list[str]:
    return [record.name.rstrip("0123456789") for record in torchweld.records(fused)]


CASES = [
    (t5, {}), (t5, {"cache_implementation": "static"}), (bart, {}), (whisper, {}),
    (lfm2, {}), (gemma2, {"cache_implementation": "static"}),
    (mistral, {"cache_implementation": "static"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options"), CASES, ids=lambda x: x.__name__ if callable(x) else "-".join(x.values())
)
def test_two_graphs_serve_all_prompts(kind, options):
    model, fused = pair_of(kind, *options.values())
    for batch, positions in PROMPTS:
        same(model, fused, **prompt(kind, batch, positions), **options)
    assert kinds(fused) == ["prefill", "step"]
    torch.manual_seed(3)
    wanted = model.generate(**prompt(kind, 2, 4), max_new_tokens=6, do_sample=True, **options)
    torch.manual_seed(3)
    made = fused.generate(**prompt(kind, 2, 4), max_new_tokens=6, do_sample=True, **options)
    assert torch.equal(made, wanted)
    same(model, fused, **prompt(kind, 2, 5), **options, num_beams=3, output_logits=False)
    assert kinds(fused) == ["prefill", "step"]


def test_an_encoder_is_read_in_place_and_the_pair_is_eagers():
    """The keys of the encoder are no copies, and what the cache shows is what eager's would."""
    model, fused = pair_of(t5)
    options = {"max_new_tokens": 7, "do_sample": False, "return_dict_in_generate": True}
    given = prompt(t5, 2, 6)
    wanted, made = (m.generate(**given, **options).past_key_values for m in (model, fused))
    assert made.is_updated == wanted.is_updated
    for name in ("self_attention_cache", "cross_attention_cache"):
        for ours, theirs in zip(getattr(made, name).layers, getattr(wanted, name).layers):
            torch.testing.assert_close(ours.keys, theirs.keys)
            torch.testing.assert_close(ours.values, theirs.values)
            assert type(ours) is type(theirs)
    copied = copy.deepcopy(made)
    keys = copied.cross_attention_cache.layers[0].keys
    encoded = model.get_encoder()(**given)
    with torch.no_grad():
        ways = [
            m(decoder_input_ids=tokens(2, 1), encoder_outputs=encoded, past_key_values=cache,
              attention_mask=given["attention_mask"]).logits
            for m, cache in ((model, made), (fused, copied))
        ]  # fmt: skip
        torch.testing.assert_close(*ways)
    store = layers.store_of(copied)
    assert store.room.parts[1][0].tensors[0] is keys
    copied.reorder_cache(torch.tensor([1, 0]))
    assert layers.store_of(copied) is None  # other tensors


def spoken(model, how: str, script: list) -> list[torch.Tensor]:
    """Logits of calls with one cache: numbers of tokens, and what is done between them."""
    draw, made = torch.Generator().manual_seed(5), []
    config = model.config
    static = how == "static"
    cache = (
        transformers.StaticCache(config=config, max_cache_len=96)
        if static else transformers.DynamicCache(config=config)
    )  # fmt: skip
    for new in script:
        if new == "read":
            made += [t.clone() for x in cache.layers for t in (x.keys, x.values)]
        elif new == "copy":
            cache = copy.deepcopy(cache)
        elif new == "turn":
            cache.reorder_cache(torch.tensor([1, 0]))
        else:
            given = torch.randint(3, 96, (2, new), generator=draw)
            made.append(model(given, past_key_values=cache, use_cache=True).logits)
    return made


SCRIPTS = [
    [5, *[1] * 14, "read", 1, "copy", 1], [3, 1, 4, 1, 1, 9, 1, 5, "read", 1, 20, 1],
    [20, 1, "turn", 1, 1, "turn", 1],
]  # fmt: skip


@pytest.mark.parametrize("how", ["default", "static"])
def test_a_window_that_was_filled_goes_on(how):
    """Steps around the ring, several tokens over its end, and what the user sees and does between:
    the tensors are in the order of positions."""
    model, fused = pair_of(gemma2, "windows")
    with torch.no_grad():
        for script in SCRIPTS:
            for ours, theirs in zip(spoken(fused, how, script), spoken(model, how, script)):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert set(kinds(fused)) == {"prefill", "step"}


def test_a_window_takes_no_more_memory_than_it_has_positions():
    _, fused = pair_of(gemma2, "windows")
    cache = transformers.DynamicCache(config=fused.config)
    with torch.no_grad():
        fused(tokens(2, 40), past_key_values=cache, use_cache=True)
        fused(tokens(2, 1), past_key_values=cache, use_cache=True)
    window, full = (part.tensors[0].shape[2] for part in layers.store_of(cache).room.parts[0])
    assert (window, full) == (8, 64)


def test_a_static_window_stays_where_it_is():
    _, fused = pair_of(gemma2, "windows")
    cache = transformers.StaticCache(config=fused.config, max_cache_len=32)
    with torch.no_grad():
        fused(tokens(2, 11), past_key_values=cache, use_cache=True)
        places = [layer.keys.data_ptr() for layer in cache.layers]
        fused(tokens(2, 1), past_key_values=cache, use_cache=True)
    room = layers.store_of(cache).room
    assert [part.tensors[0].data_ptr() for part in room.parts[0]] == places
    assert [layer.keys.data_ptr() for layer in cache.layers] == places


def test_steps_of_a_recurrent_model_are_one_graph():
    model, fused = pair_of(mamba)
    for batch, positions in PROMPTS:
        same(model, fused, **prompt(mamba, batch, positions))
    assert kinds(fused) == ["step"]


@pytest.mark.parametrize(
    ("slots", "length", "count"), [(8, 5, 5), (8, 8, 7), (8, 11, 7), (8, 16, 3)]
)
def test_slots_of_a_ring(slots, length, count):
    """What goes in comes out in order, and position p is in slot p modulo the number of slots."""
    positions = torch.arange(length, dtype=torch.float32)[None, None, :, None]
    ring = torch.full((1, 1, slots, 1), -1.0)
    stores.put(ring, positions[:, :, -count:], length)
    assert torch.equal(stores.last(ring, count, length), positions[:, :, -count:])
    assert all(int(p) % slots == slot for slot, p in enumerate(ring.flatten()) if p >= 0)
