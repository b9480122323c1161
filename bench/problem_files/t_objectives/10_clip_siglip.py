import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """CLIP symmetric InfoNCE + SigLIP pairwise sigmoid with EOT pooling of text tokens and FLIP-style soft labels."""

    def __init__(self, vis_dim, txt_dim, embed_dim):
        super().__init__()
        self.visual_proj = nn.Parameter(torch.randn(vis_dim, embed_dim) * vis_dim ** -0.5)
        self.text_ln = nn.LayerNorm(txt_dim)
        self.text_proj = nn.Parameter(torch.randn(txt_dim, embed_dim) * txt_dim ** -0.5)
        self.logit_scale = nn.Parameter(torch.ones([]) * math.log(1 / 0.07))
        self.sig_scale = nn.Parameter(torch.tensor(math.log(10.0)))
        self.sig_bias = nn.Parameter(torch.tensor(-10.0))

    def encode_text(self, hidden, tokens):
        eot = tokens.argmax(dim=-1)
        x = hidden[torch.arange(hidden.shape[0]), eot]
        return self.text_ln(x) @ self.text_proj

    def encode_image(self, patches):
        return patches.mean(dim=1) @ self.visual_proj

    def forward(self, patches, hidden, tokens, dup_id):
        img = self.encode_image(patches)
        txt = self.encode_text(hidden, tokens)
        img = img / img.norm(dim=-1, keepdim=True)
        txt = txt / txt.norm(dim=-1, keepdim=True)

        scale = self.logit_scale.exp().clamp(max=100.0)
        logits = scale * img @ txt.t()
        same = (dup_id[:, None] == dup_id[None, :]).float()
        soft = same / same.sum(dim=1, keepdim=True)
        loss_i = -(soft * F.log_softmax(logits, dim=1)).sum(1).mean()
        loss_t = -(soft * F.log_softmax(logits.t(), dim=1)).sum(1).mean()

        sig_logits = img @ txt.t() * self.sig_scale.exp() + self.sig_bias
        labels = 2 * same - 1
        sig = -F.logsigmoid(labels * sig_logits).sum() / logits.shape[0]
        acc = (logits.argmax(1) == torch.arange(logits.shape[0])).float().mean()
        return (loss_i + loss_t) / 2 + sig, acc


def get_inputs():
    tokens = torch.randint(1, 4000, (60, 27))
    tokens[torch.arange(60), torch.randint(5, 27, (60,))] = 4999
    return [torch.randn(60, 50, 256), torch.randn(60, 27, 192), tokens, torch.randint(0, 50, (60,))]


def get_init_inputs():
    return [256, 192, 200]
