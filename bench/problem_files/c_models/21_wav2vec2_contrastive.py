import torch
import torch.nn as nn
import torch.nn.functional as F


class TransposeLast(nn.Module):
    def forward(self, x):
        return x.transpose(-2, -1)


class SamePad(nn.Module):
    def __init__(self, kernel_size):
        super().__init__()
        self.remove = 1 if kernel_size % 2 == 0 else 0

    def forward(self, x):
        if self.remove > 0:
            x = x[:, :, : -self.remove]
        return x


def feature_extractor(spec):
    layers, cin = [], 1
    for i, (dim, k, s) in enumerate(spec):
        conv = nn.Conv1d(cin, dim, k, stride=s, bias=False)
        nn.init.kaiming_normal_(conv.weight)
        if i == 0:
            layers.append(nn.Sequential(conv, nn.GroupNorm(dim, dim, affine=True), nn.GELU()))
        elif i == len(spec) - 1:
            layers.append(nn.Sequential(conv, TransposeLast(), nn.LayerNorm(dim), TransposeLast(), nn.GELU()))
        else:
            layers.append(nn.Sequential(conv, nn.GELU()))
        cin = dim
    return nn.ModuleList(layers)


class GumbelFreeQuantizer(nn.Module):
    """Product quantiser by soft assignment (no Gumbel noise)."""

    def __init__(self, dim, groups, num_vars, vq_dim, temp):
        super().__init__()
        self.groups, self.num_vars, self.temp = groups, num_vars, temp
        self.vars = nn.Parameter(torch.rand(1, groups * num_vars, vq_dim // groups))
        self.weight_proj = nn.Linear(dim, groups * num_vars)

    def forward(self, x):
        bsz, tsz, fsz = x.shape
        x = self.weight_proj(x.reshape(-1, fsz)).view(bsz * tsz * self.groups, -1)
        hard = torch.zeros_like(x).scatter_(-1, x.argmax(-1, keepdim=True), 1.0)
        soft = torch.softmax(x / self.temp, dim=-1)
        avg_probs = torch.softmax(x, dim=-1).view(bsz * tsz, self.groups, -1).mean(dim=0)
        perplexity = torch.exp(-torch.sum(avg_probs * torch.log(avg_probs + 1e-7), dim=-1)).sum()
        x = (hard - soft.detach() + soft).view(bsz * tsz, -1)
        x = x.unsqueeze(-1) * self.vars
        x = x.view(bsz * tsz, self.groups, self.num_vars, -1).sum(-2)
        return x.view(bsz, tsz, -1), perplexity


class Model(nn.Module):
    """wav2vec 2.0 pre-training: conv features, masking, conv positions, Transformer, InfoNCE and diversity."""

    def __init__(self, spec, dim, heads, layers, groups, num_vars, vq_dim, negatives):
        super().__init__()
        self.extractor = feature_extractor(spec)
        feat = spec[-1][0]
        self.layer_norm = nn.LayerNorm(feat)
        self.post_extract_proj = nn.Linear(feat, dim)
        self.mask_emb = nn.Parameter(torch.rand(dim))
        conv = nn.Conv1d(dim, dim, 16, padding=8, groups=8)
        self.pos_conv = nn.Sequential(nn.utils.parametrizations.weight_norm(conv, name="weight", dim=2), SamePad(16), nn.GELU())
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=False)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.enc_norm = nn.LayerNorm(dim)
        self.quantizer = GumbelFreeQuantizer(feat, groups, num_vars, vq_dim, 0.7)
        self.project_q = nn.Linear(vq_dim, 64)
        self.final_proj = nn.Linear(dim, 64)
        self.negatives, self.total_vars = negatives, groups * num_vars

    def forward(self, wav, mask):
        x = (wav - wav.mean(-1, keepdim=True)) / (wav.var(-1, keepdim=True) + 1e-5).sqrt()
        x = x.unsqueeze(1)
        for conv in self.extractor:
            x = conv(x)
        feat_pen = x.pow(2).mean()
        feats = self.layer_norm(x.transpose(1, 2))
        T = feats.shape[1]
        mask = mask[:, :T]
        x = self.post_extract_proj(feats)
        x = torch.where(mask.unsqueeze(-1), self.mask_emb.to(x.dtype), x)
        x = x + self.pos_conv(x.transpose(1, 2)).transpose(1, 2)
        x = self.encoder(self.enc_norm(x))
        q, perplexity = self.quantizer(feats)
        y, z = self.project_q(q), self.final_proj(x)
        # negatives: time-shifted targets of the same utterance
        cands = torch.stack([y] + [torch.roll(y, shifts=3 * (j + 1), dims=1) for j in range(self.negatives)], dim=0)
        logits = F.cosine_similarity(z.unsqueeze(0), cands, dim=-1) / 0.1
        nll = -F.log_softmax(logits, dim=0)[0]
        w = mask.to(nll.dtype)
        contrast = (nll * w).sum() / w.sum()
        diversity = (self.total_vars - perplexity) / self.total_vars
        return contrast + 0.1 * diversity + 0.1 * feat_pen, x


def get_inputs():
    mask = (torch.rand(3, 149) < 0.08).float()
    mask = (nn.functional.max_pool1d(mask.unsqueeze(1), 5, 1, 2).squeeze(1) > 0)
    return [torch.randn(3, 6000), mask]


def get_init_inputs():
    return [[(48, 10, 5), (48, 3, 2), (64, 3, 2), (64, 2, 2)], 128, 4, 3, 2, 32, 64, 10]
