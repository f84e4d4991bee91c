"""Drives PyTorch's Gloo backend on CPU tensors: one process per rank.

Flags are those of bench.h, plus --rank R --ranks N --store FILE (a fresh file that all ranks of a run share).
"""

import argparse
import json
import os
import resource
import time

import torch
import torch.distributed as dist

PROBES = 3
WARM_UPS_MAX = 200
ITERATIONS_MIN = 7
ITERATIONS_MAX = 100_000
PATTERN_PERIOD = 8191
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", default="torch-gloo")
    parser.add_argument("--link", default="tcp")
    parser.add_argument("--op", default="all_reduce")
    parser.add_argument("--sizes", default="8")
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--touch", action="store_true")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--store", required=True)
    return parser.parse_args()


def now_us():
    return time.monotonic_ns() / 1e3


def cpu_us():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_utime + usage.ru_stime) * 1e6


def pattern(rank, count, start=0):
    return (rank + 1) + (torch.arange(start, start + count) % PATTERN_PERIOD).float()


def pattern_sum(ranks, count, start=0):
    return ranks * (ranks + 1) / 2 + ranks * (torch.arange(start, start + count) % PATTERN_PERIOD).float()


class Point:
    """One operation at one size. `a` is the buffer of the in-place operations."""

    def __init__(self, args, size):
        self.args, self.size = args, size
        self.count = size // 4
        self.part = self.count // args.ranks
        self.a, self.b = torch.zeros(self.count), torch.zeros(self.count)
        self.ends_at_last_rank = args.op in ("broadcast", "scatter")  # a root may return before anyone has the data
        self.ops_per_run = 2 if args.op == "send_recv" else 1
        self.run = getattr(self, "run_" + args.op)

    def run_all_reduce(self):
        dist.all_reduce(self.a)

    def run_broadcast(self):
        dist.broadcast(self.a, 0)

    def run_all_gather(self):
        dist.all_gather_into_tensor(self.b, self.a[: self.part])

    def run_reduce_scatter(self):
        dist.reduce_scatter_tensor(self.b[: self.part], self.a)

    def run_reduce(self):
        dist.reduce(self.a, 0)

    def run_gather(self):
        parts = list(self.b[: self.part * self.args.ranks].chunk(self.args.ranks)) if self.args.rank == 0 else None
        dist.gather(self.a[: self.part], parts, 0)

    def run_scatter(self):
        parts = list(self.a[: self.part * self.args.ranks].chunk(self.args.ranks)) if self.args.rank == 0 else None
        dist.scatter(self.b[: self.part], parts, 0)

    def run_all_to_all(self):
        dist.all_to_all_single(self.b, self.a)

    def run_send_recv(self):
        if self.args.rank == 0:
            dist.send(self.a, 1)
            dist.recv(self.a, 1)
        elif self.args.rank == 1:
            dist.recv(self.a, 0)
            dist.send(self.a, 0)

    def expected(self):
        ranks, rank, part = self.args.ranks, self.args.rank, self.part
        if self.args.op == "all_reduce":
            return self.a, pattern_sum(ranks, self.count)
        if self.args.op == "all_gather":
            return self.b[: part * ranks], torch.cat([pattern(r, part) for r in range(ranks)])
        if self.args.op == "reduce_scatter":
            return self.b[:part], pattern_sum(ranks, part, rank * part)
        if self.args.op == "reduce":
            return (self.a, pattern_sum(ranks, self.count)) if rank == 0 else (self.a[:0], self.a[:0])
        if self.args.op == "gather" and rank > 0:
            return self.b[:0], self.b[:0]
        if self.args.op == "gather":
            return self.b[: part * ranks], torch.cat([pattern(r, part) for r in range(ranks)])
        if self.args.op == "scatter":
            return self.b[:part], pattern(0, part, rank * part)
        if self.args.op == "all_to_all":
            return self.b[: part * ranks], torch.cat([pattern(r, part, rank * part) for r in range(ranks)])
        return self.a, pattern(0 if self.args.op == "broadcast" or rank < 2 else rank, self.count)

    def check(self):
        self.a.copy_(pattern(self.args.rank, self.count))
        self.run()
        result, expected = self.expected()
        wrong = torch.tensor([(result != expected).sum().item()])
        dist.all_reduce(wrong)
        self.a.zero_()
        return wrong.item()

    def estimate_us(self, runs):
        """The median, but at least a quarter of the mean: a run that loses scheduler ticks must not last for ever."""
        dist.barrier()
        samples_us = []
        for _ in range(runs):
            start = now_us()
            self.run()
            samples_us.append(now_us() - start)
        samples_us.sort()
        return max(samples_us[runs // 2], sum(samples_us) / runs / 4)

    def measure(self):
        wrong = self.check()
        seconds = self.args.seconds
        warm = agreed(clamp(seconds * 0.25e6 / self.estimate_us(PROBES), PROBES, WARM_UPS_MAX))
        runs = agreed(clamp(seconds * 1e6 / self.estimate_us(warm), ITERATIONS_MIN, ITERATIONS_MAX))
        starts_us, ends_us = [0.0] * runs, [0.0] * runs
        separated = self.args.touch or self.ends_at_last_rank
        dist.barrier()
        cpu = cpu_us()
        for i in range(runs):
            if self.args.touch:
                self.a.fill_(1.0)
            if separated:
                dist.barrier()
            starts_us[i] = now_us()
            self.run()
            ends_us[i] = now_us()
        cpu = torch.tensor([(cpu_us() - cpu) / runs / self.ops_per_run], dtype=torch.float64)
        dist.all_reduce(cpu)
        if self.ends_at_last_rank:
            last = torch.tensor(ends_us, dtype=torch.float64)
            dist.all_reduce(last, op=dist.ReduceOp.MAX)
            ends_us = last.tolist()
        samples_us = sorted((end - start) / self.ops_per_run for start, end in zip(starts_us, ends_us))
        if self.args.rank == 0:
            self.print_line(samples_us, cpu.item(), wrong)

    def print_line(self, samples_us, cpu, wrong):
        runs = len(samples_us)
        line = {
            "peer": self.args.peer,
            "link": self.args.link,
            "op": self.args.op,
            "ranks": self.args.ranks,
            "bytes": self.size,
            "median_us": round(samples_us[runs // 2], 3),
            "p99_us": round(samples_us[min(runs - 1, runs * 99 // 100)], 3),
            "iters": runs,
            "cpu_us_per_op": round(cpu, 3),
            "wrong": wrong,
            "touch": self.args.touch,
        }
        print(json.dumps(line), flush=True)


def clamp(value, low, high):
    return int(min(high, max(low, value)))


def agreed(value):
    """Rank 0 decides, all go on with its value."""
    tensor = torch.tensor([value])
    dist.broadcast(tensor, 0)
    return tensor.item()


def main():
    args = parse_args()
    # One thread for tensor arithmetic: the ranks already fill the processors.
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + args.store, rank=args.rank, world_size=args.ranks)
    for size in args.sizes.split(","):
        Point(args, parse_size(size)).measure()
    dist.barrier()
    os._exit(0)  # without waiting for the backend's threads


main()
