import torch
import torch.nn.functional as F
from torch import nn


class CapsuleNetwork(nn.Module):
    def __init__(self, hidden_size, seq_len, bilinear_type=2, interest_num=4, routing_times=3, hard_readout=True, relu_layer=False):
        super().__init__()
        self.hidden_size, self.seq_len = hidden_size, seq_len
        self.bilinear_type, self.interest_num, self.routing_times = bilinear_type, interest_num, routing_times
        self.hard_readout, self.relu_layer = hard_readout, relu_layer
        self.stop_grad = True
        self.relu = nn.Sequential(nn.Linear(hidden_size, hidden_size, bias=False), nn.ReLU())
        if self.bilinear_type == 0:  # MIND
            self.linear = nn.Linear(hidden_size, hidden_size, bias=False)
        elif self.bilinear_type == 1:
            self.linear = nn.Linear(hidden_size, hidden_size * interest_num, bias=False)
        else:  # ComiRec
            self.w = nn.Parameter(torch.Tensor(1, seq_len, interest_num * hidden_size, hidden_size))
            nn.init.normal_(self.w, std=hidden_size**-0.5)
        # MIND draws the starting logits; they are kept here so that a forward is repeatable
        self.register_buffer("capsule_init", torch.randn(interest_num, seq_len))

    def forward(self, item_eb, mask, device):
        if self.bilinear_type == 0:
            item_eb_hat = self.linear(item_eb)
            item_eb_hat = item_eb_hat.repeat(1, 1, self.interest_num)
        elif self.bilinear_type == 1:
            item_eb_hat = self.linear(item_eb)
        else:
            u = torch.unsqueeze(item_eb, dim=2)
            item_eb_hat = torch.sum(self.w[:, : self.seq_len, :, :] * u, dim=3)
        item_eb_hat = torch.reshape(item_eb_hat, (-1, self.seq_len, self.interest_num, self.hidden_size))
        item_eb_hat = torch.transpose(item_eb_hat, 1, 2).contiguous()
        item_eb_hat = torch.reshape(item_eb_hat, (-1, self.interest_num, self.seq_len, self.hidden_size))
        # [b, in, s, h]
        if self.stop_grad:
            item_eb_hat_iter = item_eb_hat.detach()
        else:
            item_eb_hat_iter = item_eb_hat
        if self.bilinear_type > 0:
            capsule_weight = torch.zeros(item_eb_hat.shape[0], self.interest_num, self.seq_len, device=device, requires_grad=False)
        else:
            capsule_weight = self.capsule_init.expand(item_eb_hat.shape[0], -1, -1)
        for i in range(self.routing_times):
            atten_mask = torch.unsqueeze(mask, 1).repeat(1, self.interest_num, 1)
            paddings = torch.zeros_like(atten_mask, dtype=torch.float)
            capsule_softmax_weight = F.softmax(capsule_weight, dim=-1)
            capsule_softmax_weight = torch.where(torch.eq(atten_mask, 0), paddings, capsule_softmax_weight)
            capsule_softmax_weight = torch.unsqueeze(capsule_softmax_weight, 2)
            if i < 2:
                interest_capsule = torch.matmul(capsule_softmax_weight, item_eb_hat_iter)
                cap_norm = torch.sum(torch.square(interest_capsule), -1, True)
                scalar_factor = cap_norm / (1 + cap_norm) / torch.sqrt(cap_norm + 1e-9)
                interest_capsule = scalar_factor * interest_capsule
                delta_weight = torch.matmul(item_eb_hat_iter, torch.transpose(interest_capsule, 2, 3).contiguous())
                delta_weight = torch.reshape(delta_weight, (-1, self.interest_num, self.seq_len))
                capsule_weight = capsule_weight + delta_weight
            else:
                interest_capsule = torch.matmul(capsule_softmax_weight, item_eb_hat)
                cap_norm = torch.sum(torch.square(interest_capsule), -1, True)
                scalar_factor = cap_norm / (1 + cap_norm) / torch.sqrt(cap_norm + 1e-9)
                interest_capsule = scalar_factor * interest_capsule
        interest_capsule = torch.reshape(interest_capsule, (-1, self.interest_num, self.hidden_size))
        if self.relu_layer:
            interest_capsule = self.relu(interest_capsule)
        return interest_capsule, capsule_softmax_weight.squeeze(2)


class SelfAttentiveInterests(nn.Module):
    def __init__(self, hidden_size, seq_len, interest_num, add_pos=True):
        super().__init__()
        self.add_pos, self.interest_num = add_pos, interest_num
        self.position_embedding = nn.Parameter(torch.randn(1, seq_len, hidden_size) * 0.1)
        self.linear1 = nn.Sequential(nn.Linear(hidden_size, hidden_size * 4, bias=False), nn.Tanh())
        self.linear2 = nn.Linear(hidden_size * 4, interest_num, bias=False)

    def forward(self, item_eb, mask):
        item_eb_add_pos = item_eb + self.position_embedding.repeat(item_eb.shape[0], 1, 1) if self.add_pos else item_eb
        item_hidden = self.linear1(item_eb_add_pos)
        item_att_w = self.linear2(item_hidden)
        item_att_w = torch.transpose(item_att_w, 2, 1).contiguous()
        atten_mask = torch.unsqueeze(mask, dim=1).repeat(1, self.interest_num, 1)
        paddings = torch.ones_like(atten_mask, dtype=torch.float) * (-(2**32) + 1)
        item_att_w = torch.where(torch.eq(atten_mask, 0), paddings, item_att_w)
        item_att_w = F.softmax(item_att_w, dim=-1)
        return torch.matmul(item_att_w, item_eb), item_att_w


