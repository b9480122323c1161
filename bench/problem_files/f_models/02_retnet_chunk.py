import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6, elementwise_affine=True):
        super().__init__()
        self.eps = eps
        if elementwise_affine:
            self.weight = nn.Parameter(torch.ones(dim))
        else:
            self.register_parameter("weight", None)

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float()).type_as(x)
        if self.weight is not None:
            output = output * self.weight
        return output


def rotate_every_two(x):
    x1 = x[:, :, :, ::2]
    x2 = x[:, :, :, 1::2]
    x = torch.stack((-x2, x1), dim=-1)
    return x.flatten(-2)


def theta_shift(x, sin, cos):
    return (x * cos) + (rotate_every_two(x) * sin)


class RetNetRelPos(nn.Module):
    def __init__(self, embed_dim, heads, chunk):
        super().__init__()
        angle = 1.0 / (10000 ** torch.linspace(0, 1, embed_dim // heads // 2))
        angle = angle.unsqueeze(-1).repeat(1, 2).flatten()
        decay = torch.log(1 - 2 ** (-5 - torch.arange(heads, dtype=torch.float)))
        self.register_buffer("angle", angle)
        self.register_buffer("decay", decay)
        self.recurrent_chunk_size = chunk

    def forward(self, slen):
        index = torch.arange(slen).to(self.decay)
        sin = torch.sin(index[:, None] * self.angle[None, :])
        cos = torch.cos(index[:, None] * self.angle[None, :])
        block_index = torch.arange(self.recurrent_chunk_size).to(self.decay)
        mask = torch.tril(torch.ones(self.recurrent_chunk_size, self.recurrent_chunk_size).to(self.decay))
        mask = torch.masked_fill(block_index[:, None] - block_index[None, :], ~mask.bool(), float("inf"))
        mask = torch.exp(mask * self.decay[:, None, None])
        mask = torch.nan_to_num(mask)

        value_inner_decay = mask[:, -1] / mask[:, -1].sum(dim=-1, keepdim=True)
        value_inner_decay = value_inner_decay.unsqueeze(-1)
        scale = mask.sum(dim=-1, keepdim=True).sqrt()
        inner_mask = mask / scale

        cross_decay = torch.exp(self.decay * self.recurrent_chunk_size)
        query_inner_decay = torch.exp(self.decay[:, None] * (block_index + 1))
        query_inner_decay = query_inner_decay[:, :, None] / (scale / mask[:, -1].sum(dim=-1)[:, None, None])
        cross_decay = cross_decay[:, None, None]
        return (sin, cos), (inner_mask, cross_decay, query_inner_decay, value_inner_decay)


class MultiScaleRetention(nn.Module):
    def __init__(self, embed_dim, value_dim, num_heads):
        super().__init__()
        self.embed_dim, self.value_dim, self.num_heads = embed_dim, value_dim, num_heads
        self.head_dim = value_dim // num_heads
        self.key_dim = embed_dim // num_heads
        self.scaling = self.key_dim**-0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, value_dim, bias=False)
        self.g_proj = nn.Linear(embed_dim, value_dim, bias=False)
        self.out_proj = nn.Linear(value_dim, embed_dim, bias=False)
        self.group_norm = RMSNorm(self.head_dim, eps=1e-6, elementwise_affine=False)
        for m in (self.q_proj, self.k_proj, self.v_proj, self.g_proj):
            nn.init.xavier_uniform_(m.weight, gain=2**-0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)

    def chunk_recurrent_forward(self, qr, kr, v, inner_mask):
        mask, cross_decay, query_inner_decay, value_inner_decay = inner_mask
        bsz, tgt_len, _ = v.size()
        chunk_len = mask.size(1)
        num_chunks = tgt_len // chunk_len
        qr = qr.view(bsz, self.num_heads, num_chunks, chunk_len, self.key_dim).transpose(1, 2)
        kr = kr.view(bsz, self.num_heads, num_chunks, chunk_len, self.key_dim).transpose(1, 2)
        v = v.view(bsz, num_chunks, chunk_len, self.num_heads, self.head_dim).transpose(2, 3)
        kr_t = kr.transpose(-1, -2)
        qk_mat = qr @ kr_t  # bsz * num_chunks * num_heads * chunk_len * chunk_len
        qk_mat = qk_mat * mask
        inner_scale = qk_mat.detach().abs().sum(dim=-1, keepdim=True).clamp(min=1)
        qk_mat = qk_mat / inner_scale
        inner_output = torch.matmul(qk_mat, v)

        # reduce kv in one chunk
        kv = kr_t @ (v * value_inner_decay)
        kv_recurrent, cross_scale = [], []
        kv_state = torch.zeros(bsz, self.num_heads, self.key_dim, self.head_dim).to(v)
        kv_scale = torch.ones(bsz, self.num_heads, 1, 1).to(v)
        for i in range(num_chunks):
            kv_recurrent.append(kv_state / kv_scale)
            cross_scale.append(kv_scale)
            kv_state = kv_state * cross_decay + kv[:, i]
            kv_scale = kv_state.detach().abs().sum(dim=-2, keepdim=True).max(dim=-1, keepdim=True).values.clamp(min=1)
        kv_recurrent = torch.stack(kv_recurrent, dim=1)
        cross_scale = torch.stack(cross_scale, dim=1)

        all_scale = torch.maximum(inner_scale, cross_scale)
        align_inner_scale = all_scale / inner_scale
        align_cross_scale = all_scale / cross_scale
        cross_output = (qr * query_inner_decay) @ kv_recurrent
        output = inner_output / align_inner_scale + cross_output / align_cross_scale
        return output.transpose(2, 3)

    def forward(self, x, rel_pos):
        bsz, tgt_len, _ = x.size()
        (sin, cos), inner_mask = rel_pos
        q, k, v, g = self.q_proj(x), self.k_proj(x), self.v_proj(x), self.g_proj(x)
        k *= self.scaling
        q = q.view(bsz, tgt_len, self.num_heads, self.key_dim).transpose(1, 2)
        k = k.view(bsz, tgt_len, self.num_heads, self.key_dim).transpose(1, 2)
        qr = theta_shift(q, sin, cos)
        kr = theta_shift(k, sin, cos)
        output = self.chunk_recurrent_forward(qr, kr, v, inner_mask)
        output = self.group_norm(output).reshape(bsz, tgt_len, self.head_dim * self.num_heads)
        output = F.silu(g) * output
        return self.out_proj(output)


class GLU(nn.Module):
    def __init__(self, embed_dim, ffn_dim, dropout):
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, ffn_dim, bias=False)
        self.gate = nn.Linear(embed_dim, ffn_dim, bias=False)
        self.fc2 = nn.Linear(ffn_dim, embed_dim, bias=False)
        self.dropout_module = nn.Dropout(dropout)

    def forward(self, x):
        x_shape = x.shape
        x = x.reshape(-1, x.size(-1))
        g = self.gate(x)
        x = self.fc1(x)
        x = F.gelu(x.float(), approximate="tanh").type_as(x) * g
        return self.dropout_module(self.fc2(x).view(x_shape))


