import torch
from torch import nn
import torch.nn.functional as F


class Transition(nn.Module):
    def __init__(self, dim, hidden, out_dim=None):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-5)
        self.fc1 = nn.Linear(dim, hidden, bias=False)
        self.fc2 = nn.Linear(dim, hidden, bias=False)
        self.fc3 = nn.Linear(hidden, dim if out_dim is None else out_dim, bias=False)
        self.silu = nn.SiLU()
        self.hidden = hidden

    def forward(self, x, chunk_size=None):
        x = self.norm(x)
        if chunk_size is None or self.training:
            return self.fc3(self.silu(self.fc1(x)) * self.fc2(x))
        # compute in chunks over the hidden width
        for i in range(0, self.hidden, chunk_size):
            fc1_slice = self.fc1.weight[i : i + chunk_size, :]
            fc2_slice = self.fc2.weight[i : i + chunk_size, :]
            fc3_slice = self.fc3.weight[:, i : i + chunk_size]
            x_chunk = self.silu((x @ fc1_slice.T)) * (x @ fc2_slice.T)
            if i == 0:
                x_out = x_chunk @ fc3_slice.T
            else:
                x_out = x_out + x_chunk @ fc3_slice.T
        return x_out


class TriangleMultiplication(nn.Module):
    def __init__(self, dim, equation):
        super().__init__()
        self.equation = equation
        self.norm_in = nn.LayerNorm(dim, eps=1e-5)
        self.p_in = nn.Linear(dim, 2 * dim, bias=False)
        self.g_in = nn.Linear(dim, 2 * dim, bias=False)
        self.norm_out = nn.LayerNorm(dim)
        self.p_out = nn.Linear(dim, dim, bias=False)
        self.g_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x, mask):
        x = self.norm_in(x)
        x_in = x
        x = self.p_in(x) * self.g_in(x).sigmoid()
        x = x * mask.unsqueeze(-1)
        a, b = torch.chunk(x.float(), 2, dim=-1)
        x = torch.einsum(self.equation, a, b)
        return self.p_out(self.norm_out(x)) * self.g_out(x_in).sigmoid()


def permute_final_dims(tensor, inds):
    zero_index = -1 * len(inds)
    first_inds = list(range(len(tensor.shape[:zero_index])))
    return tensor.permute(first_inds + [zero_index + i for i in inds])


def flatten_final_dims(t, no_dims):
    return t.reshape(t.shape[:-no_dims] + (-1,))


class GatedMHA(nn.Module):
    def __init__(self, c, c_hidden, no_heads):
        super().__init__()
        self.c_hidden, self.no_heads = c_hidden, no_heads
        self.linear_q = nn.Linear(c, c_hidden * no_heads, bias=False)
        self.linear_k = nn.Linear(c, c_hidden * no_heads, bias=False)
        self.linear_v = nn.Linear(c, c_hidden * no_heads, bias=False)
        self.linear_o = nn.Linear(c_hidden * no_heads, c, bias=False)
        self.linear_g = nn.Linear(c, c_hidden * no_heads, bias=False)

    def forward(self, x, biases):
        q, k, v = self.linear_q(x), self.linear_k(x), self.linear_v(x)
        q, k, v = [t.view(t.shape[:-1] + (self.no_heads, -1)).transpose(-2, -3) for t in (q, k, v)]
        q = q / self.c_hidden**0.5
        a = torch.matmul(q, permute_final_dims(k, (1, 0)))
        for b in biases:
            a += b
        a = F.softmax(a, -1)
        o = torch.matmul(a, v).transpose(-2, -3)
        g = torch.sigmoid(self.linear_g(x))
        g = g.view(g.shape[:-1] + (self.no_heads, -1))
        o = o * g
        return self.linear_o(flatten_final_dims(o, 2))


