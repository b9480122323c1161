import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Block-diagonal linear layer plus a low-rank correction and the input itself, followed by softsign."""

    def __init__(self, blocks, width, rank):
        super().__init__()
        self.blocks = blocks
        self.width = width
        self.diag = nn.Parameter(torch.randn(blocks, width, width) / width ** 0.5)
        self.down = nn.Linear(blocks * width, rank, bias=False)
        self.up = nn.Linear(rank, blocks * width)

    def forward(self, x):
        b = x.shape[0]
        xb = x.view(b, self.blocks, self.width)
        y = torch.einsum("bgi,gij->bgj", xb, self.diag).reshape(b, -1)
        y = y + self.up(self.down(x)) + x
        return F.softsign(y)


batch, blocks, width, rank = 3001, 15, 136, 20


def get_inputs():
    return [torch.randn(batch, blocks * width)]


def get_init_inputs():
    return [blocks, width, rank]
