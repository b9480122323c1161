import torch
import torch.nn as nn
import torch.nn.functional as F


def _make_ix_like(input, dim=0):
    d = input.size(dim)
    rho = torch.arange(1, d + 1, device=input.device, dtype=input.dtype)
    view = [1] * input.dim()
    view[0] = -1
    return rho.view(view).transpose(0, dim)


def entmax15(input, dim=-1):
    input = input - input.max(dim=dim, keepdim=True)[0].detach()
    input = input / 2
    Xsrt, _ = torch.sort(input, descending=True, dim=dim)
    rho = _make_ix_like(input, dim)
    mean = Xsrt.cumsum(dim) / rho
    mean_sq = (Xsrt ** 2).cumsum(dim) / rho
    ss = rho * (mean_sq - mean ** 2)
    delta = (1 - ss) / rho
    delta_nz = torch.clamp(delta, min=1e-12)
    tau = mean - torch.sqrt(delta_nz)
    support_size = (tau <= Xsrt).sum(dim).unsqueeze(dim)
    tau_star = tau.gather(dim, support_size - 1)
    return torch.clamp(input - tau_star, min=0) ** 2


def sparsemoid(input):
    return (0.5 * input + 0.5).clamp(0, 1)


class ODST(nn.Module):
    """Layer of oblivious differentiable decision trees."""

    def __init__(self, in_features, num_trees, depth, tree_dim):
        super().__init__()
        self.depth, self.num_trees, self.tree_dim = depth, num_trees, tree_dim
        self.response = nn.Parameter(torch.randn(num_trees, tree_dim, 2 ** depth) * 0.3)
        self.feature_selection_logits = nn.Parameter(torch.rand(in_features, num_trees, depth))
        self.feature_thresholds = nn.Parameter(torch.randn(num_trees, depth) * 0.5)
        self.log_temperatures = nn.Parameter(torch.zeros(num_trees, depth))
        with torch.no_grad():
            indices = torch.arange(2 ** depth)
            offsets = 2 ** torch.arange(depth)
            bin_codes = (indices.view(1, -1) // offsets.view(-1, 1) % 2).to(torch.float32)
            bin_codes_1hot = torch.stack([bin_codes, 1.0 - bin_codes], dim=-1)
        self.register_buffer("bin_codes_1hot", bin_codes_1hot)

    def forward(self, input):
        feature_selectors = entmax15(self.feature_selection_logits, dim=0)
        feature_values = torch.einsum("bi,ind->bnd", input, feature_selectors)
        threshold_logits = (feature_values - self.feature_thresholds) * torch.exp(-self.log_temperatures)
        threshold_logits = torch.stack([-threshold_logits, threshold_logits], dim=-1)
        bins = sparsemoid(threshold_logits)
        bin_matches = torch.einsum("btds,dcs->btdc", bins, self.bin_codes_1hot)
        response_weights = torch.prod(bin_matches, dim=-2)
        response = torch.einsum("bnc,ndc->bnd", response_weights, self.response)
        return response.flatten(1, 2)


class Model(nn.Module):
    """NODE: densely connected neural oblivious decision ensembles, averaged responses, cross-entropy."""

    def __init__(self, in_features, layer_dim, num_layers, depth, tree_dim, num_classes):
        super().__init__()
        layers, d = [], in_features
        for _ in range(num_layers):
            layers.append(ODST(d, layer_dim, depth, tree_dim))
            d += layer_dim * tree_dim
        self.layers = nn.ModuleList(layers)
        self.num_layers, self.layer_dim, self.tree_dim = num_layers, layer_dim, tree_dim
        self.num_classes = num_classes

    def forward(self, x, y):
        initial_features = x.shape[-1]
        for layer in self.layers:
            h = layer(x)
            x = torch.cat([x, h], dim=-1)
        outputs = x[..., initial_features:]
        outputs = outputs.view(*outputs.shape[:-1], self.num_layers * self.layer_dim, self.tree_dim)
        logits = outputs[..., : self.num_classes].mean(dim=-2)
        return F.cross_entropy(logits, y), logits


def get_inputs():
    return [torch.randn(128, 54), torch.randint(0, 7, (128,))]


def get_init_inputs():
    return [54, 64, 2, 6, 8, 7]
