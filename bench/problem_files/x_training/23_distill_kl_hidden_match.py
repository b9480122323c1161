import torch
import torch.nn as nn
import torch.nn.functional as F

N, DS, DT, V, H = 4096, 1000, 2048, 16001, 1368


class Model(nn.Module):
    """Distillation: student with an interleaved gated layer, KL at a temperature against a
    frozen teacher head, hard cross entropy, and hidden matching by a learned projector."""

    def __init__(self, student_dim, teacher_dim, vocab, hidden, temperature, mix):
        super().__init__()
        self.tau, self.mix = temperature, mix
        self.ln = nn.LayerNorm(student_dim)
        self.gate_up = nn.Linear(student_dim, 2 * hidden, bias=True)
        self.down = nn.Linear(hidden, student_dim, bias=True)
        self.head = nn.Linear(student_dim, vocab, bias=True)
        self.projector = nn.Linear(student_dim, teacher_dim, bias=False)
        self.hidden_bias = nn.Parameter(torch.zeros(1, teacher_dim))
        self.register_buffer("teacher_head", torch.randn(vocab, teacher_dim) / teacher_dim ** 0.5)

    def forward(self, hs, ht, labels):
        gu = self.gate_up(self.ln(hs))
        gate, up = gu[..., 0::2], gu[..., 1::2]
        hs = hs + self.down(gate * torch.sigmoid(1.702 * gate) * (up + 1))
        logits = self.head(hs)
        teacher = F.linear(ht, self.teacher_head)
        logq = F.log_softmax(logits / self.tau, dim=-1)
        logp = F.log_softmax(teacher / self.tau, dim=-1)
        kl = F.kl_div(logq, logp, log_target=True, reduction="none").sum(-1).mean() * self.tau ** 2
        ce = F.cross_entropy(logits, labels)
        proj = self.projector(hs) + self.hidden_bias
        cos = 1 - F.cosine_similarity(proj, ht, dim=-1).mean()
        mse = F.smooth_l1_loss(proj, ht, beta=0.5)
        return self.mix * kl + (1 - self.mix) * ce + 0.5 * cos + mse


def get_inputs():
    return [torch.randn(N, DS), torch.randn(N, DT), torch.randint(0, V, (N,))]


def get_init_inputs():
    return [DS, DT, V, H, 2.0, 0.7]
