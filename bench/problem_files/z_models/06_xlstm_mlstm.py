import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LinearHeadwiseExpand(nn.Module):
    def __init__(self, in_features, num_heads, bias=False):
        super().__init__()
        self.num_heads = num_heads
        hd = in_features // num_heads
        self.weight = nn.Parameter(torch.empty(num_heads, hd, hd))
        self.bias = nn.Parameter(torch.zeros(in_features)) if bias else None
        nn.init.normal_(self.weight, mean=0.0, std=math.sqrt(2 / 5 / hd))

    def forward(self, x):
        shape = x.shape
        x = x.view(*shape[:-1], self.num_heads, -1)
        x = torch.einsum("...hd,hod->...ho", x, self.weight)
        x = x.reshape(*shape[:-1], -1)
        if self.bias is not None:
            x = x + self.bias
        return x


class CausalConv1d(nn.Module):
    def __init__(self, feature_dim, kernel_size=4):
        super().__init__()
        self.pad = kernel_size - 1
        self.conv = nn.Conv1d(feature_dim, feature_dim, kernel_size, padding=self.pad, groups=feature_dim)

    def forward(self, x):
        y = x.transpose(2, 1)
        y = self.conv(y)
        return y[:, :, : -self.pad].transpose(2, 1)


class LayerNorm(nn.Module):
    def __init__(self, ndim, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ndim))
        self.eps = eps

    @property
    def weight_proxy(self):
        return 1.0 + self.weight

    def forward(self, x):
        return F.layer_norm(x, normalized_shape=(x.shape[-1],), weight=self.weight_proxy, bias=None, eps=self.eps)


class MultiHeadLayerNorm(LayerNorm):
    def forward(self, x):
        B, NH, S, DH = x.shape
        gn_in_1 = x.transpose(1, 2)
        gn_in_2 = gn_in_1.reshape(B * S, NH * DH)
        out = F.group_norm(gn_in_2, num_groups=NH, weight=self.weight_proxy, bias=None, eps=self.eps)
        return out.view(B, S, NH, DH).transpose(1, 2)


def parallel_stabilized_simple(queries, keys, values, igate_preact, fgate_preact, lower_triangular_matrix, eps=1e-6):
    B, NH, S, DH = queries.shape
    _dtype, _device = queries.dtype, queries.device
    log_fgates = F.logsigmoid(fgate_preact)
    ltr = lower_triangular_matrix[:S, :S]
    log_fgates_cumsum = torch.cat(
        [torch.zeros((B, NH, 1, 1), dtype=_dtype, device=_device), torch.cumsum(log_fgates, dim=-2)], dim=-2)
    rep_log_fgates_cumsum = log_fgates_cumsum.repeat(1, 1, 1, S + 1)
    _log_fg_matrix = rep_log_fgates_cumsum - rep_log_fgates_cumsum.transpose(-2, -1)
    log_fg_matrix = torch.where(ltr, _log_fg_matrix[:, :, 1:, 1:], -float("inf"))
    log_D_matrix = log_fg_matrix + igate_preact.transpose(-2, -1)
    max_log_D, _ = torch.max(log_D_matrix, dim=-1, keepdim=True)
    log_D_matrix_stabilized = log_D_matrix - max_log_D
    D_matrix = torch.exp(log_D_matrix_stabilized)
    keys_scaled = keys / math.sqrt(DH)
    qk_matrix = queries @ keys_scaled.transpose(-2, -1)
    C_matrix = qk_matrix * D_matrix
    normalizer = torch.maximum(C_matrix.sum(dim=-1, keepdim=True).abs(), torch.exp(-max_log_D))
    C_matrix_normalized = C_matrix / (normalizer + eps)
    return C_matrix_normalized @ values


