import torch
import torch.nn as nn
import torch.nn.functional as F


def make_log_bucket_position(relative_pos, bucket_size, max_position):
    sign = torch.sign(relative_pos)
    mid = bucket_size // 2
    abs_pos = torch.where(
        (relative_pos < mid) & (relative_pos > -mid), torch.tensor(mid - 1).type_as(relative_pos), torch.abs(relative_pos)
    )
    log_pos = torch.ceil(torch.log(abs_pos / mid) / torch.log(torch.tensor((max_position - 1) / mid)) * (mid - 1)) + mid
    return torch.where(abs_pos <= mid, relative_pos.type_as(log_pos), log_pos * sign)


def build_relative_position(query_layer, key_layer, bucket_size, max_position):
    q_ids = torch.arange(query_layer.size(-2), dtype=torch.long, device=query_layer.device)
    k_ids = torch.arange(key_layer.size(-2), dtype=torch.long, device=key_layer.device)
    rel_pos_ids = q_ids[:, None] - k_ids[None, :]
    rel_pos_ids = make_log_bucket_position(rel_pos_ids, bucket_size, max_position).to(torch.long)
    return rel_pos_ids[: query_layer.size(-2), :].unsqueeze(0)


class DisentangledSelfAttention(nn.Module):
    def __init__(self, hidden, heads, position_buckets, max_rel):
        super().__init__()
        self.num_attention_heads, self.attention_head_size = heads, hidden // heads
        self.query_proj, self.key_proj = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.value_proj = nn.Linear(hidden, hidden)
        self.pos_ebd_size, self.position_buckets, self.max_rel = position_buckets, position_buckets, max_rel
        self.pos_dropout, self.dropout = nn.Dropout(0.1), nn.Dropout(0.1)

    def transpose_for_scores(self, x):
        new_x_shape = x.size()[:-1] + (self.num_attention_heads, -1)
        x = x.view(new_x_shape)
        return x.permute(0, 2, 1, 3).contiguous().view(-1, x.size(1), x.size(-1))

    def forward(self, hidden_states, attention_mask, relative_pos, rel_embeddings):
        query_layer = self.transpose_for_scores(self.query_proj(hidden_states))
        key_layer = self.transpose_for_scores(self.key_proj(hidden_states))
        value_layer = self.transpose_for_scores(self.value_proj(hidden_states))
        scale_factor = 3
        scale = torch.sqrt(torch.tensor(query_layer.size(-1), dtype=torch.float) * scale_factor)
        attention_scores = torch.bmm(query_layer, key_layer.transpose(-1, -2) / scale.to(dtype=query_layer.dtype))
        rel_att = self.disentangled_attention_bias(
            query_layer, key_layer, relative_pos, self.pos_dropout(rel_embeddings), scale_factor
        )
        attention_scores = attention_scores + rel_att
        attention_scores = attention_scores.view(
            -1, self.num_attention_heads, attention_scores.size(-2), attention_scores.size(-1)
        )
        attention_mask = attention_mask.bool()
        attention_scores = attention_scores.masked_fill(~attention_mask, torch.finfo(query_layer.dtype).min)
        attention_probs = F.softmax(attention_scores, dim=-1)
        attention_probs = attention_probs.masked_fill(~attention_mask, 0)
        attention_probs = self.dropout(attention_probs)
        context_layer = torch.bmm(
            attention_probs.view(-1, attention_probs.size(-2), attention_probs.size(-1)), value_layer
        )
        context_layer = (
            context_layer.view(-1, self.num_attention_heads, context_layer.size(-2), context_layer.size(-1))
            .permute(0, 2, 1, 3)
            .contiguous()
        )
        return context_layer.view(context_layer.size()[:-2] + (-1,))

    def disentangled_attention_bias(self, query_layer, key_layer, relative_pos, rel_embeddings, scale_factor):
        relative_pos = relative_pos.unsqueeze(1)
        att_span = self.pos_ebd_size
        rel_embeddings = rel_embeddings[0 : att_span * 2, :].unsqueeze(0)
        repeat = query_layer.size(0) // self.num_attention_heads
        pos_query_layer = self.transpose_for_scores(self.query_proj(rel_embeddings)).repeat(repeat, 1, 1)
        pos_key_layer = self.transpose_for_scores(self.key_proj(rel_embeddings)).repeat(repeat, 1, 1)
        scale = (pos_key_layer.size(-1) * scale_factor) ** 0.5
        # content->position
        c2p_att = torch.bmm(query_layer, pos_key_layer.transpose(-1, -2))
        c2p_pos = torch.clamp(relative_pos + att_span, 0, att_span * 2 - 1)
        c2p_att = torch.gather(
            c2p_att, dim=-1, index=c2p_pos.squeeze(0).expand([query_layer.size(0), query_layer.size(1), relative_pos.size(-1)])
        )
        score = c2p_att / scale
        # position->content
        r_pos = build_relative_position(key_layer, key_layer, self.position_buckets, self.max_rel).to(query_layer.device)
        p2c_pos = torch.clamp(-r_pos + att_span, 0, att_span * 2 - 1)
        p2c_att = torch.bmm(key_layer, pos_query_layer.transpose(-1, -2))
        p2c_att = torch.gather(
            p2c_att, dim=-1, index=p2c_pos.squeeze(0).expand([query_layer.size(0), key_layer.size(-2), key_layer.size(-2)])
        ).transpose(-1, -2)
        score += p2c_att / scale
        return score


