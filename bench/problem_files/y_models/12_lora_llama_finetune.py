import math

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 2
seq_len = 1000
vocab_size = 32001
dim = 2048
n_layers = 3
n_heads = 16
n_kv_heads = 4
hidden_dim = 5632
lora_r = 16
lora_alpha = 32


class LoRALinear(nn.Module):
    def __init__(self, in_features, out_features, r=16, lora_alpha=32, lora_dropout=0.0):
        super().__init__()
        self.base_layer = nn.Linear(in_features, out_features, bias=False)
        self.base_layer.weight.requires_grad = False
        self.lora_A = nn.Linear(in_features, r, bias=False)
        self.lora_B = nn.Linear(r, out_features, bias=False)
        self.lora_dropout = nn.Dropout(lora_dropout) if lora_dropout > 0.0 else nn.Identity()
        self.scaling = lora_alpha / r
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.normal_(self.lora_B.weight, std=0.02)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(self.lora_dropout(x))) * self.scaling


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim), requires_grad=False)

    def forward(self, x):
        xf = x.float()
        output = xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + self.eps)
        return output.type_as(x) * self.weight


def precompute_freqs_cis(dim, end, device, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2, device=device)[: (dim // 2)].float() / dim))
    t = torch.arange(end, device=device)
    freqs = torch.outer(t, freqs).float()
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary_emb(xq, xk, freqs_cis):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = freqs_cis.view(1, xq_.shape[1], 1, xq_.shape[-1])
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, r, alpha):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.n_rep = n_heads // n_kv_heads
        self.head_dim = dim // n_heads
        self.wq = LoRALinear(dim, n_heads * self.head_dim, r, alpha)
        self.wk = LoRALinear(dim, n_kv_heads * self.head_dim, r, alpha)
        self.wv = LoRALinear(dim, n_kv_heads * self.head_dim, r, alpha)
        self.wo = LoRALinear(n_heads * self.head_dim, dim, r, alpha)

    def forward(self, x, freqs_cis):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = xk.view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = xv.view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xq, xk = apply_rotary_emb(xq, xk, freqs_cis)
        xk = torch.repeat_interleave(xk, dim=2, repeats=self.n_rep)
        xv = torch.repeat_interleave(xv, dim=2, repeats=self.n_rep)
        xq, xk, xv = xq.transpose(1, 2), xk.transpose(1, 2), xv.transpose(1, 2)
        output = F.scaled_dot_product_attention(xq, xk, xv, attn_mask=None, dropout_p=0.0, is_causal=True)
        output = output.transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(output)


class FeedForward(nn.Module):
    def __init__(self, dim, hidden_dim, r, alpha):
        super().__init__()
        self.w1 = LoRALinear(dim, hidden_dim, r, alpha)
        self.w2 = LoRALinear(hidden_dim, dim, r, alpha)
        self.w3 = LoRALinear(dim, hidden_dim, r, alpha)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, hidden_dim, r, alpha):
        super().__init__()
        self.attention = Attention(dim, n_heads, n_kv_heads, r, alpha)
        self.feed_forward = FeedForward(dim, hidden_dim, r, alpha)
        self.attention_norm = RMSNorm(dim)
        self.ffn_norm = RMSNorm(dim)

    def forward(self, x, freqs_cis):
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        return h + self.feed_forward(self.ffn_norm(h))


class Model(nn.Module):
    """LoRA fine-tuning of Llama blocks: everything frozen except the rank-r adapters
    on all linear projections; shifted LM loss with ignored prompt tokens."""

    def __init__(self, vocab_size, dim, n_layers, n_heads, n_kv_heads, hidden_dim, r, alpha):
        super().__init__()
        self.head_dim = dim // n_heads
        self.tok_embeddings = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList()
        for layer_id in range(n_layers):
            self.layers.append(TransformerBlock(dim, n_heads, n_kv_heads, hidden_dim, r, alpha))
        self.norm = RMSNorm(dim)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        for n, p in self.named_parameters():
            if "lora_" not in n:
                p.requires_grad = False

    def forward(self, tokens, labels):
        h = self.tok_embeddings(tokens)
        freqs_cis = precompute_freqs_cis(self.head_dim, tokens.shape[1], tokens.device)
        for layer in self.layers:
            h = layer(h, freqs_cis)
        h = self.norm(h)
        shift_logits = self.output(h)[..., :-1, :].contiguous().float()
        shift_labels = labels[..., 1:].contiguous()
        loss = F.cross_entropy(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1), ignore_index=-100)
        return loss, h


def get_inputs():
    tokens = torch.randint(0, vocab_size, (batch_size, seq_len))
    labels = tokens.clone()
    labels[:, : seq_len // 3] = -100
    return [tokens, labels]


def get_init_inputs():
    return [vocab_size, dim, n_layers, n_heads, n_kv_heads, hidden_dim, lora_r, lora_alpha]
