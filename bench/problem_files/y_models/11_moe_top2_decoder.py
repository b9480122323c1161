import torch
import torch.nn as nn
import torch.nn.functional as F

bsz = 4
seq_len = 509
embed_dim = 1024
ffn_dim = 2816
num_heads = 16
num_experts = 8
num_layers = 3
capacity_factor = 1.25


def one_hot(indices, num_classes):
    output = torch.zeros(indices.size(0), num_classes, device=indices.device, dtype=torch.int64)
    output.scatter_(1, indices.unsqueeze(-1), 1)
    return output


def top2gating(logits, capacity):
    """Returns the auxiliary loss, combine weights (s, e, c) and the boolean dispatch mask."""
    gates = F.softmax(logits, dim=1)
    num_tokens, num_experts = gates.shape
    indices1_s = torch.argmax(gates, dim=1)
    mask1 = one_hot(indices1_s, num_experts)
    logits_except1 = logits.masked_fill(mask1.bool(), float("-inf"))
    indices2_s = torch.argmax(logits_except1, dim=1)
    mask2 = one_hot(indices2_s, num_experts)
    gates1_s = (gates * mask1).sum(dim=1)
    gates2_s = (gates * mask2).sum(dim=1)

    # Compute locations in capacity buffer
    locations1 = torch.cumsum(mask1, dim=0) - 1
    locations2 = torch.cumsum(mask2, dim=0) - 1
    locations2 += torch.sum(mask1, dim=0, keepdim=True)

    # Compute l_aux
    me = torch.mean(gates, dim=0)
    ce = torch.mean(mask1.to(gates.dtype), dim=0)
    l_aux = torch.mean(me * ce) * num_experts * num_experts

    # Remove locations outside capacity from mask
    mask1 = mask1 * torch.lt(locations1, capacity)
    mask2 = mask2 * torch.lt(locations2, capacity)
    locations1_s = torch.sum(locations1 * mask1, dim=1)
    locations2_s = torch.sum(locations2 * mask2, dim=1)

    # Normalize gate probabilities
    denom_s = torch.clamp(gates1_s + gates2_s, min=torch.finfo(gates.dtype).eps)
    gates1_s = gates1_s / denom_s
    gates2_s = gates2_s / denom_s

    gates1 = gates1_s.unsqueeze(-1) * mask1.to(gates1_s.dtype)
    gates2 = gates2_s.unsqueeze(-1) * mask2.to(gates2_s.dtype)
    locations1_sc = one_hot(locations1_s, capacity).to(gates1.dtype)
    locations2_sc = one_hot(locations2_s, capacity).to(gates2.dtype)
    combine_weights = gates1.unsqueeze(-1) * locations1_sc.unsqueeze(1) + gates2.unsqueeze(-1) * locations2_sc.unsqueeze(1)
    return l_aux, combine_weights, combine_weights.bool()


class MOELayer(nn.Module):
    def __init__(self, embed_dim, ffn_dim, num_experts, capacity_factor):
        super().__init__()
        self.num_experts, self.capacity_factor = num_experts, capacity_factor
        self.wg = nn.Linear(embed_dim, num_experts, bias=False)
        self.w1 = nn.Parameter(torch.empty(num_experts, embed_dim, ffn_dim))
        self.b1 = nn.Parameter(torch.zeros(num_experts, 1, ffn_dim))
        self.w2 = nn.Parameter(torch.empty(num_experts, ffn_dim, embed_dim))
        self.b2 = nn.Parameter(torch.zeros(num_experts, 1, embed_dim))
        nn.init.normal_(self.w1, std=embed_dim**-0.5)
        nn.init.normal_(self.w2, std=ffn_dim**-0.5)

    def forward(self, x):
        d_model = x.shape[2]
        reshaped_input = x.reshape(-1, d_model)
        num_tokens = reshaped_input.shape[0]
        capacity = int(self.capacity_factor * 2 * ((num_tokens + self.num_experts - 1) // self.num_experts))
        logits = F.linear(reshaped_input.float(), self.wg.weight.float())
        l_aux, combine_weights, dispatch_mask = top2gating(logits, capacity)
        dispatch_mask = dispatch_mask.to(x.dtype).permute(1, 2, 0)  # S,E,C -> E,C,S
        E, C, S = dispatch_mask.size()
        dispatched = torch.mm(dispatch_mask.reshape(E * C, S), reshaped_input).view(E, C, d_model)
        h = torch.bmm(dispatched, self.w1) + self.b1
        h = F.relu(h)
        expert_output = torch.bmm(h, self.w2) + self.b2
        combined = combine_weights.view(S, E * C).to(x.dtype).mm(expert_output.view(E * C, d_model))
        return combined.reshape(x.shape), l_aux


class MultiheadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, attn_mask):
        tgt_len, bsz, embed_dim = x.size()
        q = self.q_proj(x)
        q *= self.scaling
        k, v = self.k_proj(x), self.v_proj(x)
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        attn_weights += attn_mask.unsqueeze(0)
        attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).type_as(attn_weights)
        attn = torch.bmm(attn_weights, v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        return self.out_proj(attn)


class Model(nn.Module):
    """Decoder layers (time x batch x channel) with top-2 mixture-of-experts feed-forward,
    expert capacity with token dropping, and a load-balancing auxiliary loss."""

    def __init__(self, embed_dim, ffn_dim, num_heads, num_experts, num_layers, capacity_factor):
        super().__init__()
        self.attns = nn.ModuleList([MultiheadAttention(embed_dim, num_heads) for _ in range(num_layers)])
        self.moes = nn.ModuleList([MOELayer(embed_dim, ffn_dim, num_experts, capacity_factor) for _ in range(num_layers)])
        self.attn_norms = nn.ModuleList([nn.LayerNorm(embed_dim) for _ in range(num_layers)])
        self.final_norms = nn.ModuleList([nn.LayerNorm(embed_dim) for _ in range(num_layers)])

    def buffered_future_mask(self, tensor):
        dim = tensor.size(0)
        return torch.triu(torch.zeros([dim, dim], device=tensor.device).fill_(float("-inf")), 1).to(tensor)

    def forward(self, x):
        x = x.transpose(0, 1)  # B x T x C -> T x B x C
        mask = self.buffered_future_mask(x)
        aux = []
        for attn, moe, ln1, ln2 in zip(self.attns, self.moes, self.attn_norms, self.final_norms):
            x = x + attn(ln1(x), mask)
            h, l_aux = moe(ln2(x))
            x = x + h
            aux.append(l_aux)
        return x.transpose(0, 1), torch.stack(aux).sum()


def get_inputs():
    return [torch.randn(bsz, seq_len, embed_dim)]


def get_init_inputs():
    return [embed_dim, ffn_dim, num_heads, num_experts, num_layers, capacity_factor]
