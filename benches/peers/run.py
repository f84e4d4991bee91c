#!/usr/bin/env python3
"""Measures hcomm, its peers and this machine's limits side by side and prints ratio tables.

All contestants of a table run interleaved: in each repetition, size by size, one after the other, so that a slow
second of the machine hits all of them. A time is the median over the repetitions of the medians of the runs; a ratio
is taken within each repetition, and the median of these is shown.
setup.sh builds what this needs; README.md says how each peer is configured and how to read the tables.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from contestants import HERE, Case, Run, contestants, not_in_table, why_absent
from tables import document

DEFAULT_HCOMM = HERE.parent.parent / "target" / "release" / "hcomm"
SIZES = "8,1K,64K,1M,16M,64M,256M"
QUICK_SIZES = "8,64K,1M"
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

# The best that each peer's user could set, for all alike: malloc's large blocks come in huge pages.
COMMON_ENV = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "RUST_BACKTRACE": "0"}


# ---- running


class Failed(Exception):
    pass


def run_contestant(contestant, run, inside):
    """The contestant's lines, and what went wrong if anything did: what it printed before still counts."""
    lines, problem = [], None
    for launch in contestant.launches(run):
        try:
            texts = run_launch(launch, inside, timeout_s=60 + 20 * len(run.sizes))
        except Failed as failure:
            problem, texts = failure.args
        for path in launch.reads:
            if path.exists():
                lines += json.loads(path.read_text())
        lines += parse_lines(texts) if not launch.reads else []
    for line in lines:
        line["peer"] = contestant.name
    if problem and contestant.kind == "peer" and len(lines) == len(run.sizes):
        # Trouble in leaving (see mpi_peer.c) changes nothing in what was measured and checked before.
        say(f"  {contestant.name}: {problem}, after its last result")
        problem = None
    return lines, problem or (None if lines else "printed no result")


def parse_lines(texts):
    lines = []
    for text in texts:
        for row in text.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                value = json.loads(row) if row.startswith("{") else None
                if isinstance(value, dict) and "median_us" in value:
                    lines.append(value)
    return lines


def run_launch(launch, inside, timeout_s):
    env = os.environ | COMMON_ENV | launch.env
    deadline = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        jobs = []
        for command in launch.commands:
            out, err = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
            process = subprocess.Popen(
                inside + command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True
            )
            stack.callback(end_group, process)
            jobs.append((process, out, err))
        problem = wait_all([process for process, _, _ in jobs], deadline)
        texts = [read_back(out) for _, out, _ in jobs]
        if problem:
            rows = [row.strip(" -") for _, _, err in jobs for row in read_back(err).splitlines()]
            detail = [row for row in rows if row and not row.startswith("note:")]
            raise Failed(problem + (f": {detail[-1][:160]}" if detail else ""), texts)
        return texts


def wait_all(processes, deadline):
    pending = list(processes)
    while pending:
        for process in list(pending):
            if process.poll() is None:
                continue
            pending.remove(process)
            if process.returncode != 0:
                return f"ended with code {process.returncode}"
        if time.monotonic() > deadline:
            return "timed out"
        time.sleep(0.02)
    return None


