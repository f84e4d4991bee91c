//! Programs that launchers start join by themselves: `mpirun` of Open MPI and `mpiexec` of MPICH where they are installed, and
//! processes that are given what `srun` and Kubernetes give.

mod common;

use std::process::{Command, Output, Stdio};

use common::GENEROUS;
use common::processes::{SCENARIO, own, own_by, say};
use hcomm::{Builder, Communicator, ReduceOp};

const OPEN_MPI: [&str; 3] = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"];
const MPICH: [&str; 1] = ["mpiexec.mpich"];

/// Sums up, and says what came out; nothing in the test run itself. Each job has a number in the variable.
#[test]
fn child() {
    let Ok(job) = std::env::var(SCENARIO) else { return };
    let joined = Builder::from_env().and_then(|builder| {
        builder.rendezvous_deadline(GENEROUS).operation_deadline(GENEROUS).connect_blocking()
    });
    match joined {
        Ok(mut comm) => {
            let sum = sum(&mut comm, job.parse().unwrap());
            say(&format!("job {job} rank {} of {}: {sum}", comm.rank().0, comm.size()));
            hcomm::blocking::close(comm).unwrap();
        }
        Err(error) => say(&format!("not joined: {error}")),
    }
    // Before the harness prints between other ranks' lines.
    std::process::exit(0);
}

/// Of all ranks' 100 × job + rank.
fn sum(comm: &mut Communicator, job: u64) -> u64 {
    let mine = vec![100 * job + u64::from(comm.rank().0); 1000];
    let sums = comm.all_reduce(mine, ReduceOp::Sum).wait().unwrap();
    assert!(sums.iter().all(|sum| *sum == sums[0]));
    sums[0]
}

/// What the ranks of a job say, in order.
fn right(job: u64, n: u64) -> Vec<String> {
    let sum = (0..n).map(|rank| 100 * job + rank).sum::<u64>();
    (0..n).map(|rank| format!("job {job} rank {rank} of {n}: {sum}")).collect()
}

fn said(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<String> =
        text.lines().filter_map(|line| line.strip_prefix("> ")).map(Into::into).collect();
    lines.sort();
    assert!(!lines.is_empty(), "{output:?}");
    lines
}

