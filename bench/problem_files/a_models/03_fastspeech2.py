import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def lengths_to_pad(lengths, max_len):
    ids = torch.arange(max_len, device=lengths.device).unsqueeze(0).expand(len(lengths), -1)
    return ids >= lengths.unsqueeze(1)


class FFTBlock(nn.Module):
    """Post-norm self attention in the (head*batch) layout, then a conv feed-forward of kernels 9 and 1."""

    def __init__(self, d, n_head, d_inner):
        super().__init__()
        self.h, self.dk = n_head, d // n_head
        self.w_q, self.w_k, self.w_v, self.fc = [nn.Linear(d, d) for _ in range(4)]
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c1, self.c2 = nn.Conv1d(d, d_inner, 9, padding=4), nn.Conv1d(d_inner, d, 1)

    def forward(self, x, pad):
        b, t, d = x.shape
        q, k, v = [w(x).view(b, t, self.h, self.dk).permute(2, 0, 1, 3).contiguous().view(-1, t, self.dk)
                   for w in (self.w_q, self.w_k, self.w_v)]
        a = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.dk)
        a = a.masked_fill(pad.unsqueeze(1).expand(-1, t, -1).repeat(self.h, 1, 1), float("-inf"))
        o = torch.bmm(torch.softmax(a, dim=2), v).view(self.h, b, t, self.dk)
        o = o.permute(1, 2, 0, 3).contiguous().view(b, t, d)
        x = self.ln1(self.fc(o) + x).masked_fill(pad.unsqueeze(-1), 0)
        y = self.c2(F.relu(self.c1(x.transpose(1, 2)))).transpose(1, 2)
        return self.ln2(y + x).masked_fill(pad.unsqueeze(-1), 0)


class VariancePredictor(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(d, d, 3, padding=1), nn.Conv1d(d, d, 3, padding=1)
        self.n1, self.n2, self.out = nn.LayerNorm(d), nn.LayerNorm(d), nn.Linear(d, 1)

    def forward(self, x, pad):
        x = self.n1(F.relu(self.c1(x.transpose(1, 2))).transpose(1, 2))
        x = self.n2(F.relu(self.c2(x.transpose(1, 2))).transpose(1, 2))
        return self.out(x).squeeze(-1).masked_fill(pad, 0.0)


class Model(nn.Module):
    """FastSpeech 2 with length regulator, pitch/energy buckets, postnet and all masked losses."""

    def __init__(self, n_vocab, n_speaker, d, n_head, d_inner, n_layers, n_mel, max_mel, n_bins):
        super().__init__()
        self.max_mel = max_mel
        self.emb, self.spk = nn.Embedding(n_vocab, d, padding_idx=0), nn.Embedding(n_speaker, d)
        pos = torch.arange(max_mel + 1)[:, None] / 10000 ** (2 * (torch.arange(d)[None] // 2) / d)
        pos[:, 0::2], pos[:, 1::2] = pos[:, 0::2].sin(), pos[:, 1::2].cos()
        self.register_buffer("pos", pos.unsqueeze(0))
        self.enc = nn.ModuleList([FFTBlock(d, n_head, d_inner) for _ in range(n_layers)])
        self.dec = nn.ModuleList([FFTBlock(d, n_head, d_inner) for _ in range(n_layers)])
        self.dur, self.pit, self.ene = VariancePredictor(d), VariancePredictor(d), VariancePredictor(d)
        self.pit_emb, self.ene_emb = nn.Embedding(n_bins, d), nn.Embedding(n_bins, d)
        self.register_buffer("pit_bins", torch.exp(torch.linspace(math.log(0.05), math.log(4.0), n_bins - 1)))
        self.register_buffer("ene_bins", torch.linspace(-2.5, 2.5, n_bins - 1))
        self.mel = nn.Linear(d, n_mel)
        chans = [n_mel, 192, 192, 192, n_mel]
        self.post = nn.ModuleList([nn.Sequential(nn.Conv1d(a, b, 5, padding=2), nn.BatchNorm1d(b))
                                   for a, b in zip(chans[:-1], chans[1:])])

    def regulate(self, x, dur):
        ends = torch.cumsum(dur, dim=1)
        frame = torch.arange(self.max_mel, device=x.device)
        idx = (frame[None, :, None] >= ends[:, None, :]).sum(-1).clamp(max=x.shape[1] - 1)
        mel_len = ends[:, -1].clamp(max=self.max_mel)
        return torch.gather(x, 1, idx.unsqueeze(-1).expand(-1, -1, x.shape[2])), mel_len

    def forward(self, speaker, text, src_len, dur, pitch, energy, mel_target):
        t = text.shape[1]
        src_pad = lengths_to_pad(src_len, t)
        dur = dur.masked_fill(src_pad, 0)
        x = self.emb(text) + self.pos[:, :t]
        for layer in self.enc:
            x = layer(x, src_pad)
        x = x + self.spk(speaker).unsqueeze(1).expand(-1, t, -1)
        log_d, p = self.dur(x, src_pad), self.pit(x, src_pad)
        x = x + self.pit_emb(torch.bucketize(pitch, self.pit_bins))
        e = self.ene(x, src_pad)
        x = x + self.ene_emb(torch.bucketize(energy, self.ene_bins))
        x, mel_len = self.regulate(x, dur)
        mel_pad = lengths_to_pad(mel_len, self.max_mel)
        x = x + self.pos[:, :self.max_mel]
        for layer in self.dec:
            x = layer(x, mel_pad)
        mel = self.mel(x)
        y = mel.transpose(1, 2)
        for i, c in enumerate(self.post):
            y = torch.tanh(c(y)) if i < len(self.post) - 1 else c(y)
        post = y.transpose(1, 2) + mel
        sm = (~src_pad).to(mel.dtype)
        mm = (~mel_pad).to(mel.dtype).unsqueeze(-1)
        n_mel = mm.sum() * mel.shape[-1]
        loss_mel = sum(((m - mel_target).abs() * mm).sum() / n_mel for m in (mel, post))
        loss_d = ((log_d - torch.log(dur.to(mel.dtype) + 1)).pow(2) * sm).sum() / sm.sum()
        loss_p, loss_e = [((a - b).pow(2) * sm).sum() / sm.sum() for a, b in ((p, pitch), (e, energy))]
        return loss_mel + loss_d + loss_p + loss_e, post, log_d, p, e


def get_inputs():
    b, t = 3, 61
    return [torch.randint(0, 7, (b,)), torch.randint(1, 90, (b, t)), torch.randint(t // 2, t + 1, (b,)),
            torch.randint(1, 8, (b, t)), torch.rand(b, t) * 4, torch.randn(b, t), torch.randn(b, 277, 80)]


def get_init_inputs():
    return [90, 7, 192, 2, 576, 3, 80, 277, 256]
