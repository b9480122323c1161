import torch
from torch import nn, einsum


def conv3x3(i, o, s=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o))


class PositionalEncodingFourier(nn.Module):
    def __init__(self, hidden, dim, temperature=10000.0):
        super().__init__()
        self.token_projection = nn.Conv2d(hidden * 2, dim, 1)
        self.hidden, self.temperature = hidden, temperature

    def forward(self, ref):
        b, _, h, w = ref.shape
        one = ref.new_ones(1, h, w)
        y = one.cumsum(1)
        x = one.cumsum(2)
        y = y / (y[:, -1:, :] + 1e-6) * 6.283185307179586
        x = x / (x[:, :, -1:] + 1e-6) * 6.283185307179586
        t = torch.arange(self.hidden, device=ref.device)
        t = self.temperature ** (2 * torch.div(t, 2, rounding_mode="floor").to(ref.dtype) / self.hidden)
        px, py = x[..., None] / t, y[..., None] / t
        px = torch.stack((px[..., 0::2].sin(), px[..., 1::2].cos()), dim=4).flatten(3)
        py = torch.stack((py[..., 0::2].sin(), py[..., 1::2].cos()), dim=4).flatten(3)
        pos = torch.cat((py, px), dim=3).permute(0, 3, 1, 2)
        return self.token_projection(pos).expand(b, -1, -1, -1)


class XCA(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).unbind(2)
        q = nn.functional.normalize(q, dim=1)
        k = nn.functional.normalize(k, dim=1)
        attn = einsum("bnhd,bnhe->bhde", q, k) * self.temperature
        attn = attn.softmax(-1)
        out = einsum("bhde,bnhe->bnhd", attn, v)
        return self.proj(out.reshape(b, n, c))


class LPI(nn.Module):
    def __init__(self, dim, k=3):
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, k, padding=k // 2, groups=dim)
        self.act = nn.GELU()
        self.bn = nn.BatchNorm2d(dim)
        self.conv2 = nn.Conv2d(dim, dim, k, padding=k // 2, groups=dim)

    def forward(self, x, h, w):
        b, n, c = x.shape
        x = x.permute(0, 2, 1).reshape(b, c, h, w)
        x = self.conv2(self.bn(self.act(self.conv1(x))))
        return x.reshape(b, c, n).permute(0, 2, 1)


def ffn(dim, mult):
    return nn.Sequential(nn.Linear(dim, dim * mult), nn.GELU(), nn.Linear(dim * mult, dim))


class XCABlock(nn.Module):
    def __init__(self, dim, heads, eta=0.5):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dim, eps=1e-6) for _ in range(3))
        self.attn, self.mlp, self.lpi = XCA(dim, heads), ffn(dim, 4), LPI(dim)
        self.g1, self.g2, self.g3 = (nn.Parameter(eta * torch.ones(dim)) for _ in range(3))

    def forward(self, x, h, w):
        x = x + self.g1 * self.attn(self.norm1(x))
        x = x + self.g3 * self.lpi(self.norm3(x), h, w)
        return x + self.g2 * self.mlp(self.norm2(x))


class ClassAttentionBlock(nn.Module):
    def __init__(self, dim, heads, eta=0.5):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.q, self.kv, self.proj = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.mlp = ffn(dim, 4)
        self.g1, self.g2 = (nn.Parameter(eta * torch.ones(dim)) for _ in range(2))

    def forward(self, x):
        b, n, c = x.shape
        y = self.norm1(x)
        q = self.q(y[:, 0]).view(b, self.heads, -1)
        k, v = self.kv(y).view(b, n, 2, self.heads, -1).unbind(2)
        a = einsum("bhd,bnhd->bhn", q * (q.shape[-1] ** -0.5), k).softmax(-1)
        cls = self.proj(einsum("bhn,bnhd->bhd", a, v).flatten(1))
        x = x + self.g1 * torch.cat([cls.unsqueeze(1), y[:, 1:]], dim=1)
        x = self.norm2(x)
        tok = x[:, 0:1]
        tok = tok + self.g2 * self.mlp(tok)
        return torch.cat([tok, x[:, 1:]], dim=1)


class Model(nn.Module):
    """XCiT: cross-covariance attention trunk with CaiT-like class attention at the end."""

    def __init__(self, dim, depth, cls_depth, heads, num_classes):
        super().__init__()
        self.patch = nn.Sequential(conv3x3(3, dim // 4, 2), nn.GELU(), conv3x3(dim // 4, dim // 2, 2), nn.GELU(), conv3x3(dim // 2, dim, 2))
        self.pos = PositionalEncodingFourier(32, dim)
        self.blocks = nn.ModuleList([XCABlock(dim, heads) for _ in range(depth)])
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.cls_blocks = nn.ModuleList([ClassAttentionBlock(dim, heads) for _ in range(cls_depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, img):
        x = self.patch(img)
        x = x + self.pos(x)
        b, c, h, w = x.shape
        x = x.flatten(2).transpose(1, 2)
        for blk in self.blocks:
            x = blk(x, h, w)
        x = torch.cat((self.cls_token.expand(b, -1, -1), x), dim=1)
        for blk in self.cls_blocks:
            x = blk(x)
        return self.head(self.norm(x)[:, 0])


def get_inputs():
    return [torch.randn(5, 3, 104, 88)]


def get_init_inputs():
    return [128, 4, 2, 4, 77]
