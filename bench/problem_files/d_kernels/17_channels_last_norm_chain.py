import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Grouped dilated transposed conv on a channels-last input, then group norm, local response norm and a layer norm over channels."""

    def __init__(self, cin, cout, groups):
        super().__init__()
        self.up = nn.ConvTranspose2d(cin, cout, (3, 4), stride=(2, 1), padding=(1, 2), output_padding=(1, 0), groups=3, dilation=(1, 2))
        self.gn = nn.GroupNorm(groups, cout, eps=1e-4)
        self.ln_w = nn.Parameter(torch.linspace(0.5, 1.5, cout))
        self.ln_b = nn.Parameter(torch.zeros(cout))

    def forward(self, x):
        y = F.mish(self.gn(self.up(x)))
        y = F.local_response_norm(y, size=4, alpha=0.5, beta=0.6, k=1.5)
        t = y.permute(0, 3, 2, 1)  # N, W, H, C
        t = F.layer_norm(t, (t.shape[-1],), self.ln_w, self.ln_b)
        s = t.mean(dim=1, keepdim=True) * t.amax(dim=2, keepdim=True)
        return (t + s).transpose(1, 3).contiguous() - y.std(dim=(1, 2), keepdim=True)


def get_inputs():
    return [torch.randn(5, 21, 58, 83).to(memory_format=torch.channels_last)]


def get_init_inputs():
    return [21, 30, 6]
