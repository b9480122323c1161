import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class DoRALinear(nn.Module):
    """Weight-decomposed LoRA: m * (W + s BA) / ||W + s BA||, norm treated as a constant in backward."""

    def __init__(self, d_in, d_out, r, alpha):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_out, d_in) * d_in ** -0.5, requires_grad=False)
        self.lora_A = nn.Parameter(torch.empty(r, d_in))
        self.lora_B = nn.Parameter(torch.randn(d_out, r) * 0.01)
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / r
        self.magnitude = nn.Parameter(torch.linalg.norm(self.weight, dim=1))

    def forward(self, x):
        lora_weight = self.lora_B @ self.lora_A
        weight_norm = torch.linalg.norm((self.weight + self.scaling * lora_weight).float(), dim=1).detach().to(x.dtype)
        mag_norm_scale = (self.magnitude / weight_norm).view(1, -1)
        base = F.linear(x, self.weight)
        lora = F.linear(F.linear(x, self.lora_A), self.lora_B)
        return base + (mag_norm_scale - 1) * base + mag_norm_scale * lora * self.scaling


class MultiLoRALinear(nn.Module):
    """S-LoRA style: each sequence of the batch selects its own adapter; row 0 is the empty adapter."""

    def __init__(self, d_in, d_out, r, n_adapters, alpha):
        super().__init__()
        self.base = nn.Linear(d_in, d_out, bias=False)
        self.base.weight.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(n_adapters, d_in, r) * d_in ** -0.5)
        self.B = nn.Parameter(torch.randn(n_adapters, r, d_out) * 0.01)
        # rank-stabilised scale, one per adapter
        self.register_buffer("scale", torch.full((n_adapters,), alpha / math.sqrt(r)))

    def forward(self, x, adapter):
        a = torch.index_select(self.A, 0, adapter)
        b = torch.index_select(self.B, 0, adapter)
        s = (self.scale[adapter] * (adapter != 0)).to(x.dtype)
        delta = torch.bmm(torch.bmm(x, a), b) * s[:, None, None]
        return self.base(x) + delta


def precompute(dim, end, theta, device):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2, device=device)[: dim // 2].float() / dim))
    t = torch.arange(end, device=device, dtype=torch.float32)
    freqs = torch.outer(t, freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary(x, freqs_cis):
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs_cis.view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)


class Model(nn.Module):
    """A Llama-8B layer under fine-tuning: DoRA on q and v, per-request LoRA on the MLP, frozen base."""

    def __init__(self, dim, n_heads, n_kv, ffn, r, n_adapters, alpha):
        super().__init__()
        self.n_heads, self.n_kv, self.hd = n_heads, n_kv, dim // n_heads
        self.wq = DoRALinear(dim, n_heads * self.hd, r, alpha)
        self.wv = DoRALinear(dim, n_kv * self.hd, r, alpha)
        self.wk = nn.Linear(dim, n_kv * self.hd, bias=False).requires_grad_(False)
        self.wo = nn.Linear(dim, dim, bias=False).requires_grad_(False)
        self.gate = MultiLoRALinear(dim, ffn, r, n_adapters, alpha)
        self.up = MultiLoRALinear(dim, ffn, r, n_adapters, alpha)
        self.down = MultiLoRALinear(ffn, dim, r, n_adapters, alpha)
        self.attention_norm = nn.Parameter(torch.ones(dim), requires_grad=False)
        self.ffn_norm = nn.Parameter(torch.ones(dim), requires_grad=False)

    def forward(self, x, adapter):
        bsz, seqlen, dim = x.shape
        h = F.rms_norm(x, (dim,), self.attention_norm, 1e-5)
        xq = self.wq(h).view(bsz, seqlen, self.n_heads, self.hd)
        xk = self.wk(h).view(bsz, seqlen, self.n_kv, self.hd)
        xv = self.wv(h).view(bsz, seqlen, self.n_kv, self.hd)
        freqs_cis = precompute(self.hd, seqlen, 500000.0, x.device)
        xq, xk = apply_rotary(xq, freqs_cis), apply_rotary(xk, freqs_cis)
        xk = xk.repeat_interleave(self.n_heads // self.n_kv, dim=2)
        xv = xv.repeat_interleave(self.n_heads // self.n_kv, dim=2)
        q, k, v = (t.transpose(1, 2) for t in (xq, xk, xv))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(o.transpose(1, 2).reshape(bsz, seqlen, dim))
        h = F.rms_norm(x, (dim,), self.ffn_norm, 1e-5)
        return x + self.down(F.silu(self.gate(h, adapter)) * self.up(h, adapter), adapter)


def get_inputs():
    return [torch.randn(4, 512, 4096), torch.randint(0, 8, (4,))]


def get_init_inputs():
    return [4096, 32, 8, 14336, 16, 8, 32]
