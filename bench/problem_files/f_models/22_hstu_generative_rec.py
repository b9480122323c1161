import torch
import torch.nn as nn
import torch.nn.functional as F


class RelativeBucketedTimeAndPositionBasedBias(nn.Module):
    def __init__(self, max_seq_len, num_buckets, num_heads):
        super().__init__()
        self._max_seq_len, self._num_buckets = max_seq_len, num_buckets
        self._ts_w = nn.Parameter(torch.empty(num_buckets + 1).normal_(mean=0, std=0.3))
        self._pos_w = nn.Parameter(torch.empty(2 * max_seq_len - 1).normal_(mean=0, std=0.3))

    def _bucketization_fn(self, x):
        return (torch.log(torch.abs(x).clamp(min=1)) / 0.301).long()

    def forward(self, all_timestamps):
        B = all_timestamps.size(0)
        N = self._max_seq_len
        t = F.pad(self._pos_w[: 2 * N - 1], [0, N]).repeat(N)
        t = t[..., :-N].reshape(1, N, 3 * N - 2)
        r = (2 * N - 1) // 2
        # [B, N + 1] to simplify tensor manipulations.
        ext_timestamps = torch.cat([all_timestamps, all_timestamps[:, N - 1 : N]], dim=1)
        # causal masking. Otherwise [:, :-1] - [:, 1:] works
        bucketed_timestamps = torch.clamp(
            self._bucketization_fn(ext_timestamps[:, 1:].unsqueeze(2) - ext_timestamps[:, :-1].unsqueeze(1)),
            min=0,
            max=self._num_buckets,
        ).detach()
        rel_pos_bias = t[:, :, r:-r]
        rel_ts_bias = torch.index_select(self._ts_w, dim=0, index=bucketed_timestamps.view(-1)).view(B, N, N)
        return rel_pos_bias + rel_ts_bias


class SequentialTransductionUnit(nn.Module):
    def __init__(self, embedding_dim, linear_hidden_dim, attention_dim, num_heads, max_len, buckets, dropout=0.2, eps=1e-6):
        super().__init__()
        self._num_heads, self._linear_dim, self._attention_dim = num_heads, linear_hidden_dim, attention_dim
        self._embedding_dim, self._eps, self._dropout_ratio = embedding_dim, eps, dropout
        self._rel_attn_bias = RelativeBucketedTimeAndPositionBasedBias(max_len, buckets, num_heads)
        self._uvqk = nn.Parameter(
            torch.empty(embedding_dim, linear_hidden_dim * 2 * num_heads + attention_dim * num_heads * 2).normal_(mean=0, std=0.06)
        )
        self._o = nn.Linear(linear_hidden_dim * num_heads * 3, embedding_dim)
        nn.init.xavier_uniform_(self._o.weight)

    def _norm_input(self, x):
        return F.layer_norm(x, normalized_shape=[self._embedding_dim], eps=self._eps)

    def _norm_attn_output(self, x):
        return F.layer_norm(x, normalized_shape=[self._linear_dim * self._num_heads], eps=self._eps)

    def forward(self, x, all_timestamps, invalid_attn_mask, valid_mask):
        B, n, _ = x.shape
        normed_x = self._norm_input(x)
        batched_mm_output = F.silu(torch.matmul(normed_x, self._uvqk))
        H, L, A = self._num_heads, self._linear_dim, self._attention_dim
        u, v, q, k = torch.split(batched_mm_output, [L * H, L * H, A * H, A * H], dim=-1)
        qk_attn = torch.einsum("bnhd,bmhd->bhnm", q.reshape(B, n, H, A), k.reshape(B, n, H, A))
        qk_attn = qk_attn + self._rel_attn_bias(all_timestamps).unsqueeze(1)
        qk_attn = F.silu(qk_attn) / n
        qk_attn = qk_attn * invalid_attn_mask.unsqueeze(0).unsqueeze(0)
        attn_output = torch.einsum("bhnm,bmhd->bnhd", qk_attn, v.reshape(B, n, H, L)).reshape(B, n, H * L)
        # concat_ua: keep the gate, the attention and their product
        a = self._norm_attn_output(attn_output)
        o_input = torch.cat([u, a, u * a], dim=-1)
        o_input = F.dropout(o_input, p=self._dropout_ratio, training=self.training)
        return (self._o(o_input) + x) * valid_mask


