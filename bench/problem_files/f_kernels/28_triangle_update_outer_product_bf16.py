import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, c_msa, c_pair, c_outer, c_tri, heads):
        super().__init__()
        self.heads = heads
        self.msa_norm, self.pair_norm = nn.LayerNorm(c_msa), nn.LayerNorm(c_pair)
        self.outer_ab = nn.Linear(c_msa, 2 * c_outer)
        self.outer_out = nn.Linear(c_outer * c_outer, c_pair)
        self.tri = nn.Linear(c_pair, 4 * c_tri)
        self.tri_gate = nn.Linear(c_pair, c_pair)
        self.tri_norm = nn.LayerNorm(c_tri)
        self.tri_out = nn.Linear(c_tri, c_pair)
        self.att_norm = nn.LayerNorm(c_pair)
        self.qkvg = nn.Linear(c_pair, 4 * c_pair, bias=False)
        self.bias = nn.Linear(c_pair, heads, bias=False)
        self.att_out = nn.Linear(c_pair, c_pair)
        self.to(torch.bfloat16)

    def outer(self, msa, mask):
        a, b = (self.outer_ab(self.msa_norm(msa)) * mask.unsqueeze(-1)).chunk(2, -1)
        o = torch.einsum("sic,sjd->ijcd", a, b)
        n = torch.einsum("si,sj->ij", mask.float(), mask.float()).clamp_min(1.0)
        return (self.outer_out(o.flatten(2)).float() / n.unsqueeze(-1)).to(msa.dtype)

    def triangle(self, z, pm, outgoing):
        x = self.pair_norm(z)
        a, ga, b, gb = self.tri(x).chunk(4, -1)
        a = a * torch.sigmoid(ga) * pm
        b = b * torch.sigmoid(gb) * pm
        eq = "ikc,jkc->ijc" if outgoing else "kic,kjc->ijc"
        t = torch.einsum(eq, a, b) * x.shape[0] ** -0.5
        return self.tri_out(self.tri_norm(t)) * torch.sigmoid(self.tri_gate(x))

    def attend(self, z, pm):
        x = self.att_norm(z)
        n, _, c = x.shape
        q, k, v, g = self.qkvg(x).view(n, n, 4, self.heads, c // self.heads).unbind(2)
        s = torch.einsum("iqhd,ikhd->ihqk", q, k).float() * (c // self.heads) ** -0.5
        s = s + self.bias(x).permute(2, 0, 1).unsqueeze(0).float()
        s = s + (pm[..., 0].float() - 1).view(n, 1, 1, n) * 1e4
        p = torch.softmax(s, -1).to(x.dtype)
        o = torch.einsum("ihqk,ikhd->iqhd", p, v) * torch.sigmoid(g)
        return self.att_out(o.reshape(n, n, c))

    def forward(self, msa, pair, mask, residue):
        z = pair + self.outer(msa, mask)
        pm = (residue.unsqueeze(1) * residue.unsqueeze(0)).unsqueeze(-1).to(z.dtype)
        z = z + self.triangle(z, pm, True)
        z = z + self.triangle(z, pm, False)
        z = z + self.attend(z, pm)
        zt = z.transpose(0, 1)
        z = z + self.attend(zt, pm.transpose(0, 1)).transpose(0, 1)
        sym = 0.5 * (z + z.transpose(0, 1)).float()
        return z, (sym.square().mean(-1) * pm.squeeze(-1).float()).sqrt()


def get_inputs():
    n, s = 43, 19
    bf = torch.bfloat16
    residue = torch.ones(n)
    residue[-5:] = 0
    mask = (torch.rand(s, n) < 0.9).to(bf) * residue.to(bf)
    return [torch.randn(s, n, 22).to(bf), torch.randn(n, n, 28).to(bf).transpose(0, 1), mask, residue]


def get_init_inputs():
    return [22, 28, 10, 18, 2]
