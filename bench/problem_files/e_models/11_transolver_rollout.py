import math

import torch
import torch.nn as nn


def timestep_embedding(timesteps, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(start=0, end=half, dtype=torch.float32) / half).to(device=timesteps.device)
    args = timesteps[:, None].float() * freqs[None]
    embedding = torch.cat([torch.cos(args), torch.sin(args)], dim=-1)
    if dim % 2:
        embedding = torch.cat([embedding, torch.zeros_like(embedding[:, :1])], dim=-1)
    return embedding


class PhysicsAttentionStructuredMesh2D(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64, slice_num=64, H=31, W=27, kernel=3):
        super().__init__()
        inner_dim = dim_head * heads
        self.dim_head, self.heads, self.H, self.W = dim_head, heads, H, W
        self.scale = dim_head**-0.5
        self.softmax = nn.Softmax(dim=-1)
        self.temperature = nn.Parameter(torch.ones([1, heads, 1, 1]) * 0.5)
        self.in_project_x = nn.Conv2d(dim, inner_dim, kernel, 1, kernel // 2)
        self.in_project_fx = nn.Conv2d(dim, inner_dim, kernel, 1, kernel // 2)
        self.in_project_slice = nn.Linear(dim_head, slice_num)
        torch.nn.init.orthogonal_(self.in_project_slice.weight)
        self.to_q = nn.Linear(dim_head, dim_head, bias=False)
        self.to_k = nn.Linear(dim_head, dim_head, bias=False)
        self.to_v = nn.Linear(dim_head, dim_head, bias=False)
        self.to_out = nn.Linear(inner_dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        x = x.reshape(B, self.H, self.W, C).contiguous().permute(0, 3, 1, 2).contiguous()
        ### (1) Slice
        fx_mid = self.in_project_fx(x).permute(0, 2, 3, 1).contiguous().reshape(B, N, self.heads, self.dim_head).permute(0, 2, 1, 3).contiguous()
        x_mid = self.in_project_x(x).permute(0, 2, 3, 1).contiguous().reshape(B, N, self.heads, self.dim_head).permute(0, 2, 1, 3).contiguous()
        slice_weights = self.softmax(self.in_project_slice(x_mid) / torch.clamp(self.temperature, min=0.1, max=5))  # B H N G
        slice_norm = slice_weights.sum(2)  # B H G
        slice_token = torch.einsum("bhnc,bhng->bhgc", fx_mid, slice_weights)
        slice_token = slice_token / ((slice_norm + 1e-5)[:, :, :, None].repeat(1, 1, 1, self.dim_head))
        ### (2) Attention among slice tokens
        q_slice_token = self.to_q(slice_token)
        k_slice_token = self.to_k(slice_token)
        v_slice_token = self.to_v(slice_token)
        dots = torch.matmul(q_slice_token, k_slice_token.transpose(-1, -2)) * self.scale
        attn = self.softmax(dots)
        out_slice_token = torch.matmul(attn, v_slice_token)  # B H G D
        ### (3) Deslice
        out_x = torch.einsum("bhgc,bhng->bhnc", out_slice_token, slice_weights)
        out_x = out_x.permute(0, 2, 1, 3).reshape(B, N, -1)
        return self.to_out(out_x)


class MLP(nn.Module):
    def __init__(self, n_input, n_hidden, n_output, n_layers=1, res=True):
        super().__init__()
        self.n_layers, self.res = n_layers, res
        self.linear_pre = nn.Sequential(nn.Linear(n_input, n_hidden), nn.GELU())
        self.linear_post = nn.Linear(n_hidden, n_output)
        self.linears = nn.ModuleList([nn.Sequential(nn.Linear(n_hidden, n_hidden), nn.GELU()) for _ in range(n_layers)])

    def forward(self, x):
        x = self.linear_pre(x)
        for i in range(self.n_layers):
            if self.res:
                x = self.linears[i](x) + x
            else:
                x = self.linears[i](x)
        return self.linear_post(x)


class TransolverBlock(nn.Module):
    def __init__(self, num_heads, hidden_dim, mlp_ratio, last_layer, out_dim, slice_num, H, W):
        super().__init__()
        self.last_layer = last_layer
        self.ln_1 = nn.LayerNorm(hidden_dim)
        self.Attn = PhysicsAttentionStructuredMesh2D(hidden_dim, num_heads, hidden_dim // num_heads, slice_num, H, W)
        self.ln_2 = nn.LayerNorm(hidden_dim)
        self.mlp = MLP(hidden_dim, hidden_dim * mlp_ratio, hidden_dim, n_layers=0, res=False)
        if self.last_layer:
            self.ln_3 = nn.LayerNorm(hidden_dim)
            self.mlp2 = nn.Linear(hidden_dim, out_dim)

    def forward(self, fx):
        fx = self.Attn(self.ln_1(fx)) + fx
        fx = self.mlp(self.ln_2(fx)) + fx
        if self.last_layer:
            return self.mlp2(self.ln_3(fx))
        return fx


class LpLoss:
    def __init__(self, p=2):
        self.p = p

    def rel(self, x, y):
        num_examples = x.size()[0]
        diff_norms = torch.norm(x.reshape(num_examples, -1) - y.reshape(num_examples, -1), self.p, 1)
        y_norms = torch.norm(y.reshape(num_examples, -1), self.p, 1)
        return torch.sum(diff_norms / y_norms)


class Model(nn.Module):
    """Transolver neural operator: attention among learned slices of a structured mesh, rolled out in time against a relative L2 loss."""

    def __init__(self, H, W, ref, fun_dim, out_dim, n_hidden, n_head, n_layers, slice_num):
        super().__init__()
        self.H, self.W, self.ref, self.n_hidden = H, W, ref, n_hidden
        self.register_buffer("pos", self.get_grid(), persistent=False)
        self.preprocess = MLP(fun_dim + ref * ref, n_hidden * 2, n_hidden, n_layers=0, res=False)
        self.time_fc = nn.Sequential(nn.Linear(n_hidden, n_hidden), nn.SiLU(), nn.Linear(n_hidden, n_hidden))
        self.blocks = nn.ModuleList(
            [TransolverBlock(n_head, n_hidden, 2, i == n_layers - 1, out_dim, slice_num, H, W) for i in range(n_layers)]
        )
        self.placeholder = nn.Parameter((1 / (n_hidden)) * torch.rand(n_hidden, dtype=torch.float))
        self.myloss = LpLoss()
        self.apply(self._init_weights)
        for block in self.blocks:
            for proj in (block.Attn.to_q, block.Attn.to_k, block.Attn.to_v):
                nn.init.orthogonal_(proj.weight, gain=1.5)
            nn.init.orthogonal_(block.Attn.in_project_slice.weight)

    def _init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.trunc_normal_(m.weight, std=0.1)
            if m.bias is not None:
                nn.init.constant_(m.bias, 0)

    def get_grid(self):
        def mesh(h, w):
            gridx = torch.linspace(0, 1, h).reshape(1, h, 1, 1).repeat([1, 1, w, 1])
            gridy = torch.linspace(0, 1, w).reshape(1, 1, w, 1).repeat([1, h, 1, 1])
            return torch.cat((gridx, gridy), dim=-1)

        grid, grid_ref = mesh(self.H, self.W), mesh(self.ref, self.ref)
        pos = torch.sqrt(torch.sum((grid[:, :, :, None, None, :] - grid_ref[:, None, None, :, :, :]) ** 2, dim=-1))
        return pos.reshape(1, self.H * self.W, self.ref * self.ref).contiguous()

    def step(self, fx, T=None):
        x = self.pos.repeat(fx.shape[0], 1, 1)
        fx = torch.cat((x, fx), -1)
        fx = self.preprocess(fx)
        fx = fx + self.placeholder[None, None, :]
        if T is not None:
            time_emb = timestep_embedding(T, self.n_hidden).repeat(1, x.shape[1], 1)
            time_emb = self.time_fc(time_emb)
            fx = fx + time_emb
        for block in self.blocks:
            fx = block(fx)
        return fx

    def forward(self, fx, yy):
        loss = 0
        pred = None
        out = yy.shape[-1]
        for t in range(out):
            y = yy[..., t : t + 1]
            T = torch.full((fx.shape[0], 1), t / out, device=fx.device)
            im = self.step(fx, T=T)
            loss += self.myloss.rel(im, y)
            pred = im if pred is None else torch.cat((pred, im), -1)
            fx = torch.cat((fx[..., 1:], im), dim=-1)
        return {"loss": loss, "pred": pred}


def get_inputs():
    B, N = 2, 31 * 27
    base = torch.randn(B, N, 1)
    fx = base + 0.3 * torch.randn(B, N, 6)
    yy = base + 0.3 * torch.randn(B, N, 2)
    return [fx, yy]


def get_init_inputs():
    return [31, 27, 6, 6, 1, 64, 4, 3, 24]
