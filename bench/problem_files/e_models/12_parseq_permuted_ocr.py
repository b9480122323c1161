import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PatchEmbed(nn.Module):
    def __init__(self, img_size, patch_size, embed_dim):
        super().__init__()
        self.num_patches = (img_size[0] // patch_size[0]) * (img_size[1] // patch_size[1])
        self.proj = nn.Conv2d(3, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        x = attn.softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads)
        self.mlp = nn.Sequential(nn.Linear(dim, int(dim * mlp_ratio)), nn.GELU(), nn.Linear(int(dim * mlp_ratio), dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self, img_size, patch_size, embed_dim, depth, num_heads, mlp_ratio):
        super().__init__()
        self.patch_embed = PatchEmbed(img_size, patch_size, embed_dim)
        self.pos_embed = nn.Parameter(torch.randn(1, self.patch_embed.num_patches, embed_dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(embed_dim, num_heads, mlp_ratio) for _ in range(depth)])
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)

    def forward(self, x):
        x = self.patch_embed(x)
        return self.norm(self.blocks(x + self.pos_embed))


class DecoderLayer(nn.Module):
    """A Transformer decoder layer supporting two-stream attention (XLNet)."""

    def __init__(self, d_model, nhead, dim_feedforward, layer_norm_eps=1e-5):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model, eps=layer_norm_eps)
        self.norm2 = nn.LayerNorm(d_model, eps=layer_norm_eps)
        self.norm_q = nn.LayerNorm(d_model, eps=layer_norm_eps)
        self.norm_c = nn.LayerNorm(d_model, eps=layer_norm_eps)
        self.activation = F.gelu

    def forward_stream(self, tgt, tgt_norm, tgt_kv, memory, tgt_mask, tgt_key_padding_mask):
        tgt2, sa_weights = self.self_attn(
            tgt_norm, tgt_kv, tgt_kv, attn_mask=tgt_mask, key_padding_mask=tgt_key_padding_mask
        )
        tgt = tgt + tgt2
        tgt2, ca_weights = self.cross_attn(self.norm1(tgt), memory, memory)
        tgt = tgt + tgt2
        tgt2 = self.linear2(self.activation(self.linear1(self.norm2(tgt))))
        return tgt + tgt2, sa_weights, ca_weights

    def forward(self, query, content, memory, query_mask=None, content_mask=None, content_key_padding_mask=None, update_content=True):
        query_norm = self.norm_q(query)
        content_norm = self.norm_c(content)
        query = self.forward_stream(query, query_norm, content_norm, memory, query_mask, content_key_padding_mask)[0]
        if update_content:
            content = self.forward_stream(content, content_norm, content_norm, memory, content_mask, content_key_padding_mask)[0]
        return query, content


class Decoder(nn.Module):
    def __init__(self, d_model, nhead, ff, num_layers):
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(d_model, nhead, ff) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = nn.LayerNorm(d_model)

    def forward(self, query, content, memory, query_mask=None, content_mask=None, content_key_padding_mask=None):
        for i, mod in enumerate(self.layers):
            last = i == len(self.layers) - 1
            query, content = mod(
                query, content, memory, query_mask, content_mask, content_key_padding_mask, update_content=not last
            )
        return self.norm(query)


class TokenEmbedding(nn.Module):
    def __init__(self, charset_size, embed_dim):
        super().__init__()
        self.embedding = nn.Embedding(charset_size, embed_dim)
        self.embed_dim = embed_dim

    def forward(self, tokens):
        return math.sqrt(self.embed_dim) * self.embedding(tokens)


