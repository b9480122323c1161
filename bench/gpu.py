"""Whole models on a GPU: eager, torch.compile's modes and torchweld, paired, into
docs/benchmarks.md.

    python bench/gpu.py --part 1/2; mv out/bench-gpu.json first.json
    python bench/gpu.py --part 2/2; python bench/gpu.py --render first.json out/bench-gpu.json

Each part takes less than nine minutes, most of them the first calls of torch.compile. Add
`--against eager,inductor,inductor-reduce-overhead,inductor-max-autotune,liger` for all baselines
(`liger` where it applies).

Settings: random weights, bf16, `eval()` and `no_grad` for inference, full logits, random ids and
no mask; training ends with cross-entropy in float32 over shifted logits and AdamW(fused=True).
"""
from common import Case, Run, main

BF16 = "bfloat16"
CASES = [
    Case("bert-base b32 s128", "bert-base", BF16, 32, 128),
    Case("bert-base b1 s128", "bert-base", BF16, 1, 128),
    Case("llama-1b b1 s16", "llama-1b", BF16, 1, 16),
    Case("gpt2 train b8 s1024", "gpt2", BF16, 8, 1024, train=True, adamw=True),
    Case("vit-b16 (timm) b64", "bench/timm_vit.py:make", BF16),
    Case("llama-1b b1 s2048", "llama-1b", BF16, 1, 2048),
    Case("geglu-mlp b64 s128", "geglu-mlp", BF16),
    Case("swiglu-mlp b64 s128", "bench/mlps.py:swiglu", BF16),
    Case("llama-8b mlp 4096 tokens", "bench/mlps.py:llama_8b", BF16),
    Case("resnet50 b64", "resnet50", BF16),
    Case("gpt2 b8 s1024", "gpt2", BF16, 8, 1024),
    Case("whisper-encoder b16", "whisper-encoder", BF16),
    Case("llama-1b train b2 s2048", "llama-1b", BF16, 2, 2048, train=True, adamw=True),
    Case("bert-base train b32 s128", "bert-base", BF16, 32, 128, train=True, adamw=True),
]
RUN = Run("cuda", ("eager", "inductor", "inductor-reduce-overhead", "torchweld"), seconds=2.0,
          case_seconds=170.0, total_seconds=540.0)

if __name__ == "__main__":
    main("bench-gpu", CASES, RUN, "gpu_kernels.py")
