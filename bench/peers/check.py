"""Compares outputs and gradients of each peer with those of a loop over time in 64 bits."""

import torch

import peers


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def delta_rule_inputs(time, dim, heads, dtype, grad):
    """Queries and keys of length 1, normal values, gains in (0.1, 0.9), decays in (0.95, 1)."""
    rows = (1, heads, time)
    q, k, v = unit(torch.randn(*rows, dim)), unit(torch.randn(*rows, dim)), torch.randn(*rows, dim)
    gain, log_decay = 0.1 + 0.8 * torch.rand(rows), (0.95 + 0.05 * torch.rand(rows)).log()
    return [x.to(dtype).requires_grad_(grad) for x in (q, k, v, gain, log_decay)]


def linear_inputs(time, dim, heads, dtype, grad):
    q, k, v, _, log_decay = delta_rule_inputs(time, dim, heads, dtype, grad)
    return [q, k, v, log_decay]


def softmax_inputs(time, dim, heads, dtype, grad):
    return delta_rule_inputs(time, dim, heads, dtype, grad)[:3]


def delta_rule_loop(q, k, v, gain, log_decay):
    memory, out = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1], dtype=k.dtype), []
    for t in range(q.shape[2]):
        key, decayed = k[:, :, t, :, None], log_decay[:, :, t, None, None].exp() * memory
        error = v[:, :, t, None, :] - key.mT @ decayed
        memory = decayed + gain[:, :, t, None, None] * key @ error
        out.append((q[:, :, t, None, :] @ memory).squeeze(2))
    return torch.stack(out, 2)


def linear_loop(q, k, v, log_decay):
    memory, out = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1], dtype=k.dtype), []
    for t in range(q.shape[2]):
        memory = log_decay[:, :, t, None, None].exp() * memory + k[:, :, t, :, None] @ v[:, :, t, None, :]
        out.append((q[:, :, t, None, :] @ memory).squeeze(2))
    return torch.stack(out, 2)


def softmax_loop(q, k, v):
    out = []
    for t in range(q.shape[2]):
        scores = q[:, :, t, None, :] @ k[:, :, : t + 1].mT / q.shape[-1] ** 0.5
        out.append((scores.softmax(-1) @ v[:, :, : t + 1]).squeeze(2))
    return torch.stack(out, 2)


def assert_close(name, peer, loop, inputs, tolerance):
    """Asserts that the peer in its own precision matches the loop in 64 bits, relative to the largest number."""
    wide = [x.detach().double().requires_grad_() for x in inputs]
    out, expected = peer(*inputs), loop(*wide)
    upstream = torch.randn(out.shape, dtype=torch.float64)
    found = [out, *torch.autograd.grad(out, inputs, upstream.to(out.dtype))]
    wanted = [expected, *torch.autograd.grad(expected, wide, upstream)]
    for index, (x, y) in enumerate(zip(found, wanted)):
        error = ((x.double() - y).abs().max() / y.abs().max()).item()
        what = "output" if index == 0 else f"gradient of input {index}"
        assert error < tolerance, f"{name}, {what}: off by {error:.1e}, allowed is {tolerance:.0e}"


def check():
    torch.manual_seed(0)
    for dtype, tolerance in (torch.float64, 1e-12), (torch.float32, 1e-4):
        for chunk in 16, 32:
            for invert in False, True:
                inputs = delta_rule_inputs(96, 16, 2, dtype, True)
                peer = lambda *x: peers.gated_delta_rule(*x, chunk, invert)
                name = f"delta rule, chunks of {chunk}, invert {invert}"
                assert_close(name, peer, delta_rule_loop, inputs, tolerance)
            inputs = linear_inputs(96, 16, 2, dtype, True)
            peer = lambda *x: peers.gated_linear_attention(*x, chunk)
            assert_close(f"linear attention, chunks of {chunk}", peer, linear_loop, inputs, tolerance)
        inputs = softmax_inputs(96, 16, 2, dtype, True)
        assert_close("softmax attention", peers.softmax_attention, softmax_loop, inputs, tolerance)


if __name__ == "__main__":
    check()
    print("all right")