class LearnablePositionalRatedEmbedding(nn.Module):
    """Interleaves items and ratings: [item 0, rating 0, item 1, rating 1, ...]."""

    def __init__(self, max_sequence_len, dim, num_ratings, dropout_rate):
        super().__init__()
        self._pos_emb = nn.Embedding(2 * max_sequence_len, dim)
        self._rating_emb = nn.Embedding(num_ratings, dim)
        nn.init.trunc_normal_(self._pos_emb.weight, std=(1.0 / dim) ** 0.5)
        nn.init.trunc_normal_(self._rating_emb.weight, std=0.1)
        self._emb_dropout = nn.Dropout(p=dropout_rate)

    def forward(self, past_lengths, past_ids, past_embeddings, ratings):
        B, N, D = past_embeddings.size()
        user_embeddings = torch.stack([past_embeddings * D**0.5, self._rating_emb(ratings)], dim=2).reshape(B, N * 2, D)
        user_embeddings = user_embeddings + self._pos_emb(torch.arange(N * 2, device=past_ids.device).unsqueeze(0).repeat(B, 1))
        user_embeddings = self._emb_dropout(user_embeddings)
        valid_mask = (past_ids != 0).unsqueeze(2).expand(-1, -1, 2).reshape(B, N * 2, 1).float()
        return user_embeddings * valid_mask, valid_mask


class Model(nn.Module):
    """HSTU (generative recommenders): pointwise SiLU attention with time and position buckets over interleaved items and ratings."""

    def __init__(self, num_items, max_len, dim, linear_dim, attn_dim, heads, blocks, buckets, temperature):
        super().__init__()
        self._temperature, self._max_len = temperature, max_len
        self._item_emb = nn.Embedding(num_items + 1, dim, padding_idx=0)
        nn.init.trunc_normal_(self._item_emb.weight, std=0.1)
        self._input_features_preproc = LearnablePositionalRatedEmbedding(max_len, dim, 6, 0.2)
        self._layers = nn.ModuleList(
            [SequentialTransductionUnit(dim, linear_dim, attn_dim, heads, 2 * max_len, buckets) for _ in range(blocks)]
        )
        self.register_buffer("_attn_mask", torch.triu(torch.ones((2 * max_len, 2 * max_len), dtype=torch.bool), diagonal=1))

    def _l2_norm(self, x):
        return x / torch.clamp(torch.linalg.norm(x, ord=None, dim=-1, keepdim=True), min=1e-6)

    def forward(self, past_lengths, past_ids, ratings, timestamps, negative_ids):
        past_embeddings = self._item_emb(past_ids)
        x, valid_mask = self._input_features_preproc(past_lengths, past_ids, past_embeddings, ratings)
        ts = timestamps.unsqueeze(2).expand(-1, -1, 2).reshape(timestamps.size(0), -1)
        invalid_attn_mask = 1.0 - self._attn_mask.to(x.dtype)
        for layer in self._layers:
            x = layer(x, ts, invalid_attn_mask, valid_mask)
        seq_embeddings = self._l2_norm(x[:, 1::2])  # after each rating comes the next item
        out, supervision_ids = seq_embeddings[:, :-1], past_ids[:, 1:]
        supervision_embeddings = self._l2_norm(self._item_emb(supervision_ids))
        weights = (supervision_ids != 0).float()
        # sampled softmax with shared negatives
        sampled = self._l2_norm(self._item_emb(negative_ids))
        positive_logits = (out * supervision_embeddings).sum(dim=2, keepdim=True) / self._temperature
        sampled_logits = torch.matmul(out, sampled.t()) / self._temperature
        sampled_logits = torch.where(supervision_ids.unsqueeze(2) == negative_ids, -5e4, sampled_logits)
        jagged_loss = -F.log_softmax(torch.cat([positive_logits, sampled_logits], dim=2), dim=2)[:, :, 0]
        loss = (jagged_loss * weights).sum() / weights.sum()
        current = x[torch.arange(x.size(0), device=x.device), (2 * past_lengths - 1).clamp(min=0)]
        scores = self._l2_norm(current) @ self._l2_norm(self._item_emb.weight[1:]).t()
        return loss, scores


def get_inputs():
    B, N, V = 4, 45, 900
    lengths = torch.tensor([45, 12, 30, 27])
    valid = torch.arange(N)[None] < lengths[:, None]
    ids = torch.randint(1, V + 1, (B, N)) * valid
    ratings = torch.randint(1, 6, (B, N)) * valid
    timestamps = torch.randint(1, 40000, (B, N)).cumsum(1) * valid
    return [lengths, ids, ratings, timestamps, torch.randint(1, V + 1, (64,))]


def get_init_inputs():
    return [900, 45, 128, 32, 32, 4, 4, 64, 0.05]
