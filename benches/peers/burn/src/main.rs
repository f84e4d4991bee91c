//! Drives burn-collective: ranks are threads of one process, as its local mode has it.
//!
//! Flags are those of `bench.h`, plus `--ranks N`, `--strategy central|tree|ring` and `--owned`. burn hands all ranks
//! one reference-counted result; `--owned` asks each rank for data of its own, which is what an in-place operation
//! gives, and is the figure to compare with one. Burn's tensors are immutable, so `--touch` makes each rank's input
//! afresh, untimed.

#[path = "../../common.rs"]
mod common;

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

use burn_backend::ops::FloatTensorOps;
use burn_backend::{BackendTypes, TensorData, TensorMetadata};
use burn_collective::{
    AllReduceStrategy, BroadcastStrategy, CollectiveConfig, PeerId, ReduceOperation, all_reduce, broadcast,
    finish_collective, register,
};
use burn_flex::Flex;

use common::{fitting, parse_size, process_cpu_us, typical_us};

type Tensor = <Flex as BackendTypes>::FloatTensorPrimitive;

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
    strategy: String,
    sizes: Vec<usize>,
    ranks: usize,
    seconds: f64,
    touch: bool,
    owned: bool,
}

fn main() {
    let options = Options::from_args();
    let world = Arc::new(World {
        barrier: Barrier::new(options.ranks),
        agreed: AtomicUsize::new(0),
        wrong: AtomicUsize::new(0),
        ends_us: Mutex::new(Vec::new()),
        epoch: Instant::now(),
    });
    let threads: Vec<_> = (0..options.ranks)
        .map(|rank| {
            let (options, world) = (options.clone(), world.clone());
            std::thread::spawn(move || rank_main(&options, &world, rank))
        })
        .collect();
    for thread in threads {
        thread.join().expect("a rank panicked");
    }
}

impl Options {
    fn from_args() -> Self {
        let mut options = Options {
            peer: "burn".into(),
            link: "memory".into(),
            op: "all_reduce".into(),
            strategy: "central".into(),
            sizes: vec![8],
            ranks: 2,
            seconds: 0.4,
            touch: false,
            owned: false,
        };
        let mut args = std::env::args().skip(1);
        while let Some(flag) = args.next() {
            let mut value = || args.next().unwrap_or_else(|| panic!("{flag} needs a value"));
            match flag.as_str() {
                "--touch" => options.touch = true,
                "--owned" => options.owned = true,
                "--peer" => options.peer = value(),
                "--link" => options.link = value(),
                "--op" => options.op = value(),
                "--strategy" => options.strategy = value(),
                "--sizes" => options.sizes = value().split(',').map(parse_size).collect(),
                "--ranks" => options.ranks = value().parse().expect("--ranks takes a number"),
                "--seconds" => options.seconds = value().parse().expect("--seconds takes a number"),
                _ => panic!("unknown flag {flag}"),
            }
        }
        options
    }

    fn config(&self) -> CollectiveConfig {
        let (reduce, cast) = match self.strategy.as_str() {
            "central" => (AllReduceStrategy::Centralized, BroadcastStrategy::Centralized),
            "tree" => (AllReduceStrategy::Tree(2), BroadcastStrategy::Tree(2)),
            "ring" => (AllReduceStrategy::Ring, BroadcastStrategy::Centralized),
            other => panic!("unknown strategy {other}"),
        };
        CollectiveConfig::default()
            .with_num_devices(self.ranks)
            .with_local_all_reduce_strategy(reduce)
            .with_local_broadcast_strategy(cast)
    }
}

struct World {
    barrier: Barrier,
    agreed: AtomicUsize,
    wrong: AtomicUsize,
    ends_us: Mutex<Vec<Vec<f64>>>,
    epoch: Instant,
}

struct Rank<'a> {
    options: &'a Options,
    world: &'a World,
    rank: usize,
    runtime: tokio::runtime::Runtime,
}

fn rank_main(options: &Options, world: &World, rank: usize) {
    let id = PeerId(rank as u32);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    register::<Flex>(id, Default::default(), options.config()).expect("registering a rank");
    let this = Rank { options, world, rank, runtime };
    for &bytes in &options.sizes {
        this.measure(bytes);
    }
    finish_collective::<Flex>(id).expect("leaving the collective");
}

