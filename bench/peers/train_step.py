"""Times training steps of a Transformer in PyTorch, to compare Falcon's models with.

The architecture is that of the preset `transformer` (pre-norm RMSNorm, rotary positions, SwiGLU, tied embedding, no
bias), and so is the optimizer (AdamW, global clipping at 1.0). Prints one JSON line: the median time of a step, and
tokens per second. With --serve, takes a step for every line on stdin and prints its seconds, so that
`falcon bench train` can interleave its own steps.
"""

import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin):
        batch, steps, width = x.shape
        q, k, v = self.qkv(x).view(batch, steps, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, steps, width))


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class SwiGlu(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.mlp = Attention(width, heads), SwiGlu(width, inner)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, inner, steps):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        half = width // heads // 2
        angles = torch.arange(steps)[:, None] * 10_000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.norm(x) @ self.embedding.weight.T


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in [
        ("vocabulary", 16),
        ("width", 128),
        ("layers", 4),
        ("heads", 4),
        ("inner", 352),
        ("time", 100),
        ("batch", 64),
        ("threads", 2),
        ("repeats", 9),
    ]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--serve", action="store_true", help="take a step for every line on stdin")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = Transformer(args.vocabulary, args.width, args.layers, args.heads, args.inner, args.time)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    run = torch.compile(model) if args.compile else model
    tokens = torch.randint(args.vocabulary, (args.batch, args.time + 1))

    def step():
        start = time.perf_counter()
        logits = run(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, args.vocabulary), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return time.perf_counter() - start

    if args.serve:
        print(json.dumps({"torch": torch.__version__, "parameters": sum(p.numel() for p in model.parameters())}), flush=True)
        for _ in sys.stdin:
            print(step(), flush=True)
        return
    step(), step()
    seconds = statistics.median(step() for _ in range(args.repeats))
    parameters = sum(p.numel() for p in model.parameters())
    rate = args.batch * args.time / seconds
    print(json.dumps({"seconds": seconds, "tokens_per_second": rate, "parameters": parameters, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
