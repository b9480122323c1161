import math
import torch
import torch.nn as nn


class MAB(nn.Module):
    def __init__(self, dq, dk, dv, heads):
        super().__init__()
        self.dv, self.h = dv, heads
        self.fq, self.fk, self.fv = nn.Linear(dq, dv), nn.Linear(dk, dv), nn.Linear(dk, dv)
        self.fo = nn.Linear(dv, dv)
        self.l0, self.l1 = nn.LayerNorm(dv), nn.LayerNorm(dv)

    def forward(self, Q, K, mask=None):
        Q = self.fq(Q)
        K, V = self.fk(K), self.fv(K)
        s = self.dv // self.h
        Q_ = torch.cat(Q.split(s, 2), 0)
        K_ = torch.cat(K.split(s, 2), 0)
        V_ = torch.cat(V.split(s, 2), 0)
        A = Q_.bmm(K_.transpose(1, 2)) / math.sqrt(self.dv)
        if mask is not None:
            A = A.masked_fill(mask.repeat(self.h, 1).unsqueeze(1), -1e30)
        A = torch.softmax(A, 2)
        O = torch.cat((Q_ + A.bmm(V_)).split(Q.size(0), 0), 2)
        O = self.l0(O)
        return self.l1(O + torch.relu(self.fo(O)))


class ISAB(nn.Module):
    def __init__(self, di, do, heads, m):
        super().__init__()
        self.I = nn.Parameter(torch.empty(1, m, do))
        nn.init.xavier_uniform_(self.I)
        self.m0 = MAB(do, di, do, heads)
        self.m1 = MAB(di, do, do, heads)

    def forward(self, X, mask):
        H = self.m0(self.I.repeat(X.size(0), 1, 1), X, mask)
        return self.m1(X, H)


class Model(nn.Module):
    """Set transformer: two ISABs, pooling by multihead attention, a SAB decoder."""

    def __init__(self, din, d, heads, m, seeds, dout):
        super().__init__()
        self.e1 = ISAB(din, d, heads, m)
        self.e2 = ISAB(d, d, heads, m)
        self.S = nn.Parameter(torch.randn(1, seeds, d) * 0.1)
        self.pma = MAB(d, d, d, heads)
        self.sab = MAB(d, d, d, heads)
        self.out = nn.Linear(d, dout)

    def forward(self, X, lengths):
        mask = torch.arange(X.size(1), device=X.device)[None] >= lengths[:, None]
        h = self.e2(self.e1(X, mask), mask)
        p = self.pma(self.S.expand(X.size(0), -1, -1), h, mask)
        return self.out(self.sab(p, p))


def get_inputs():
    return [torch.randn(4, 117, 5), torch.tensor([117, 90, 61, 13])]


def get_init_inputs():
    return [5, 68, 4, 14, 3, 6]
