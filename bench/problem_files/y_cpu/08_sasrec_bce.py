import torch
import torch.nn as nn
import torch.nn.functional as F


class PointWiseFeedForward(nn.Module):
    def __init__(self, hidden_units, dropout_rate):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout1 = nn.Dropout(p=dropout_rate)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout2 = nn.Dropout(p=dropout_rate)

    def forward(self, inputs):
        outputs = self.dropout2(
            self.conv2(self.relu(self.dropout1(self.conv1(inputs.transpose(-1, -2)))))
        )
        outputs = outputs.transpose(-1, -2)
        outputs += inputs
        return outputs


class Model(nn.Module):
    """SASRec sequential recommender (nn.MultiheadAttention, seq-first) with
    BCE over positive and sampled negative items, padding ignored."""

    def __init__(self, item_num, hidden_units, maxlen, num_blocks, num_heads, dropout_rate=0.0):
        super().__init__()
        self.item_emb = nn.Embedding(item_num + 1, hidden_units, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen, hidden_units)
        self.emb_dropout = nn.Dropout(p=dropout_rate)
        self.attention_layernorms = nn.ModuleList()
        self.attention_layers = nn.ModuleList()
        self.forward_layernorms = nn.ModuleList()
        self.forward_layers = nn.ModuleList()
        self.last_layernorm = nn.LayerNorm(hidden_units, eps=1e-8)
        for _ in range(num_blocks):
            self.attention_layernorms.append(nn.LayerNorm(hidden_units, eps=1e-8))
            self.attention_layers.append(
                nn.MultiheadAttention(hidden_units, num_heads, dropout_rate)
            )
            self.forward_layernorms.append(nn.LayerNorm(hidden_units, eps=1e-8))
            self.forward_layers.append(PointWiseFeedForward(hidden_units, dropout_rate))
        self.bce = nn.BCEWithLogitsLoss()
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.xavier_normal_(p.data)
        self.item_emb.weight.data[0].zero_()

    def log2feats(self, log_seqs):
        seqs = self.item_emb(log_seqs)
        seqs *= self.item_emb.embedding_dim ** 0.5
        positions = torch.arange(log_seqs.shape[1], device=log_seqs.device)
        seqs = seqs + self.pos_emb(positions[None, :].expand(log_seqs.shape[0], -1))
        seqs = self.emb_dropout(seqs)

        timeline_mask = log_seqs == 0
        seqs *= ~timeline_mask.unsqueeze(-1)

        tl = seqs.shape[1]
        attention_mask = ~torch.tril(torch.ones((tl, tl), dtype=torch.bool, device=seqs.device))
        for i in range(len(self.attention_layers)):
            seqs = torch.transpose(seqs, 0, 1)
            Q = self.attention_layernorms[i](seqs)
            mha_outputs, _ = self.attention_layers[i](
                Q, seqs, seqs, attn_mask=attention_mask, need_weights=False
            )
            seqs = Q + mha_outputs
            seqs = torch.transpose(seqs, 0, 1)

            seqs = self.forward_layernorms[i](seqs)
            seqs = self.forward_layers[i](seqs)
            seqs = seqs * ~timeline_mask.unsqueeze(-1)
        return self.last_layernorm(seqs)

    def forward(self, log_seqs, pos_seqs, neg_seqs):
        log_feats = self.log2feats(log_seqs)
        pos_embs = self.item_emb(pos_seqs)
        neg_embs = self.item_emb(neg_seqs)
        pos_logits = (log_feats * pos_embs).sum(dim=-1)
        neg_logits = (log_feats * neg_embs).sum(dim=-1)

        indices = torch.where(pos_seqs != 0)
        loss = self.bce(pos_logits[indices], torch.ones_like(pos_logits[indices]))
        loss += self.bce(neg_logits[indices], torch.zeros_like(neg_logits[indices]))
        auc_mask = (pos_seqs != 0).float()
        margin = (torch.sigmoid(pos_logits - neg_logits) * auc_mask).sum(1) / auc_mask.sum(1)
        return loss, margin


def get_inputs():
    g = torch.Generator().manual_seed(7)
    B, L, N = 26, 143, 3417
    full = torch.randint(1, N + 1, (B, L + 1), generator=g)
    neg = torch.randint(1, N + 1, (B, L), generator=g)
    seq, pos = full[:, :-1].clone(), full[:, 1:].clone()
    lens = torch.randint(20, L + 1, (B,), generator=g)
    pad = torch.arange(L)[None, :] < (L - lens)[:, None]  # left padding
    seq[pad], pos[pad], neg[pad] = 0, 0, 0
    return [seq, pos, neg]


def get_init_inputs():
    return [3417, 80, 143, 2, 2]