class DecoderLayer(nn.Module):
    def __init__(self, embed_dim, value_dim, heads, ffn_dim, alpha):
        super().__init__()
        self.retention = MultiScaleRetention(embed_dim, value_dim, heads)
        self.ffn = GLU(embed_dim, ffn_dim, 0.1)
        self.retention_layer_norm, self.final_layer_norm = RMSNorm(embed_dim), RMSNorm(embed_dim)
        self.alpha = alpha

    def forward(self, x, rel_pos):
        x = x * self.alpha + F.dropout(self.retention(self.retention_layer_norm(x), rel_pos), 0.1, self.training)
        return x * self.alpha + self.ffn(self.final_layer_norm(x))


class Model(nn.Module):
    """RetNet decoder (torchscale): chunkwise-recurrent multi-scale retention, padded to whole chunks, tied output."""

    def __init__(self, vocab, embed_dim, value_dim, heads, ffn_dim, layers, chunk):
        super().__init__()
        self.chunk = chunk
        self.embed_tokens = nn.Embedding(vocab, embed_dim)
        nn.init.normal_(self.embed_tokens.weight, std=embed_dim**-0.5)
        self.layers = nn.ModuleList([DecoderLayer(embed_dim, value_dim, heads, ffn_dim, 1.0) for _ in range(layers)])
        self.retnet_rel_pos = RetNetRelPos(embed_dim, heads, chunk)
        self.layer_norm = RMSNorm(embed_dim)
        self.embed_scale = embed_dim**0.5

    def forward(self, prev_output_tokens):
        x = self.embed_scale * self.embed_tokens(prev_output_tokens)
        slen = prev_output_tokens.size(1)
        if slen % self.chunk != 0:
            padding_len = self.chunk - slen % self.chunk
            x = F.pad(x, (0, 0, 0, padding_len))
        rel_pos = self.retnet_rel_pos(x.size(1))
        inner_hidden_states = []
        for layer in self.layers:
            x = layer(x, rel_pos)
            inner_hidden_states.append(x)
        x = self.layer_norm(x)[:, :slen, :]
        logits = F.linear(x, self.embed_tokens.weight)
        lprobs = F.log_softmax(logits[:, :-1].float(), dim=-1)
        nll = -lprobs.gather(dim=-1, index=prev_output_tokens[:, 1:, None]).squeeze(-1)
        smooth = -lprobs.sum(dim=-1)
        eps_i = 0.1 / (lprobs.size(-1) - 1)
        loss = ((1.0 - 0.1 - eps_i) * nll + eps_i * smooth).sum()
        return logits, {"loss": loss, "inner_states": inner_hidden_states[-2]}


def get_inputs():
    return [torch.randint(0, 700, (2, 117))]


def get_init_inputs():
    return [700, 192, 384, 4, 384, 4, 32]
