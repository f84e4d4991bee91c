//! Drives nexar: one process per rank (`--rank R --seed ADDRESS`), or all ranks as tasks of one runtime (neither).
//!
//! Flags are those of `bench.h`, plus `--ranks N`. Nexar's `reduce_scatter` returns the slice of the next rank; the
//! work is the same, so that slice is accepted and the operation measured.

#[path = "../../common.rs"]
mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nexar::{ClusterConfig, CpuAdapter, DataType, NexarClient, ReduceOp};

use common::{fitting, parse_size, process_cpu_us, typical_us};

const PROBES: usize = 3;
const WARM_UPS_MAX: usize = 200;
const ITERATIONS_MIN: usize = 7;
const ITERATIONS_MAX: usize = 100_000;
const PATTERN_PERIOD: usize = 8191;

#[derive(Clone)]
struct Options {
    peer: String,
    link: String,
    op: String,
    sizes: Vec<usize>,
    ranks: usize,
    seconds: f64,
    touch: bool,
    process: Option<(u32, SocketAddr)>,
}

#[tokio::main]
async fn main() {
    let options = Options::from_args();
    let adapter = Arc::new(CpuAdapter::new());
    let Some((rank, seed)) = options.process else {
        let clients = NexarClient::bootstrap_local(options.ranks as u32, adapter).await.expect("local ranks");
        let tasks: Vec<_> =
            clients.into_iter().map(|client| tokio::spawn(rank_main(options.clone(), client))).collect();
        // No client may go before the last rank has left its last barrier.
        let mut finished = Vec::new();
        for task in tasks {
            finished.push(task.await.expect("a rank panicked"));
        }
        std::process::exit(0);
    };
    let config = ClusterConfig::new(options.ranks as u32)
        .with_bind_addr(SocketAddr::new(seed.ip(), 0))
        .with_requested_rank(rank);
    let client = match rank {
        0 => NexarClient::bootstrap_seed(seed, &config, adapter).await,
        _ => NexarClient::bootstrap_join(seed, &config, adapter).await,
    };
    let _client = rank_main(options, client.expect("joining the cluster")).await;
    // The others may still be in the last barrier.
    tokio::time::sleep(Duration::from_millis(100)).await;
    std::process::exit(0);
}

impl Options {
    fn from_args() -> Self {
        let mut options = Options {
            peer: "nexar".into(),
            link: "memory".into(),
            op: "all_reduce".into(),
            sizes: vec![8],
            ranks: 2,
            seconds: 0.4,
            touch: false,
            process: None,
        };
        let (mut rank, mut seed) = (None, None);
        let mut args = std::env::args().skip(1);
        while let Some(flag) = args.next() {
            let mut value = || args.next().unwrap_or_else(|| panic!("{flag} needs a value"));
            match flag.as_str() {
                "--touch" => options.touch = true,
                "--peer" => options.peer = value(),
                "--link" => options.link = value(),
                "--op" => options.op = value(),
                "--sizes" => options.sizes = value().split(',').map(parse_size).collect(),
                "--ranks" => options.ranks = value().parse().expect("--ranks takes a number"),
                "--seconds" => options.seconds = value().parse().expect("--seconds takes a number"),
                "--rank" => rank = Some(value().parse().expect("--rank takes a number")),
                "--seed" => seed = Some(value().parse().expect("--seed takes an address")),
                _ => panic!("unknown flag {flag}"),
            }
        }
        options.process = rank.zip(seed);
        options
    }
}

/// One rank with its two buffers; `input` is the one of the in-place operations.
struct Rank {
    options: Options,
    client: NexarClient,
    rank: usize,
    input: Vec<f32>,
    output: Vec<f32>,
}

async fn rank_main(options: Options, client: NexarClient) -> NexarClient {
    let rank = client.rank() as usize;
    let sizes = options.sizes.clone();
    let mut this = Rank { options, client, rank, input: Vec::new(), output: Vec::new() };
    for bytes in sizes {
        let count = bytes / size_of::<f32>();
        (this.input, this.output) = (vec![0.0; count], vec![0.0; count]);
        this.measure(bytes).await;
    }
    this.client.barrier().await.expect("barrier");
    this.client
}

impl Rank {
    async fn measure(&mut self, bytes: usize) {
        let wrong = self.check().await;
        let seconds = self.options.seconds;
        let probe_us = self.estimate_us(PROBES).await;
        let warm = self.agree(fitting(seconds * 0.25, probe_us, PROBES, WARM_UPS_MAX)).await;
        let typical_us = self.estimate_us(warm).await;
        let runs = self.agree(fitting(seconds, typical_us, ITERATIONS_MIN, ITERATIONS_MAX)).await;
        let (mut starts_us, mut ends_us) = (vec![0.0; runs], vec![0.0; runs]);
        self.client.barrier().await.expect("barrier");
        let cpu = process_cpu_us();
        for (start, end) in starts_us.iter_mut().zip(&mut ends_us) {
            if self.options.touch {
                self.input.fill(1.0);
            }
            if self.options.touch || self.ends_at_last_rank() {
                self.client.barrier().await.expect("barrier");
            }
            *start = now_us();
            self.run().await;
            *end = now_us();
        }
        let cpu = (process_cpu_us() - cpu) / runs as f64 / self.ops_per_run();
        let cpu = if self.options.process.is_some() { self.sum(cpu).await } else { cpu };
        if self.ends_at_last_rank() {
            self.reduce(&mut ends_us, ReduceOp::Max).await;
        }
        if self.rank == 0 {
            let ops = self.ops_per_run();
            let samples_us = ends_us.iter().zip(&starts_us).map(|(end, start)| (end - start) / ops).collect();
            print_line(&self.options, bytes, samples_us, cpu, wrong);
        }
    }

