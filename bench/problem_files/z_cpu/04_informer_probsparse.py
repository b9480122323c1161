import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionalEmbedding(nn.Module):
    def __init__(self, d_model, max_len=1000):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len).float().unsqueeze(1)
        div_term = (torch.arange(0, d_model, 2).float() * -(math.log(10000.0) / d_model)).exp()
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return self.pe[:, : x.size(1)]


class DataEmbedding(nn.Module):
    def __init__(self, c_in, d_model):
        super().__init__()
        self.tokenConv = nn.Conv1d(c_in, d_model, kernel_size=3, padding=1, padding_mode="circular", bias=False)
        self.position_embedding = PositionalEmbedding(d_model)
        self.hour_embed = nn.Embedding(24, d_model)
        self.weekday_embed = nn.Embedding(7, d_model)

    def forward(self, x, x_mark):
        x = self.tokenConv(x.permute(0, 2, 1)).transpose(1, 2)
        temporal = self.hour_embed(x_mark[:, :, 0]) + self.weekday_embed(x_mark[:, :, 1])
        return x + self.position_embedding(x) + temporal


class ProbAttention(nn.Module):
    def __init__(self, L_Q, L_K, mask_flag=True, factor=5):
        super().__init__()
        self.mask_flag = mask_flag
        U_part = factor * math.ceil(math.log(L_K))
        u = factor * math.ceil(math.log(L_Q))
        self.U_part = min(U_part, L_K)
        self.u = min(u, L_Q)
        # the sampled keys are drawn once
        self.register_buffer("index_sample", torch.randint(L_K, (L_Q, self.U_part)))

    def _prob_QK(self, Q, K):
        B, H, L_K, E = K.shape
        _, _, L_Q, _ = Q.shape
        K_expand = K.unsqueeze(-3).expand(B, H, L_Q, L_K, E)
        K_sample = K_expand[:, :, torch.arange(L_Q, device=K.device).unsqueeze(1), self.index_sample, :]
        Q_K_sample = torch.matmul(Q.unsqueeze(-2), K_sample.transpose(-2, -1)).squeeze(-2)
        M = Q_K_sample.max(-1)[0] - torch.div(Q_K_sample.sum(-1), L_K)
        M_top = M.topk(self.u, sorted=False)[1]
        Q_reduce = Q[torch.arange(B, device=Q.device)[:, None, None],
                     torch.arange(H, device=Q.device)[None, :, None], M_top, :]
        Q_K = torch.matmul(Q_reduce, K.transpose(-2, -1))
        return Q_K, M_top

    def _get_initial_context(self, V, L_Q):
        B, H, L_V, D = V.shape
        if not self.mask_flag:
            V_mean = V.mean(dim=-2)
            return V_mean.unsqueeze(-2).expand(B, H, L_Q, D).clone()
        return V.cumsum(dim=-2)

    def _update_context(self, context_in, V, scores, index, L_Q):
        B, H, L_V, D = V.shape
        if self.mask_flag:
            mask = torch.ones(L_Q, scores.shape[-1], dtype=torch.bool, device=V.device).triu(1)
            mask_ex = mask[None, None, :].expand(B, H, L_Q, scores.shape[-1])
            indicator = mask_ex[torch.arange(B, device=V.device)[:, None, None],
                                torch.arange(H, device=V.device)[None, :, None], index, :]
            scores = scores.masked_fill(indicator.view(scores.shape), -float("inf"))
        attn = torch.softmax(scores, dim=-1)
        context_in[torch.arange(B, device=V.device)[:, None, None],
                   torch.arange(H, device=V.device)[None, :, None], index, :] = torch.matmul(attn, V).type_as(context_in)
        return context_in

    def forward(self, queries, keys, values):
        B, L_Q, H, D = queries.shape
        _, L_K, _, _ = keys.shape
        queries = queries.transpose(2, 1)
        keys = keys.transpose(2, 1)
        values = values.transpose(2, 1)
        scores_top, index = self._prob_QK(queries, keys)
        scores_top = scores_top * (1.0 / math.sqrt(D))
        context = self._get_initial_context(values, L_Q)
        context = self._update_context(context, values, scores_top, index, L_Q)
        return context.transpose(2, 1).contiguous()


class FullAttention(nn.Module):
    def forward(self, queries, keys, values):
        B, L, H, E = queries.shape
        scores = torch.einsum("blhe,bshe->bhls", queries, keys)
        A = torch.softmax(scores / math.sqrt(E), dim=-1)
        return torch.einsum("bhls,bshd->blhd", A, values).contiguous()


