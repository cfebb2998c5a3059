"""Times the PyTorch operation, to compare it with the Rust call, which `falcon bench kernels` times.

    export MALLOC_MMAP_THRESHOLD_=8589934592 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_ARENA_MAX=1
    python bench/op.py && falcon bench kernels --rules falcon-1,falcon-1a --tokens 4096

The variables make the C library keep freed memory, as `falcon` does by itself; without them every call pays for new
pages. One sequence of 4,096 tokens, 8 heads, float32, one thread, medians.
"""

import statistics
import time

import torch
from falcon_fwa import ops

ROUNDS = 12


def milliseconds(work) -> float:
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for dim in (64, 128):
        q, k = (torch.nn.functional.normalize(torch.randn(1, 4096, 8, dim), dim=-1) for _ in range(2))
        v, grad = torch.randn(1, 4096, 8, dim), torch.randn(1, 4096, 8, dim)
        gain, ridge = 0.2 + 1.6 * torch.rand(1, 4096, 8), 0.05 * torch.rand(1, 4096, 8)
        inputs = [x.requires_grad_() for x in (q, k, v, gain, ridge)]
        for rule in ("falcon-1", "falcon-1a"):

            def forward(rule=rule, inputs=inputs):
                with torch.no_grad():
                    ops.falcon(*inputs, rule=rule)

            def both(rule=rule, inputs=inputs, grad=grad):
                torch.autograd.grad(ops.falcon(*inputs, rule=rule)[0], inputs, grad)

            print(f"{rule} d={dim}: forward {milliseconds(forward):.1f} ms, both {milliseconds(both):.1f} ms")


if __name__ == "__main__":
    main()
