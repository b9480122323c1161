import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Native sparse attention: compressed, top-k selected and sliding branches with learned gates."""

    def __init__(self, dim, heads, block, topk, window):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.block, self.topk, self.window = block, topk, window
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.k_compress = nn.Sequential(nn.Linear(block * self.d, 32), nn.GELU(), nn.Linear(32, self.d))
        self.v_compress = nn.Sequential(nn.Linear(block * self.d, 32), nn.GELU(), nn.Linear(32, self.d))
        self.intra_pos = nn.Parameter(torch.randn(block, self.d) * 0.02)
        self.mem_kv = nn.Parameter(torch.randn(2, heads, 1, self.d) * 0.02)
        self.to_gates = nn.Linear(dim, 3 * heads)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        dev = x.device
        scale = self.d ** -0.5
        q, k, v = self.qkv(x).view(b, n, 3, self.h, self.d).permute(2, 0, 3, 1, 4)
        nb = n // self.block
        neg = -torch.finfo(q.dtype).max

        # compressed branch
        kb = k.reshape(b, self.h, nb, self.block, self.d)
        vb = v.reshape(b, self.h, nb, self.block, self.d)
        ck = self.k_compress((kb + self.intra_pos).flatten(-2))
        cv = self.v_compress((vb + self.intra_pos).flatten(-2))
        mem_k, mem_v = self.mem_kv.unsqueeze(1).expand(-1, b, -1, -1, -1)
        ck, cv = torch.cat((mem_k, ck), dim=2), torch.cat((mem_v, cv), dim=2)
        csim = torch.einsum("bhid,bhjd->bhij", q, ck) * scale
        q_pos = torch.arange(n, device=dev)
        blk_end = torch.arange(1, nb + 1, device=dev) * self.block - 1
        cmask = F.pad(q_pos[:, None] >= blk_end[None, :], (1, 0), value=True)
        cattn = csim.masked_fill(~cmask, neg).softmax(dim=-1)
        c_out = cattn @ cv

        # selected branch
        importance = cattn[..., 1:]
        own = q_pos // self.block
        importance = importance.masked_fill(
            torch.arange(nb, device=dev)[None, :] == own[:, None], -1.0)
        sel_val, sel_idx = importance.topk(self.topk, dim=-1)
        valid = sel_val > 1e-10
        own_idx = own.view(1, 1, n, 1).expand(b, self.h, n, 1)
        sel_idx = torch.cat((sel_idx, own_idx), dim=-1)
        valid = F.pad(valid, (0, 1), value=True)
        bi = torch.arange(b, device=dev)[:, None, None, None]
        hi = torch.arange(self.h, device=dev)[None, :, None, None]
        fk = kb[bi, hi, sel_idx].flatten(3, 4)  # b h n (topk+1)*block d
        fv = vb[bi, hi, sel_idx].flatten(3, 4)
        key_pos = sel_idx[..., None] * self.block + torch.arange(self.block, device=dev)
        fmask = (key_pos <= q_pos[:, None, None]) & valid[..., None]
        fsim = torch.einsum("bhid,bhijd->bhij", q, fk) * scale
        fattn = fsim.masked_fill(~fmask.flatten(-2), neg).softmax(-1)
        f_out = torch.einsum("bhij,bhijd->bhid", fattn, fv)

        # sliding window
        rel = q_pos[:, None] - q_pos[None, :]
        smask = (rel >= 0) & (rel < self.window)
        s_out = F.scaled_dot_product_attention(q, k, v, attn_mask=smask)

        g = self.to_gates(x).sigmoid().view(b, n, 3, self.h).permute(2, 0, 3, 1)
        o = (g[..., None] * torch.stack((c_out, f_out, s_out))).sum(0)
        return self.out(o.transpose(1, 2).reshape(b, n, -1)), sel_idx.masked_fill(~valid, -1)


def get_inputs():
    return [torch.randn(2, 48, 36)]


def get_init_inputs():
    return [36, 3, 6, 2, 9]
