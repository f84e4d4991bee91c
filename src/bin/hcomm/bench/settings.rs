//! What is measured, from the arguments.

use std::path::PathBuf;
use std::time::Duration;

use hcomm::path::Algorithm;
use hcomm::{DType, ReduceOp};

use crate::failure::Failure;
use crate::names::{self, Kind, Link, counted};
use crate::plan::possible;

/// The fewest iterations of a point: below, a percentile says nothing.
const ITERS_MIN: usize = 7;
/// The most that are chosen: more tell nothing new.
const ITERS_MAX: usize = 20_000;
/// Iterations come in about so many batches: after each it is seen how long they take, and with `--check` what came out.
const BATCHES: u32 = 8;

/// The smallest size, where nobody says.
const BEGIN: usize = 8;
/// The largest size, where nobody says.
const END: usize = 256 << 20;

const DETAILS: &str = "\
Starts its ranks itself, unless a launcher has (hcomm run, torchrun, mpirun, mpiexec, srun, an indexed job of Kubernetes): then \
it is one of them, with any --link but memory. Where a launcher has started one rank only, -n starts others.

For each size the result of one call is compared element by element with what must come out; then calls follow one \
another, each timed from the call to its end: at rank 0; of broadcast, scatter, scan and exscan, where that is done first, at \
the slowest rank.

Columns, as those of nccl-tests:
  size, count  the vector of one rank; where it has parts, all of them
  time         mean of all calls
  algbw        size / time
  busbw        algbw, times 2(n-1)/n for all_reduce,
               (n-1)/n for what has parts
  #wrong       wrong elements on all ranks; any makes the exit code 1
and
  iters        how many calls were timed
  p50, p99     of the calls
  CPU/op       of all ranks together, per call
  extra mem    most bytes of memory beyond the user's buffers so far,
               of the rank that has most
  algorithm    as chosen for this size
A barrier has no sizes, and moves nothing that a rate could be told of.

Sizes are rounded down to whole elements, and where an operation has parts, as all_gather, to equal ones of all ranks; one below the \
smallest such size is that size, but none is larger than -e. A line above the table says so where it happens. -b 0 begins \
with a call on no elements.

Examples:
  hcomm bench all_reduce -n 4
  hcomm bench all_reduce -n 2 --link memory -b 64K -e 64M --touch
  hcomm bench all_reduce -n 2 --link shm --buffer vec
  hcomm bench all_gather -n 3 --dtype u8 --json all_gather.json
  hcomm run -n 2 -- hcomm bench send_recv     under a launcher
  mpirun -n 2 hcomm bench send_recv           under another";

/// Measures an operation: checked results, times as nccl-tests gives them
#[derive(clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    /// What is measured
    #[arg(value_enum, value_name = "OP")]
    kind: Kind,
    /// How many ranks [default: 2, or what the launcher says]
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = names::rank_count(), allow_negative_numbers = true)]
    ranks: Option<u32>,
    /// Smallest size [default: 8]
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = names::size, allow_negative_numbers = true)]
    begin: Option<usize>,
    /// Largest size: those beyond it are left out [default: 256M]
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = names::size, allow_negative_numbers = true)]
    end: Option<usize>,
    /// From one size to the next
    #[arg(short = 'f', long, default_value_t = 4, value_name = "FACTOR", value_parser = names::number(2, u32::MAX), allow_negative_numbers = true)]
    factor: u32,
    /// What connects the ranks
    #[arg(long, value_enum, default_value_t = Link::Auto)]
    link: Link,
    /// Element type [default: f32]
    #[arg(long, value_parser = names::dtype())]
    dtype: Option<DType>,
    /// Reduction, where there is one [default: sum]
    #[arg(long, value_parser = names::reduce_op())]
    op: Option<ReduceOp>,
    /// This algorithm instead of the one that would be chosen
    #[arg(long, value_parser = names::algorithm())]
    algorithm: Option<Algorithm>,
    /// So many iterations per size, whatever the time
    #[arg(long, value_name = "K", value_parser = names::number(1, u32::MAX), allow_negative_numbers = true)]
    iters: Option<u32>,
    /// About as many iterations per size as take so long, from 7 to 20000
    #[arg(long, default_value = "0.4", value_name = "S", value_parser = names::seconds, allow_negative_numbers = true)]
    seconds: Duration,
    /// Compares results also between iterations
    #[arg(long)]
    check: bool,
    /// Every rank rewrites its buffer before each iteration, untimed
    #[arg(long)]
    touch: bool,
    /// From one buffer to another
    #[arg(long, conflicts_with = "prepared")]
    into: bool,
    /// Uses a prepared handle
    #[arg(long, conflicts_with = "algorithm")]
    prepared: bool,
    /// What operations are given
    #[arg(long, value_enum, default_value_t = Source::Alloc)]
    buffer: Source,
    /// Writes the results to this file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Where the memory of an operation is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Source {
    /// The communicator (comm.alloc), by value
    Alloc,
    /// A vector, by value
    Vec,
    /// A slice of a vector, borrowed
    Slice,
}

