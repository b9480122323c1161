"""Whole models on a GPU against their targets: eager, torch.compile's modes, Liger where it applies
and torchweld, paired, beside what torchweld's plan predicts; printed, and into docs/benchmarks.md.

    python bench/gpu.py

All of it takes the better part of an hour, most of it the first calls of torch.compile. In calls
of less than nine minutes, of which the last adds a baseline to the rows of the others, as far as
its time goes (the page says which rows lack it):

    python bench/gpu.py --part 1/2 --name first --total 530 --against $QUICK
    python bench/gpu.py --part 2/2 --name second --total 530 --against $QUICK
    python bench/gpu.py --name third --total 530 --against inductor-max-autotune
    python bench/gpu.py --render out/first.json out/second.json out/third.json

with QUICK=eager,inductor,inductor-reduce-overhead,liger.

Settings: random weights, bf16, `eval()` and `no_grad` for inference, full logits, random ids and
no mask; training ends with cross-entropy in float32 over shifted logits and AdamW(fused=True).
"""
from common import Case, Run, main

BF16 = "bfloat16"
CASES = [
    Case("geglu-mlp b64 s128", "geglu-mlp", BF16, at_least=1.28, most_kernels=2),
    Case("swiglu-mlp b64 s128", "bench/mlps.py:swiglu", BF16, at_least=1.28, most_kernels=2),
    Case("llama-8b mlp 4096 tokens", "bench/mlps.py:llama_8b", BF16, at_least=1.05),
    Case("small mlp 4 x 64", "bench/mlps.py:small", BF16),
    Case("nerf mlp 63-128x4-4", "bench/mlps.py:nerf", BF16),
    Case("gelu mlp 32-64-64-16", "bench/mlps.py:gelu", BF16),
    Case("policy mlp 17-64-64-6", "bench/mlps.py:policy", BF16),
    Case("bert-base b32 s128", "bert-base", BF16, 32, 128, at_least=1.4),
    Case("bert-base b1 s128", "bert-base", BF16, 1, 128, at_least=1.4),
    Case("llama-1b b1 s16", "llama-1b", BF16, 1, 16, at_least=1.3),
    Case("llama-1b b1 s2048", "llama-1b", BF16, 1, 2048, at_least=1.12),
    Case("vit-b16 (timm) b64", "bench/timm_vit.py:make", BF16, at_least=1.25),
    Case("gpt2 train b8 s1024", "gpt2", BF16, 8, 1024, True, adamw=True, at_least=1.15),
    Case("llama-1b train b2 s2048", "llama-1b", BF16, 2, 2048, True, adamw=True, at_least=1.05,
         checked=(1, 512)),
    Case("gpt2 b8 s1024", "gpt2", BF16, 8, 1024),
    Case("whisper-encoder b16", "whisper-encoder", BF16),
    Case("resnet50 b64", "resnet50", BF16),
    Case("bert-base train b32 s128", "bert-base", BF16, 32, 128, True, adamw=True),
]
WAYS = ("eager", "inductor", "inductor-reduce-overhead", "liger", "inductor-max-autotune",
        "torchweld")
RUN = Run("cuda", WAYS, seconds=2.0, case_seconds=240.0, total_seconds=3600.0)

if __name__ == "__main__":
    main("bench-gpu", CASES, RUN, "gpu_kernels.py")