class AttentionLayer(nn.Module):
    def __init__(self, attention, d_model, n_heads):
        super().__init__()
        self.inner_attention = attention
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)
        self.n_heads = n_heads

    def forward(self, queries, keys, values):
        B, L, _ = queries.shape
        _, S, _ = keys.shape
        H = self.n_heads
        q = self.query_projection(queries).view(B, L, H, -1)
        k = self.key_projection(keys).view(B, S, H, -1)
        v = self.value_projection(values).view(B, S, H, -1)
        return self.out_projection(self.inner_attention(q, k, v).view(B, L, -1))


class ConvLayer(nn.Module):
    def __init__(self, c_in):
        super().__init__()
        self.downConv = nn.Conv1d(c_in, c_in, kernel_size=3, padding=1, padding_mode="circular")
        self.norm = nn.BatchNorm1d(c_in)
        self.activation = nn.ELU()
        self.maxPool = nn.MaxPool1d(kernel_size=3, stride=2, padding=1)

    def forward(self, x):
        x = self.downConv(x.permute(0, 2, 1))
        return self.maxPool(self.activation(self.norm(x))).transpose(1, 2)


class EncoderLayer(nn.Module):
    def __init__(self, attention, d_model, d_ff):
        super().__init__()
        self.attention = attention
        self.conv1 = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.conv2 = nn.Conv1d(d_ff, d_model, kernel_size=1)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)

    def forward(self, x):
        x = x + self.attention(x, x, x)
        y = x = self.norm1(x)
        y = F.gelu(self.conv1(y.transpose(-1, 1)))
        y = self.conv2(y).transpose(-1, 1)
        return self.norm2(x + y)


class DecoderLayer(nn.Module):
    def __init__(self, self_attention, cross_attention, d_model, d_ff):
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.conv1 = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.conv2 = nn.Conv1d(d_ff, d_model, kernel_size=1)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.norm3 = nn.LayerNorm(d_model)

    def forward(self, x, cross):
        x = self.norm1(x + self.self_attention(x, x, x))
        x = x + self.cross_attention(x, cross, cross)
        y = x = self.norm2(x)
        y = F.gelu(self.conv1(y.transpose(-1, 1)))
        y = self.conv2(y).transpose(-1, 1)
        return self.norm3(x + y)


class Model(nn.Module):
    """Informer: ProbSparse attention (fixed key sample), distilling encoder, generative decoder."""

    def __init__(self, enc_in, c_out, seq_len, label_len, out_len, d_model, n_heads, d_ff):
        super().__init__()
        self.pred_len = out_len
        dec_len = label_len + out_len
        self.enc_embedding = DataEmbedding(enc_in, d_model)
        self.dec_embedding = DataEmbedding(enc_in, d_model)
        lens = [seq_len, (seq_len + 1) // 2]
        self.attn_layers = nn.ModuleList([
            EncoderLayer(AttentionLayer(ProbAttention(l, l, False), d_model, n_heads), d_model, d_ff) for l in lens])
        self.conv_layers = nn.ModuleList([ConvLayer(d_model)])
        self.enc_norm = nn.LayerNorm(d_model)
        self.decoder = DecoderLayer(AttentionLayer(ProbAttention(dec_len, dec_len, True), d_model, n_heads),
                                    AttentionLayer(FullAttention(), d_model, n_heads), d_model, d_ff)
        self.dec_norm = nn.LayerNorm(d_model)
        self.projection = nn.Linear(d_model, c_out)

    def forward(self, x_enc, x_mark_enc, x_dec, x_mark_dec, target):
        enc_out = self.enc_embedding(x_enc, x_mark_enc)
        for attn_layer, conv_layer in zip(self.attn_layers, self.conv_layers):
            enc_out = attn_layer(enc_out)
            enc_out = conv_layer(enc_out)
        enc_out = self.enc_norm(self.attn_layers[-1](enc_out))
        dec_inp = torch.zeros_like(x_dec[:, -self.pred_len:, :])
        dec_inp = torch.cat([x_dec[:, : x_dec.size(1) - self.pred_len, :], dec_inp], dim=1)
        dec_out = self.dec_embedding(dec_inp, x_mark_dec)
        dec_out = self.dec_norm(self.decoder(dec_out, enc_out))
        pred = self.projection(dec_out)[:, -self.pred_len:, :]
        return F.mse_loss(pred, target), pred


B, L, LAB, OUT, C = 8, 96, 48, 48, 7


def _marks(b, l):
    return torch.stack([torch.randint(0, 24, (b, l)), torch.randint(0, 7, (b, l))], dim=-1)


def get_inputs():
    return [torch.randn(B, L, C), _marks(B, L), torch.randn(B, LAB + OUT, C), _marks(B, LAB + OUT),
            torch.randn(B, OUT, C)]


def get_init_inputs():
    return [C, C, L, LAB, OUT, 128, 8, 256]
