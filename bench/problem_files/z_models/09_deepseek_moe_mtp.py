import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        var = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(var + self.eps))


def precompute_freqs(dim, seq_len, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
    t = torch.arange(seq_len).float()
    freqs = torch.outer(t, freqs)
    return freqs.cos(), freqs.sin()


def apply_rotary_emb(x, cos, sin):
    # interleaved pairs
    x1, x2 = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[None, :, None, :], sin[None, :, None, :]
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)


class MLA(nn.Module):
    """Multi-head latent attention, training form."""

    def __init__(self, dim, n_heads, q_lora_rank, kv_lora_rank, qk_nope, qk_rope, v_dim):
        super().__init__()
        self.n_heads, self.qk_nope, self.qk_rope, self.v_dim = n_heads, qk_nope, qk_rope, v_dim
        self.kv_lora_rank = kv_lora_rank
        self.wq_a = nn.Linear(dim, q_lora_rank, bias=False)
        self.q_norm = RMSNorm(q_lora_rank)
        self.wq_b = nn.Linear(q_lora_rank, n_heads * (qk_nope + qk_rope), bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + qk_rope, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, n_heads * (qk_nope + v_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_dim, dim, bias=False)
        self.softmax_scale = (qk_nope + qk_rope) ** -0.5

    def forward(self, x, cos, sin, mask):
        bsz, seqlen, _ = x.size()
        q = self.wq_b(self.q_norm(self.wq_a(x)))
        q = q.view(bsz, seqlen, self.n_heads, self.qk_nope + self.qk_rope)
        q_nope, q_pe = torch.split(q, [self.qk_nope, self.qk_rope], dim=-1)
        q_pe = apply_rotary_emb(q_pe, cos, sin)
        kv = self.wkv_a(x)
        kv, k_pe = torch.split(kv, [self.kv_lora_rank, self.qk_rope], dim=-1)
        k_pe = apply_rotary_emb(k_pe.unsqueeze(2), cos, sin)
        q = torch.cat([q_nope, q_pe], dim=-1)
        kv = self.wkv_b(self.kv_norm(kv)).view(bsz, seqlen, self.n_heads, self.qk_nope + self.v_dim)
        k_nope, v = torch.split(kv, [self.qk_nope, self.v_dim], dim=-1)
        k = torch.cat([k_nope, k_pe.expand(-1, -1, self.n_heads, -1)], dim=-1)
        scores = torch.einsum("bshd,bthd->bsht", q, k) * self.softmax_scale
        scores = scores + mask.unsqueeze(1)
        scores = scores.softmax(dim=-1, dtype=torch.float32).type_as(x)
        out = torch.einsum("bsht,bthd->bshd", scores, v)
        return self.wo(out.flatten(2))


class Gate(nn.Module):
    def __init__(self, dim, n_experts, n_groups, topk_groups, topk, route_scale):
        super().__init__()
        self.n_groups, self.topk_groups, self.topk, self.route_scale = n_groups, topk_groups, topk, route_scale
        self.n_experts = n_experts
        self.weight = nn.Parameter(torch.randn(n_experts, dim) * 0.02)
        self.register_buffer("e_score_correction_bias", torch.randn(n_experts) * 0.01)

    def forward(self, x):
        scores = F.linear(x, self.weight).sigmoid()
        original_scores = scores
        scores = scores + self.e_score_correction_bias
        scores = scores.view(x.size(0), self.n_groups, -1)
        group_scores = scores.topk(2, dim=-1)[0].sum(dim=-1)
        indices = group_scores.topk(self.topk_groups, dim=-1)[1]
        mask = scores.new_ones(x.size(0), self.n_groups, dtype=torch.bool).scatter_(1, indices, False)
        scores = scores.masked_fill_(mask.unsqueeze(-1), float("-inf")).flatten(1)
        indices = torch.topk(scores, self.topk, dim=-1)[1]
        weights = original_scores.gather(1, indices)
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        weights = weights * self.route_scale
        return weights, indices, original_scores


class MoE(nn.Module):
    def __init__(self, dim, inter_dim, n_experts, n_shared, n_groups, topk_groups, topk, alpha=1e-3):
        super().__init__()
        self.n_experts, self.topk, self.alpha = n_experts, topk, alpha
        self.gate = Gate(dim, n_experts, n_groups, topk_groups, topk, 2.5)
        self.w1 = nn.Parameter(torch.randn(n_experts, dim, inter_dim) * 0.02)
        self.w3 = nn.Parameter(torch.randn(n_experts, dim, inter_dim) * 0.02)
        self.w2 = nn.Parameter(torch.randn(n_experts, inter_dim, dim) * 0.02)
        self.shared_gate_up = nn.Linear(dim, 2 * n_shared * inter_dim, bias=False)
        self.shared_down = nn.Linear(n_shared * inter_dim, dim, bias=False)

    def forward(self, x):
        shape = x.size()
        bsz, seqlen = shape[0], shape[1]
        x = x.view(-1, shape[-1])
        weights, indices, scores = self.gate(x)
        combine = torch.zeros(x.size(0), self.n_experts, device=x.device, dtype=x.dtype)
        combine = combine.scatter(1, indices, weights)
        h = F.silu(torch.einsum("td,edf->etf", x, self.w1)) * torch.einsum("td,edf->etf", x, self.w3)
        h = h * combine.t().unsqueeze(-1)
        y = torch.einsum("etf,efd->td", h, self.w2)
        g, u = self.shared_gate_up(x).chunk(2, dim=-1)
        z = self.shared_down(F.silu(g) * u)
        # sequence-wise balance loss
        probs = (scores / scores.sum(-1, keepdim=True)).view(bsz, seqlen, -1)
        ce = torch.zeros(bsz, self.n_experts, device=x.device)
        ce.scatter_add_(1, indices.view(bsz, -1), torch.ones(bsz, seqlen * self.topk, device=x.device))
        ce.div_(seqlen * self.topk / self.n_experts)
        aux = (ce * probs.mean(dim=1)).sum(dim=1).mean() * self.alpha
        return (y + z).view(shape), aux


class Block(nn.Module):
    def __init__(self, dim, n_heads, inter_dim, n_experts):
        super().__init__()
        self.attn = MLA(dim, n_heads, 384, 256, 64, 32, 64)
        self.ffn = MoE(dim, inter_dim, n_experts, 2, 4, 2, 4)
        self.attn_norm = RMSNorm(dim)
        self.ffn_norm = RMSNorm(dim)

    def forward(self, x, cos, sin, mask):
        x = x + self.attn(self.attn_norm(x), cos, sin, mask)
        y, aux = self.ffn(self.ffn_norm(x))
        return x + y, aux


class Model(nn.Module):
    """DeepSeek-V3-style: latent attention, shared + group-limited routed experts (dense form), one MTP depth."""

    def __init__(self, vocab, dim, n_layers, n_heads, inter_dim, n_experts, seq_len):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.layers = nn.ModuleList([Block(dim, n_heads, inter_dim, n_experts) for _ in range(n_layers)])
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.mtp_enorm = RMSNorm(dim)
        self.mtp_hnorm = RMSNorm(dim)
        self.mtp_proj = nn.Linear(2 * dim, dim, bias=False)
        self.mtp_block = Block(dim, n_heads, inter_dim, n_experts)
        self.mtp_norm = RMSNorm(dim)
        cos, sin = precompute_freqs(32, seq_len)
        self.register_buffer("freqs_cos", cos, persistent=False)
        self.register_buffer("freqs_sin", sin, persistent=False)

    def forward(self, tokens):
        # tokens: (B, S + 2): S inputs, then targets shifted by one and by two
        S = tokens.size(1) - 2
        inp, tgt1, tgt2 = tokens[:, :S], tokens[:, 1:S + 1], tokens[:, 2:S + 2]
        h = self.embed(inp)
        cos, sin = self.freqs_cos[:S], self.freqs_sin[:S]
        mask = torch.full((S, S), float("-inf"), device=tokens.device).triu_(1)
        aux_total = 0.0
        for layer in self.layers:
            h, aux = layer(h, cos, sin, mask)
            aux_total = aux_total + aux
        logits = self.head(self.norm(h))
        main = F.cross_entropy(logits.flatten(0, 1), tgt1.flatten())
        e = self.embed(tgt1)
        m = self.mtp_proj(torch.cat([self.mtp_hnorm(h), self.mtp_enorm(e)], dim=-1))
        m, aux = self.mtp_block(m, cos, sin, mask)
        mtp = F.cross_entropy(self.head(self.mtp_norm(m)).flatten(0, 1), tgt2.flatten())
        return main + 0.3 * mtp + aux_total + aux, main, mtp


def get_inputs():
    return [torch.randint(0, 16384, (4, 512 + 2))]


def get_init_inputs():
    return [16384, 1024, 2, 16, 512, 16, 512]
