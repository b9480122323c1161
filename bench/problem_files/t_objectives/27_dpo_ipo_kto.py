import torch
import torch.nn as nn
import torch.nn.functional as F


def get_batch_logps(logits, labels, average=False, pad=-100):
    labels = labels[:, 1:].clone()
    logits = logits[:, :-1, :]
    loss_mask = labels != pad
    labels[labels == pad] = 0
    per_token = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    s = (per_token * loss_mask).sum(-1)
    return s / loss_mask.sum(-1) if average else s


class Model(nn.Module):
    """Preference losses computed from policy / reference logits of concatenated chosen+rejected sequences."""

    def __init__(self, beta, label_smoothing, rpo_alpha):
        super().__init__()
        self.beta = beta
        self.eps = label_smoothing
        self.rpo_alpha = rpo_alpha
        self.mix_logits = nn.Parameter(torch.zeros(4))

    def forward(self, policy_logits, ref_logits, labels, reward_head_scores):
        n = labels.size(0) // 2
        pol = get_batch_logps(policy_logits, labels)
        with torch.no_grad():
            ref = get_batch_logps(ref_logits, labels)
        pc, pr = pol[:n], pol[n:]
        rc, rr = ref[:n], ref[n:]
        h = (pc - pr) - (rc - rr)

        dpo = -F.logsigmoid(self.beta * h) * (1 - self.eps) - F.logsigmoid(-self.beta * h) * self.eps

        lens = (labels[:, 1:] != -100).sum(-1).float()
        h_avg = (pc / lens[:n] - pr / lens[n:]) - (rc / lens[:n] - rr / lens[n:])
        ipo = (h_avg - 1 / (2 * self.beta)) ** 2

        kl_c = (pc - rc).mean().clamp(min=0).detach()
        kl_r = (pr - rr).mean().clamp(min=0).detach()
        kto = torch.cat((
            1 - torch.sigmoid(self.beta * ((pc - rc) - kl_r)),
            1 - torch.sigmoid(self.beta * (kl_c - (pr - rr))),
        ))

        r_c, r_r = reward_head_scores[:n], reward_head_scores[n:]
        rm = -F.logsigmoid(r_c - r_r) + 0.01 * (r_c + r_r) ** 2

        w = F.softmax(self.mix_logits, 0)
        losses = torch.stack((dpo.mean(), ipo.mean(), kto.mean(), rm.mean()))
        nll = -(pc / lens[:n]).mean()
        margins = self.beta * h.detach()
        return (w * losses).sum() + self.rpo_alpha * nll, (margins > 0).float().mean()


def get_inputs():
    B, T, V = 6, 37, 807
    pol = torch.randn(B, T, V)
    labels = torch.randint(0, V, (B, T))
    labels[:, :7] = -100
    for i in range(B):
        labels[i, T - 2 * i:] = -100
    return [pol, pol + 0.2 * torch.randn(B, T, V), labels, torch.randn(B)]


def get_init_inputs():
    return [0.1, 0.05, 0.2]