/// What is measured.
pub struct Settings {
    pub buffer: Source,
    pub kind: Kind,
    pub ranks: usize,
    /// Whether the user gave their number.
    pub ranks_given: bool,
    pub link: Link,
    pub dtype: DType,
    pub op: ReduceOp,
    pub algorithm: Option<Algorithm>,
    pub check: bool,
    pub touch: bool,
    pub prepared: bool,
    pub into: bool,
    pub json: Option<PathBuf>,
    sizes: [usize; 2],
    factor: usize,
    iters: Option<usize>,
    duration: Duration,
}

impl Settings {
    /// Refuses what can't be measured.
    pub fn new(args: &Args) -> Result<Self, Failure> {
        let kind = args.kind;
        let usage = |message: String| Err(Failure::usage(message));
        let end = args.end.unwrap_or(END);
        let begin = args.begin.unwrap_or(BEGIN.min(end));
        if begin > end {
            return usage(format!("-b {begin} is more than -e {end}"));
        }
        let given =
            [("-b", args.begin.is_some()), ("-e", args.end.is_some()), ("--dtype", args.dtype.is_some())];
        if let Some((option, _)) = given.iter().find(|(_, given)| *given && kind == Kind::Barrier) {
            return usage(format!("{option}: a barrier moves no data, so it has neither sizes nor a type"));
        }
        if args.prepared && matches!(kind, Kind::Barrier | Kind::SendRecv) {
            return usage(format!("--prepared: {kind} has no prepared handle"));
        }
        if args.into && !kind.has_input() {
            return usage(format!("--into: {kind} has one buffer only"));
        }
        if matches!(kind, Kind::Scan | Kind::ExScan) && args.op == Some(ReduceOp::Avg) {
            return usage(format!("--op avg: {kind} has none, since the ranks before one differ in number"));
        }
        if let Some(op) = args.op
            && !kind.reduces()
        {
            return usage(format!("--op {op}: {kind} reduces nothing"));
        }
        let dtype = args.dtype.unwrap_or(DType::F32);
        if let Some(op) = args.op.filter(|op| !op.supports(dtype)) {
            let types = DType::ALL.iter().filter(|dtype| op.supports(**dtype)).map(|dtype| dtype.name());
            let types = types.collect::<Vec<_>>().join(", ");
            return usage(format!("--op {op} is not for {dtype}: give --dtype one of {types}"));
        }
        let ranks = args.ranks.unwrap_or(2);
        if let Some(algorithm) = args.algorithm {
            if kind == Kind::Barrier {
                return usage("barrier has no choice of algorithm".into());
            }
            possible(kind, algorithm)?;
        }
        Ok(Settings {
            buffer: args.buffer,
            kind,
            ranks: ranks as usize,
            ranks_given: args.ranks.is_some(),
            link: args.link,
            dtype,
            op: args.op.unwrap_or(ReduceOp::Sum),
            algorithm: args.algorithm,
            check: args.check,
            touch: args.touch,
            prepared: args.prepared,
            into: args.into,
            json: args.json.clone(),
            sizes: [begin, end],
            factor: args.factor as usize,
            iters: args.iters.map(|iters| iters as usize),
            duration: args.seconds,
        })
    }

