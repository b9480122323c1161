import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Bag-of-tokens encoder: weighted embedding sum, layer norm, cosine similarities, triplet hinge with margin."""

    def __init__(self, vocab, dim, margin):
        super().__init__()
        self.table = nn.Embedding(vocab, dim)
        self.token_weight = nn.Embedding(vocab, 1)
        self.norm = nn.LayerNorm(dim)
        self.margin = margin

    def encode(self, ids):
        w = torch.softmax(self.token_weight(ids), dim=1)
        return self.norm((self.table(ids) * w).sum(dim=1))

    def forward(self, anchor, positive, negative):
        a, p, n = self.encode(anchor), self.encode(positive), self.encode(negative)
        sp = F.cosine_similarity(a, p, dim=-1)
        sn = F.cosine_similarity(a, n, dim=-1)
        return F.relu(self.margin + sn - sp), a


vocab = 50021
dim = 100
batch_size = 8192
bag = 23


def get_inputs():
    return [torch.randint(0, vocab, (batch_size, bag)) for _ in range(3)]


def get_init_inputs():
    return [vocab, dim, 0.4]
