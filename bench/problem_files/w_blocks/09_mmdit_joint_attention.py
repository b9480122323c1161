import torch
from torch import nn, Tensor
import torch.nn.functional as F


def rope(pos: Tensor, dim: int, theta: int) -> Tensor:
    scale = torch.arange(0, dim, 2, dtype=torch.float64, device=pos.device) / dim
    omega = 1.0 / (theta ** scale)
    out = torch.einsum("...n,d->...nd", pos.to(torch.float64), omega)
    out = torch.stack([torch.cos(out), -torch.sin(out), torch.sin(out), torch.cos(out)], dim=-1)
    return out.view(*out.shape[:-1], 2, 2).float()


def apply_rope(xq: Tensor, xk: Tensor, freqs_cis: Tensor):
    xq_ = xq.float().reshape(*xq.shape[:-1], -1, 1, 2)
    xk_ = xk.float().reshape(*xk.shape[:-1], -1, 1, 2)
    xq_out = freqs_cis[..., 0] * xq_[..., 0] + freqs_cis[..., 1] * xq_[..., 1]
    xk_out = freqs_cis[..., 0] * xk_[..., 0] + freqs_cis[..., 1] * xk_[..., 1]
    return xq_out.reshape(*xq.shape).type_as(xq), xk_out.reshape(*xk.shape).type_as(xk)


class QKNorm(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.q_scale = nn.Parameter(torch.ones(dim))
        self.k_scale = nn.Parameter(torch.ones(dim))

    @staticmethod
    def rms(x: Tensor, scale: Tensor) -> Tensor:
        dt = x.dtype
        x = x.float()
        rrms = torch.rsqrt(torch.mean(x ** 2, dim=-1, keepdim=True) + 1e-6)
        return (x * rrms).to(dtype=dt) * scale

    def forward(self, q, k, v):
        return self.rms(q, self.q_scale).to(v), self.rms(k, self.k_scale).to(v)


class Modulation(nn.Module):
    def __init__(self, dim: int, n: int):
        super().__init__()
        self.n = n
        self.lin = nn.Linear(dim, n * dim)

    def forward(self, vec: Tensor):
        return self.lin(F.silu(vec))[:, None, :].chunk(self.n, dim=-1)


class Stream(nn.Module):
    """The weights of one modality; the attention itself is shared."""

    def __init__(self, dim, heads, mlp):
        super().__init__()
        self.heads = heads
        self.mod = Modulation(dim, 6)
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(dim, dim * 3)
        self.qk_norm = QKNorm(dim // heads)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp), nn.GELU(approximate="tanh"), nn.Linear(mlp, dim))

    def pre(self, x, vec):
        mods = self.mod(vec)
        h = (1 + mods[1]) * self.norm1(x) + mods[0]
        b, l, _ = h.shape
        q, k, v = self.qkv(h).view(b, l, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.qk_norm(q, k, v)
        return q, k, v, mods

    def post(self, x, attn, mods):
        x = x + mods[2] * self.proj(attn)
        return x + mods[5] * self.mlp((1 + mods[4]) * self.norm2(x) + mods[3])


class SingleStream(nn.Module):
    def __init__(self, dim, heads, mlp):
        super().__init__()
        self.dim, self.mlp_dim, self.heads = dim, mlp, heads
        self.linear1 = nn.Linear(dim, dim * 3 + mlp)
        self.linear2 = nn.Linear(dim + mlp, dim)
        self.norm = QKNorm(dim // heads)
        self.pre_norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.mod = Modulation(dim, 3)

    def forward(self, x, vec, pe):
        shift, scale, gate = self.mod(vec)
        qkv, mlp = torch.split(self.linear1((1 + scale) * self.pre_norm(x) + shift), [3 * self.dim, self.mlp_dim], dim=-1)
        b, l, _ = qkv.shape
        q, k, v = qkv.view(b, l, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = apply_rope(*self.norm(q, k, v), pe)
        attn = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, l, -1)
        return x + gate * self.linear2(torch.cat((attn, F.gelu(mlp, approximate="tanh")), 2))


class Model(nn.Module):
    def __init__(self, dim, heads, mlp, axes_dim):
        super().__init__()
        self.axes_dim = axes_dim
        self.img, self.txt = Stream(dim, heads, mlp), Stream(dim, heads, mlp)
        self.single = SingleStream(dim, heads, mlp)

    def forward(self, img, txt, vec, ids):
        pe = torch.cat([rope(ids[..., i], d, 10000) for i, d in enumerate(self.axes_dim)], dim=-3).unsqueeze(1)
        nt = txt.shape[1]
        iq, ik, iv, im = self.img.pre(img, vec)
        tq, tk, tv, tm = self.txt.pre(txt, vec)
        q, k, v = torch.cat((tq, iq), 2), torch.cat((tk, ik), 2), torch.cat((tv, iv), 2)
        q, k = apply_rope(q, k, pe)
        attn = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        txt, img = self.txt.post(txt, attn[:, :nt], tm), self.img.post(img, attn[:, nt:], im)
        return self.single(torch.cat((txt, img), 1), vec, pe)[:, nt:]


def get_inputs():
    return [torch.randn(1, 1024, 3072), torch.randn(1, 256, 3072), torch.randn(1, 3072), torch.randint(0, 32, (1, 1280, 3))]


def get_init_inputs():
    return [3072, 24, 12288, [16, 56, 56]]