class TriangleAttention(nn.Module):
    def __init__(self, c_in, c_hidden, no_heads, starting, inf=1e9):
        super().__init__()
        self.starting, self.inf = starting, inf
        self.layer_norm = nn.LayerNorm(c_in)
        self.linear = nn.Linear(c_in, no_heads, bias=False)
        self.mha = GatedMHA(c_in, c_hidden, no_heads)

    def forward(self, x, mask):
        if not self.starting:
            x = x.transpose(-2, -3)
            mask = mask.transpose(-1, -2)
        x = self.layer_norm(x)
        mask_bias = (self.inf * (mask - 1))[..., :, None, None, :]
        triangle_bias = permute_final_dims(self.linear(x), (2, 0, 1)).unsqueeze(-4)
        x = self.mha(x, [mask_bias, triangle_bias])
        if not self.starting:
            x = x.transpose(-2, -3)
        return x


class AttentionPairBias(nn.Module):
    def __init__(self, c_s, c_z, num_heads, inf=1e6):
        super().__init__()
        self.num_heads, self.head_dim, self.inf = num_heads, c_s // num_heads, inf
        self.norm_s = nn.LayerNorm(c_s)
        self.proj_q = nn.Linear(c_s, c_s)
        self.proj_k = nn.Linear(c_s, c_s, bias=False)
        self.proj_v = nn.Linear(c_s, c_s, bias=False)
        self.proj_g = nn.Linear(c_s, c_s, bias=False)
        self.proj_z = nn.Sequential(nn.LayerNorm(c_z), nn.Linear(c_z, num_heads, bias=False))
        self.proj_o = nn.Linear(c_s, c_s, bias=False)

    def forward(self, s, z, mask):
        B = s.shape[0]
        s = self.norm_s(s)
        q = self.proj_q(s).view(B, -1, self.num_heads, self.head_dim)
        k = self.proj_k(s).view(B, -1, self.num_heads, self.head_dim)
        v = self.proj_v(s).view(B, -1, self.num_heads, self.head_dim)
        z = self.proj_z(z).permute(0, 3, 1, 2)
        g = self.proj_g(s).sigmoid()
        attn = torch.einsum("bihd,bjhd->bhij", q.float(), k.float())
        attn = attn / (self.head_dim**0.5) + z.float()
        attn = attn + (1 - mask[:, None, None].float()) * -self.inf
        attn = attn.softmax(dim=-1)
        o = torch.einsum("bhij,bjhd->bihd", attn, v.float()).to(v.dtype)
        o = o.reshape(B, -1, self.num_heads * self.head_dim)
        return self.proj_o(g * o)


class PairformerLayer(nn.Module):
    def __init__(self, c_s, c_z, num_heads, pair_width, pair_heads):
        super().__init__()
        self.attention = AttentionPairBias(c_s, c_z, num_heads)
        self.tri_mul_out = TriangleMultiplication(c_z, "bikd,bjkd->bijd")
        self.tri_mul_in = TriangleMultiplication(c_z, "bkid,bkjd->bijd")
        self.tri_att_start = TriangleAttention(c_z, pair_width, pair_heads, True)
        self.tri_att_end = TriangleAttention(c_z, pair_width, pair_heads, False)
        self.transition_s, self.transition_z = Transition(c_s, c_s * 4), Transition(c_z, c_z * 4)

    def forward(self, s, z, mask, pair_mask):
        z = z + self.tri_mul_out(z, mask=pair_mask)
        z = z + self.tri_mul_in(z, mask=pair_mask)
        z = z + self.tri_att_start(z, mask=pair_mask)
        z = z + self.tri_att_end(z, mask=pair_mask)
        z = z + self.transition_z(z, chunk_size=128)
        s = s + self.attention(s, z, mask)
        s = s + self.transition_s(s)
        return s, z


class RelativePositionEncoder(nn.Module):
    def __init__(self, token_z, r_max=16, s_max=2):
        super().__init__()
        self.r_max, self.s_max = r_max, s_max
        self.linear_layer = nn.Linear(2 * (r_max + 1) + 2 * (s_max + 1) + 1, token_z, bias=False)

    def forward(self, residue_index, asym_id, sym_id):
        b_same_chain = torch.eq(asym_id[:, :, None], asym_id[:, None, :])
        d_residue = torch.clip(residue_index[:, :, None] - residue_index[:, None, :] + self.r_max, 0, 2 * self.r_max)
        d_residue = torch.where(b_same_chain, d_residue, torch.zeros_like(d_residue) + 2 * self.r_max + 1)
        a_rel_pos = F.one_hot(d_residue, 2 * self.r_max + 2)
        d_chain = torch.clip(sym_id[:, :, None] - sym_id[:, None, :] + self.s_max, 0, 2 * self.s_max)
        d_chain = torch.where(b_same_chain, torch.zeros_like(d_chain) + 2 * self.s_max + 1, d_chain)
        a_rel_chain = F.one_hot(d_chain, 2 * self.s_max + 2)
        feats = [a_rel_pos.float(), b_same_chain.float()[..., None], a_rel_chain.float()]
        return self.linear_layer(torch.cat(feats, dim=-1))


