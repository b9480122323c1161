"""generate() of transformers with a fused model: tokens, caches, and how often it compiles."""

from __future__ import annotations

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import torchweld
from torchweld.capture.decoding import store as stores

transformers = pytest.importorskip("transformers")
from transformers import cache_utils  # noqa: E402

SIZES = dict(
    vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
    bos_token_id=None, eos_token_id=None, pad_token_id=0,
)  # fmt: skip
PROMPTS = [(1, 5), (1, 1), (1, 17), (3, 1), (3, 17), (3, 5), (2, 70)]  # batch, positions


def llama(layers: int = 2) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES | {"num_hidden_layers": layers})
    return transformers.LlamaForCausalLM(config).eval()


def sliding() -> torch.nn.Module:
    """Every other layer looks at the last eight positions."""
    torch.manual_seed(0)
    kinds = ["sliding_attention", "full_attention"]
    config = transformers.Qwen2Config(
        **SIZES, sliding_window=8, use_sliding_window=True, layer_types=kinds
    )
    return transformers.Qwen2ForCausalLM(config).eval()


def tokens(batch: int, positions: int) -> torch.Tensor:
    return torch.randint(1, 96, (batch, positions), generator=torch.manual_seed(positions))


@pytest.fixture(scope="module")
def pair():
    model = llama()
    return model, torchweld.fuse(model)


def same(model, fused, given, **options):
    """Both make the same tokens; those."""
    options = {"max_new_tokens": 6, "do_sample": False} | options
    torch.manual_seed(1)
    wanted = model.generate(given, **options)
    torch.manual_seed(1)
    made = fused.generate(given, **options)
    assert torch.equal(made, wanted)
    return made


def kinds(fused) -> list[str]:
    return [record.name.rstrip("0123456789") for record in torchweld.records(fused)]


def test_two_graphs_serve_all_lengths_and_batches(pair):
    model, fused = pair
    for batch, positions in PROMPTS:
        same(model, fused, tokens(batch, positions))
    assert kinds(fused) == ["prefill", "step"]


def test_a_first_prompt_of_one_token_is_not_compiled_apart():
    model = llama(layers=1)
    fused = torchweld.fuse(model)
    for batch, positions in ((1, 1), (1, 1), (2, 1), (1, 4)):
        same(model, fused, tokens(batch, positions))
    assert kinds(fused) == ["step", "prefill"]


def test_sampling_draws_the_same_tokens(pair):
    model, fused = pair
    for batch in (1, 4):
        same(model, fused, tokens(batch, 5), do_sample=True, top_k=20, temperature=1.3)
    assert len(kinds(fused)) <= 2


def test_beams_are_searched(pair):
    model, fused = pair
    same(model, fused, tokens(2, 5), num_beams=3)


def test_padding_is_masked(pair):
    model, fused = pair
    given = tokens(3, 9)
    mask = torch.ones_like(given)
    mask[0, :4] = mask[2, :7] = 0
    same(model, fused, given, attention_mask=mask)


def test_the_cache_that_is_returned_is_eagers(pair):
    model, fused = pair
    given, options = tokens(2, 5), {"max_new_tokens": 70, "return_dict_in_generate": True}
    wanted, made = (m.generate(given, do_sample=False, **options) for m in (model, fused))
    assert type(made.past_key_values) is type(wanted.past_key_values)
    assert made.past_key_values.get_seq_length() == 74
    for ours, theirs in zip(made.past_key_values.layers, wanted.past_key_values.layers):
        torch.testing.assert_close(ours.keys, theirs.keys)
        torch.testing.assert_close(ours.values, theirs.values)
        assert type(ours) is cache_utils.DynamicLayer


def test_a_conversation_goes_on(pair):
    """More tokens for a cache that was used before, and a copy of it that goes another way."""
    model, fused = pair
    made = {}
    for one in (model, fused):
        cache = transformers.DynamicCache(config=model.config)
        first = one.generate(
            tokens(1, 5), past_key_values=cache, max_new_tokens=4, do_sample=False
        )
        other = copy.deepcopy(cache)
        longer = torch.cat([first, tokens(1, 3)], 1)
        again = {"max_new_tokens": 5, "do_sample": False}
        made[one] = [
            one.generate(longer, past_key_values=cache, **again),
            one.generate(longer[:, :-1], past_key_values=other, **again),
        ]
    assert all(map(torch.equal, made[model], made[fused]))


def test_tensors_that_the_user_takes_are_his_own(pair):
    """What a cache showed stays as it was when the cache goes on, and what is written to it
    counts."""
    model, fused = pair
    shown, results = {}, {}
    with torch.no_grad():
        for one in (model, fused):
            cache = transformers.DynamicCache(config=model.config)
            one(tokens(1, 5), past_key_values=cache, use_cache=True)
            one(tokens(1, 1), past_key_values=cache, use_cache=True)
            keys = cache.layers[0].keys
            before = keys.clone()
            one(tokens(1, 1), past_key_values=cache, use_cache=True)
            assert torch.equal(keys, before) and cache.get_seq_length() == 7
            cache.layers[1].values.zero_()
            results[one] = one(tokens(1, 1), past_key_values=cache, use_cache=True).logits
            shown[one] = keys
    torch.testing.assert_close(results[fused], results[model])
    torch.testing.assert_close(shown[fused], shown[model])


