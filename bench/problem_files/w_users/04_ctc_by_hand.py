import torch
import torch.nn as nn
import torch.nn.functional as F

BLANK = 0
NINF = -1e30


class Model(nn.Module):
    """Speech front end with a hand written CTC forward recursion, next to F.ctc_loss, and a
    greedy collapse of fixed width."""

    def __init__(self, mel, hid, vocab):
        super().__init__()
        self.c1 = nn.Conv1d(mel, hid, 5, stride=2, padding=2)
        self.bn = nn.BatchNorm1d(hid)
        self.gru = nn.GRU(hid, hid, batch_first=True)
        self.head = nn.Linear(hid, vocab)

    def ctc(self, lp, labels, in_len, lab_len):
        B, T, V = lp.shape
        S = labels.shape[1]
        L = 2 * S + 1
        ext = labels.new_full((B, L), BLANK)
        ext[:, 1::2] = labels
        can_skip = torch.zeros(B, L, dtype=torch.bool, device=lp.device)
        can_skip[:, 2:] = (ext[:, 2:] != BLANK) & (ext[:, 2:] != ext[:, :-2])
        emit = lp.gather(2, ext.unsqueeze(1).expand(B, T, L))
        a = lp.new_full((B, L), NINF)
        a[:, :2] = emit[:, 0, :2]
        for t in range(1, T):
            s1 = F.pad(a[:, :-1], (1, 0), value=NINF)
            s2 = F.pad(a[:, :-2], (2, 0), value=NINF)
            s2 = torch.where(can_skip, s2, torch.full_like(s2, NINF))
            new = torch.logsumexp(torch.stack((a, s1, s2)), 0) + emit[:, t]
            a = torch.where((t < in_len).unsqueeze(1), new, a)
        end = (2 * lab_len).unsqueeze(1)
        fin = torch.logaddexp(a.gather(1, end), a.gather(1, end - 1))
        return -fin.squeeze(1)

    def greedy(self, lp, in_len):
        ids = lp.argmax(-1)
        B, T = ids.shape
        prev = torch.cat([ids.new_full((B, 1), -1), ids[:, :-1]], 1)
        keep = (ids != prev) & (ids != BLANK) & (torch.arange(T, device=ids.device) < in_len[:, None])
        pos = keep.long().cumsum(1) - 1
        pos = torch.where(keep, pos, torch.full_like(pos, T))
        out = ids.new_zeros(B, T + 1)
        out.scatter_(1, pos, ids)
        return out[:, :T], keep.sum(1)

    def forward(self, x, labels, in_len, lab_len):
        x = x - x.mean(dim=2, keepdim=True)
        x = x / (x.std(dim=2, keepdim=True) + 1e-5)
        x *= 1.5
        h = F.relu(self.bn(self.c1(x)), inplace=True).permute(0, 2, 1)
        h, hn = self.gru(h.contiguous())
        lp = self.head(h).log_softmax(-1)
        in_len = (in_len + 1) // 2
        mine = self.ctc(lp, labels, in_len, lab_len)
        ref = F.ctc_loss(lp.transpose(0, 1), labels, in_len, lab_len, blank=BLANK, reduction="none")
        dec, n = self.greedy(lp.detach(), in_len)
        wer = (dec[:, : labels.shape[1]] != labels).float().mean(1)
        gap = (mine - ref).abs().max().detach().clamp(max=1e-2).round(decimals=1)
        return (mine / lab_len).mean(), (ref / lab_len.clamp(min=1)).mean(), dec, n, wer, gap, hn[0]


def get_inputs():
    B = 4
    return [torch.randn(B, 20, 60), torch.randint(1, 12, (B, 8)),
            torch.randint(48, 61, (B,)), torch.randint(3, 9, (B,))]


def get_init_inputs():
    return [20, 32, 12]