/// As outside of any launcher.
fn child_of(command: Command, job: u64) -> Command {
    let mut command = clean(command);
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(SCENARIO, job.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Without what launchers set.
fn clean(mut command: Command) -> Command {
    const OF_LAUNCHERS: [&str; 9] =
        ["OMPI_", "PMIX_", "PMI_", "MPI_", "SLURM_", "TORCHELASTIC_", "MASTER_", "HCOMM_", "JOB_"];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_rank = ["RANK", "WORLD_SIZE", "LOCAL_RANK"].contains(&&*text);
        if is_rank || OF_LAUNCHERS.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
}

/// This program by the launcher, unless that is not installed; `before` stands between launcher and program.
fn by(launcher: &[&str], n: u64, before: &[&str], job: u64) -> Option<Command> {
    let asked = Command::new(launcher[0]).arg("--version").output();
    if asked.is_err() {
        say(&format!("skipped: {} is not installed", launcher[0]));
        return None;
    }
    let n = n.to_string();
    Some(child_of(own_by(&[launcher, &["-n", &n], before].concat()), job))
}

/// What came of these, all started at once; nothing if the launcher is not installed.
fn ended(start: impl Fn() -> Option<Vec<Command>>) -> Option<Vec<Output>> {
    /// Two `mpirun` that make the directory for all sessions of a user at the same time end with an error, before they start
    /// a rank, about once in a hundred.
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        let children: Vec<_> = start()?.iter_mut().map(|command| command.spawn().unwrap()).collect();
        let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        let unstarted = |output: &Output| {
            output.stdout.is_empty() && String::from_utf8_lossy(&output.stderr).contains("File exists")
        };
        if !outputs.iter().any(unstarted) {
            return Some(outputs);
        }
    }
    panic!("the launcher's sessions always get into each other's way");
}

/// Two jobs at once, whose ranks must not meet each other.
fn jobs_of(launcher: &[&str]) {
    let start = || Some(vec![by(launcher, 3, &[], 1)?, by(launcher, 2, &[], 2)?]);
    let Some(outputs) = ended(start) else { return };
    assert_eq!(said(&outputs[0]), right(1, 3), "{outputs:?}");
    assert_eq!(said(&outputs[1]), right(2, 2), "{outputs:?}");
}

/// A script between launcher and ranks is their parent.
fn job_by_script(launcher: &[&str]) {
    let script = ["sh", "-c", "\"$0\" \"$@\"; exit $?"];
    let Some(outputs) = ended(|| Some(vec![by(launcher, 2, &script, 3)?])) else { return };
    assert_eq!(said(&outputs[0]), right(3, 2), "{outputs:?}");
}

/// Left over in a shell, these would make each process a world of its own.
fn left_over(launcher: &[&str], name: &str) {
    let start = || {
        let mut command = by(launcher, 2, &[], 4)?;
        command.env("RANK", "0").env("WORLD_SIZE", "1");
        Some(vec![command])
    };
    let Some(outputs) = ended(start) else { return };
    let said = said(&outputs[0]);
    assert_eq!(said.len(), 2, "{outputs:?}");
    for (rank, line) in said.iter().enumerate() {
        assert!(line.contains("RANK=0, WORLD_SIZE=1 contradicts"), "{line}");
        assert!(line.contains(&format!("{name}={rank}")), "{line}");
    }
}

#[test]
fn jobs_of_open_mpi() {
    jobs_of(&OPEN_MPI);
}

#[test]
fn a_job_of_open_mpi_by_a_script() {
    job_by_script(&OPEN_MPI);
}

#[test]
fn variables_that_open_mpi_contradicts() {
    left_over(&OPEN_MPI, "OMPI_COMM_WORLD_RANK");
}

#[test]
fn jobs_of_mpich() {
    jobs_of(&MPICH);
}

#[test]
fn a_job_of_mpich_by_a_script() {
    job_by_script(&MPICH);
}

#[test]
fn variables_that_mpich_contradicts() {
    left_over(&MPICH, "PMI_RANK");
}

/// `hcomm bench` is one rank of the launcher's world, instead of a world of its own in each process; and where that is one rank, it
/// starts as many as it is asked for.
#[cfg(feature = "cli")]
fn bench_of(launcher: &[&str]) {
    let bench = |n: u64, more: &'static [&str]| {
        let arguments = ["bench", "all_reduce", "-e", "64", "--iters", "7"];
        let outputs = ended(|| {
            by(launcher, n, &[], 0)?;
            let mut command = clean(Command::new(launcher[0]));
            command.args(&launcher[1..]).args(["-n", &n.to_string(), env!("CARGO_BIN_EXE_hcomm")]);
            command.args(arguments).args(more);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            Some(vec![command])
        });
        outputs.map(|mut outputs| outputs.remove(0))
    };
    for (n, more, ranks) in [(3, &[][..], 3), (2, &["-n", "2"], 2), (1, &["-n", "2"], 2), (1, &[], 1)] {
        let Some(output) = bench(n, more) else { return };
        let text = String::from_utf8_lossy(&output.stdout);
        let head = format!(" {ranks} rank{}, link ", if ranks == 1 { "" } else { "s" });
        assert!(output.status.success() && text.contains(&head), "{output:?}");
        assert_eq!(text.matches("# hcomm ").count(), 1, "{output:?}");
        assert_eq!(text.matches("# 0 wrong").count(), 1, "{output:?}");
    }
    for more in [&["-n", "3"], &["--link", "memory"]] {
        let Some(output) = bench(2, more) else { return };
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains("the launcher has started 2 ranks"), "{output:?}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("# hcomm "), "{output:?}");
    }
}

#[cfg(feature = "cli")]
#[test]
fn the_benchmark_by_open_mpi() {
    bench_of(&OPEN_MPI);
}

#[cfg(feature = "cli")]
#[test]
fn the_benchmark_by_mpich() {
    bench_of(&MPICH);
}

/// Starts each rank with these variables, of which `@` is the rank.
fn ranks_with(n: u64, job: u64, variables: &str) -> Vec<String> {
    let start = |rank: u64| {
        let mut command = child_of(own(), job);
        for word in variables.split_whitespace() {
            let (name, value) = word.split_once('=').unwrap();
            command.env(name, value.replace('@', &rank.to_string()));
        }
        command.spawn().unwrap()
    };
    let ranks: Vec<_> = (0..n).map(start).collect();
    ranks.into_iter().flat_map(|rank| said(&rank.wait_with_output().unwrap())).collect()
}

#[test]
fn steps_of_slurm_on_one_node() {
    // As the processes' numbers, so that tests beside this one have other ports.
    let number = std::process::id();
    let step = |step: u32| {
        format!(
            "SLURM_JOB_ID={number} SLURM_STEP_ID={step} SLURM_PROCID=@ SLURM_LOCALID=@ SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2
             SLURM_GTIDS=0,1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=no-such-node7"
        )
    };
    let other = step(1);
    let beside = std::thread::spawn(move || ranks_with(2, 6, &other));
    assert_eq!(ranks_with(2, 5, &step(0)), right(5, 2));
    assert_eq!(beside.join().unwrap(), right(6, 2));
}

#[test]
fn tasks_of_slurm_on_two_nodes_need_a_token() {
    let variables = "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=@ SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2
        SLURM_GTIDS=@ SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=192.0.2.[77-78]";
    for line in ranks_with(2, 7, variables) {
        assert!(line.contains("192.0.2.77:") && line.contains("before srun, which passes it on"), "{line}");
    }
}

#[test]
fn pods_of_an_indexed_job() {
    let port = 20_000 + std::process::id() % 10_000;
    let variables = format!("JOB_COMPLETION_INDEX=@ WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}");
    assert_eq!(ranks_with(2, 8, &variables), right(8, 2));
}
