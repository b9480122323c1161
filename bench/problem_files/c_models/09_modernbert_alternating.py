import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def forward(self, x, position_ids):
        freqs = position_ids[:, :, None].to(self.inv_freq.dtype) * self.inv_freq[None, None, :]
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(dtype=x.dtype), emb.sin().to(dtype=x.dtype)


class Embeddings(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, dim, padding_idx=0)
        self.norm = nn.LayerNorm(dim, bias=False)

    def forward(self, ids):
        return self.norm(self.tok_embeddings(ids))


class GeGLU(nn.Module):
    def __init__(self, dim, inter):
        super().__init__()
        self.Wi = nn.Linear(dim, inter * 2, bias=False)
        self.Wo = nn.Linear(inter, dim, bias=False)

    def forward(self, hidden_states):
        inp, gate = self.Wi(hidden_states).chunk(2, dim=-1)
        return self.Wo(F.gelu(inp) * gate)


class Attention(nn.Module):
    def __init__(self, dim, heads, layer_id, global_every):
        super().__init__()
        self.num_heads, self.head_dim = heads, dim // heads
        self.is_local = layer_id % global_every != 0
        self.Wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.rotary_emb = RotaryEmbedding(self.head_dim, 10000.0 if self.is_local else 160000.0)
        self.Wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x, global_mask, local_mask, position_ids):
        bs = x.shape[0]
        qkv = self.Wqkv(x).view(bs, -1, 3, self.num_heads, self.head_dim)
        cos, sin = self.rotary_emb(qkv, position_ids)
        q, k, v = qkv.transpose(3, 1).unbind(dim=2)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        mask = local_mask if self.is_local else global_mask
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).contiguous()
        return self.Wo(out.view(bs, -1, self.num_heads * self.head_dim))


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, inter, layer_id, global_every):
        super().__init__()
        self.attn_norm = nn.Identity() if layer_id == 0 else nn.LayerNorm(dim, bias=False)
        self.attn = Attention(dim, heads, layer_id, global_every)
        self.mlp_norm = nn.LayerNorm(dim, bias=False)
        self.mlp = GeGLU(dim, inter)

    def forward(self, x, **kw):
        x = x + self.attn(self.attn_norm(x), **kw)
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    """ModernBERT encoder (alternating global / sliding-window layers) with masked-LM loss."""

    def __init__(self, vocab, dim, heads, inter, layers, window, global_every):
        super().__init__()
        self.window = window
        self.embeddings = Embeddings(vocab, dim)
        self.layers = nn.ModuleList([EncoderLayer(dim, heads, inter, i, global_every) for i in range(layers)])
        self.final_norm = nn.LayerNorm(dim, bias=False)
        self.head_dense = nn.Linear(dim, dim, bias=False)
        self.head_norm = nn.LayerNorm(dim, bias=False)
        self.decoder = nn.Linear(dim, vocab)
        self.decoder.weight = self.embeddings.tok_embeddings.weight
        nn.init.normal_(self.decoder.weight, std=0.05)

    def _masks(self, attention_mask, x):
        neg = torch.finfo(x.dtype).min
        glob = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * neg
        L = attention_mask.shape[1]
        rows = torch.arange(L, device=x.device).unsqueeze(0)
        far = (rows - rows.T).abs() > self.window // 2
        glob = glob.expand(-1, -1, L, -1)
        # a padded query far from every real key still sees itself
        same = rows == rows.T
        return glob, glob.masked_fill(far[None, None], neg).masked_fill(same, 0.0)

    def forward(self, input_ids, attention_mask, labels):
        x = self.embeddings(input_ids)
        position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        glob, local = self._masks(attention_mask, x)
        for layer in self.layers:
            x = layer(x, global_mask=glob, local_mask=local, position_ids=position_ids)
        x = self.final_norm(x)
        logits = self.decoder(self.head_norm(F.gelu(self.head_dense(x))))
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-100)
        w = attention_mask.unsqueeze(-1).to(x.dtype)
        sentence = F.normalize((x * w).sum(1) / w.sum(1), dim=-1)
        return loss, sentence


def get_inputs():
    B, L, V = 3, 150, 2000
    ids = torch.randint(1, V, (B, L))
    mask = (torch.arange(L)[None] < torch.tensor([150, 97, 131])[:, None]).long()
    labels = torch.where((torch.rand(B, L) < 0.3) & mask.bool(), ids, torch.full_like(ids, -100))
    return [ids * mask, mask, labels]


def get_init_inputs():
    return [2000, 192, 6, 288, 5, 32, 3]
