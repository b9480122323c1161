import math
import torch
import torch.nn as nn


class OuterProductMean(nn.Module):
    def __init__(self, c_m, c_z, c_hidden, eps=1e-3):
        super().__init__()
        self.eps = eps
        self.layer_norm = nn.LayerNorm(c_m)
        self.linear_1, self.linear_2 = nn.Linear(c_m, c_hidden), nn.Linear(c_m, c_hidden)
        self.linear_out = nn.Linear(c_hidden ** 2, c_z)

    def forward(self, m, mask):
        ln = self.layer_norm(m)
        mask = mask.unsqueeze(-1)
        a = self.linear_1(ln) * mask          # s i c
        b = self.linear_2(ln) * mask
        outer = torch.einsum("...bac,...dae->...bdce", a.transpose(-2, -3), b.transpose(-2, -3))
        outer = self.linear_out(outer.reshape(outer.shape[:-2] + (-1,)))
        norm = torch.einsum("...abc,...adc->...bdc", mask, mask) + self.eps
        return outer / norm


class TriangleMultiplication(nn.Module):
    def __init__(self, c_z, c_hidden, outgoing):
        super().__init__()
        self.outgoing = outgoing
        self.layer_norm_in, self.layer_norm_out = nn.LayerNorm(c_z), nn.LayerNorm(c_hidden)
        self.linear_a_p, self.linear_a_g = nn.Linear(c_z, c_hidden), nn.Linear(c_z, c_hidden)
        self.linear_b_p, self.linear_b_g = nn.Linear(c_z, c_hidden), nn.Linear(c_z, c_hidden)
        self.linear_g, self.linear_z = nn.Linear(c_z, c_z), nn.Linear(c_hidden, c_z)

    def forward(self, z, mask):
        mask = mask.unsqueeze(-1)
        z = self.layer_norm_in(z)
        a = mask * torch.sigmoid(self.linear_a_g(z)) * self.linear_a_p(z)
        b = mask * torch.sigmoid(self.linear_b_g(z)) * self.linear_b_p(z)
        if self.outgoing:
            a, b = a.permute(0, 3, 1, 2), b.permute(0, 3, 2, 1)      # sum over k of a_ik b_jk
        else:
            a, b = a.permute(0, 3, 2, 1), b.permute(0, 3, 1, 2)      # sum over k of a_ki b_kj
        x = torch.matmul(a, b).permute(0, 2, 3, 1)
        return self.linear_z(self.layer_norm_out(x)) * torch.sigmoid(self.linear_g(z))


class TriangleAttention(nn.Module):
    def __init__(self, c_z, c_hidden, heads, starting, inf=1e9):
        super().__init__()
        self.heads, self.c_hidden, self.starting, self.inf = heads, c_hidden, starting, inf
        self.layer_norm = nn.LayerNorm(c_z)
        self.linear = nn.Linear(c_z, heads, bias=False)
        self.linear_q = nn.Linear(c_z, heads * c_hidden, bias=False)
        self.linear_k = nn.Linear(c_z, heads * c_hidden, bias=False)
        self.linear_v = nn.Linear(c_z, heads * c_hidden, bias=False)
        self.linear_g = nn.Linear(c_z, heads * c_hidden)
        self.linear_o = nn.Linear(heads * c_hidden, c_z)

    def forward(self, x, mask):
        if not self.starting:
            x, mask = x.transpose(-2, -3), mask.transpose(-1, -2)
        x = self.layer_norm(x)
        mask_bias = (self.inf * (mask - 1))[..., :, None, None, :]          # b i 1 1 j
        triangle_bias = self.linear(x).permute(0, 3, 1, 2).unsqueeze(-4)    # b 1 h i j
        heads = lambda t: t.view(t.shape[:-1] + (self.heads, -1)).transpose(-2, -3)
        q, k, v = heads(self.linear_q(x)), heads(self.linear_k(x)), heads(self.linear_v(x))
        q = q / math.sqrt(self.c_hidden)
        a = torch.matmul(q, k.transpose(-1, -2))
        a = a + mask_bias
        a = a + triangle_bias
        a = torch.softmax(a, dim=-1)
        o = torch.matmul(a, v).transpose(-2, -3)
        g = torch.sigmoid(self.linear_g(x)).view(o.shape)
        o = self.linear_o((o * g).flatten(-2))
        return o if self.starting else o.transpose(-2, -3)


class Model(nn.Module):
    """Evoformer pair update: outer product mean from the MSA, both triangle updates, transition."""

    def __init__(self, c_m, c_z, c_opm, c_mul, c_att, heads, n):
        super().__init__()
        self.opm = OuterProductMean(c_m, c_z, c_opm)
        self.tri_mul_out = TriangleMultiplication(c_z, c_mul, True)
        self.tri_mul_in = TriangleMultiplication(c_z, c_mul, False)
        self.tri_att_start = TriangleAttention(c_z, c_att, heads, True)
        self.tri_att_end = TriangleAttention(c_z, c_att, heads, False)
        self.transition = nn.Sequential(nn.LayerNorm(c_z), nn.Linear(c_z, n * c_z), nn.ReLU(), nn.Linear(n * c_z, c_z))

    def forward(self, m, z, lengths):
        seq = (torch.arange(z.shape[1], device=z.device)[None] < lengths[:, None]).to(z.dtype)
        msa_mask = seq[:, None, :].expand(-1, m.shape[1], -1)
        pair_mask = seq[:, :, None] * seq[:, None, :]
        z = z + self.opm(m, msa_mask)
        z = z + self.tri_mul_out(z, pair_mask)
        z = z + self.tri_mul_in(z, pair_mask)
        z = z + self.tri_att_start(z, pair_mask)
        z = z + self.tri_att_end(z, pair_mask)
        return z + self.transition(z) * pair_mask.unsqueeze(-1)


def get_inputs():
    return [torch.randn(1, 128, 256, 256), torch.randn(1, 256, 256, 128), torch.randint(200, 257, (1,))]


def get_init_inputs():
    return [256, 128, 32, 128, 32, 4, 4]
