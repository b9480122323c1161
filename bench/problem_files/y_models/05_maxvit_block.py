import torch
import torch.nn as nn

batch_size = 12
dim_in = 64
dim = 128
img = 112
depth = 2
dim_head = 32
window_size = 7


class SqueezeExcitation(nn.Module):
    def __init__(self, dim, shrinkage_rate=0.25):
        super().__init__()
        hidden_dim = int(dim * shrinkage_rate)
        self.fc1 = nn.Linear(dim, hidden_dim, bias=False)
        self.act = nn.SiLU()
        self.fc2 = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x):
        gate = x.mean(dim=(2, 3))
        gate = self.fc2(self.act(self.fc1(gate))).sigmoid()
        return x * gate[:, :, None, None]


class MBConv(nn.Module):
    def __init__(self, dim_in, dim_out, downsample=False, expansion_rate=4):
        super().__init__()
        hidden_dim = int(expansion_rate * dim_out)
        stride = 2 if downsample else 1
        self.net = nn.Sequential(
            nn.Conv2d(dim_in, hidden_dim, 1, bias=False),
            nn.BatchNorm2d(hidden_dim),
            nn.GELU(),
            nn.Conv2d(hidden_dim, hidden_dim, 3, stride=stride, padding=1, groups=hidden_dim, bias=False),
            nn.BatchNorm2d(hidden_dim),
            nn.GELU(),
            SqueezeExcitation(hidden_dim, shrinkage_rate=0.0625),
            nn.Conv2d(hidden_dim, dim_out, 1, bias=False),
            nn.BatchNorm2d(dim_out),
        )
        if downsample or dim_in != dim_out:
            self.shortcut = nn.Sequential(
                nn.AvgPool2d(2) if downsample else nn.Identity(), nn.Conv2d(dim_in, dim_out, 1)
            )
        else:
            self.shortcut = nn.Identity()

    def forward(self, x):
        return self.net(x) + self.shortcut(x)


class RelPosAttention(nn.Module):
    def __init__(self, dim, dim_head=32, window_size=7):
        super().__init__()
        assert dim % dim_head == 0
        self.heads = dim // dim_head
        self.scale = dim_head**-0.5
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.rel_pos_bias = nn.Embedding((2 * window_size - 1) ** 2, self.heads)

        pos = torch.arange(window_size)
        grid = torch.stack(torch.meshgrid(pos, pos, indexing="ij"))
        grid = grid.flatten(1).t()
        rel_pos = grid[:, None, :] - grid[None, :, :]
        rel_pos += window_size - 1
        rel_pos_indices = (rel_pos * torch.tensor([2 * window_size - 1, 1])).sum(dim=-1)
        self.register_buffer("rel_pos_indices", rel_pos_indices, persistent=False)

    def forward(self, x):
        # x: (b, nx, ny, w1, w2, d)
        b, nx, ny, w1, w2, d = x.shape
        h = self.heads
        x = self.norm(x).reshape(b * nx * ny, w1 * w2, d)
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = map(lambda t: t.reshape(t.shape[0], t.shape[1], h, d // h).permute(0, 2, 1, 3), (q, k, v))
        q = q * self.scale
        sim = torch.einsum("b h i d, b h j d -> b h i j", q, k)
        bias = self.rel_pos_bias(self.rel_pos_indices)
        sim = sim + bias.permute(2, 0, 1)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("b h i j, b h j d -> b h i d", attn, v)
        out = out.permute(0, 2, 1, 3).reshape(b, nx, ny, w1, w2, d)
        return self.to_out(out)


class FeedForward(nn.Module):
    def __init__(self, dim, mult=4):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, dim * mult), nn.GELU(), nn.Linear(dim * mult, dim)
        )

    def forward(self, x):
        return self.net(x)


class MaxViTBlock(nn.Module):
    def __init__(self, dim_in, dim, downsample, dim_head, window_size):
        super().__init__()
        self.w = window_size
        self.conv = MBConv(dim_in, dim, downsample=downsample)
        self.block_attn = RelPosAttention(dim, dim_head, window_size)
        self.block_ff = FeedForward(dim)
        self.grid_attn = RelPosAttention(dim, dim_head, window_size)
        self.grid_ff = FeedForward(dim)

    def forward(self, x):
        x = self.conv(x)
        b, d, H, W = x.shape
        w = self.w
        # b d (x w1) (y w2) -> b x y w1 w2 d
        x = x.view(b, d, H // w, w, W // w, w).permute(0, 2, 4, 3, 5, 1)
        x = self.block_attn(x) + x
        x = self.block_ff(x) + x
        x = x.permute(0, 5, 1, 3, 2, 4).reshape(b, d, H, W)
        # b d (w1 x) (w2 y) -> b x y w1 w2 d
        x = x.view(b, d, w, H // w, w, W // w).permute(0, 3, 5, 2, 4, 1)
        x = self.grid_attn(x) + x
        x = self.grid_ff(x) + x
        x = x.permute(0, 5, 3, 1, 4, 2).reshape(b, d, H, W)
        return x


class Model(nn.Module):
    """MaxViT stage: MBConv with squeeze-excitation followed by window (block) attention
    and dilated (grid) attention, the first block downsampling by two."""

    def __init__(self, dim_in, dim, depth, dim_head, window_size):
        super().__init__()
        self.layers = nn.ModuleList([])
        for ind in range(depth):
            is_first = ind == 0
            self.layers.append(MaxViTBlock(dim_in if is_first else dim, dim, is_first, dim_head, window_size))

    def forward(self, x):
        for stage in self.layers:
            x = stage(x)
        return x


def get_inputs():
    return [torch.randn(batch_size, dim_in, img, img)]


def get_init_inputs():
    return [dim_in, dim, depth, dim_head, window_size]