    /// A root may return before anyone has the data.
    fn ends_at_last_rank(&self) -> bool {
        self.options.op == "broadcast"
    }

    fn ops_per_run(&self) -> f64 {
        if self.options.op == "send_recv" { 2.0 } else { 1.0 }
    }

    async fn run(&mut self) {
        let (count, part) = (self.input.len(), self.input.len() / self.options.ranks);
        let (input, output) = (self.input.as_mut_ptr() as u64, self.output.as_mut_ptr() as u64);
        let (client, bytes) = (&self.client, count * size_of::<f32>());
        // SAFETY: both buffers hold `count` elements of f32, outlive the call and are used by nobody else meanwhile.
        let result = unsafe {
            match (self.options.op.as_str(), self.rank) {
                ("all_reduce", _) => client.all_reduce(input, count, DataType::F32, ReduceOp::Sum).await,
                ("broadcast", _) => client.broadcast(input, count, DataType::F32, 0).await,
                ("all_gather", _) => client.all_gather(input, output, part, DataType::F32).await,
                ("reduce_scatter", _) => {
                    client.reduce_scatter(input, output, part, DataType::F32, ReduceOp::Sum).await
                }
                ("send_recv", 0) => match client.send(input, bytes, 1, 1).await {
                    Ok(()) => client.recv(input, bytes, 1, 2).await,
                    error => error,
                },
                ("send_recv", 1) => match client.recv(input, bytes, 0, 1).await {
                    Ok(()) => client.send(input, bytes, 0, 2).await,
                    error => error,
                },
                ("send_recv", _) => Ok(()),
                (other, _) => panic!("nexar has no {other} for this driver"),
            }
        };
        result.expect("the operation");
    }

    /// Elements that differ from the pattern, over all ranks.
    async fn check(&mut self) -> usize {
        let rank = self.rank;
        for (i, element) in self.input.iter_mut().enumerate() {
            *element = pattern(rank, i);
        }
        self.run().await;
        let (ranks, count) = (self.options.ranks, self.input.len());
        let part = count / ranks;
        let wrong = match self.options.op.as_str() {
            "all_reduce" => (0..count).filter(|&i| self.input[i] != pattern_sum(ranks, i)).count(),
            "all_gather" => {
                (0..part * ranks).filter(|&i| self.output[i] != pattern(i / part, i % part)).count()
            }
            "reduce_scatter" => {
                let from = (rank + 1) % ranks * part;
                (0..part).filter(|&i| self.output[i] != pattern_sum(ranks, from + i)).count()
            }
            "send_recv" if rank > 1 => 0,
            _ => (0..count).filter(|&i| self.input[i] != pattern(0, i)).count(),
        };
        self.input.fill(0.0);
        self.sum(wrong as f64).await as usize
    }

    async fn estimate_us(&mut self, runs: usize) -> f64 {
        self.client.barrier().await.expect("barrier");
        let mut samples_us = Vec::with_capacity(runs);
        for _ in 0..runs {
            let start = now_us();
            self.run().await;
            samples_us.push(now_us() - start);
        }
        typical_us(samples_us)
    }

    /// Rank 0 decides, all go on with its value.
    async fn agree(&self, value: usize) -> usize {
        self.sum(if self.rank == 0 { value as f64 } else { 0.0 }).await as usize
    }

    async fn sum(&self, value: f64) -> f64 {
        let mut values = [value; 2];
        self.reduce(&mut values, ReduceOp::Sum).await;
        values[0]
    }

    async fn reduce(&self, values: &mut [f64], op: ReduceOp) {
        let (pointer, count) = (values.as_mut_ptr() as u64, values.len());
        // SAFETY: `values` holds `count` elements of f64 and is borrowed for the whole call.
        unsafe { self.client.all_reduce(pointer, count, DataType::F64, op).await }.expect("all_reduce of f64");
    }
}

fn pattern(rank: usize, index: usize) -> f32 {
    (rank + 1) as f32 + (index % PATTERN_PERIOD) as f32
}

fn pattern_sum(ranks: usize, index: usize) -> f32 {
    (ranks * (ranks + 1) / 2) as f32 + (ranks * (index % PATTERN_PERIOD)) as f32
}

/// One clock for all processes of a host.
fn now_us() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes only into `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 * 1e-3
}

fn print_line(options: &Options, bytes: usize, mut samples_us: Vec<f64>, cpu_us: f64, wrong: usize) {
    samples_us.sort_by(f64::total_cmp);
    let iters = samples_us.len();
    let (median, p99) = (samples_us[iters / 2], samples_us[(iters * 99 / 100).min(iters - 1)]);
    let Options { peer, link, op, ranks, touch, .. } = options;
    println!(
        r#"{{"peer":"{peer}","link":"{link}","op":"{op}","ranks":{ranks},"bytes":{bytes},"median_us":{median:.3},"p99_us":{p99:.3},"iters":{iters},"cpu_us_per_op":{cpu_us:.3},"wrong":{wrong},"touch":{touch}}}"#
    );
}
