import torch
import torch.nn as nn
import torch.nn.functional as F


def circular_convolve(w, s):
    """Shift weights w (b, n) by the distribution s (b, 3) over -1, 0, 1."""
    t = torch.cat([w[:, -1:], w, w[:, :1]], dim=1)
    return F.conv1d(t.unsqueeze(0), s.unsqueeze(1), groups=w.size(0)).squeeze(0)


class Head(nn.Module):
    def __init__(self, ctrl, m, extra):
        super().__init__()
        self.lengths = [m, 1, 1, 3, 1] + extra
        self.fc = nn.Linear(ctrl, sum(self.lengths))
        nn.init.xavier_uniform_(self.fc.weight, gain=1.4)
        nn.init.normal_(self.fc.bias, std=0.01)

    def address(self, memory, k, beta, g, s, gamma, w_prev):
        k = torch.tanh(k)
        sim = F.cosine_similarity(memory + 1e-16, k.unsqueeze(1) + 1e-16, dim=-1)
        wc = F.softmax(F.softplus(beta) * sim, dim=1)
        g = torch.sigmoid(g)
        wg = g * wc + (1 - g) * w_prev
        w_hat = circular_convolve(wg, F.softmax(s, dim=1))
        w = w_hat ** (1 + F.softplus(gamma))
        return w / (w.sum(dim=1, keepdim=True) + 1e-16)

    def forward(self, h, memory, w_prev):
        k, beta, g, s, gamma, *rest = torch.split(self.fc(h), self.lengths, dim=1)
        return self.address(memory, k, beta, g, s, gamma, w_prev), rest


class Model(nn.Module):
    """Neural Turing machine on the copy task: LSTM controller, content and location addressing, erase and add."""

    def __init__(self, n_in, n_out, ctrl, n, m, reads):
        super().__init__()
        self.n, self.m, self.ctrl, self.n_out, self.reads = n, m, ctrl, n_out, reads
        self.lstm = nn.LSTMCell(n_in + reads * m, ctrl)
        self.heads = nn.ModuleList([Head(ctrl, m, []) for _ in range(reads)] + [Head(ctrl, m, [m, m])])
        self.h0 = nn.Parameter(torch.randn(1, ctrl) * 0.05)
        self.c0 = nn.Parameter(torch.randn(1, ctrl) * 0.05)
        self.register_buffer("mem_bias", torch.empty(n, m).uniform_(-(n + m) ** -0.5, (n + m) ** -0.5))
        self.register_buffer("r0", torch.randn(1, m) * 0.01)
        self.out = nn.Linear(ctrl + reads * m, n_out)

    def step(self, x, state):
        (h, c), reads, ws, memory = state
        h, c = self.lstm(torch.cat([x] + reads, dim=1), (h, c))
        new_reads, new_ws = [], []
        for head, w_prev in zip(self.heads, ws):
            w, rest = head(h, memory, w_prev)
            if rest:
                e, a = rest
                erase = torch.bmm(w.unsqueeze(-1), torch.sigmoid(e).unsqueeze(1))
                memory = memory * (1 - erase) + w.unsqueeze(-1) * a.unsqueeze(1)
            else:
                new_reads.append(torch.matmul(w.unsqueeze(1), memory).squeeze(1))
            new_ws.append(w)
        y = self.out(torch.cat([h] + new_reads, dim=1))
        return y, ((h, c), new_reads, new_ws, memory)

    def forward(self, seq, target):
        T, B, _ = seq.shape
        h, c = self.h0.repeat(B, 1), self.c0.repeat(B, 1)
        w0 = F.one_hot(torch.zeros(B, dtype=torch.long, device=seq.device), self.n).to(seq.dtype)
        state = ((h, c), [self.r0.repeat(B, 1) for _ in range(self.reads)], [w0] * len(self.heads), self.mem_bias.repeat(B, 1, 1))
        for t in range(T):
            _, state = self.step(seq[t], state)
        outs = []
        blank = torch.zeros(B, seq.size(2), device=seq.device)
        for _ in range(target.size(0)):
            y, state = self.step(blank, state)
            outs.append(y)
        out = torch.stack(outs)
        return F.binary_cross_entropy_with_logits(out, target), out.sigmoid(), state[-1]


def get_inputs():
    bits = (torch.rand(7, 5, 8) < 0.5).float()
    seq = torch.zeros(8, 5, 9)
    seq[:7, :, :8] = bits
    seq[7, :, 8] = 1
    return [seq, bits]


def get_init_inputs():
    return [9, 8, 54, 37, 14, 2]
