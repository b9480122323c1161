import torch
import torch.nn as nn
import torch.nn.functional as F


class Zamba2RMSNormGated(nn.Module):
    def __init__(self, hidden_size, group_size, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps
        self.group_size = group_size

    def forward(self, hidden_states, gate=None):
        hidden_states = hidden_states.to(torch.float32)
        if gate is not None:
            hidden_states = hidden_states * F.silu(gate.to(torch.float32))
        *prefix_dims, last_dim = hidden_states.shape
        group_count = last_dim // self.group_size
        hidden_states_group = hidden_states.view(*prefix_dims, group_count, self.group_size)
        variance = hidden_states_group.pow(2).mean(-1, keepdim=True)
        hidden_states_group = hidden_states_group * torch.rsqrt(variance + self.variance_epsilon)
        hidden_states = hidden_states_group.view(*prefix_dims, group_count * self.group_size)
        return self.weight * hidden_states


class Zamba2RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


def pad_tensor_by_size(input_tensor, pad_size):
    pad_shape = (0, 0, 0, 0, 0, pad_size, 0, 0) if len(input_tensor.shape) == 4 else (0, 0, 0, pad_size, 0, 0)
    return F.pad(input_tensor, pad_shape, mode="constant", value=0)


def reshape_into_chunks(input_tensor, pad_size, chunk_size):
    input_tensor = pad_tensor_by_size(input_tensor, pad_size)
    if len(input_tensor.shape) == 3:
        return input_tensor.reshape(input_tensor.shape[0], -1, chunk_size, input_tensor.shape[2])
    return input_tensor.reshape(input_tensor.shape[0], -1, chunk_size, input_tensor.shape[2], input_tensor.shape[3])


def segment_sum(input_tensor):
    chunk_size = input_tensor.size(-1)
    input_tensor = input_tensor[..., None].expand(*input_tensor.size(), chunk_size)
    mask = torch.tril(torch.ones(chunk_size, chunk_size, device=input_tensor.device, dtype=torch.bool), diagonal=-1)
    input_tensor = input_tensor.masked_fill(~mask, 0)
    tensor_segsum = torch.cumsum(input_tensor, dim=-2)
    mask = torch.tril(torch.ones(chunk_size, chunk_size, device=input_tensor.device, dtype=torch.bool), diagonal=0)
    return tensor_segsum.masked_fill(~mask, -torch.inf)


class Zamba2MambaMixer(nn.Module):
    def __init__(self, hidden, expand, head_dim, state, groups, kernel, chunk):
        super().__init__()
        self.inter = expand * hidden
        self.num_heads, self.head_dim = self.inter // head_dim, head_dim
        self.ssm_state_size, self.n_groups, self.chunk_size = state, groups, chunk
        self.time_step_limit = (1e-3, 10.0)
        conv_dim = self.inter + 2 * groups * state
        self.conv1d = nn.Conv1d(conv_dim, conv_dim, kernel, groups=conv_dim, padding=kernel - 1, bias=True)
        self.in_proj = nn.Linear(hidden, self.inter + conv_dim + self.num_heads, bias=False)
        self.dt_bias = nn.Parameter(torch.linspace(-4.0, -0.5, self.num_heads))
        self.A_log = nn.Parameter(torch.log(torch.arange(1, self.num_heads + 1).float()))
        self.norm = Zamba2RMSNormGated(self.inter, group_size=self.inter // groups)
        self.D = nn.Parameter(torch.ones(self.num_heads))
        self.out_proj = nn.Linear(self.inter, hidden, bias=False)

    def forward(self, input_states, attention_mask):
        batch_size, seq_len, _ = input_states.shape
        dtype = input_states.dtype
        input_states = (input_states * attention_mask[:, :, None]).to(dtype)
        projected_states = self.in_proj(input_states)
        gate, hidden_states, dt = projected_states.split(
            [self.inter, self.inter + 2 * self.n_groups * self.ssm_state_size, self.num_heads], dim=-1
        )
        hidden_states = F.silu(self.conv1d(hidden_states.transpose(1, 2))[..., :seq_len].transpose(1, 2))
        hidden_states = (hidden_states * attention_mask[:, :, None]).to(dtype)
        hidden_states, B, C = torch.split(
            hidden_states,
            [self.inter, self.n_groups * self.ssm_state_size, self.n_groups * self.ssm_state_size],
            dim=-1,
        )
        A = -torch.exp(self.A_log.float())
        dt = F.softplus(dt + self.dt_bias)
        dt = torch.clamp(dt, self.time_step_limit[0], self.time_step_limit[1])
        hidden_states = hidden_states.reshape(batch_size, seq_len, -1, self.head_dim).float()
        B = B.reshape(batch_size, seq_len, -1, self.ssm_state_size).float()
        C = C.reshape(batch_size, seq_len, -1, self.ssm_state_size).float()
        B = B.repeat_interleave(self.num_heads // self.n_groups, dim=2, output_size=self.num_heads)
        C = C.repeat_interleave(self.num_heads // self.n_groups, dim=2, output_size=self.num_heads)
        pad_size = (self.chunk_size - seq_len % self.chunk_size) % self.chunk_size

        D_residual = self.D[..., None] * pad_tensor_by_size(hidden_states, pad_size)
        hidden_states = hidden_states * dt[..., None]
        A = A.to(hidden_states.dtype) * dt
        hidden_states, A, B, C = [reshape_into_chunks(t, pad_size, self.chunk_size) for t in (hidden_states, A, B, C)]

        A = A.permute(0, 3, 1, 2)
        A_cumsum = torch.cumsum(A, dim=-1)
        # 1. the diagonal blocks
        L = torch.exp(segment_sum(A))
        G = (C[:, :, :, None, :, :] * B[:, :, None, :, :, :]).sum(dim=-1)
        M_intermediate = G[..., None] * L.permute(0, 2, 3, 4, 1)[..., None]
        M = M_intermediate.sum(dim=-1)
        Y_diag = (M[..., None] * hidden_states[:, :, None]).sum(3)
        # 2. the state of each chunk
        decay_states = torch.exp(A_cumsum[:, :, :, -1:] - A_cumsum)
        B_decay_contraction = B * decay_states.permute(0, 2, 3, 1)[..., None]
        states = (B_decay_contraction.permute(0, 1, 3, 2, 4)[..., None] * hidden_states.permute(0, 1, 3, 2, 4)[..., None, :]).sum(dim=3)
        states = states.permute(0, 1, 2, 4, 3)
        # 3. the recurrence between chunks
        previous_states = torch.zeros_like(states[:, :1])
        states = torch.cat([previous_states, states], dim=1)
        decay_chunk = torch.exp(segment_sum(F.pad(A_cumsum[:, :, :, -1], (1, 0))))
        states_permuted = states.permute(0, 2, 1, 3, 4)
        result = (decay_chunk[..., None, None] * states_permuted[:, :, None, ...]).sum(dim=3)
        new_states = result.permute(0, 2, 1, 3, 4)
        states, ssm_state = new_states[:, :-1], new_states[:, -1]
        # 4. state to output
        state_decay_out = torch.exp(A_cumsum)
        C_times_states = C[..., None, :] * states[:, :, None, ...]
        Y_off = C_times_states.sum(-1) * state_decay_out.permute(0, 2, 3, 1)[..., None]

        y = (Y_diag + Y_off).reshape(batch_size, -1, self.num_heads, self.head_dim)
        y = y + D_residual
        if pad_size > 0:
            y = y[:, :seq_len, :, :]
        y = y.reshape(batch_size, seq_len, -1)
        return self.out_proj(self.norm(y, gate).to(dtype)), ssm_state


class Zamba2Attention(nn.Module):
    def __init__(self, attn_hidden, heads, hidden):
        super().__init__()
        self.heads, self.head_dim = heads, attn_hidden // heads
        self.scaling = (self.head_dim / 2) ** -0.5
        self.q_proj = nn.Linear(attn_hidden, attn_hidden, bias=False)
        self.k_proj = nn.Linear(attn_hidden, attn_hidden, bias=False)
        self.v_proj = nn.Linear(attn_hidden, attn_hidden, bias=False)
        self.o_proj = nn.Linear(attn_hidden, hidden, bias=False)

    def forward(self, x, causal_mask):
        b, l, _ = x.shape
        q, k, v = (p(x).view(b, l, self.heads, self.head_dim).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        w = torch.matmul(q, k.transpose(2, 3)) * self.scaling + causal_mask
        w = torch.softmax(w, dim=-1, dtype=torch.float32).to(q.dtype)
        return self.o_proj(torch.matmul(w, v).transpose(1, 2).reshape(b, l, -1))


class Zamba2MLP(nn.Module):
    def __init__(self, hidden, inter, num_uses, rank):
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden, 2 * inter, bias=False)
        self.down_proj = nn.Linear(inter, hidden, bias=False)
        self.gate_up_proj_adapter_list = nn.ModuleList(
            [nn.Sequential(nn.Linear(hidden, rank, bias=False), nn.Linear(rank, 2 * inter, bias=False)) for _ in range(num_uses)]
        )

    def forward(self, hidden_state, use_idx):
        gate_up_state = self.gate_up_proj(hidden_state)
        gate_up_state = gate_up_state + self.gate_up_proj_adapter_list[use_idx](hidden_state)
        gate_up_state = torch.chunk(gate_up_state, 2, dim=-1)
        return self.down_proj(F.gelu(gate_up_state[0]) * gate_up_state[1])


class SharedTransformer(nn.Module):
    def __init__(self, hidden, heads, inter, num_uses, rank):
        super().__init__()
        self.self_attn = Zamba2Attention(2 * hidden, heads, hidden)
        self.feed_forward = Zamba2MLP(hidden, inter, num_uses, rank)
        self.input_layernorm = Zamba2RMSNorm(2 * hidden)
        self.pre_ff_layernorm = Zamba2RMSNorm(hidden)

    def forward(self, hidden_states, original_hidden_states, causal_mask, use_idx):
        hidden_states = torch.concatenate([hidden_states, original_hidden_states], dim=-1)
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.self_attn(hidden_states, causal_mask)
        hidden_states = self.pre_ff_layernorm(hidden_states)
        return self.feed_forward(hidden_states, use_idx)


class MambaDecoderLayer(nn.Module):
    def __init__(self, hidden, **kw):
        super().__init__()
        self.mamba = Zamba2MambaMixer(hidden, **kw)
        self.input_layernorm = Zamba2RMSNorm(hidden)

    def forward(self, hidden_states, attention_mask, transformer_hidden_states=None):
        residual = hidden_states
        if transformer_hidden_states is not None:
            hidden_states = hidden_states + transformer_hidden_states
        hidden_states, state = self.mamba(self.input_layernorm(hidden_states), attention_mask)
        return residual + hidden_states, state


class Model(nn.Module):
    """Zamba2-like hybrid: Mamba-2 layers with one shared attention block that sees the embeddings again and has a LoRA of its own at each use."""

    def __init__(self, vocab, hidden, heads, inter, layers, hybrid_ids, rank, chunk):
        super().__init__()
        self.hybrid_ids = list(hybrid_ids)
        self.embed_tokens = nn.Embedding(vocab, hidden, 0)
        self.shared = SharedTransformer(hidden, heads, inter, len(self.hybrid_ids), rank)
        self.linears = nn.ModuleList([nn.Linear(hidden, hidden, bias=False) for _ in self.hybrid_ids])
        self.layers = nn.ModuleList(
            [MambaDecoderLayer(hidden, expand=2, head_dim=32, state=16, groups=2, kernel=4, chunk=chunk) for _ in range(layers)]
        )
        self.final_layernorm = Zamba2RMSNorm(hidden)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, input_ids, attention_mask):
        inputs_embeds = self.embed_tokens(input_ids)
        hidden_states = inputs_embeds
        original_hidden_states = torch.clone(inputs_embeds)
        L = input_ids.shape[1]
        min_dtype = torch.finfo(hidden_states.dtype).min
        causal_mask = torch.full((L, L), fill_value=min_dtype, dtype=hidden_states.dtype, device=hidden_states.device)
        causal_mask = torch.triu(causal_mask, diagonal=1)
        causal_mask = causal_mask[None, None, :, :].expand(input_ids.shape[0], 1, -1, -1).clone()
        padding_mask = causal_mask.eq(0.0) * attention_mask[:, None, None, :].eq(0.0)
        causal_mask = causal_mask.masked_fill(padding_mask, min_dtype)
        states = []
        for i, layer in enumerate(self.layers):
            transformer_hidden_states = None
            if i in self.hybrid_ids:
                use = self.hybrid_ids.index(i)
                transformer_hidden_states = self.shared(hidden_states, original_hidden_states, causal_mask, use)
                transformer_hidden_states = self.linears[use](transformer_hidden_states)
            hidden_states, st = layer(hidden_states, attention_mask, transformer_hidden_states)
            states.append(st)
        return {"logits": self.lm_head(self.final_layernorm(hidden_states)), "ssm_states": tuple(states)}


def get_inputs():
    L = 44
    ids = torch.randint(1, 700, (2, L))
    mask = (torch.arange(L)[None] < torch.tensor([44, 35])[:, None]).float()
    return [ids * mask.long(), mask]


def get_init_inputs():
    return [700, 96, 6, 256, 5, [1, 3], 12, 16]