class Model(nn.Module):
    """AlphaFold 3's Pairformer trunk in Boltz-1's form: relative positions, recycling, triangle updates, pair-biased attention, distogram loss."""

    def __init__(self, c_in, c_s, c_z, num_blocks, num_heads, pair_width, pair_heads, num_bins, recycling):
        super().__init__()
        self.num_bins, self.recycling = num_bins, recycling
        self.s_init = nn.Linear(c_in, c_s, bias=False)
        self.z_init_1, self.z_init_2 = nn.Linear(c_in, c_z, bias=False), nn.Linear(c_in, c_z, bias=False)
        self.rel_pos = RelativePositionEncoder(c_z)
        self.s_norm, self.z_norm = nn.LayerNorm(c_s), nn.LayerNorm(c_z)
        self.s_recycle, self.z_recycle = nn.Linear(c_s, c_s, bias=False), nn.Linear(c_z, c_z, bias=False)
        self.layers = nn.ModuleList([PairformerLayer(c_s, c_z, num_heads, pair_width, pair_heads) for _ in range(num_blocks)])
        self.distogram = nn.Linear(c_z, num_bins)
        self.register_buffer("boundaries", torch.linspace(2.0, 22.0, num_bins - 1))

    def forward(self, s_inputs, residue_index, asym_id, sym_id, mask, coords):
        s_init = self.s_init(s_inputs)
        z_init = self.z_init_1(s_inputs)[:, :, None] + self.z_init_2(s_inputs)[:, None, :]
        z_init = z_init + self.rel_pos(residue_index, asym_id, sym_id)
        s, z = torch.zeros_like(s_init), torch.zeros_like(z_init)
        pair_mask = mask[:, :, None] * mask[:, None, :]
        for i in range(self.recycling + 1):
            with torch.set_grad_enabled(torch.is_grad_enabled() and i == self.recycling):
                s = s_init + self.s_recycle(self.s_norm(s))
                z = z_init + self.z_recycle(self.z_norm(z))
                for layer in self.layers:
                    s, z = layer(s, z, mask, pair_mask)
        pred = self.distogram(z + z.transpose(1, 2))
        dists = torch.norm(coords[:, :, None] - coords[:, None, :], dim=-1)
        target = F.one_hot((dists.unsqueeze(-1) > self.boundaries).sum(dim=-1).long(), self.num_bins)
        dmask = pair_mask * (1 - torch.eye(mask.shape[1], device=mask.device))[None]
        errors = -1 * torch.sum(target * F.log_softmax(pred, dim=-1), dim=-1)
        denom = 1e-5 + torch.sum(dmask, dim=(-1, -2))
        loss = torch.sum(torch.sum(errors * dmask, dim=-1) / denom[..., None], dim=-1).mean()
        s, z, pred = s * mask[..., None], z * pair_mask[..., None], pred * pair_mask[..., None]
        return {"s": s, "z": z, "pdistogram": pred, "loss": loss}


def get_inputs():
    B, N = 1, 29
    idx = torch.cat([torch.arange(17), torch.arange(12)])[None].repeat(B, 1)
    asym = torch.tensor([0] * 17 + [1] * 12)[None].repeat(B, 1)
    mask = torch.ones(B, N)
    mask[:, 26:] = 0
    return [torch.randn(B, N, 48), idx, asym, asym.clone(), mask, torch.randn(B, N, 3).cumsum(1) * 2]


def get_init_inputs():
    return [48, 128, 64, 2, 4, 16, 4, 24, 1]
