import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, H, V = 4, 384, 768, 2736, 20000


class Model(nn.Module):
    """DPO over length averaged log probabilities: chosen and rejected in one batch through
    a tied embedding, a token shift channel mix and the output head; NLL on the chosen."""

    def __init__(self, vocab, dim, hidden, beta, rpo):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        nn.init.normal_(self.wte.weight, std=dim ** -0.5)
        self.scale = nn.Parameter(torch.tensor(dim ** 0.5))
        self.ln = nn.LayerNorm(dim)
        self.mix_k = nn.Parameter(torch.rand(1, 1, dim))
        self.mix_r = nn.Parameter(torch.rand(1, 1, dim))
        self.key = nn.Linear(dim, hidden, bias=False)
        self.value = nn.Linear(hidden, dim, bias=False)
        self.receptance = nn.Linear(dim, dim, bias=True)
        self.ln_out = nn.LayerNorm(dim)
        self.beta, self.rpo = beta, rpo

    def forward(self, chosen, rejected, ref_margin, prompt_len):
        ids = torch.cat([chosen, rejected], dim=0)
        x = self.wte(ids) * self.scale
        h = self.ln(x)
        prev = F.pad(h, (0, 0, 1, 0))[:, :-1]
        k = F.relu(self.key(torch.lerp(prev, h, self.mix_k))).square()
        r = torch.sigmoid(self.receptance(h * self.mix_r + prev * (1 - self.mix_r)))
        x = self.ln_out(x * 0.3 + r * self.value(k))
        logits = x[:, :-1] @ self.wte.weight.transpose(0, 1)
        target = ids[:, 1:]
        logp = F.log_softmax(logits, dim=-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
        pos = torch.arange(target.shape[1], device=ids.device)
        mask = pos[None] >= prompt_len.repeat(2)[:, None]
        seq = torch.where(mask, logp, torch.zeros_like(logp)).sum(-1) / mask.sum(-1)
        pc, pr = seq.chunk(2)
        margin = pc - pr
        dpo = -F.logsigmoid(self.beta * (margin - ref_margin)).mean()
        reward = self.beta * torch.stack([pc, pr], dim=-1)
        return dpo - self.rpo * pc.mean(), reward


def get_inputs():
    return [torch.randint(0, V, (B, T)), torch.randint(0, V, (B, T)),
            0.1 * torch.randn(B), torch.randint(0, T // 3, (B,))]


def get_init_inputs():
    return [V, D, H, 2.0, 0.1]
