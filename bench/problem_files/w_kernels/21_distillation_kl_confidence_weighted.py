import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Tempered KL between teacher and student over a vocabulary, weighted by teacher confidence, plus hard labels."""

    def __init__(self, temperature, mix):
        super().__init__()
        self.temperature = temperature
        self.mix = mix

    def forward(self, student, teacher, labels):
        t = self.temperature
        ls = F.log_softmax(student / t, dim=-1)
        lt = F.log_softmax(teacher / t, dim=-1)
        pt = lt.exp()
        kl = (pt * (lt - ls)).sum(dim=-1) * (t * t)
        conf = pt.amax(dim=-1) / (pt.square().sum(dim=-1).sqrt() + 1e-9)
        hard = torch.logsumexp(student, dim=-1) - student.gather(1, labels[:, None]).squeeze(1)
        return (self.mix * conf * kl + (1.0 - self.mix) * hard).mean()


batch = 1500
vocab = 25001


def get_inputs():
    return [
        torch.randn(batch, vocab) * 2.0,
        torch.randn(batch, vocab) * 2.0,
        torch.randint(0, vocab, (batch,)),
    ]


def get_init_inputs():
    return [3.0, 0.7]
