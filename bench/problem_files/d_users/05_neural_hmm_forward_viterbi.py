from collections import namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F

Lattice = namedtuple("Lattice", ["log_alpha", "log_beta", "log_z"])


class Model(nn.Module):
    """Neural HMM: log-space forward-backward with lengths, Viterbi decode and a small beam."""

    def __init__(self, feat, hidden, states, rank, beam=4):
        super().__init__()
        self.emit = nn.Sequential(nn.Linear(feat, hidden), nn.Tanh(), nn.Linear(hidden, states))
        self.start = nn.Parameter(torch.randn(states) * 0.3)
        self.left = nn.Parameter(torch.randn(states, rank))
        self.right = nn.Parameter(torch.randn(rank, states))
        self.register_buffer("occupancy", torch.zeros(states, dtype=torch.float64))
        self.beam = beam

    @property
    def log_trans(self):
        logits = self.left @ self.right
        band = torch.ones_like(logits, dtype=torch.bool).triu(-6).tril(12)
        return logits.masked_fill(~band, -1e4).log_softmax(-1)

    def lattice(self, em, lengths, trans):
        B, T, S = em.shape
        alpha = self.start.log_softmax(0) + em[:, 0]
        alphas = [alpha]
        for t in range(1, T):
            nxt = torch.logsumexp(alpha.unsqueeze(2) + trans, dim=1) + em[:, t]
            alpha = torch.where((t < lengths).unsqueeze(1), nxt, alpha)
            alphas.append(alpha)
        beta = torch.zeros_like(alpha)
        betas = [beta]
        for t in reversed(range(T - 1)):
            prv = torch.logsumexp(trans + (em[:, t + 1] + beta).unsqueeze(1), dim=2)
            beta = torch.where((t + 1 < lengths)[:, None], prv, beta)
            betas.insert(0, beta)
        return Lattice(torch.stack(alphas, 1), torch.stack(betas, 1), alpha.logsumexp(-1))

    @torch.no_grad()
    def viterbi(self, em, lengths, trans):
        B, T, S = em.shape
        score = self.start.log_softmax(0) + em[:, 0]
        back = em.new_zeros(B, T, S, dtype=torch.long)
        ident = torch.arange(S, device=em.device).expand(B, S)
        for t in range(1, T):
            best, arg = (score.unsqueeze(2) + trans).max(dim=1)
            live = (t < lengths).unsqueeze(1)
            score = torch.where(live, best + em[:, t], score)
            back[:, t] = torch.where(live, arg, ident)
        path = [score.argmax(-1)]
        for t in range(T - 1, 0, -1):
            path.append(back[:, t].gather(1, path[-1].unsqueeze(1)).squeeze(1))
        return torch.stack(path[::-1], 1), score.amax(-1)

    def beam_scores(self, em, trans):
        score, last = (self.start.log_softmax(0) + em[:, 0]).topk(self.beam, dim=-1)
        S = trans.shape[0]
        for t in range(1, min(8, em.shape[1])):
            cand = score.unsqueeze(-1) + trans[last] + em[:, t].unsqueeze(1)
            score, flat = cand.flatten(1).topk(self.beam, dim=-1)
            last = flat.remainder(S)
        return score

    def forward(self, x, lengths, decode=True):
        em = self.emit(x).log_softmax(-1)
        trans = self.log_trans
        lat = self.lattice(em, lengths, trans)
        mask = torch.arange(x.shape[1], device=x.device)[None] < lengths[:, None]
        post = (lat.log_alpha + lat.log_beta - lat.log_z[:, None, None]).exp()
        post = post * mask.unsqueeze(-1)
        with torch.no_grad():
            self.occupancy.mul_(0.9).add_(post.sum((0, 1)).double() * 0.1)
        out = {"nll": -(lat.log_z / lengths).mean(), "posterior": post,
               "beam": self.beam_scores(em, trans), "occupancy": self.occupancy.clone()}
        if decode:
            out["path"], out["best"] = self.viterbi(em.detach(), lengths, trans)
        return out


def get_inputs():
    return [torch.randn(64, 40, 20) * 2, torch.randint(5, 41, (64,))]


def get_init_inputs():
    return [20, 48, 24, 6]