class Model(nn.Module):
    """PARSeq text recogniser: ViT encoder and a two-stream decoder trained on several factorisation orders of the label."""

    def __init__(self, img_size, patch_size, embed_dim, heads, enc_depth, dec_depth, num_chars, max_label_length):
        super().__init__()
        self.eos_id, self.bos_id, self.pad_id = 0, num_chars + 1, num_chars + 2
        self.max_label_length = max_label_length
        self.encoder = Encoder(img_size, patch_size, embed_dim, enc_depth, heads, 4)
        self.decoder = Decoder(embed_dim, 2 * heads, embed_dim * 4, dec_depth)
        self.head = nn.Linear(embed_dim, num_chars + 1)  # no <bos> or <pad> in the output
        self.text_embed = TokenEmbedding(num_chars + 3, embed_dim)
        self.pos_queries = nn.Parameter(torch.Tensor(1, max_label_length + 1, embed_dim))
        nn.init.trunc_normal_(self.pos_queries, std=0.02)
        # the orders come in mirrored pairs; <bos> stays first and <eos> last, except in the plain reversed one
        n = max_label_length
        fwd = torch.arange(n)
        other = (fwd * 5 + 3) % n if math.gcd(5, n) == 1 else torch.cat([fwd[1::2], fwd[0::2]])
        perms = torch.stack([fwd, fwd.flip(0), other, other.flip(0)])
        bos = perms.new_zeros((len(perms), 1))
        perms = torch.cat([bos, perms + 1, bos + n + 1], dim=1)
        perms[1, 1:] = n + 1 - torch.arange(n + 1)
        self.register_buffer("perms", perms, persistent=False)

    def generate_attn_masks(self, perm):
        sz = perm.shape[0]
        mask = torch.zeros((sz, sz), device=perm.device)
        for i in range(sz):
            query_idx = perm[i]
            masked_keys = perm[i + 1 :]
            mask[query_idx, masked_keys] = float("-inf")
        content_mask = mask[:-1, :-1].clone()
        mask[torch.eye(sz, dtype=torch.bool, device=perm.device)] = float("-inf")  # mask "self"
        query_mask = mask[1:, :-1]
        return content_mask, query_mask

    def decode(self, tgt, memory, tgt_mask, tgt_padding_mask, tgt_query_mask):
        N, L = tgt.shape
        # <bos> stands for the null context, so only characters get positions
        null_ctx = self.text_embed(tgt[:, :1])
        tgt_emb = self.pos_queries[:, : L - 1] + self.text_embed(tgt[:, 1:])
        tgt_emb = torch.cat([null_ctx, tgt_emb], dim=1)
        tgt_query = self.pos_queries[:, :L].expand(N, -1, -1)
        return self.decoder(tgt_query, tgt_emb, memory, tgt_query_mask, tgt_mask, tgt_padding_mask)

    def forward(self, images, tgt):
        memory = self.encoder(images)
        tgt_in, tgt_out = tgt[:, :-1], tgt[:, 1:]
        tgt_padding_mask = (tgt_in == self.pad_id) | (tgt_in == self.eos_id)
        tgt_padding_mask = torch.zeros_like(tgt_in, dtype=memory.dtype).masked_fill(tgt_padding_mask, float("-inf"))
        loss = 0
        loss_numel = 0
        n = (tgt_out != self.pad_id).sum()
        first_logits = None
        for i, perm in enumerate(self.perms):
            tgt_mask, query_mask = self.generate_attn_masks(perm)
            out = self.decode(tgt_in, memory, tgt_mask, tgt_padding_mask, tgt_query_mask=query_mask)
            logits = self.head(out)
            if first_logits is None:
                first_logits = logits
            loss += n * F.cross_entropy(logits.flatten(end_dim=1), tgt_out.flatten(), ignore_index=self.pad_id)
            loss_numel += n
            # After the second iteration (i.e. done with canonical and reverse orderings),
            # remove the [EOS] tokens for the succeeding perms
            if i == 1:
                tgt_out = torch.where(tgt_out == self.eos_id, self.pad_id, tgt_out)
                n = (tgt_out != self.pad_id).sum()
        loss /= loss_numel
        return loss, first_logits


def get_inputs():
    B, L, chars = 5, 11, 62
    lengths = torch.tensor([11, 4, 7, 9, 6])
    tgt = torch.full((B, L + 2), chars + 2)
    body = torch.randint(1, chars + 1, (B, L))
    pos = torch.arange(L)[None]
    tgt[:, 0] = chars + 1
    tgt[:, 1:-1] = torch.where(pos < lengths[:, None], body, tgt[:, 1:-1])
    tgt[torch.arange(B), lengths + 1] = 0
    return [torch.randn(B, 3, 32, 96), tgt]


def get_init_inputs():
    return [(32, 96), (4, 8), 96, 3, 4, 1, 62, 11]
