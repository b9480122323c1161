import torch
import torch.nn as nn


class CRF(nn.Module):
    def __init__(self, num_tags):
        super().__init__()
        self.start_transitions = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        self.end_transitions = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags).uniform_(-0.1, 0.1))

    def score(self, em, tags, mask):
        L, B = tags.shape
        ar = torch.arange(B, device=em.device)
        s = self.start_transitions[tags[0]] + em[0, ar, tags[0]]
        for i in range(1, L):
            s = s + (self.transitions[tags[i - 1], tags[i]] + em[i, ar, tags[i]]) * mask[i].float()
        last = tags[mask.long().sum(0) - 1, ar]
        return s + self.end_transitions[last]

    def partition(self, em, mask):
        s = self.start_transitions + em[0]
        for i in range(1, em.size(0)):
            nxt = torch.logsumexp(s.unsqueeze(2) + self.transitions + em[i].unsqueeze(1), dim=1)
            s = torch.where(mask[i].unsqueeze(1), nxt, s)
        return torch.logsumexp(s + self.end_transitions, dim=1)

    @torch.no_grad()
    def decode(self, em, mask):
        s = self.start_transitions + em[0]
        back = []
        ident = torch.arange(em.size(2), device=em.device).expand_as(s)
        for i in range(1, em.size(0)):
            best, idx = (s.unsqueeze(2) + self.transitions).max(dim=1)
            m = mask[i].unsqueeze(1)
            back.append(torch.where(m, idx, ident))
            s = torch.where(m, best + em[i], s)
        cur = (s + self.end_transitions).argmax(dim=1)
        path = [cur]
        for bp in reversed(back):
            cur = bp.gather(1, cur.unsqueeze(1)).squeeze(1)
            path.append(cur)
        return torch.stack(path[::-1])


class Model(nn.Module):
    def __init__(self, d, num_tags):
        super().__init__()
        self.emit = nn.Linear(d, num_tags)
        self.crf = CRF(num_tags)

    def forward(self, feats, tags, mask):
        em = self.emit(feats)
        nll = (self.crf.partition(em, mask) - self.crf.score(em, tags, mask)).sum() / mask.sum()
        return nll, self.crf.decode(em, mask)


def get_inputs():
    L, B = 33, 14
    lens = torch.randint(12, L + 1, (B,))
    mask = torch.arange(L)[:, None] < lens[None]
    return [torch.randn(L, B, 60), torch.randint(0, 19, (L, B)), mask]


def get_init_inputs():
    return [60, 19]