def end_group(process):
    """Ends the process and whatever it started: each has a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_back(file):
    file.seek(0)
    return file.read()


@contextlib.contextmanager
def namespace(congestion):
    """A network namespace with only a loopback interface, whose default congestion control holds for everyone."""
    name = f"hcomm-peers-{os.getpid()}"
    inside = ["ip", "netns", "exec", name]
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        setting = "/proc/sys/net/ipv4/tcp_congestion_control"
        write = subprocess.run([*inside, "sh", "-c", f"echo {congestion} > {setting}"], capture_output=True)
        seen = subprocess.run([*inside, "cat", setting], check=True, capture_output=True, text=True).stdout.strip()
        if write.returncode != 0 or seen != congestion:
            sys.exit(
                f"a namespace may not use {congestion}: it is missing, or restricted by tcp_allowed_congestion_control; "
                f"reno never is"
            )
        yield inside
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


def why_no_namespace():
    if os.geteuid() != 0:
        return "like with like needs root (a network namespace)"
    if not shutil.which("ip"):
        return "like with like needs the ip command (package iproute2)"
    return None


def run_case(case, args, scratch):
    run = Run(case, args.sizes, args.seconds, scratch, args.hcomm, args.hcomm_args)
    result = {"case": asdict(case), "absent": not_in_table(case), "problems": [], "lines": []}
    present = []
    for contestant in contestants(case):
        reason = why_absent(contestant, run)
        if reason:
            result["absent"][contestant.title] = reason
        else:
            present.append(contestant)
    with namespace(case.congestion) if case.congestion else contextlib.nullcontext([]) as inside:
        for rep in range(1, args.reps + 1):
            say(f"{case.title()}: repetition {rep} of {args.reps}")
            load = os.getloadavg()[0]
            for contestant, part in schedule(present, run):
                lines, problem = run_contestant(contestant, part, inside)
                result["lines"] += [line | {"rep": rep, "load_before": load} for line in lines]
                if problem:
                    result["problems"].append({"peer": contestant.name, "rep": rep, "what": problem})
                    say(f"  {contestant.name}: {problem}")
    return result


def schedule(present, run):
    """One repetition: what is compared in a row of the table runs within the same seconds."""
    yield from ((contestant, run) for contestant in present if contestant.at_once)
    for size in run.sizes:
        yield from ((contestant, replace(run, sizes=[size])) for contestant in present if not contestant.at_once)


def say(text):
    print(text, file=sys.stderr, flush=True)


def parse_size(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def machine():
    model = platform.machine()
    with contextlib.suppress(OSError):
        for row in Path("/proc/cpuinfo").read_text().splitlines():
            if row.startswith("model name"):
                model = row.split(":", 1)[1].strip()
                break
    congestion = "unknown"
    with contextlib.suppress(OSError):
        congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "congestion": congestion}


# ---- command line


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: few sizes, one short repetition")
    parser.add_argument("--all", action="store_true", help="the tables of the README, instead of one")
    parser.add_argument("--op", default="all_reduce", help="or broadcast, all_gather, reduce_scatter, reduce, gather, scatter, all_to_all, scan, exscan, send_recv")
    parser.add_argument("--link", choices=["tcp", "memory", "shm"], default="tcp")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--touch", action="store_true", help="each rank rewrites its buffer in between, untimed")
    parser.add_argument("--netns", action="store_true", help="TCP like with like, in a network namespace (root)")
    parser.add_argument("--congestion", default="reno", help="congestion control of that namespace; default reno, "
                        "which no machine restricts")
    parser.add_argument("--sizes", help=f"bytes, with K, M or G; default {SIZES}")
    parser.add_argument("--seconds", type=float, help="time per size and run; default 0.4")
    parser.add_argument("--reps", type=int, help="interleaved repetitions; default 5")
    parser.add_argument("--hcomm", type=Path, default=DEFAULT_HCOMM, help="the hcomm command")
    parser.add_argument("--hcomm-args", default="", help="further arguments of `hcomm bench`, separated by spaces")
    parser.add_argument("--out", type=Path, help="also write every line measured to this file")
    parser.add_argument("--brief", action="store_true", help="no column for each peer, as in the README")
    parser.add_argument("--table", type=Path, metavar="FILE", help="measure nothing: print the tables of an --out file")
    args = parser.parse_args()
    args.sizes = [parse_size(s) for s in (args.sizes or (QUICK_SIZES if args.quick else SIZES)).split(",")]
    args.seconds = args.seconds or (0.05 if args.quick else 0.4)
    args.reps = args.reps or (1 if args.quick else 5)
    args.hcomm_args = args.hcomm_args.split()
    return args


def wanted_cases(args):
    if not args.all:
        return [Case(args.link, args.ranks, args.op, args.touch, args.congestion if args.netns else None)]
    alike = args.congestion
    return [
        Case("tcp", 2, args.op, False, alike),
        Case("tcp", 2, args.op, False, None),
        Case("tcp", 4, args.op, False, alike),
        Case("shm", 2, args.op, False, None),
        Case("shm", 4, args.op, False, None),
        Case("memory", 2, args.op, False, None),
        Case("memory", 2, args.op, True, None),
        Case("memory", 4, args.op, False, None),
    ]


def main():
    args = parse_args()
    if args.table:
        print(document(json.loads(args.table.read_text()), args.brief))
        return
    report = {"machine": machine(), "reps": args.reps, "seconds": args.seconds, "results": [], "skipped": []}
    with tempfile.TemporaryDirectory(prefix="hcomm-peers-") as scratch:
        for case in wanted_cases(args):
            obstacle = why_no_namespace() if case.congestion else None
            if obstacle:
                report["skipped"].append(f"{case.title()}: {obstacle}")
                say(report["skipped"][-1])
                continue
            report["results"].append(run_case(case, args, Path(scratch)))
            if args.out:
                args.out.write_text(json.dumps(report, indent=1))
    print(document(report, args.brief))


if __name__ == "__main__":
    main()
