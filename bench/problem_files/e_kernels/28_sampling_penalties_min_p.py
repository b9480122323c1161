import torch
import torch.nn as nn


class Model(nn.Module):
    """What a server does to logits before sampling: penalties for repeated tokens, a bias, banned tokens, a temperature per row, a cut relative to the best token; then probabilities, entropy and the best few."""

    def __init__(self, vocabulary, repetition, frequency, presence, best):
        super().__init__()
        self.repetition, self.frequency, self.presence, self.best = repetition, frequency, presence, best
        self.bias = nn.Parameter(0.3 * torch.randn(vocabulary))

    def forward(self, logits, history, temperature, min_p, banned):
        counts = torch.zeros(logits.shape, dtype=torch.int64, device=logits.device)
        counts = counts.scatter_add(1, history, torch.ones_like(history))
        seen = counts > 0
        damped = torch.where(logits > 0, logits / self.repetition, logits * self.repetition)
        z = torch.where(seen, damped, logits)
        z = z - self.frequency * counts.to(z.dtype) - self.presence * seen.to(z.dtype) + self.bias
        z = (z / temperature.unsqueeze(1)).masked_fill(banned, -torch.inf)
        floor = z.amax(dim=1, keepdim=True) + min_p.log().unsqueeze(1)
        z = z.masked_fill(z < floor, -torch.inf)
        logp = torch.log_softmax(z, dim=1)
        p = logp.exp()
        entropy = -(p * logp.masked_fill(p == 0, 0.0)).sum(dim=1)
        top = z.topk(self.best, dim=1)
        return p, entropy, top.indices, p.gather(1, top.indices).cumsum(dim=1), (p > 0).sum(dim=1)


def get_inputs():
    rows, vocabulary = 32, 32003
    logits = 2.4 * torch.randn(rows, vocabulary)
    history = torch.randint(0, 400, (rows, 300)) * 80
    temperature = 0.6 + torch.rand(rows)
    return [logits, history, temperature, 0.02 + 0.1 * torch.rand(rows), torch.rand(vocabulary) < 0.05]


def get_init_inputs():
    return [32003, 1.3, 0.2, 0.4, 5]
