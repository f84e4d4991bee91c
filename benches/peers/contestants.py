"""Who is measured: hcomm, its peers and the machine's limits, with the command lines that start them."""

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE / "build"


@dataclass(frozen=True)
class Case:
    """One table: who is in it follows from the link and the number of ranks."""

    link: str
    ranks: int
    op: str
    touch: bool
    congestion: str | None  # of the namespace, the same for all; None = as the machine is

    def title(self):
        link = {"tcp": "TCP loopback", "memory": "memory (one host)", "shm": "shared memory (processes)"}[self.link]
        parts = [f"{self.op}, f32 sum" if "reduce" in self.op or "scan" in self.op else f"{self.op}, f32", link, f"{self.ranks} ranks"]
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
        # To the drivers of peers, one host is one link.
        link = "tcp" if self.case.link == "tcp" else "memory"
        flags = ["--peer", peer, "--link", link, "--op", op or self.case.op]
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
    kind: str = "peer"  # peer, limit, hcomm, copied or prepared
    counts: bool = True  # whether it can be "best peer"
    at_once: bool = False  # one start per repetition for all sizes: for those that are slow to start


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


def hcomm(extra=()):
    def launches(run):
        found = []
        for size in run.sizes:
            report = run.scratch / f"hcomm-{size}.json"
            report.unlink(missing_ok=True)
            command = [str(run.hcomm), "bench", run.case.op, "-n", str(run.case.ranks)]
            command += ["-b", str(size), "-e", str(size), "--seconds", str(run.seconds)]
            command += ["--link", run.case.link, "--json", str(report)] + ["--touch"] * run.case.touch
            command += ["--into"] * (run.case.op in INTO)
            command += [*extra, *run.hcomm_args]
            found.append(Launch([command], reads=[report]))
        return found

    return launches


def limit(name, op, extra=(), sizes=None):
    def launches(run):
        command = [str(BUILD / "limits"), *run.flags(name, op)]
        # A later flag overrides an earlier one.
        command += ["--sizes", sizes] if sizes else []
        return [Launch([command + list(extra)])]

    return launches


# What peers do from one buffer to another.
INTO = ("reduce", "gather", "scatter", "all_to_all", "scan", "exscan")
OPENMPI_TCP = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
# Without naming them "any", Open MPI leaves UCX aside unless it sees a fast network card.
OPENMPI_UCX = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]
# Debian's MPICH is built on UCX; NOLOCAL keeps its own shared memory out as well.
MPICH_TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo", "MPIR_CVAR_NOLOCAL": "1"}


def contestants(case):
    us = [Contestant("hcomm", "hcomm", "hcomm", hcomm(), kind="hcomm")]
    if case.link == "tcp":
        peers = [
            Contestant("openmpi", "Open MPI", "openmpi", openmpi("openmpi", OPENMPI_TCP)),
            Contestant("mpich", "MPICH", "mpich", mpich(MPICH_TCP)),
            Contestant("gloo", "Gloo (PyTorch)", "torch", gloo, at_once=True),
            Contestant("nexar", "nexar", "nexar", nexar),
        ]
        return peers + us + tcp_limits(case)
    peers = [
        Contestant("openmpi", "Open MPI", "openmpi", openmpi("openmpi", ["--mca", "pml", "ob1"])),
        Contestant("openmpi-ucx", "Open MPI + UCX", "openmpi", openmpi("openmpi-ucx", OPENMPI_UCX)),
        Contestant("mpich", "MPICH", "mpich", mpich({})),
    ]
    threads = [
        Contestant("burn-shared", "burn, one shared result †", "burn", burn("burn-shared", []), counts=False),
        Contestant("burn-owned", "burn, owned results", "burn", burn("burn-owned", ["--owned"])),
        Contestant("nexar", "nexar", "nexar", nexar),
    ]
    if case.link == "memory":
        peers += threads
    if case.op == "all_reduce":
        prepared = hcomm(["--prepared"])
        if case.link == "shm":
            copied = hcomm(["--buffer", "vec"])
            us.append(Contestant("hcomm-vec", "hcomm, from a Vec", "hcomm", copied, kind="copied"))
        us.append(Contestant("hcomm-prepared", "hcomm, prepared", "hcomm", prepared, kind="prepared"))
    return peers + us + memory_limits(case)


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
    return limits + [limit_of("ping-pong", "ping_pong", sizes="8"), limit_of("wake", "wake", sizes="8")]


def memory_limits(case):
    if case.ranks != 2 or case.op != "all_reduce":
        return []
    threads = [limit_of("direct-threads", "direct_threads")] if case.link == "memory" else []
    pull = [limit_of("pull-processes", "pull_processes")] if case.link == "shm" else []
    return threads + pull + [
        limit_of("direct-processes", "direct_processes"),
        limit_of("wake", "wake", sizes="8"),
    ]


def limit_of(name, op, extra=(), sizes=None):
    # Those with a size of their own are the same in every row.
    return Contestant(name, name, "limits", limit(name, op, extra, sizes), kind="limit", at_once=sizes is not None)


def not_in_table(case):
    """Peers that have no way to take part, with the reason."""
    if case.link == "tcp":
        return {"burn": "its multi-node mode hangs at the second all_reduce (0.21)"}
    return {"Gloo (PyTorch)": "has no shared-memory transport; see the TCP table"}


def unsupported(contestant, case):
    name = contestant.name
    if name.startswith("burn") and case.op not in ("all_reduce", "broadcast"):
        return f"burn-collective has no {case.op}"
    if name == "nexar" and case.op in INTO:
        return "its driver here has no such operation"
    if name == "gloo" and case.op in ("scan", "exscan"):
        return f"torch.distributed has no {case.op}"
    return None


def why_absent(contestant, run):
    if contestant.needs == "hcomm":
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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def display(path):
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(HERE.parent.parent))
    return path.name
