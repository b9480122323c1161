import torch
import torch.nn as nn


class Model(nn.Module):
    """Coarsely quantised keys full of ties drive argmax/argmin/stable sort/topk, whose results gather from a second tensor."""

    def __init__(self, length, k):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(length) * 0.1)
        self.k = k

    def forward(self, x, payload):
        key = torch.round(x * 2.0)
        pay = payload + self.bias
        first_max = key.argmax(dim=-1, keepdim=True)
        first_min = key.argmin(dim=-1, keepdim=True)
        order = torch.sort(key, dim=-1, descending=True, stable=True).indices
        ranked = torch.gather(pay, -1, order)
        rank = torch.argsort(order, dim=-1).to(pay.dtype) / x.shape[-1]
        top = torch.topk(key, self.k, dim=-1).values.sum(dim=-1, keepdim=True)
        diff = torch.gather(pay, -1, first_max) - torch.gather(pay, -1, first_min)
        n_tied = (key == key.amax(dim=-1, keepdim=True)).sum(dim=-1, keepdim=True)
        return ranked * (1.0 - rank) + diff * top / n_tied


def get_inputs():
    return [torch.randn(3, 911, 211), torch.randn(3, 911, 211)]


def get_init_inputs():
    return [211, 7]
