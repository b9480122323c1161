import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class BertSelfAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        assert hidden % heads == 0
        self.num_heads = heads
        self.head_dim = hidden // heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(0.0)

    def transpose_for_scores(self, x):
        new_shape = x.size()[:-1] + (self.num_heads, self.head_dim)
        return x.view(*new_shape).permute(0, 2, 1, 3)

    def forward(self, x, ext_mask):
        q = self.transpose_for_scores(self.query(x))
        k = self.transpose_for_scores(self.key(x))
        v = self.transpose_for_scores(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_dim)
        scores = scores + ext_mask
        probs = self.dropout(F.softmax(scores, dim=-1))
        ctx = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        return ctx.view(*(ctx.size()[:-2] + (self.num_heads * self.head_dim,)))


class BertLayer(nn.Module):
    def __init__(self, hidden, heads, inter, eps):
        super().__init__()
        self.attn = BertSelfAttention(hidden, heads)
        self.attn_out = nn.Linear(hidden, hidden)
        self.attn_norm = nn.LayerNorm(hidden, eps=eps)
        self.inter = nn.Linear(hidden, inter)
        self.out = nn.Linear(inter, hidden)
        self.out_norm = nn.LayerNorm(hidden, eps=eps)

    def forward(self, x, ext_mask):
        h = self.attn_norm(self.attn_out(self.attn(x, ext_mask)) + x)
        return self.out_norm(self.out(F.gelu(self.inter(h))) + h)


class Model(nn.Module):
    """BERT-style masked language model; the MLM head is run only on gathered
    masked positions, decoder tied to the word embedding."""

    def __init__(self, vocab, hidden, layers, heads, inter, max_len, eps=1e-12):
        super().__init__()
        self.word_emb = nn.Embedding(vocab, hidden, padding_idx=0)
        self.pos_emb = nn.Embedding(max_len, hidden)
        self.type_emb = nn.Embedding(2, hidden)
        self.emb_norm = nn.LayerNorm(hidden, eps=eps)
        self.register_buffer("position_ids", torch.arange(max_len).unsqueeze(0))
        self.layers = nn.ModuleList(
            [BertLayer(hidden, heads, inter, eps) for _ in range(layers)]
        )
        self.transform = nn.Linear(hidden, hidden)
        self.transform_norm = nn.LayerNorm(hidden, eps=eps)
        self.decoder = nn.Linear(hidden, vocab, bias=False)
        self.decoder_bias = nn.Parameter(torch.zeros(vocab))
        self.apply(self._init_weights)
        self.decoder.weight = self.word_emb.weight

    def _init_weights(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            m.weight.data.normal_(mean=0.0, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            m.bias.data.zero_()

    def forward(self, input_ids, token_type_ids, attention_mask, mlm_positions, mlm_labels):
        B, L = input_ids.shape
        x = self.word_emb(input_ids) + self.type_emb(token_type_ids)
        x = x + self.pos_emb(self.position_ids[:, :L])
        x = self.emb_norm(x)
        ext_mask = attention_mask[:, None, None, :].to(x.dtype)
        ext_mask = (1.0 - ext_mask) * -10000.0
        for layer in self.layers:
            x = layer(x, ext_mask)
        idx = mlm_positions.unsqueeze(-1).expand(-1, -1, x.size(-1))
        masked = torch.gather(x, 1, idx)
        h = self.transform_norm(F.gelu(self.transform(masked)))
        logits = self.decoder(h) + self.decoder_bias
        loss = F.cross_entropy(
            logits.view(-1, logits.size(-1)), mlm_labels.view(-1), ignore_index=-100
        )
        return loss, logits


def get_inputs():
    g = torch.Generator().manual_seed(0)
    B, L, P = 4, 117, 17
    ids = torch.randint(1, 5003, (B, L), generator=g)
    types = torch.zeros(B, L, dtype=torch.long)
    types[:, 61:] = 1
    lengths = torch.tensor([117, 98, 117, 73])
    mask = (torch.arange(L)[None, :] < lengths[:, None]).long()
    ids = ids * mask
    pos = torch.stack([torch.randperm(73, generator=g)[:P].sort().values for _ in range(B)])
    labels = torch.gather(ids, 1, pos).clone()
    labels[1, -3:] = -100
    labels[3, -6:] = -100
    return [ids, types, mask, pos, labels]


def get_init_inputs():
    return [5003, 192, 4, 6, 768, 128]
