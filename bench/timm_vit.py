"""timm's vit_base_patch16_224 on a batch of 64, for bench/gpu.py: a user's model outside the
zoo."""
import timm
import torch


def make():
    torch.manual_seed(0)
    return timm.create_model("vit_base_patch16_224"), torch.randn(64, 3, 224, 224)
