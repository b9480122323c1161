import torch
import torch.nn as nn


class Model(nn.Module):
    """Acceptance of speculative tokens by given uniform numbers: bfloat16 logits of draft and
    target, prefix acceptance by cumprod, a token from the residual by inversion of its sums,
    a bonus token, and the distillation losses used to train the draft."""

    def __init__(self, vocab):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.8))
        self.bias = nn.Parameter(torch.zeros(vocab))

    def pick(self, p, u):
        """Index of the token at cumulative probability u."""
        c = p.double().cumsum(-1)
        return torch.searchsorted(c, u.double().unsqueeze(-1) * c[..., -1:], right=True).squeeze(-1).clamp(max=p.shape[-1] - 1)

    def verify(self, p, q, drafted, u):
        """p: (B, G+1, V) of the target, q: (B, G, V) of the draft, u: (B, G+1)."""
        b, g = drafted.shape
        if g == 0:
            token = self.pick(p[:, 0], u[:, 0])
            return token.unsqueeze(1).to(torch.int32), torch.zeros(b, dtype=torch.int16), p[:, 0]
        at = drafted.unsqueeze(-1)
        ratio = p[:, :-1].gather(2, at).squeeze(-1) / q.gather(2, at).squeeze(-1)
        accept = u[:, :g] < ratio.clamp(max=1.0)
        prefix = accept.to(torch.int32).cumprod(1)
        count = prefix.sum(1)
        row = torch.arange(b)
        p_next = p[row, count]
        q_next = torch.cat([q, torch.zeros_like(q[:, :1])], 1)[row, count]
        residual = torch.relu(p_next - q_next)
        residual = residual / residual.sum(-1, keepdim=True).clamp_min(1e-9)
        token = self.pick(residual, u[:, g])
        out = torch.full((b, g + 1), -1, dtype=torch.int32)
        out[:, :g] = torch.where(prefix.bool(), drafted.to(torch.int32), -1)
        out.index_put_((row, count), token.to(torch.int32))
        return out, count.to(torch.int16), residual

    def forward(self, target, draft, drafted, u):
        p = ((target.to(self.bias.dtype) + self.bias) / self.temperature).softmax(-1)
        q = (draft.to(self.bias.dtype) / self.temperature.detach()).softmax(-1)
        out, count, residual = self.verify(p, q, drafted, u)
        alone, zero, first = self.verify(p, q[:, :0], drafted[:, :0], u[:, -1:])

        overlap = torch.minimum(p[:, :-1], q).sum(-1)
        expected = torch.cumprod(overlap, 1).sum(1)
        stop = p[:, :-1].detach()
        reverse = (torch.special.xlogy(q, q) - torch.xlogy(q, stop.clamp_min(1e-9))).sum(-1)
        entropy = torch.special.entr(p.clamp_min(1e-12)).sum(-1)
        kept = torch.arange(drafted.shape[1]) < count.unsqueeze(1)
        loss = (reverse * kept).sum(1) / kept.sum(1).clamp(min=1)
        peak = (target.amax(-1) - target.logsumexp(-1)).float()
        return out, count, residual, alone, zero, first.amax(-1), expected, loss, entropy, peak


def get_inputs():
    b, g, v = 17, 7, 1021
    target = 2.5 * torch.randn(b, g + 1, v)
    draft = target[:, :-1] + 0.7 * torch.randn(b, g, v)
    drafted = (draft - torch.log(-torch.log(torch.rand_like(draft).clamp(1e-6, 1 - 1e-6)))).argmax(-1)
    return [target.bfloat16(), draft.bfloat16(), drafted, torch.rand(b, g + 1)]


def get_init_inputs():
    return [1021]
