import torch
import torch.nn as nn
import torch.nn.functional as F

B, DI, DT, D, T = 4096, 1024, 768, 512, 17


class Model(nn.Module):
    """CLIP loss: two projection heads, attention pooled text tokens, learned log
    temperature with a clamp, symmetric cross entropy, plus similarity margins."""

    def __init__(self, img_dim, txt_dim, dim):
        super().__init__()
        self.img_ln = nn.LayerNorm(img_dim)
        self.img_proj = nn.Parameter(torch.randn(img_dim, dim) / img_dim ** 0.5)
        self.pool = nn.Linear(txt_dim, 1, bias=False)
        self.txt_proj = nn.Sequential(nn.Linear(txt_dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.log_temp = nn.Parameter(torch.tensor(2.0))

    def forward(self, img, txt):
        i = F.normalize(self.img_ln(img) @ self.img_proj, dim=-1)
        a = self.pool(txt).softmax(dim=1)
        t = F.normalize(self.txt_proj((a * txt).sum(dim=1) * 2), dim=-1)
        logits = self.log_temp.clamp(max=4.6052).exp() * i @ t.T
        target = torch.arange(logits.shape[0], device=logits.device)
        loss = 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target))
        return loss, (i * t).sum(-1)


def get_inputs():
    return [torch.randn(B, DI), torch.randn(B, T, DT)]


def get_init_inputs():
    return [DI, DT, D]
