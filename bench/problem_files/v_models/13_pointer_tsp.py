import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, hidden, use_tanh=False, C=10.0):
        super().__init__()
        self.q = nn.Linear(hidden, hidden)
        self.ref = nn.Conv1d(hidden, hidden, 1, 1)
        bound = 6.0 / math.sqrt(hidden)
        nn.init.xavier_uniform_(self.q.weight, gain=4.0)
        nn.init.xavier_uniform_(self.ref.weight, gain=4.0)
        self.v = nn.Parameter(torch.empty(hidden).uniform_(-bound, bound))
        self.use_tanh, self.C = use_tanh, C

    def forward(self, query, ref):
        """query (b, h), ref (b, n, h) -> projected ref (b, h, n), logits (b, n)"""
        r = self.ref(ref.permute(0, 2, 1))
        q = self.q(query).unsqueeze(2).expand(-1, -1, r.size(2))
        logits = torch.bmm(self.v[None, None].expand(q.size(0), 1, -1), torch.tanh(q + r)).squeeze(1)
        return r, self.C * torch.tanh(logits) if self.use_tanh else logits


class Model(nn.Module):
    """Pointer network for the travelling salesman: bidirectional encoder, glimpse, greedy masked pointer,
    REINFORCE surrogate against a critic's baseline."""

    def __init__(self, embed, hidden, n_glimpses):
        super().__init__()
        self.embed = nn.Parameter(torch.empty(2, embed).uniform_(-2.5, 2.5))
        self.encoder = nn.LSTM(embed, hidden // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTMCell(embed, hidden)
        self.pointer = Attention(hidden, use_tanh=True)
        self.glimpse = Attention(hidden)
        self.start = nn.Parameter(torch.empty(embed).uniform_(-1.0, 1.0))
        self.critic = nn.Sequential(nn.Linear(hidden, 40), nn.ReLU(), nn.Linear(40, 1))
        self.n_glimpses = n_glimpses

    def forward(self, points):
        b, n, _ = points.shape
        embedded = torch.einsum("bnc,ce->bne", points, self.embed)
        ctx, (h, c) = self.encoder(embedded)
        h = h.transpose(0, 1).reshape(b, -1)
        c = c.transpose(0, 1).reshape(b, -1)
        x = self.start.unsqueeze(0).repeat(b, 1)
        mask = torch.zeros(b, n, dtype=torch.bool, device=points.device)
        logps, tour = [], []
        for _ in range(n):
            h, c = self.decoder(x, (h, c))
            query = h
            for _ in range(self.n_glimpses):
                ref, logits = self.glimpse(query, ctx)
                logits = logits.masked_fill(mask, float("-inf"))
                query = torch.bmm(ref, F.softmax(logits, dim=1).unsqueeze(2)).squeeze(2)
            _, logits = self.pointer(query, ctx)
            logp = F.log_softmax(logits.masked_fill(mask, -1e8), dim=1)
            choice = logp.argmax(1)
            logps.append(logp.gather(1, choice[:, None]).squeeze(1))
            tour.append(choice)
            mask = mask.scatter(1, choice.unsqueeze(1), True)
            x = embedded[torch.arange(b, device=x.device), choice]
        tour = torch.stack(tour, 1)
        path = points.gather(1, tour.unsqueeze(-1).expand(-1, -1, 2))
        length = (path - path.roll(-1, dims=1)).norm(dim=-1).sum(1)
        base = self.critic(ctx.mean(1)).squeeze(-1)
        loss = ((length - base).detach() * torch.stack(logps, 1).sum(1)).mean() + F.mse_loss(base, length)
        return tour, length, loss


def get_inputs():
    return [torch.rand(5, 11, 2)]


def get_init_inputs():
    return [38, 66, 1]