def test_a_cropped_cache_is_shorter(pair):
    model, fused = pair
    results = {}
    with torch.no_grad():
        for one in (model, fused):
            cache = transformers.DynamicCache(config=model.config)
            one(tokens(1, 9), past_key_values=cache, use_cache=True)
            one(tokens(1, 1), past_key_values=cache, use_cache=True)
            cache.crop(-4)
            results[one] = one(tokens(1, 1), past_key_values=cache, use_cache=True).logits
            assert cache.get_seq_length() == 7
    torch.testing.assert_close(results[fused], results[model])


def test_a_static_cache_is_written_in_place():
    """Those of several layers: test_generate_caches.py."""
    model = llama(layers=1)
    fused = torchweld.fuse(model)
    for batch, positions in PROMPTS:
        same(model, fused, tokens(batch, positions), cache_implementation="static")
    assert kinds(fused) == ["prefill", "step"]
    with torch.no_grad():
        caches = []
        for one in (model, fused):
            cache = transformers.StaticCache(config=model.config, max_cache_len=16)
            one(tokens(1, 5), past_key_values=cache)
            keys = cache.layers[0].keys
            one(tokens(1, 1), past_key_values=cache)
            assert cache.layers[0].keys is keys
            caches.append(cache)
    for ours, theirs in zip(caches[1].layers, caches[0].layers):
        torch.testing.assert_close(ours.keys, theirs.keys)
        assert ours.cumulative_length == theirs.cumulative_length == 6


def test_layers_with_a_window():
    model = sliding()
    fused = torchweld.fuse(model)
    for batch, positions in ((1, 5), (2, 1), (2, 17)):
        same(model, fused, tokens(batch, positions), max_new_tokens=12)
    assert kinds(fused) == ["prefill", "step"]
    options = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True}
    wanted, made = (m.generate(tokens(1, 5), **options).past_key_values for m in (model, fused))
    for ours, theirs in zip(made.layers, wanted.layers):
        torch.testing.assert_close(ours.keys, theirs.keys)
        assert ours.get_seq_length() == theirs.get_seq_length() == 16


class _OneIsOdd(transformers.LlamaForCausalLM):
    """Its results differ where there is one sequence: with one, the trace has two."""

    how = staticmethod(lambda logits: logits)

    def forward(self, input_ids=None, **others):
        result = super().forward(input_ids=input_ids, **others)
        result.logits = self.how(result.logits)
        return result


@pytest.mark.parametrize(
    "how", [lambda y: (y * 1).squeeze(0), lambda y: y * 2 if y.shape[0] == 1 else y]
)
def test_a_model_that_differs_for_one_sequence(how):
    torch.manual_seed(0)
    model = _OneIsOdd(transformers.LlamaConfig(**SIZES | {"num_hidden_layers": 1})).eval()
    model.how = how
    fused = torchweld.fuse(model)
    with torch.no_grad():
        for batch in (1, 2, 1):
            given = {"input_ids": tokens(batch, 5), "use_cache": True}
            ways = [m(**given, past_key_values=cache_utils.DynamicCache()) for m in (model, fused)]
            torch.testing.assert_close(ways[1].logits, ways[0].logits)


class _Halves(cache_utils.QuantizedLayer):
    """Keeps what is older than eight positions in 16 bits."""

    def __init__(self) -> None:
        super().__init__(residual_length=8)

    def _quantize(self, tensor, axis):
        return tensor.half()

    def _dequantize(self, tensor):
        return tensor.float()


def test_steps_of_a_quantised_cache_run_in_eager_with_one_warning(pair):
    model, fused = pair
    before = len(kinds(fused))
    made = {}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for one in (model, fused):
            cache = cache_utils.Cache(layers=[_Halves(), _Halves()])
            made[one] = one.generate(
                tokens(2, 5), past_key_values=cache, max_new_tokens=12, do_sample=False
            )
    assert torch.equal(made[model], made[fused])
    assert len([w for w in seen if "_Halves" in str(w.message)]) == 1
    assert len(kinds(fused)) <= before + 1  # the prefill, of another class of caches


def test_transformers_does_not_compile_a_fused_model_again(pair):
    model, fused = pair
    config = transformers.CompileConfig(backend="eager")
    assert fused.get_compiled_call(config) == fused.__call__
    assert model.get_compiled_call(config) != model.__call__


def test_gradients_go_another_way(pair):
    _, fused = pair
    cache = transformers.DynamicCache(config=fused.config)
    logits = fused(tokens(1, 5), past_key_values=cache, use_cache=True).logits
    assert logits.requires_grad


def test_caches_in_two_threads_do_not_meet(pair):
    model, fused = pair
    prompts = [tokens(1, 5), tokens(1, 17)]
    options = {"max_new_tokens": 20, "do_sample": False}
    wanted = [model.generate(given, **options) for given in prompts]
    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(lambda given: fused.generate(given, **options), prompts * 4))
    assert all(map(torch.equal, made, wanted * 4))


@pytest.mark.parametrize(("length", "room"), [(1, 64), (64, 64), (65, 128), (513, 640)])
def test_room(length, room):
    assert stores.capacity_for(length) == room
