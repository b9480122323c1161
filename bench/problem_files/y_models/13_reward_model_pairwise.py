import torch
import torch.nn as nn
import torch.nn.functional as F

n_pairs = 4
seq_len = 443
vocab_size = 50272
hidden_size = 1024
num_layers = 6
num_heads = 16
ffn_dim = 4096
pad_id = 1


class OPTLearnedPositionalEmbedding(nn.Embedding):
    def __init__(self, num_embeddings, embedding_dim):
        self.offset = 2
        super().__init__(num_embeddings + self.offset, embedding_dim)

    def forward(self, attention_mask):
        attention_mask = attention_mask.long()
        positions = (torch.cumsum(attention_mask, dim=1).type_as(attention_mask) * attention_mask).long() - 1
        return super().forward(positions + self.offset)


class OPTDecoderLayer(nn.Module):
    def __init__(self, hidden_size, num_heads, ffn_dim):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)
        self.self_attn_layer_norm = nn.LayerNorm(hidden_size)
        self.activation_fn = nn.ReLU(inplace=True)
        self.fc1 = nn.Linear(hidden_size, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, hidden_size)
        self.final_layer_norm = nn.LayerNorm(hidden_size)

    def _shape(self, tensor, seq_len, bsz):
        return tensor.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2).contiguous()

    def self_attn(self, hidden_states, attention_mask):
        bsz, tgt_len, embed_dim = hidden_states.size()
        query_states = self._shape(self.q_proj(hidden_states) * self.scaling, tgt_len, bsz)
        key_states = self._shape(self.k_proj(hidden_states), -1, bsz)
        value_states = self._shape(self.v_proj(hidden_states), -1, bsz)
        proj_shape = (bsz * self.num_heads, -1, self.head_dim)
        query_states = query_states.view(*proj_shape)
        key_states = key_states.view(*proj_shape)
        value_states = value_states.view(*proj_shape)
        attn_weights = torch.bmm(query_states, key_states.transpose(1, 2))
        attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, tgt_len) + attention_mask
        attn_weights = torch.max(
            attn_weights, torch.tensor(torch.finfo(attn_weights.dtype).min, device=attn_weights.device)
        )
        attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, tgt_len)
        attn_weights = F.softmax(attn_weights, dim=-1)
        attn_output = torch.bmm(attn_weights, value_states)
        attn_output = attn_output.view(bsz, self.num_heads, tgt_len, self.head_dim)
        attn_output = attn_output.transpose(1, 2)
        attn_output = attn_output.reshape(bsz, tgt_len, embed_dim)
        return self.out_proj(attn_output)

    def forward(self, hidden_states, attention_mask):
        residual = hidden_states
        hidden_states = self.self_attn_layer_norm(hidden_states)
        hidden_states = residual + self.self_attn(hidden_states, attention_mask)
        shape = hidden_states.shape
        hidden_states = hidden_states.reshape(-1, hidden_states.size(-1))
        residual = hidden_states
        hidden_states = self.final_layer_norm(hidden_states)
        hidden_states = self.fc2(self.activation_fn(self.fc1(hidden_states)))
        return (residual + hidden_states).view(shape)


class Model(nn.Module):
    """Reward model: an OPT-like backbone under bf16 autocast over right-padded chosen and
    rejected sequences, a scalar value head, and a pairwise logistic ranking loss."""

    def __init__(self, vocab_size, max_len, hidden_size, num_layers, num_heads, ffn_dim, pad_id):
        super().__init__()
        self.pad_id = pad_id
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size, padding_idx=pad_id)
        self.embed_positions = OPTLearnedPositionalEmbedding(max_len, hidden_size)
        self.layers = nn.ModuleList([OPTDecoderLayer(hidden_size, num_heads, ffn_dim) for _ in range(num_layers)])
        self.final_layer_norm = nn.LayerNorm(hidden_size)
        self.v_head = nn.Linear(hidden_size, 1, bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.02)
            if getattr(module, "bias", None) is not None:
                module.bias.data.zero_()
            if getattr(module, "padding_idx", None) is not None:
                module.weight.data[module.padding_idx].zero_()

    def _prepare_mask(self, attention_mask, dtype):
        bsz, length = attention_mask.shape
        min_value = torch.finfo(dtype).min
        causal = torch.full((length, length), min_value, device=attention_mask.device)
        cond = torch.arange(length, device=attention_mask.device)
        causal.masked_fill_(cond < (cond + 1).view(length, 1), 0)
        expanded = attention_mask[:, None, None, :].expand(bsz, 1, length, length).to(dtype)
        inverted = 1.0 - expanded
        inverted = inverted.masked_fill(inverted.to(torch.bool), min_value)
        return causal.to(dtype)[None, None].expand(bsz, 1, length, length) + inverted

    def forward(self, input_ids):
        attention_mask = input_ids.ne(self.pad_id).long()
        with torch.autocast(device_type=input_ids.device.type, dtype=torch.bfloat16):
            x = self.embed_tokens(input_ids) + self.embed_positions(attention_mask)
            mask = self._prepare_mask(attention_mask, torch.bfloat16)
            for layer in self.layers:
                x = layer(x, mask)
        x = self.final_layer_norm(x.to(self.final_layer_norm.weight.dtype))
        rewards = self.v_head(x).squeeze(-1).float()

        bs = input_ids.shape[0] // 2
        chosen_ids, rejected_ids = input_ids[:bs], input_ids[bs:]
        chosen_rewards, rejected_rewards = rewards[:bs], rewards[bs:]
        lengths = attention_mask.sum(dim=1)
        scores = rewards.gather(1, (lengths - 1).unsqueeze(1)).squeeze(1)

        # compare every token from the first divergence to the end of the longer answer
        diverged = (chosen_ids != rejected_ids).long().cumsum(dim=1) > 0
        end = torch.max(lengths[:bs], lengths[bs:])
        valid = diverged & (torch.arange(input_ids.shape[1], device=input_ids.device)[None, :] < end[:, None])
        token_loss = -F.logsigmoid(chosen_rewards - rejected_rewards)
        token_loss = torch.where(valid, token_loss, torch.zeros_like(token_loss))
        loss = (token_loss.sum(dim=1) / valid.sum(dim=1).clamp(min=1)).mean()
        return loss, scores[:bs], scores[bs:]


def get_inputs():
    chosen = torch.randint(4, vocab_size, (n_pairs, seq_len))
    rejected = torch.randint(4, vocab_size, (n_pairs, seq_len))
    rejected[:, : seq_len // 3] = chosen[:, : seq_len // 3]
    input_ids = torch.cat([chosen, rejected], dim=0)
    lengths = torch.randint(seq_len // 2, seq_len + 1, (2 * n_pairs,))
    input_ids[torch.arange(seq_len)[None, :] >= lengths[:, None]] = pad_id
    return [input_ids]


def get_init_inputs():
    return [vocab_size, seq_len, hidden_size, num_layers, num_heads, ffn_dim, pad_id]
