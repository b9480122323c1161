import torch
import torch.nn as nn


class Model(nn.Module):
    """Nesting depth of bracket tokens by integer scans, the place of the last opening by a running maximum, and values discounted by depth and summed where allowed."""

    def __init__(self, decay):
        super().__init__()
        self.log_decay = nn.Parameter(torch.tensor(decay).log())

    def forward(self, tokens, values, allowed):
        opens, closes = tokens % 7 == 1, tokens % 7 == 4
        step = opens.to(torch.int64) - closes.to(torch.int64)
        level = torch.cumsum(step, dim=1)
        floor = torch.cummin(level, dim=1).values.clamp(max=0)
        depth = level - floor  # closings without an opening do not count
        place = torch.arange(tokens.shape[1], device=tokens.device)
        last = torch.cummax(torch.where(opens, place, -1), dim=1).values
        weight = torch.exp(self.log_decay * depth.clamp(max=20).to(values.dtype))
        kept = torch.where(allowed & (depth > 0), values * weight, 0.0)
        total = torch.cumsum(kept, dim=1)
        before = torch.gather(total - kept, 1, last.clamp_min(0))  # the sum up to the last opening
        since = torch.where(last >= 0, total - before, 0.0)
        return since, depth.amax(dim=1), (depth[:, -1] == 0) & allowed.any(dim=1)


def get_inputs():
    tokens = torch.randint(0, 50, (389, 4099))
    return [tokens, torch.randn(389, 4099), torch.rand(389, 4099) < 0.8]


def get_init_inputs():
    return [0.9]
