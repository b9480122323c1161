from typing import Dict, List, NamedTuple, Optional
import torch
import torch.nn as nn
import torch.nn.functional as F


class Memory(NamedTuple):
    keys: torch.Tensor
    values: torch.Tensor
    age: torch.Tensor


class Router(nn.Module):
    def __init__(self, d, experts, topk):
        super().__init__()
        self.gate = nn.Linear(d, experts, bias=False)
        self.topk = topk

    def forward(self, h, *, mask: Optional[torch.Tensor] = None):
        p = self.gate(h).softmax(-1)
        w, e = p.topk(self.topk, -1)
        w = w / w.sum(-1, keepdim=True)
        if mask is not None:
            w = w * mask[..., None]
        load = F.one_hot(e, p.shape[-1]).sum(1).to(p.dtype).mean(0)
        return w, e, (load * p.mean(0)).sum() * p.shape[-1]


class Model(nn.Module):
    """Mixture of experts with a ring-buffer memory given as a dict, optional arguments, ModuleDict branches, capacity limits and early exits."""

    def __init__(self, d, experts, slots):
        super().__init__()
        self.router = Router(d, experts, topk=2)
        self.w1 = nn.Parameter(torch.randn(experts, d, 2 * d) / d ** 0.5)
        self.w2 = nn.Parameter(torch.randn(experts, 2 * d, d) / d ** 0.5)
        self.branch = nn.ModuleDict({"a": nn.Sequential(nn.Linear(d, d), nn.PReLU(d)), "b": nn.Bilinear(d, d, d), "skip": nn.Identity()})
        self.exits = nn.ModuleList([nn.Linear(d, 3) for _ in range(2)])
        self.gains = nn.ParameterList([nn.Parameter(torch.ones(d) * (i + 1)) for i in range(3)])
        self.slots = slots

    def experts(self, h, w, e, capacity):
        n, k = e.shape
        onehot = F.one_hot(e.t().reshape(-1), self.w1.shape[0])
        rank = (onehot.cumsum(0) * onehot).sum(1).view(k, n).t() - 1
        fits = rank < capacity
        slot = e * capacity + rank.clamp(max=capacity - 1)
        buf = h.new_zeros(self.w1.shape[0] * capacity, h.shape[1])
        buf = buf.index_add(0, slot.flatten(), (h[:, None] * fits[..., None]).flatten(0, 1))
        u = torch.bmm(buf.view(self.w1.shape[0], capacity, -1), self.w1)
        a, g = u.chunk(2, -1)
        y = torch.bmm(torch.cat([a * F.mish(g), a.square() * 0.1], -1), self.w2).flatten(0, 1)
        return (y[slot] * (w * fits)[..., None]).sum(1), (~fits).sum()

    def forward(self, x, mem: Dict[str, torch.Tensor], mask=None, ids: Optional[List[torch.Tensor]] = None):
        w, e, balance = self.router(x, mask=mask)
        y, dropped = self.experts(x, w, e, capacity=23)
        outs = []
        for (name, m), gain in zip(self.branch.items(), self.gains):
            outs.append(gain * (m(y, x) * 0.1 if isinstance(m, nn.Bilinear) else m(y)))
        h = x + F.layer_norm(torch.stack(outs, -1).prod(-1).tanh() + sum(outs), (x.shape[1],), eps=1e-2)
        exits = [head(h) for head in self.exits]
        conf = torch.stack([z.softmax(-1).amax(-1) for z in exits], 1)

        memory = Memory(mem["keys"], mem["values"], mem["age"])
        sim = torch.einsum("nd,sd->ns", h, memory.keys) / h.shape[1]
        sim = sim.masked_fill(memory.age.eq(0), -1e4)
        read = sim.softmax(1) @ memory.values
        where = (mem["ptr"] + torch.arange(13, device=x.device)) % self.slots
        keys = memory.keys.index_copy(0, where, h[:13].detach())
        values = memory.values.index_copy(0, where, read[:13])
        age = torch.where(memory.age > 0, memory.age + 1, 0).index_fill(0, where, 1)
        new = Memory(keys, values, age)
        extra = None if ids is None else [h.new_zeros(7, h.shape[1]).index_reduce(0, t % 7, h[: t.numel()], "mean", include_self=False) for t in ids]
        return {"h": h, "read": read, "conf": conf, "aux": {"balance": balance, "dropped": dropped, "none": None}, "mem": tuple(new), "ptr": (mem["ptr"] + 13) % self.slots,
                "extra": extra, "logits": tuple(exits)}


def get_inputs():
    mem = {"keys": torch.randn(47, 19), "values": torch.randn(47, 19), "age": torch.randint(0, 5, (47,)), "ptr": torch.tensor(41)}
    return [torch.randn(101, 19), mem, torch.rand(101) < 0.9, [torch.randint(0, 50, (31,)), torch.randint(0, 50, (101,))]]


def get_init_inputs():
    return [19, 7, 47]