class Model(nn.Module):
    """ComiRec multi-interest recommender: dynamic routing and self-attentive interests, hard readout by the target item, sampled softmax and routing regularisation."""

    def __init__(self, item_num, hidden_size, seq_len, interest_num, num_user_features):
        super().__init__()
        self.item_num, self.hidden_size, self.interest_num = item_num, hidden_size, interest_num
        self.embeddings = nn.Embedding(item_num, hidden_size, padding_idx=0)
        nn.init.normal_(self.embeddings.weight, std=0.2)
        self.capsule = CapsuleNetwork(hidden_size, seq_len, bilinear_type=2, interest_num=interest_num)
        self.mind = CapsuleNetwork(hidden_size, seq_len, bilinear_type=0, interest_num=interest_num, relu_layer=True)
        self.sa = SelfAttentiveInterests(hidden_size, seq_len, interest_num)
        self.user_bag = nn.EmbeddingBag(num_user_features, hidden_size, mode="mean")
        self.fuse = nn.Linear(hidden_size * 2, hidden_size)
        # log-uniform popularity correction of the sampler
        p = torch.log1p(1.0 / torch.arange(1, item_num + 1).float())
        self.register_buffer("log_q", torch.log(p / p.sum()))

    def read_out(self, user_eb, label_eb):
        atten = torch.matmul(user_eb, torch.reshape(label_eb, (-1, self.hidden_size, 1)))
        atten = F.softmax(torch.pow(torch.reshape(atten, (-1, self.interest_num)), 1), dim=-1)
        chosen = torch.argmax(atten, dim=-1)
        rows = torch.arange(user_eb.shape[0], device=user_eb.device)
        selection = torch.reshape(user_eb, (-1, self.hidden_size))[
            (chosen + rows * self.interest_num).long()
        ]
        return selection

    def sampled_softmax(self, user, label, negatives):
        pos = (user * self.embeddings(label)).sum(-1, keepdim=True) - self.log_q[label].unsqueeze(-1)
        neg = user @ self.embeddings(negatives).t() - self.log_q[negatives]
        # a sampled negative that is the label counts for nothing
        neg = neg.masked_fill(negatives[None, :] == label[:, None], -1e9)
        logits = torch.cat([pos, neg], dim=1)
        return F.cross_entropy(logits, torch.zeros_like(label))

    def disagreement(self, interests):
        n = F.normalize(interests, dim=-1)
        sim = n @ n.transpose(1, 2)
        off = ~torch.eye(self.interest_num, dtype=torch.bool, device=sim.device)
        return (sim * off).pow(2).sum((1, 2)).mean()

    def forward(self, item_list, label_list, mask, negatives, user_feats, user_offsets):
        item_eb = self.embeddings(item_list)
        item_eb = item_eb * torch.reshape(mask, (-1, item_list.shape[1], 1))
        dr, weights = self.capsule(item_eb, mask, item_eb.device)
        mind, _ = self.mind(item_eb, mask, item_eb.device)
        sa, sa_weights = self.sa(item_eb, mask)
        profile = self.user_bag(user_feats, user_offsets).unsqueeze(1).expand(-1, self.interest_num, -1)
        label_eb = self.embeddings(label_list)
        loss = 0.0
        for interests in (dr, mind, sa):
            fused = interests + torch.tanh(self.fuse(torch.cat([interests, profile], dim=-1)))
            loss = loss + self.sampled_softmax(self.read_out(fused, label_eb), label_list, negatives)
            loss = loss + 0.1 * self.disagreement(fused)
        # REMI-like spread of the routing weights over the real positions
        var = (weights - weights.mean(1, keepdim=True)).pow(2).sum(1)
        loss = loss + 0.05 * (var * mask).sum() / mask.sum()
        scores = torch.einsum("bkh,nh->bkn", dr, self.embeddings(negatives)).amax(1)
        return loss, scores, sa_weights


def get_inputs():
    B, S, N = 48, 20, 1500
    lens = torch.randint(4, S + 1, (B,))
    mask = (torch.arange(S)[None] < lens[:, None]).float()
    items = torch.randint(1, N, (B, S)) * mask.long()
    counts = torch.randint(1, 6, (B,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)[:-1]])
    feats = torch.randint(0, 90, (int(counts.sum()),))
    return [items, torch.randint(1, N, (B,)), mask, torch.randint(1, N, (190,)), feats, offsets]


def get_init_inputs():
    return [1500, 40, 20, 4, 90]