class DebertaV2Layer(nn.Module):
    def __init__(self, hidden, heads, inter, buckets, max_rel):
        super().__init__()
        self.attention = DisentangledSelfAttention(hidden, heads, buckets, max_rel)
        self.attn_dense, self.attn_norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden, 1e-7)
        self.intermediate = nn.Linear(hidden, inter)
        self.output_dense, self.output_norm = nn.Linear(inter, hidden), nn.LayerNorm(hidden, 1e-7)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, mask, relative_pos, rel_embeddings):
        attn = self.attention(x, mask, relative_pos, rel_embeddings)
        x = self.attn_norm(self.dropout(self.attn_dense(attn)) + x)
        h = F.gelu(self.intermediate(x))
        return self.output_norm(self.dropout(self.output_dense(h)) + x)


class ConvLayer(nn.Module):
    def __init__(self, hidden, kernel_size, groups):
        super().__init__()
        self.conv = nn.Conv1d(hidden, hidden, kernel_size, padding=(kernel_size - 1) // 2, groups=groups)
        self.LayerNorm = nn.LayerNorm(hidden, 1e-7)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden_states, residual_states, input_mask):
        out = self.conv(hidden_states.permute(0, 2, 1).contiguous()).permute(0, 2, 1).contiguous()
        rmask = (1 - input_mask).bool()
        out.masked_fill_(rmask.unsqueeze(-1).expand(out.size()), 0)
        out = torch.tanh(self.dropout(out))
        output = self.LayerNorm(residual_states + out).to(residual_states)
        return output * input_mask.unsqueeze(2).to(output.dtype)


class Model(nn.Module):
    """DeBERTa-v3-like encoder: disentangled attention with shared log-bucketed relative embeddings, conv after layer 0, MLM head."""

    def __init__(self, vocab, hidden, heads, inter, layers, buckets, max_rel):
        super().__init__()
        self.buckets, self.max_rel = buckets, max_rel
        self.word_embeddings = nn.Embedding(vocab, hidden, padding_idx=0)
        self.emb_norm, self.dropout = nn.LayerNorm(hidden, 1e-7), nn.Dropout(0.1)
        self.layer = nn.ModuleList([DebertaV2Layer(hidden, heads, inter, buckets, max_rel) for _ in range(layers)])
        self.rel_embeddings = nn.Embedding(buckets * 2, hidden)
        self.rel_norm = nn.LayerNorm(hidden, 1e-7)
        self.conv = ConvLayer(hidden, 3, 1)
        self.head_dense, self.head_norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden, 1e-7)
        self.head_bias = nn.Parameter(torch.zeros(vocab))
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                m.weight.data.normal_(mean=0.0, std=0.06)

    def forward(self, input_ids, attention_mask, labels):
        x = self.emb_norm(self.word_embeddings(input_ids))
        x = self.dropout(x * attention_mask.unsqueeze(2).to(x.dtype))
        extended = attention_mask.unsqueeze(1).unsqueeze(2)
        ext_mask = extended * extended.squeeze(-2).unsqueeze(-1)
        relative_pos = build_relative_position(x, x, self.buckets, self.max_rel)
        rel_embeddings = self.rel_norm(self.rel_embeddings.weight)
        next_kv = x
        for i, layer_module in enumerate(self.layer):
            output_states = layer_module(next_kv, ext_mask, relative_pos, rel_embeddings)
            if i == 0:
                output_states = self.conv(x, output_states, attention_mask)
            next_kv = output_states
        h = self.head_norm(F.gelu(self.head_dense(output_states)))
        prediction_scores = torch.matmul(h, self.word_embeddings.weight.t()) + self.head_bias
        loss = F.cross_entropy(prediction_scores.view(-1, prediction_scores.size(-1)), labels.view(-1), ignore_index=-100)
        return {"loss": loss, "logits": prediction_scores, "last_hidden_state": output_states}


def get_inputs():
    B, L = 3, 83
    ids = torch.randint(1, 800, (B, L))
    mask = (torch.arange(L)[None] < torch.tensor([83, 51, 70])[:, None]).long()
    labels = torch.where((torch.arange(L)[None] % 7 == 3) & mask.bool(), ids, torch.tensor(-100))
    return [torch.where(labels > 0, torch.tensor(3), ids) * mask, mask, labels]


def get_init_inputs():
    return [800, 192, 6, 512, 3, 16, 128]
