"""Whole models on the CPU: eager, torch.compile and torchweld, paired, into docs/benchmarks.md.

    python bench/cpu.py [--only bert,gpt2] [--kernels]
"""
from common import Case, Run, main

CASES = [
    Case("geglu-mlp b8 s128 float32", "geglu-mlp", "float32"),
    Case("bert-base b8 s128 float32", "bert-base", "float32"),
    Case("bert-base b8 s128 bfloat16", "bert-base", "bfloat16"),
    Case("gpt2 b2 s128 float32", "gpt2", "float32"),
    Case("llama-1b (4 layers) b1 s128 float32", "llama-1b", "float32"),
    Case("vit-b16 b4 float32", "vit-b16", "float32"),
    Case("resnet50 b4 float32", "resnet50", "float32"),
    Case("whisper-encoder b1 float32", "whisper-encoder", "float32"),
    Case("bert-base train b8 s128 float32", "bert-base", "float32", train=True),
    Case("gpt2 train b2 s128 float32", "gpt2", "float32", train=True),
    Case("llama-1b (4 layers) train b1 s128 float32", "llama-1b", "float32", train=True),
]
RUN = Run("cpu", ("eager", "inductor", "torchweld"), seconds=20.0, case_seconds=600.0,
          total_seconds=3600.0)

if __name__ == "__main__":
    main("bench-cpu", CASES, RUN, "cpu_kernels.py")
