import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, N, H = 4, 1024, 1024, 4, 2052


class Model(nn.Module):
    """Dynamic hyper-connections around two ReGLU layers: n residual streams, static plus
    input dependent mixing weights squashed by tanh."""

    def __init__(self, dim, streams, hidden, layers):
        super().__init__()
        n = streams
        self.n, self.layers = n, layers
        self.static_alpha = nn.ParameterList()
        self.static_beta = nn.ParameterList()
        self.dyn_alpha = nn.ParameterList()
        self.dyn_beta = nn.ParameterList()
        self.alpha_scale = nn.ParameterList()
        self.beta_scale = nn.ParameterList()
        self.norm = nn.ModuleList()
        self.pre = nn.ModuleList()
        self.w_in = nn.ModuleList()
        self.w_out = nn.ModuleList()
        for i in range(layers):
            init = torch.zeros(n, 1)
            init[i % n] = 1.0
            self.static_alpha.append(nn.Parameter(torch.cat([init, torch.eye(n)], dim=1)))
            self.static_beta.append(nn.Parameter(torch.ones(n)))
            self.dyn_alpha.append(nn.Parameter(torch.randn(dim, n + 1) * 0.5 / dim ** 0.5))
            self.dyn_beta.append(nn.Parameter(torch.randn(dim) * 0.5 / dim ** 0.5))
            self.alpha_scale.append(nn.Parameter(torch.full((1,), 0.3)))
            self.beta_scale.append(nn.Parameter(torch.full((1,), 0.3)))
            self.norm.append(nn.LayerNorm(dim))
            self.pre.append(nn.LayerNorm(dim))
            self.w_in.append(nn.Linear(dim, 2 * hidden))
            self.w_out.append(nn.Linear(hidden, dim))

    def forward(self, x):
        streams = x.unsqueeze(2).expand(-1, -1, self.n, -1)
        for i in range(self.layers):
            normed = self.norm[i](streams)
            wa = torch.tanh(normed @ self.dyn_alpha[i]) * self.alpha_scale[i] + self.static_alpha[i]
            wb = torch.tanh(normed @ self.dyn_beta[i]) * self.beta_scale[i] + self.static_beta[i]
            mix = wa.transpose(-1, -2) @ streams
            branch, streams = mix[..., 0, :], mix[..., 1:, :]
            a, g = self.w_in[i](self.pre[i](branch)).chunk(2, dim=-1)
            y = self.w_out[i](F.relu(g) * a)
            streams = streams + torch.einsum("btd,btn->btnd", y, wb)
        return streams.sum(dim=2) / self.n


def get_inputs():
    return [torch.randn(B, T, D)]


def get_init_inputs():
    return [D, N, H, 2]