impl Rank<'_> {
    fn measure(&self, bytes: usize) {
        let count = (bytes / size_of::<f32>()).max(1);
        self.check(count);
        let mut input = tensor(vec![0.0; count]);
        let seconds = self.options.seconds;
        let warm = self.agree(fitting(seconds * 0.25, self.estimate_us(&input, PROBES), PROBES, WARM_UPS_MAX));
        let runs =
            self.agree(fitting(seconds, self.estimate_us(&input, warm), ITERATIONS_MIN, ITERATIONS_MAX));
        let (mut starts_us, mut ends_us) = (vec![0.0; runs], vec![0.0; runs]);
        let cpu = process_cpu_us();
        for (start, end) in starts_us.iter_mut().zip(&mut ends_us) {
            if self.options.touch {
                input = tensor(vec![1.0; count]);
            }
            if self.options.touch || self.ends_at_last_rank() {
                self.world.barrier.wait();
            }
            *start = self.now_us();
            self.run(&input);
            *end = self.now_us();
        }
        let cpu = (process_cpu_us() - cpu) / runs as f64;
        self.report(bytes, &starts_us, ends_us, cpu);
    }

    /// A root may return before anyone has the data.
    fn ends_at_last_rank(&self) -> bool {
        self.options.op == "broadcast"
    }

    fn run(&self, input: &Tensor) {
        let result = self.collective(input.clone());
        if self.options.owned {
            black_box(self.data(result));
        } else {
            black_box(result.shape());
        }
    }

    fn collective(&self, input: Tensor) -> Tensor {
        let id = PeerId(self.rank as u32);
        match self.options.op.as_str() {
            "all_reduce" => all_reduce::<Flex>(id, input, ReduceOperation::Sum).expect("all_reduce"),
            "broadcast" => broadcast::<Flex>(id, (self.rank == 0).then_some(input)).expect("broadcast"),
            other => panic!("burn-collective has no {other} for this driver"),
        }
    }

    fn data(&self, tensor: Tensor) -> Vec<f32> {
        let data = self.runtime.block_on(Flex::float_into_data(tensor)).expect("reading a tensor");
        data.to_vec().expect("a tensor of f32")
    }

    fn check(&self, count: usize) {
        let ranks = self.options.ranks;
        let mine: Vec<f32> = (0..count).map(|i| (self.rank + 1) as f32 + (i % PATTERN_PERIOD) as f32).collect();
        let result = self.data(self.collective(tensor(mine)));
        let expected = |i: usize| match self.options.op.as_str() {
            "broadcast" => 1.0 + (i % PATTERN_PERIOD) as f32,
            _ => (ranks * (ranks + 1) / 2) as f32 + (ranks * (i % PATTERN_PERIOD)) as f32,
        };
        let wrong = (0..count).filter(|&i| result.get(i) != Some(&expected(i))).count();
        self.world.wrong.fetch_add(wrong, Ordering::SeqCst);
    }

    fn estimate_us(&self, input: &Tensor, runs: usize) -> f64 {
        self.world.barrier.wait();
        let samples_us = (0..runs).map(|_| {
            let start = self.now_us();
            self.run(input);
            self.now_us() - start
        });
        typical_us(samples_us.collect())
    }

    /// Rank 0 decides, all go on with its value.
    fn agree(&self, value: usize) -> usize {
        if self.rank == 0 {
            self.world.agreed.store(value, Ordering::SeqCst);
        }
        self.world.barrier.wait();
        let agreed = self.world.agreed.load(Ordering::SeqCst);
        self.world.barrier.wait();
        agreed
    }

    fn now_us(&self) -> f64 {
        self.world.epoch.elapsed().as_secs_f64() * 1e6
    }

    fn report(&self, bytes: usize, starts_us: &[f64], ends_us: Vec<f64>, cpu_us: f64) {
        let mut finish_us = ends_us.clone();
        self.world.ends_us.lock().expect("no rank panicked").push(ends_us);
        self.world.barrier.wait();
        if self.rank == 0 {
            let all = std::mem::take(&mut *self.world.ends_us.lock().expect("no rank panicked"));
            if self.ends_at_last_rank() {
                for (i, end) in finish_us.iter_mut().enumerate() {
                    *end = all.iter().map(|ends| ends[i]).fold(*end, f64::max);
                }
            }
            let wrong = self.world.wrong.swap(0, Ordering::SeqCst);
            let samples_us = finish_us.iter().zip(starts_us).map(|(end, start)| end - start).collect();
            print_line(self.options, bytes, samples_us, cpu_us, wrong);
        }
        self.world.barrier.wait();
    }
}

fn tensor(values: Vec<f32>) -> Tensor {
    let count = values.len();
    Flex::float_from_data(TensorData::new(values, [count]), &Default::default())
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
