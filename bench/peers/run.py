"""Compares Falcon's kernels with PyTorch in one run. `run.sh` installs PyTorch, builds `falcon` and calls this.

Every round times each row, ours (Falcon) and then theirs (PyTorch), back to back; medians are reported. Ours run in one
`falcon` process that answers timing requests, theirs in this process.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

import check
import peers

CHUNKS = (16, 32, 64, 128)


@dataclass
class Peer:
    """An implementation to compare with: how to make its inputs, how to run it, and the options that may be fastest."""

    name: str
    inputs: callable
    run: callable
    ways: list

    def job(self, time, dim, heads, mode, way):
        """A function that runs the peer once and returns the seconds."""
        torch.manual_seed(0)
        inputs = self.inputs(time, dim, heads, torch.float32, mode == "both")
        upstream = torch.randn(1, heads, time, dim)

        def forward():
            with torch.no_grad():
                self.run(*inputs, **way)

        def both():
            torch.autograd.grad(self.run(*inputs, **way), inputs, upstream)

        return lambda: seconds(forward if mode == "forward" else both)


DELTA_RULE = Peer(
    "chunked gated delta rule",
    check.delta_rule_inputs,
    peers.gated_delta_rule,
    [{"chunk": chunk, "invert": invert} for chunk in CHUNKS for invert in (False, True)],
)
LINEAR = Peer(
    "chunked gated linear attention",
    check.linear_inputs,
    peers.gated_linear_attention,
    [{"chunk": chunk} for chunk in CHUNKS],
)
SOFTMAX = Peer("softmax attention", check.softmax_inputs, peers.softmax_attention, [{}])
PEERS = {"delta-rule": DELTA_RULE, "gla": LINEAR, "softmax": SOFTMAX}


@dataclass
class Row:
    rule: str
    peer: Peer
    time: int
    dim: int
    mode: str
    #: How many times faster ours should be.
    target: float
    way: dict = field(default_factory=dict)
    ours: list = field(default_factory=list)
    theirs: list = field(default_factory=list)

    def json(self):
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        return {
            "rule": self.rule,
            "peer": self.peer.name,
            "tokens": self.time,
            "dim": self.dim,
            "mode": self.mode,
            "ours_ms": ours * 1e3,
            "theirs_ms": theirs * 1e3,
            "ratio": theirs / ours,
            "target": self.target,
            "way": self.way,
            "ours_all_ms": [x * 1e3 for x in self.ours],
            "theirs_all_ms": [x * 1e3 for x in self.theirs],
        }


def rows(quick):
    """The comparisons, each with the ratio that ours should reach."""
    length = 512 if quick else 4096
    table = []
    for dim, forward, both in (64, 3, 8), (128, 2, 5):
        table.append(Row("falcon-1", DELTA_RULE, length, dim, "forward", forward))
        table.append(Row("falcon-1", DELTA_RULE, length, dim, "both", both))
    for dim in 64, 128:
        table.append(Row("falcon-1a", LINEAR, length, dim, "forward", 2))
        table.append(Row("falcon-1a", LINEAR, length, dim, "both", 6))
    for time in (512,) if quick else (1024, 4096):
        table.append(Row("falcon-1", SOFTMAX, time, 64, "forward", 3))
        table.append(Row("falcon-1", SOFTMAX, time, 64, "both", 3))
    if not quick:
        table.append(Row("falcon-1", SOFTMAX, 16384, 64, "forward", 3))
    return table


class Falcon:
    """A `falcon` process that times on request."""

    def __init__(self, binary):
        command = [binary, "bench", "kernels", "--serve"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, row, heads, threads, chunk):
        request = {
            "rule": row.rule,
            "tokens": row.time,
            "dim": row.dim,
            "heads": heads,
            "threads": threads,
            "mode": row.mode,
            "chunk": chunk,
        }
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit("falcon ended early")
        return json.loads(answer)["seconds"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def tune(row, heads):
    """The fastest options of the peer for this row. They take turns, and the best of five times counts, so that a
    disturbance of the machine does not decide."""
    ways = row.peer.ways
    if len(ways) == 1:
        return ways[0]
    jobs = [row.peer.job(row.time, row.dim, heads, row.mode, way) for way in ways]
    rounds = [[job() for job in jobs] for _ in range(6)][1:]
    best = [min(times) for times in zip(*rounds)]
    return ways[best.index(min(best))]


def machine():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def table(rows):
    cells = [("ours", "theirs", "T", "d", "", "ours ms", "theirs ms", "theirs/ours", "target", "", "theirs by")]
    for row in rows:
        result = row.json()
        cells.append((
            row.rule,
            row.peer.name,
            str(row.time),
            str(row.dim),
            {"forward": "fwd", "both": "fwd+bwd"}[row.mode],
            f"{result['ours_ms']:.2f}",
            f"{result['theirs_ms']:.2f}",
            f"{result['ratio']:.2f}x",
            f"{row.target:g}x",
            "ok" if result["ratio"] >= row.target else "short",
            ", ".join(f"{name} {value}" for name, value in row.way.items()),
        ))
    widths = [max(map(len, column)) for column in zip(*cells)]
    left = {0, 1, 4, 9, 10}
    for line in cells:
        padded = (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths)))
        print("  ".join(padded).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--falcon", default="falcon", help="the program to compare with")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--chunk", type=int, default=64, help="tokens per chunk in ours; the chunk of theirs is tuned")
    parser.add_argument("--repeats", type=int, default=7, help="rounds that count, after one that does not")
    parser.add_argument("--peer", choices=PEERS, action="append", help="only the rows with this peer; may be repeated")
    parser.add_argument("--quick", action="store_true", help="short sequences, to see whether it works")
    parser.add_argument("--json", metavar="FILE", help="also write the rows to this file, with every timing")
    args = parser.parse_args()
    if min(args.threads, args.heads, args.chunk, args.repeats) < 1:
        parser.error("--threads, --heads, --chunk and --repeats must be at least 1")

    def say(text):
        print(text, file=sys.stderr, flush=True)

    torch.set_num_threads(args.threads)
    say("checking the peers against loops in 64 bits")
    check.check()
    wanted = [PEERS[name] for name in args.peer or PEERS]
    comparisons = [row for row in rows(args.quick) if row.peer in wanted]
    say("choosing the fastest way to run each peer")
    for row in comparisons:
        row.way = tune(row, args.heads)
    jobs = [row.peer.job(row.time, row.dim, args.heads, row.mode, row.way) for row in comparisons]
    falcon = Falcon(args.falcon)
    for turn in range(args.repeats + 1):
        say(f"round {turn} of {args.repeats}")
        for row, job in zip(comparisons, jobs):
            ours, theirs = falcon.seconds(row, args.heads, args.threads, args.chunk), job()
            if turn > 0:
                row.ours.append(ours)
                row.theirs.append(theirs)
    falcon.close()

    plural = "" if args.threads == 1 else "s"
    print(f"{machine()}, {args.threads} thread{plural}, f32, {args.heads} heads, medians of {args.repeats}")
    print(f"torch {torch.__version__}, chunks of {args.chunk} in ours\n")
    table(comparisons)
    if args.json:
        result = {
            "machine": machine(),
            "torch": torch.__version__,
            "threads": args.threads,
            "heads": args.heads,
            "chunk": args.chunk,
            "rows": [row.json() for row in comparisons],
        }
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
