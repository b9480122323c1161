import torch
import torch.nn as nn

PRIME = (1 << 31) - 1


class Model(nn.Module):
    """Sketches of token streams with int64 hashing: shingles and MinHash, a Bloom filter packed
    to uint8, count-min with conservative reads, HyperLogLog registers, and SimHash planes."""

    def __init__(self, perms, planes, log_bits, depth, width):
        super().__init__()
        g = torch.Generator().manual_seed(5)
        self.log_bits, self.width = log_bits, width
        self.register_buffer("a", torch.randint(1, PRIME, (perms,), generator=g))
        self.register_buffer("b", torch.randint(0, PRIME, (perms,), generator=g))
        self.register_buffer("salt", torch.randint(-(1 << 40), 1 << 40, (depth,), generator=g))
        self.planes = nn.Parameter(torch.randn(planes, 64, generator=g))

    @staticmethod
    def mix(x):
        x = x ^ ((x >> 33) & 0x7FFFFFFF)
        x = x * -0xAE502812AA7333  # wraps
        x = x ^ ((x >> 29) & 0x7FFFFFFFF)
        return x * 0x4CF5AD432745937F

    def shingles(self, tokens):
        win = tokens.unfold(1, 4, 1)
        power = torch.tensor([1, 1_000_003, 1_000_003**2, 1_000_003**3])
        return self.mix((win * power).sum(-1))

    def bloom(self, h):
        bits = 1 << self.log_bits
        filled = torch.zeros(h.shape[0], bits, dtype=torch.bool)
        for k in range(3):
            filled.scatter_(1, (self.mix(h + k) >> 7) & (bits - 1), True)
        lanes = filled.view(h.shape[0], bits // 8, 8).to(torch.uint8) << torch.arange(8, dtype=torch.uint8)
        return lanes.sum(-1, dtype=torch.uint8)

    def member(self, packed, q):
        found = torch.ones_like(q, dtype=torch.bool)
        for k in range(3):
            at = (self.mix(q + k) >> 7) & ((1 << self.log_bits) - 1)
            byte = packed.gather(1, at >> 3)
            found &= ((byte >> (at & 7).to(torch.uint8)) & 1) != 0
        return found

    def forward(self, tokens, queries):
        tokens = tokens.long()
        s = self.shingles(tokens)  # b n
        folded = torch.remainder(s, PRIME)
        sig = torch.stack([torch.remainder(folded * a + b, PRIME).amin(1) for a, b in zip(self.a, self.b)], 1)
        jaccard = (sig.unsqueeze(1) == sig.unsqueeze(0)).float().mean(-1)
        band = torch.bitwise_xor(sig[:, ::2], sig[:, 1::2] << 3) % 4093

        packed = self.bloom(s)
        known = torch.cat([s[:, ::9], self.mix(queries.long())], 1)
        found = self.member(packed, known)

        b, n = tokens.shape
        depth = self.salt.shape[0]
        cell = self.mix(tokens.unsqueeze(1) ^ self.salt[:, None]) % self.width  # b depth n
        rowed = cell + self.width * torch.arange(depth).view(1, -1, 1)
        table = torch.zeros(b, depth * self.width, dtype=torch.int32)
        table.scatter_add_(1, rowed.flatten(1), torch.ones(b, depth * n, dtype=torch.int32))
        estimate = table.gather(1, rowed.flatten(1)).view(b, depth, n).amin(1)

        wide = (s >> 20) & ((1 << 24) - 1)
        zeros = 24 - torch.frexp(wide.float())[1]
        bucket = s & 63
        register = torch.zeros(b, 64, dtype=torch.int32)
        register = register.scatter_reduce(1, bucket, zeros + 1, "amax", include_self=True)
        harmonic = torch.ldexp(torch.ones(b, 64, dtype=torch.float64), -register).sum(1)
        distinct = 0.709 * 64 * 64 / harmonic

        sign = (((s.unsqueeze(-1) >> torch.arange(64)) & 1) * 2 - 1).to(self.planes.dtype)
        profile = torch.tensordot(sign.mean(1), self.planes, dims=([1], [1]))
        hard = (profile > 0).long()
        code = (hard << torch.arange(hard.shape[1])).sum(1)
        hamming = (hard.unsqueeze(1) ^ hard.unsqueeze(0)).sum(-1).to(torch.int16)
        return sig, jaccard, band, packed, found, estimate, register, distinct, torch.tanh(profile), code, hamming


def get_inputs():
    tokens = torch.randint(0, 400, (6, 911), dtype=torch.int32)
    tokens[3:, 40:200] = tokens[:3, 40:200]
    return [tokens, torch.randint(-5000, 5000, (6, 41), dtype=torch.int16)]


def get_init_inputs():
    return [32, 24, 12, 4, 257]