class MLSTMCell(nn.Module):
    def __init__(self, context_length, embedding_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.igate = nn.Linear(3 * embedding_dim, num_heads)
        self.fgate = nn.Linear(3 * embedding_dim, num_heads)
        self.outnorm = MultiHeadLayerNorm(embedding_dim)
        self.register_buffer("causal_mask", torch.tril(torch.ones(context_length, context_length, dtype=torch.bool)),
                             persistent=False)
        with torch.no_grad():
            self.fgate.weight.mul_(0.1)
            self.fgate.bias.copy_(torch.linspace(3.0, 6.0, num_heads))
            self.igate.weight.mul_(0.1)

    def forward(self, q, k, v):
        B, S, _ = q.shape
        if_gate_input = torch.cat([q, k, v], dim=-1)
        q = q.view(B, S, self.num_heads, -1).transpose(1, 2)
        k = k.view(B, S, self.num_heads, -1).transpose(1, 2)
        v = v.view(B, S, self.num_heads, -1).transpose(1, 2)
        igate_preact = self.igate(if_gate_input).transpose(-1, -2).unsqueeze(-1)
        fgate_preact = self.fgate(if_gate_input).transpose(-1, -2).unsqueeze(-1)
        h_state = parallel_stabilized_simple(q, k, v, igate_preact, fgate_preact, self.causal_mask)
        h_state_norm = self.outnorm(h_state)
        return h_state_norm.transpose(1, 2).reshape(B, S, -1)


class MLSTMLayer(nn.Module):
    def __init__(self, embedding_dim, context_length, num_heads, qkv_proj_blocksize=4, proj_factor=2):
        super().__init__()
        inner = embedding_dim * proj_factor
        self.inner = inner
        self.proj_up = nn.Linear(embedding_dim, 2 * inner, bias=False)
        nh = inner // qkv_proj_blocksize
        self.q_proj = LinearHeadwiseExpand(inner, nh)
        self.k_proj = LinearHeadwiseExpand(inner, nh)
        self.v_proj = LinearHeadwiseExpand(inner, nh)
        self.conv1d = CausalConv1d(inner)
        self.conv_act_fn = nn.SiLU()
        self.mlstm_cell = MLSTMCell(context_length, inner, num_heads)
        self.ogate_act_fn = nn.SiLU()
        self.learnable_skip = nn.Parameter(torch.ones(inner))
        self.proj_down = nn.Linear(inner, embedding_dim, bias=False)

    def forward(self, x):
        x_inner = self.proj_up(x)
        x_mlstm, z = torch.split(x_inner, split_size_or_sections=self.inner, dim=-1)
        x_mlstm_conv = self.conv1d(x_mlstm)
        x_mlstm_conv_act = self.conv_act_fn(x_mlstm_conv)
        q = self.q_proj(x_mlstm_conv_act)
        k = self.k_proj(x_mlstm_conv_act)
        v = self.v_proj(x_mlstm)
        h_tilde_state = self.mlstm_cell(q=q, k=k, v=v)
        h_tilde_state_skip = h_tilde_state + (self.learnable_skip * x_mlstm_conv_act)
        h_state = h_tilde_state_skip * self.ogate_act_fn(z)
        return self.proj_down(h_state)


class Model(nn.Module):
    """xLSTM language model of mLSTM blocks in the stabilised parallel form."""

    def __init__(self, vocab_size, dim, num_blocks, num_heads, context_length):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.norms = nn.ModuleList([LayerNorm(dim) for _ in range(num_blocks)])
        self.blocks = nn.ModuleList([MLSTMLayer(dim, context_length, num_heads) for _ in range(num_blocks)])
        self.post_blocks_norm = LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.token_embedding(idx)
        for norm, block in zip(self.norms, self.blocks):
            x = x + block(norm(x))
        logits = self.lm_head(self.post_blocks_norm(x))
        # soft capped logits
        logits = 30.0 * torch.tanh(logits / 30.0)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


batch_size, seq_len, vocab = 4, 1024, 16384


def get_inputs():
    return [torch.randint(0, vocab, (batch_size, seq_len)), torch.randint(0, vocab, (batch_size, seq_len))]


def get_init_inputs():
    return [vocab, 1024, 3, 4, seq_len]
