import torch
import torch.nn as nn


class Model(nn.Module):
    """Lifting-scheme style wavelet: alternate in-place updates of even and odd slices, read back as several views."""

    def __init__(self, width):
        super().__init__()
        self.predict = nn.Parameter(torch.randn(width // 2) * 0.3)
        self.update = nn.Parameter(torch.randn(width // 2) * 0.3)
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x * self.gain                      # odd width: one more even column than odd ones
        before = y.sin()                       # must see the values before any write
        y = y.clone()
        even, odd = y[:, ::2], y[:, 1::2]
        odd -= even[:, :-1].clone() * self.predict
        even[:, 1:] += odd.clone() * self.update
        y[::3] *= -0.5
        y[1::3, ::2] += 1.0
        snapshot = y.clone()
        y.t()[3:11].add_(snapshot.t()[8:16])   # writes through a transpose
        y[:, -5:] = snapshot[:, 2:7].flip(1)
        y[2:5].zero_()
        y[y > 2.5] = 2.5
        rev = y[:, ::4].flip(0)
        blocks = y[:, : (y.shape[1] // 7) * 7].unflatten(1, (-1, 7))
        energy = blocks.pow(2).sum(-1)
        return y + before, rev * 2.0 - snapshot[:, ::4], energy, odd.sum(0) - even[:, 1:].mean(0)


def get_inputs():
    return [torch.randn(333, 1021)]


def get_init_inputs():
    return [1021]
