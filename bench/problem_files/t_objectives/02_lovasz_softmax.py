import torch
import torch.nn as nn
import torch.nn.functional as F


def lovasz_grad(gt_sorted):
    gts = gt_sorted.sum()
    intersection = gts - gt_sorted.cumsum(0)
    union = gts + (1 - gt_sorted).cumsum(0)
    jaccard = 1.0 - intersection / union
    jaccard[1:] = jaccard[1:] - jaccard[:-1].clone()
    return jaccard


def flatten_probas(probas):
    c = probas.size(1)
    return probas.permute(0, 2, 3, 1).contiguous().view(-1, c)


def lovasz_softmax_flat(probas, labels):
    losses = []
    for c in range(probas.size(1)):
        fg = (labels == c).float()
        errors = (fg - probas[:, c]).abs()
        errors_sorted, perm = torch.sort(errors, 0, descending=True)
        losses.append(torch.dot(errors_sorted, lovasz_grad(fg[perm])))
    return torch.stack(losses).mean()


def lovasz_hinge(logits, labels):
    out = 0.0
    for lg, lb in zip(logits, labels):
        lg, lb = lg.reshape(-1), lb.reshape(-1)
        signs = 2.0 * lb - 1.0
        errors = 1.0 - lg * signs
        errors_sorted, perm = torch.sort(errors, dim=0, descending=True)
        out = out + torch.dot(F.elu(errors_sorted) + 1, lovasz_grad(lb[perm]))
    return out / logits.shape[0]


class Model(nn.Module):
    def __init__(self, ce_weight):
        super().__init__()
        self.ce_weight = ce_weight

    def forward(self, logits, edge_logits, labels, edges):
        probas = torch.softmax(logits, dim=1)
        lov = lovasz_softmax_flat(flatten_probas(probas), labels.view(-1))
        ce = F.cross_entropy(logits, labels)
        return lov + self.ce_weight * ce + 0.1 * lovasz_hinge(edge_logits.squeeze(1), edges)


def get_inputs():
    return [
        torch.randn(2, 7, 45, 53),
        torch.randn(2, 1, 45, 53),
        torch.randint(0, 7, (2, 45, 53)),
        (torch.rand(2, 45, 53) > 0.8).float(),
    ]


def get_init_inputs():
    return [0.5]
