import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Dual softmax matching with length masks, mutual-nearest test and expected coordinates."""

    def __init__(self, dim, temp, thr):
        super().__init__()
        self.proj = nn.Linear(dim, dim, bias=False)
        self.lt = nn.Parameter(torch.log(torch.tensor(temp)))
        self.thr = thr

    def forward(self, f0, f1, xy1, n0, n1):
        a = F.normalize(self.proj(f0), dim=-1)
        b = F.normalize(self.proj(f1), dim=-1)
        s = torch.bmm(a, b.transpose(1, 2)) * torch.exp(-self.lt)
        m0 = torch.arange(f0.shape[1], device=f0.device) < n0.unsqueeze(1)
        m1 = torch.arange(f1.shape[1], device=f0.device) < n1.unsqueeze(1)
        m = m0.unsqueeze(2) & m1.unsqueeze(1)
        s = s.masked_fill(~m, -1e4)
        conf = (F.log_softmax(s, 1) + F.log_softmax(s, 2)).exp() * m
        best, j = conf.max(dim=2)
        back = torch.gather(conf.argmax(dim=1), 1, j)
        mutual = (back == torch.arange(f0.shape[1], device=f0.device)) & (best > self.thr)
        exy = torch.bmm(conf, xy1) / (conf.sum(2, keepdim=True) + 1e-6)
        return conf, torch.where(mutual, best, torch.zeros_like(best)), exy


def get_inputs():
    return [torch.randn(8, 1201, 192), torch.randn(8, 1307, 192), torch.rand(8, 1307, 2),
            torch.randint(900, 1202, (8,)), torch.randint(900, 1308, (8,))]


def get_init_inputs():
    return [192, 0.025, 1e-4]
