import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, classes, gamma, alpha, beta, ignore):
        super().__init__()
        self.classes, self.gamma, self.alpha, self.beta, self.ignore = classes, gamma, alpha, beta, ignore
        self.class_logit = nn.Parameter(torch.randn(classes))

    def lovasz(self, prob, onehot, valid):
        losses, present = [], []
        for c in range(self.classes):
            fg = onehot[:, c] * valid
            err = (fg - prob[:, c]).abs() * valid
            err, order = torch.sort(err, descending=True)
            fg_sorted = fg[order]
            total = fg_sorted.sum()
            inter = total - fg_sorted.cumsum(0)
            union = total + (valid[order] - fg_sorted).cumsum(0)
            jac = 1.0 - inter / union.clamp_min(1e-6)
            grad = torch.cat((jac[:1], jac[1:] - jac[:-1]))
            losses.append(torch.dot(err, grad))
            present.append((total > 0).to(prob.dtype))
        losses, present = torch.stack(losses), torch.stack(present)
        return (losses * present).sum() / present.sum().clamp_min(1.0)

    def forward(self, logits, labels):
        weight = torch.softmax(self.class_logit, 0) * self.classes
        flat = logits.permute(0, 2, 3, 1).reshape(-1, self.classes)
        lab = labels.reshape(-1).long()
        valid = (lab != self.ignore)
        lab = lab.masked_fill(~valid, 0)
        validf = valid.to(flat.dtype)
        logp = F.log_softmax(flat, dim=1)
        prob = logp.exp()
        onehot = F.one_hot(lab, self.classes).to(flat.dtype)
        pt = (prob * onehot).sum(1)
        ce = -(logp * onehot).sum(1)
        focal = weight[lab] * (1 - pt).pow(self.gamma) * ce * validf
        tp = (prob * onehot * validf[:, None]).sum(0)
        fp = (prob * (1 - onehot) * validf[:, None]).sum(0)
        fn = ((1 - prob) * onehot * validf[:, None]).sum(0)
        tversky = (tp + 1) / (tp + self.alpha * fp + self.beta * fn + 1)
        focal_tversky = (1 - tversky).pow(0.75)
        lov = self.lovasz(prob, onehot, validf)
        loss = focal.sum() / validf.sum() + focal_tversky.mean() + lov
        return loss, tversky, focal.view(labels.shape)


def get_inputs():
    labels = torch.randint(0, 7, (2, 97, 113), dtype=torch.uint8)
    labels = torch.where(torch.rand(2, 97, 113) < 0.05, torch.full_like(labels, 255), labels)
    logits = (1.5 * torch.randn(2, 97, 113, 7)).permute(0, 3, 1, 2)
    return [logits, labels]


def get_init_inputs():
    return [7, 2.0, 0.3, 0.7, 255]
