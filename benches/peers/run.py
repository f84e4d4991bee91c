#!/usr/bin/env python3
"""Measures hcomm, its peers and this machine's limits side by side and prints ratio tables.

All contestants of a table run interleaved: repetition 1 of each, then repetition 2 of each, and so on, so that a
slow minute of the machine hits all of them. A cell is the median over the repetitions of the medians of the runs.
setup.sh builds what this needs; README.md says how each peer is configured and how to read the tables.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE / "build"
DEFAULT_HCOMM = HERE.parent.parent / "target" / "release" / "hcomm"
SIZES = "8,1K,64K,1M,16M,64M,256M"
QUICK_SIZES = "8,64K,1M"
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

# The best that each peer's user could set, for all alike: malloc's large blocks come in huge pages.
COMMON_ENV = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "RUST_BACKTRACE": "0"}


@dataclass(frozen=True)
class Case:
    """One table: who is in it follows from the link and the number of ranks."""

    link: str
    ranks: int
    op: str
    touch: bool
    congestion: str | None  # of the namespace, the same for all; None = as the machine is

    def title(self):
        link = "TCP loopback" if self.link == "tcp" else "memory (one host)"
        parts = [f"{self.op}, f32 sum" if "reduce" in self.op else f"{self.op}, f32", link, f"{self.ranks} ranks"]
        if self.link == "tcp":
            like = f"like with like ({self.congestion} for all)" if self.congestion else "as the machine is"
            parts.append(like)
        parts.append("each rank rewrites its buffer between operations" if self.touch else "back to back")
        return ", ".join(parts)


@dataclass(frozen=True)
class Run:
    """What a contestant needs to know to start."""

    case: Case
    sizes: list[int]
    seconds: float
    scratch: Path
    hcomm: Path
    hcomm_args: list[str]

    def flags(self, peer, op=None):
        flags = ["--peer", peer, "--link", self.case.link, "--op", op or self.case.op]
        flags += ["--sizes", ",".join(map(str, self.sizes)), "--seconds", str(self.seconds)]
        return flags + ["--touch"] * self.case.touch


@dataclass(frozen=True)
class Launch:
    """Commands that run at the same time (one per rank, or one launcher), and their environment."""

    commands: list[list[str]]
    env: dict[str, str] = field(default_factory=dict)
    reads: list[Path] = field(default_factory=list)  # files with a JSON array of lines; empty = standard output


@dataclass(frozen=True)
class Contestant:
    name: str
    title: str
    needs: str  # the name of what setup.sh builds
    launches: Callable[[Run], list[Launch]]  # one after the other
    kind: str = "peer"  # peer, limit or hcomm
    counts: bool = True  # whether it can be "best peer"


# ---- contestants


def openmpi(name, extra, env=None):
    def launches(run):
        command = ["mpirun.openmpi", "--allow-run-as-root", "-n", str(run.case.ranks), "--oversubscribe"]
        command += ["--mca", "oob_tcp_if_include", "lo"]
        if run.case.ranks > os.cpu_count():
            command += ["--mca", "mpi_yield_when_idle", "1"]
        driver = str(BUILD / "mpi_openmpi")
        return [Launch([command + extra + [driver] + run.flags(name)], env or {})]

    return launches


def mpich(env):
    def launches(run):
        command = ["mpiexec.mpich", "-n", str(run.case.ranks), str(BUILD / "mpi_mpich")]
        return [Launch([command + run.flags("mpich")], env)]

    return launches


def gloo(run):
    store = run.scratch / f"gloo-{time.monotonic_ns()}"
    command = [str(BUILD / "venv/bin/python"), str(HERE / "torch_peer.py"), *run.flags("gloo")]
    command += ["--ranks", str(run.case.ranks), "--store", str(store)]
    # The tensors' own allocator has a switch of its own for huge pages.
    env = {"GLOO_SOCKET_IFNAME": "lo", "THP_MEM_ALLOC_ENABLE": "1", "OMP_NUM_THREADS": "1"}
    return [Launch([command + ["--rank", str(rank)] for rank in range(run.case.ranks)], env)]


def nexar(run):
    command = [str(BUILD / "nexar/release/nexar-peer"), *run.flags("nexar"), "--ranks", str(run.case.ranks)]
    if run.case.link == "memory":
        return [Launch([command])]
    seed = f"127.0.0.1:{free_port()}"
    return [Launch([command + ["--seed", seed, "--rank", str(rank)] for rank in range(run.case.ranks)])]


def burn(name, extra):
    def launches(run):
        driver = str(BUILD / "burn/release/burn-peer")
        return [Launch([[driver, *run.flags(name), "--ranks", str(run.case.ranks), *extra]])]

    return launches


def hcomm(run):
    launches = []
    for size in run.sizes:
        report = run.scratch / f"hcomm-{size}.json"
        report.unlink(missing_ok=True)
        command = [str(run.hcomm), "bench", run.case.op, "-n", str(run.case.ranks), "-b", str(size), "-e", str(size)]
        command += ["--link", run.case.link, "--seconds", str(run.seconds), "--json", str(report)]
        command += ["--touch"] * run.case.touch + run.hcomm_args
        launches.append(Launch([command], reads=[report]))
    return launches


def limit(name, op, extra=(), sizes=None):
    def launches(run):
        command = [str(BUILD / "limits"), *run.flags(name, op)]
        # A later flag overrides an earlier one.
        command += ["--sizes", sizes] if sizes else []
        return [Launch([command + list(extra)])]

    return launches


OPENMPI_TCP = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
# Without naming them "any", Open MPI leaves UCX aside unless it sees a fast network card.
OPENMPI_UCX = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]
# Debian's MPICH is built on UCX; NOLOCAL keeps its own shared memory out as well.
MPICH_TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo", "MPIR_CVAR_NOLOCAL": "1"}


def contestants(case):
    us = Contestant("hcomm", "hcomm", "hcomm", hcomm, kind="hcomm")
    if case.link == "tcp":
        peers = [
            Contestant("openmpi", "Open MPI", "openmpi", openmpi("openmpi", OPENMPI_TCP)),
            Contestant("mpich", "MPICH", "mpich", mpich(MPICH_TCP)),
            Contestant("gloo", "Gloo (PyTorch)", "torch", gloo),
            Contestant("nexar", "nexar", "nexar", nexar),
        ]
        return peers + [us] + tcp_limits(case)
    peers = [
        Contestant("openmpi", "Open MPI", "openmpi", openmpi("openmpi", ["--mca", "pml", "ob1"])),
        Contestant("openmpi-ucx", "Open MPI + UCX", "openmpi", openmpi("openmpi-ucx", OPENMPI_UCX)),
        Contestant("mpich", "MPICH", "mpich", mpich({})),
        Contestant("burn-shared", "burn, one shared result †", "burn", burn("burn-shared", []), counts=False),
        Contestant("burn-owned", "burn, owned results", "burn", burn("burn-owned", ["--owned"])),
        Contestant("nexar", "nexar", "nexar", nexar),
    ]
    return peers + [us] + memory_limits(case)


def tcp_limits(case):
    if case.ranks != 2 or case.op != "all_reduce":
        return []
    limits = [
        limit_of("stream-1", "stream", ["--connections", "1"]),
        limit_of("stream-2", "stream", ["--connections", "2"]),
    ]
    if not case.congestion:
        # Any program may ask for reno on its own sockets (others the machine may restrict), so it is part of the limit.
        limits += [
            limit_of("stream-1-reno", "stream", ["--connections", "1", "--congestion", "reno"]),
            limit_of("stream-2-reno", "stream", ["--connections", "2", "--congestion", "reno"]),
        ]
    return limits + [limit_of("ping-pong", "ping_pong", sizes="8"), limit_of("wake", "wake")]


def memory_limits(case):
    if case.ranks != 2 or case.op != "all_reduce":
        return []
    return [
        limit_of("direct-threads", "direct_threads"),
        limit_of("direct-processes", "direct_processes"),
        limit_of("wake", "wake"),
    ]


def limit_of(name, op, extra=(), sizes=None):
    return Contestant(name, name, "limits", limit(name, op, extra, sizes), kind="limit")


def not_in_table(case):
    """Peers that have no way to take part, with the reason."""
    if case.link == "tcp":
        return {"burn": "its multi-node mode hangs at the second all_reduce (0.21)"}
    return {"Gloo (PyTorch)": "has no shared-memory transport; see the TCP table"}


def unsupported(contestant, case):
    name = contestant.name
    if name.startswith("burn") and case.op not in ("all_reduce", "broadcast"):
        return f"burn-collective has no {case.op}"
    return None


def why_absent(contestant, run):
    if contestant.kind == "hcomm":
        return None if os.access(run.hcomm, os.X_OK) else f"no executable at {display(run.hcomm)}"
    reason = BUILD / "absent" / contestant.needs
    if reason.exists():
        return reason.read_text().strip()
    built = {
        "openmpi": BUILD / "mpi_openmpi",
        "mpich": BUILD / "mpi_mpich",
        "torch": BUILD / "venv/bin/python",
        "burn": BUILD / "burn/release/burn-peer",
        "nexar": BUILD / "nexar/release/nexar-peer",
        "limits": BUILD / "limits",
    }[contestant.needs]
    return unsupported(contestant, run.case) or (None if built.exists() else "not built: run setup.sh first")


def display(path):
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(HERE.parent.parent))
    return path.name


# ---- running


class Failed(Exception):
    pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
            load = os.getloadavg()[0]
            for contestant in present:
                say(f"{case.title()}: repetition {rep} of {args.reps}: {contestant.name}")
                lines, problem = run_contestant(contestant, run, inside)
                result["lines"] += [line | {"rep": rep, "load_before": load} for line in lines]
                if problem:
                    result["problems"].append({"peer": contestant.name, "rep": rep, "what": problem})
                    say(f"  {contestant.name}: {problem}")
    return result


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- tables


def cells(result):
    """(contestant, bytes) -> median over repetitions; a contestant with a wrong element has no figure there."""
    values, wrong = {}, set()
    for line in result["lines"]:
        key = line["peer"], line["bytes"]
        values.setdefault(key, []).append(line["median_us"])
        if line.get("wrong", 0) != 0:
            wrong.add(key)
    medians = {key: statistics.median(found) for key, found in values.items() if key not in wrong}
    return medians, wrong


def table(result):
    case = Case(**result["case"])
    everyone = contestants(case)
    medians, wrong = cells(result)
    failed = {problem["peer"] for problem in result["problems"]}
    peers = [c for c in everyone if c.kind == "peer"]
    floor = [c for c in everyone if c.kind == "limit" and c.name.startswith(("stream", "direct"))]
    sizes = sorted({line["bytes"] for line in result["lines"] if line["peer"] not in ("wake", "ping-pong")})
    header = ["size", *(peer.title for peer in peers), "best peer", "hcomm", "best ÷ hcomm"]
    if floor:
        header += ["two-way stream" if case.link == "tcp" else "direct, 2 threads or processes", "hcomm's share of it"]
    rows = [header, ["---", *["--:"] * (len(header) - 1)]]
    for size in sizes:
        shown = [cell(peer, size, medians, wrong, failed, result) for peer in peers]
        counted = {p.title: medians[p.name, size] for p in peers if p.counts and (p.name, size) in medians}
        best = min(counted, key=counted.get, default=None)
        ours = medians.get(("hcomm", size))
        row = [size_text(size), *shown, f"{best} {number(counted[best])}" if best else "–"]
        row.append(cell(next(c for c in everyone if c.kind == "hcomm"), size, medians, wrong, failed, result))
        row.append(f"{counted[best] / ours:.2f}×" if best and ours else "–")
        if floor:
            bound = min((medians[c.name, size] for c in floor if (c.name, size) in medians), default=None)
            row.append(number(bound) if bound else "–")
            row.append(f"{100 * bound / ours:.0f} %" if bound and ours else "–")
        rows.append(row)
    text = [f"### {case.title()}", "", *("| " + " | ".join(row) + " |" for row in rows), ""]
    return "\n".join(text + notes(result, medians, wrong))


def cell(contestant, size, medians, wrong, failed, result):
    if (contestant.name, size) in wrong:
        return "wrong"
    if (contestant.name, size) in medians:
        return number(medians[contestant.name, size])
    if contestant.title in result["absent"]:
        return "absent"
    return "failed" if contestant.name in failed else "–"


def notes(result, medians, wrong):
    text = ["µs, at rank 0, median over repetitions of the medians of the runs."]
    if result["case"]["link"] == "memory":
        text.append("† one addition and no copy per rank: not an in-place all_reduce, so never the best peer.")
    for name, label in [("ping-pong", "TCP round trip of 8 B, spinning"), ("wake", "waking another core, one way")]:
        if (name, 8) in medians:
            text.append(f"{label}: {number(medians[name, 8])} µs.")
    text += [f"Absent: {name}: {reason}." for name, reason in sorted(result["absent"].items())]
    text += [f"Wrong result: {peer} at {size_text(size)}." for peer, size in sorted(wrong)]
    seen = sorted({(problem["peer"], problem["what"]) for problem in result["problems"]})
    text += [f"Failed: {peer}: {what}" for peer, what in seen]
    return [line + "  " for line in text] + [""]


def number(value):
    if value >= 10_000:
        return f"{float(f'{value:.3g}'):,.0f}".replace(",", " ")
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}".replace(",", " ")


def size_text(size):
    for unit, factor in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]:
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


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


def document(report):
    about = report["machine"]
    head = (
        f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']}, default congestion control "
        f"{about['congestion']}; {report['reps']} interleaved repetitions of {report['seconds']} s a point."
    )
    text = [head, "", *(table(result) for result in report["results"])]
    return "\n".join(text + [f"Skipped: {reason}." for reason in report["skipped"]])


# ---- command line


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: few sizes, one short repetition")
    parser.add_argument("--all", action="store_true", help="the tables of the README, instead of one")
    parser.add_argument("--op", default="all_reduce", help="all_reduce, broadcast, all_gather, reduce_scatter, send_recv")
    parser.add_argument("--link", choices=["tcp", "memory"], default="tcp")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--touch", action="store_true", help="each rank rewrites its buffer between operations, untimed")
    parser.add_argument("--netns", action="store_true", help="TCP like with like, in a network namespace (root)")
    parser.add_argument("--congestion", default="reno", help="congestion control of that namespace; default reno, "
                        "which no machine restricts")
    parser.add_argument("--sizes", help=f"bytes, with K, M or G; default {SIZES}")
    parser.add_argument("--seconds", type=float, help="time per size and run; default 0.4")
    parser.add_argument("--reps", type=int, help="interleaved repetitions; default 5")
    parser.add_argument("--hcomm", type=Path, default=DEFAULT_HCOMM, help="the hcomm command")
    parser.add_argument("--hcomm-args", default="", help="further arguments of `hcomm bench`, separated by spaces")
    parser.add_argument("--out", type=Path, help="also write every line measured to this file")
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
        Case("memory", 2, args.op, False, None),
        Case("memory", 2, args.op, True, None),
        Case("memory", 4, args.op, False, None),
    ]


def main():
    args = parse_args()
    if args.table:
        print(document(json.loads(args.table.read_text())))
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
    print(document(report))


if __name__ == "__main__":
    main()
