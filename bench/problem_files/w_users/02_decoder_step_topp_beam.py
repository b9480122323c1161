import torch
import torch.nn as nn
import torch.nn.functional as F


NEG = float("-inf")


def repetition_penalty(logits, prev, penalty):
    picked = logits.gather(-1, prev)
    picked = torch.where(picked < 0, picked * penalty, picked / penalty)
    return logits.scatter(-1, prev, picked)


def top_k_top_p(logits, k, p):
    kth = torch.topk(logits, k, dim=-1).values[..., -1:]
    logits = logits.masked_fill(logits < kth, NEG)
    srt, idx = torch.sort(logits, descending=True, dim=-1, stable=True)
    cum = srt.softmax(-1).cumsum(-1)
    remove = cum > p
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = False
    mask = torch.zeros_like(remove).scatter_(-1, idx, remove)
    return logits.masked_fill(mask, NEG)


class Model(nn.Module):
    """One decoding step: penalties, top-k, nucleus, min-p, inverse-CDF sampling from given
    uniforms, and a beam update with back pointers."""

    def __init__(self, hidden, vocab, beams):
        super().__init__()
        self.emb = nn.Embedding(vocab, hidden)
        self.mix = nn.GRUCell(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.bias = nn.Parameter(torch.zeros(vocab))
        self.temp = nn.Parameter(torch.tensor(0.8))
        self.beams = beams
        self.vocab = vocab

    def forward(self, h, prev, scores, finished, u):
        B, K, H = h.shape
        V = self.vocab
        last = prev[:, :, -1]
        h2 = self.mix(self.emb(last).reshape(-1, H), h.reshape(-1, H)).view(B, K, H)
        logits = F.linear(self.norm(h2), self.emb.weight, self.bias)     # tied
        logits = repetition_penalty(logits, prev, 1.3)
        logits[..., 0] -= 5.0                                            # pad is unlikely
        logits = logits / self.temp.clamp(min=0.1)

        # sampling branch
        filt = top_k_top_p(logits, 40, 0.9)
        pr = torch.softmax(filt, -1)
        keep = pr >= 0.02 * pr.amax(-1, keepdim=True)
        pr = pr * keep
        pr = pr / pr.sum(-1, keepdim=True)
        cdf = pr.cumsum(-1)
        sample = torch.searchsorted(cdf.detach(), u.unsqueeze(-1)).clamp_(max=V - 1).squeeze(-1)
        plogp = torch.where(pr > 0, pr * pr.clamp_min(1e-12).log(), torch.zeros_like(pr))
        entropy = -plogp.sum(-1)

        # beam branch
        logp = F.log_softmax(logits, -1)
        eos_only = torch.full((V,), NEG, dtype=logp.dtype, device=logp.device)
        eos_only[1] = 0
        logp = torch.where(finished[..., None], eos_only, logp)
        cand = (scores.unsqueeze(-1) + logp).view(B, K * V)
        best, flat = cand.topk(K, dim=-1)
        src = torch.div(flat, V, rounding_mode="floor")
        tok = flat % V
        new_prev = torch.cat([prev.gather(1, src[..., None].expand(-1, -1, prev.size(-1)))[..., 1:],
                              tok[..., None]], -1)
        new_fin = finished.gather(1, src) | tok.eq(1)
        new_h = torch.take_along_dim(h2, src.unsqueeze(-1), dim=1)
        length = new_prev.ne(0).sum(-1).to(best.dtype)
        normed = best / ((5 + length) / 6).pow(0.7)
        return new_h, normed, new_prev, new_fin, sample, entropy


def get_inputs():
    B, K, H, V, T = 8, 4, 64, 1000, 6
    return [torch.randn(B, K, H), torch.randint(2, V, (B, K, T)),
            torch.randn(B, K) - 4.0, torch.rand(B, K) > 0.8, torch.rand(B, K)]


def get_init_inputs():
    return [64, 1000, 4]