    /// The element counts of all points, of the whole vector: never none.
    pub fn counts(&self) -> Result<Vec<usize>, Failure> {
        if self.kind == Kind::Barrier {
            return Ok(vec![0]);
        }
        let (unit, end) = (self.unit(), self.sizes[1]);
        if 0 < end && end < unit {
            let what = self.unit_told();
            return Err(Failure::usage(format!("-e {end}: the smallest size of {} is {what}", self.kind)));
        }
        let mut counts: Vec<usize> =
            self.asked().map(|size| self.rounded(size) / self.dtype.size()).collect();
        counts.dedup();
        Ok(counts)
    }

    /// What is said of sizes that are not those that were asked for.
    pub fn rounding(&self) -> Option<String> {
        let any = |is: &dyn Fn(usize) -> bool| self.kind != Kind::Barrier && self.asked().any(is);
        let up = if any(&|size| self.rounded(size) > size) { ", and what is less up to one" } else { "" };
        let rounded = any(&|size| self.rounded(size) != size);
        rounded.then(|| format!("sizes are rounded down to multiples of {}{up}", self.unit_told()))
    }

    /// The sizes that were asked for.
    fn asked(&self) -> impl Iterator<Item = usize> {
        let [begin, end] = self.sizes;
        let none = (begin == 0).then_some(0);
        // No factor leads on from nothing.
        let first = if begin == 0 { self.unit() } else { begin };
        let sizes = std::iter::successors(Some(first), |size| size.checked_mul(self.factor));
        none.into_iter().chain(sizes.take_while(move |size| *size <= end))
    }

    fn rounded(&self, size: usize) -> usize {
        let unit = self.unit();
        if size == 0 { 0 } else { (size / unit).max(1) * unit }
    }

    /// Bytes of the smallest vector.
    fn unit(&self) -> usize {
        self.dtype.size() * if self.kind.has_parts() { self.ranks } else { 1 }
    }

    fn unit_told(&self) -> String {
        let each = if self.kind.has_parts() {
            format!(" for each of {}", counted(self.ranks, "rank"))
        } else {
            String::new()
        };
        format!("{} B (one {}{each})", self.unit(), self.dtype)
    }

    /// How many iterations come next, after `done` in the time `spent`, if one takes `each` as far as is known. None at the
    /// end.
    pub fn batch(&self, done: usize, spent: Duration, each: Duration) -> usize {
        if let Some(iters) = self.iters {
            let batch = if self.check { iters.div_ceil(BATCHES as usize) } else { iters };
            return batch.min(iters - done);
        }
        let left = self.duration.saturating_sub(spent).min(self.duration / BATCHES);
        fitting(each, left).max(ITERS_MIN.saturating_sub(done)).min(ITERS_MAX - done)
    }

    /// How many iterations there will be, if one takes `each`.
    pub fn iterations(&self, each: Duration) -> usize {
        self.iters.unwrap_or_else(|| fitting(each, self.duration).clamp(ITERS_MIN, ITERS_MAX))
    }

    /// Whether so many iterations in so long have warmed up: a tenth of the time that is measured then.
    pub fn is_warm(&self, done: usize, spent: Duration) -> bool {
        spent >= self.duration / 10 || done >= ITERS_MAX / 10
    }
}

fn fitting(each: Duration, time: Duration) -> usize {
    (time.as_nanos() / each.as_nanos().max(1)) as usize
}
