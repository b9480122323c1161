import torch
import torch.nn as nn


class Model(nn.Module):
    """Discounted-free return-to-go: reverse cumulative sum of masked rewards over time, averaged by remaining steps."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, rewards, mask):
        r = rewards * mask
        ret = torch.flip(torch.cumsum(torch.flip(r, [self.dim]), dim=self.dim), [self.dim])
        left = torch.flip(torch.cumsum(torch.flip(mask.long(), [self.dim]), dim=self.dim), [self.dim])
        return ret / left.clamp(min=1)


batch_size = 37
steps = 1025
features = 259


def get_inputs():
    rewards = torch.rand(batch_size, steps, features)
    mask = torch.rand(batch_size, steps, 1) < 0.8
    return [rewards, mask]


def get_init_inputs():
    return [1]
