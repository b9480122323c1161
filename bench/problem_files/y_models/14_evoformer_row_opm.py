import torch
import torch.nn as nn
import torch.nn.functional as F

n_seq, n_res = 96, 193
c_m, c_z = 256, 128
c_hidden_att, no_heads = 32, 8
c_hidden_opm = 32
n_blocks = 3


def permute_final_dims(tensor, inds):
    zero_index = -1 * len(inds)
    first_inds = list(range(len(tensor.shape[:zero_index])))
    return tensor.permute(first_inds + [zero_index + i for i in inds])


class Attention(nn.Module):
    def __init__(self, c_q, c_k, c_v, c_hidden, no_heads):
        super().__init__()
        self.c_hidden, self.no_heads = c_hidden, no_heads
        self.linear_q = nn.Linear(c_q, c_hidden * no_heads, bias=False)
        self.linear_k = nn.Linear(c_k, c_hidden * no_heads, bias=False)
        self.linear_v = nn.Linear(c_v, c_hidden * no_heads, bias=False)
        self.linear_o = nn.Linear(c_hidden * no_heads, c_q)
        self.linear_g = nn.Linear(c_q, c_hidden * no_heads)

    def forward(self, q_x, kv_x, biases):
        q, k, v = self.linear_q(q_x), self.linear_k(kv_x), self.linear_v(kv_x)
        q = q.view(q.shape[:-1] + (self.no_heads, -1)).transpose(-2, -3)
        k = k.view(k.shape[:-1] + (self.no_heads, -1)).transpose(-2, -3)
        v = v.view(v.shape[:-1] + (self.no_heads, -1)).transpose(-2, -3)
        q = q / self.c_hidden**0.5
        a = torch.matmul(q, permute_final_dims(k, (1, 0)))
        for b in biases:
            a += b
        a = F.softmax(a, dim=-1)
        o = torch.matmul(a, v).transpose(-2, -3)
        g = torch.sigmoid(self.linear_g(q_x))
        g = g.view(g.shape[:-1] + (self.no_heads, -1))
        o = o * g
        o = o.reshape(o.shape[:-2] + (-1,))
        return self.linear_o(o)


class MSARowAttentionWithPairBias(nn.Module):
    def __init__(self, c_m, c_z, c_hidden, no_heads, inf=1e9):
        super().__init__()
        self.inf = inf
        self.layer_norm_m = nn.LayerNorm(c_m)
        self.layer_norm_z = nn.LayerNorm(c_z)
        self.linear_z = nn.Linear(c_z, no_heads, bias=False)
        self.mha = Attention(c_m, c_m, c_m, c_hidden, no_heads)

    def forward(self, m, z, mask):
        # [*, N_seq, 1, 1, N_res]
        mask_bias = (self.inf * (mask - 1))[..., :, None, None, :]
        # [*, 1, no_heads, N_res, N_res]
        z = self.linear_z(self.layer_norm_z(z))
        z = permute_final_dims(z, (2, 0, 1)).unsqueeze(-4)
        m = self.layer_norm_m(m)
        return self.mha(m, m, [mask_bias, z])


class Transition(nn.Module):
    def __init__(self, c, n=4):
        super().__init__()
        self.layer_norm = nn.LayerNorm(c)
        self.linear_1 = nn.Linear(c, n * c)
        self.relu = nn.ReLU()
        self.linear_2 = nn.Linear(n * c, c)

    def forward(self, x, mask):
        x = self.layer_norm(x)
        x = self.relu(self.linear_1(x))
        return self.linear_2(x) * mask.unsqueeze(-1)


class OuterProductMean(nn.Module):
    def __init__(self, c_m, c_z, c_hidden, eps=1e-3):
        super().__init__()
        self.eps = eps
        self.layer_norm = nn.LayerNorm(c_m)
        self.linear_1 = nn.Linear(c_m, c_hidden)
        self.linear_2 = nn.Linear(c_m, c_hidden)
        self.linear_out = nn.Linear(c_hidden**2, c_z)

    def forward(self, m, mask):
        ln = self.layer_norm(m)
        mask = mask.unsqueeze(-1)
        a = self.linear_1(ln) * mask
        b = self.linear_2(ln) * mask
        a, b = a.transpose(-2, -3), b.transpose(-2, -3)
        outer = torch.einsum("...bac,...dae->...bdce", a, b)
        outer = outer.reshape(outer.shape[:-2] + (-1,))
        outer = self.linear_out(outer)
        norm = torch.einsum("...abc,...adc->...bdc", mask, mask)
        norm = norm + self.eps
        return outer / norm


class EvoformerBlock(nn.Module):
    def __init__(self, c_m, c_z, c_hidden_att, no_heads, c_hidden_opm):
        super().__init__()
        self.msa_att_row = MSARowAttentionWithPairBias(c_m, c_z, c_hidden_att, no_heads)
        self.msa_transition = Transition(c_m)
        self.outer_product_mean = OuterProductMean(c_m, c_z, c_hidden_opm)
        self.pair_transition = Transition(c_z)

    def forward(self, m, z, msa_mask, pair_mask):
        m = m + self.msa_att_row(m, z, msa_mask)
        m = m + self.msa_transition(m, msa_mask)
        z = z + self.outer_product_mean(m, msa_mask)
        z = z + self.pair_transition(z, pair_mask)
        return m, z


class Model(nn.Module):
    """Evoformer-like stack: gated MSA row attention biased by the pair representation,
    outer product mean back into the pair representation, and transitions."""

    def __init__(self, c_m, c_z, c_hidden_att, no_heads, c_hidden_opm, n_blocks):
        super().__init__()
        self.blocks = nn.ModuleList(
            [EvoformerBlock(c_m, c_z, c_hidden_att, no_heads, c_hidden_opm) for _ in range(n_blocks)]
        )
        self.linear_s = nn.Linear(c_m, c_m)

    def forward(self, m, z, msa_mask):
        pair_mask = msa_mask[..., 0, :, None] * msa_mask[..., 0, None, :]
        for block in self.blocks:
            m, z = block(m, z, msa_mask, pair_mask)
        s = self.linear_s(m[..., 0, :, :])
        return m, z, s


def get_inputs():
    msa_mask = (torch.rand(1, n_seq, n_res) > 0.1).float()
    msa_mask[:, 0] = 1.0
    return [torch.randn(1, n_seq, n_res, c_m), torch.randn(1, n_res, n_res, c_z), msa_mask]


def get_init_inputs():
    return [c_m, c_z, c_hidden_att, no_heads, c_hidden_opm, n_blocks]
