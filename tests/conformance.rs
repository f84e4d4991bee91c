//! Every collective by every algorithm: rows of operation, algorithm, element, reduction, ranks, count, one buffer or two, and link.
//! What each element must be is computed from the ranks' numbers alone, and compared for equality.

mod common;
#[path = "conformance/lists.rs"]
mod lists;

use common::{Link, WATCHDOG, connect, run_stepwise};
use half::{bf16, f16};
use hcomm::path::{Algorithm, Collective, Placement};
use hcomm::{Buffer, Communicator, DType, Element, Rank, ReduceOp};

/// The fewest rows that the table may have.
const ROWS_MIN: usize = 5000;

/// What a test knows of numbers: all of its values are exact in every type.
trait Value: Element + Default {
    fn of(value: i64) -> Self;
    /// `sum` divided by `count`, as documented for averages.
    fn average(sum: i64, count: usize) -> Self;
}

macro_rules! values {
    ($($type:ty: |$value:ident| $of:expr, |$sum:ident, $count:ident| $average:expr);+ $(;)?) => {$(
        impl Value for $type {
            fn of($value: i64) -> Self {
                $of
            }
            fn average($sum: i64, $count: usize) -> Self {
                $average
            }
        }
    )+};
}

values! {
    f32: |value| value as f32, |sum, count| sum as f32 / count as f32;
    f64: |value| value as f64, |sum, count| sum as f64 / count as f64;
    f16: |value| f16::from_f32(value as f32), |sum, count| f16::from_f32(sum as f32 / count as f32);
    bf16: |value| bf16::from_f32(value as f32), |sum, count| bf16::from_f32(sum as f32 / count as f32);
    i8: |value| value as i8, |sum, count| (sum / count as i64) as i8;
    i16: |value| value as i16, |sum, count| (sum / count as i64) as i16;
    i32: |value| value as i32, |sum, count| (sum / count as i64) as i32;
    i64: |value| value, |sum, count| sum / count as i64;
    u8: |value| value as u8, |sum, count| (sum / count as i64) as u8;
    u16: |value| value as u16, |sum, count| (sum / count as i64) as u16;
    u32: |value| value as u32, |sum, count| (sum / count as i64) as u32;
    u64: |value| value as u64, |sum, count| (sum / count as i64) as u64;
}

/// What rank `rank` hands in at `index`: few different small numbers, so that a sum or product over 17 ranks fits into 8 bits.
fn given(op: Option<ReduceOp>, rank: usize, index: usize) -> i64 {
    match op {
        Some(ReduceOp::Prod) => 1 + i64::from((rank + index).is_multiple_of(4)),
        Some(ReduceOp::BitAnd) => !(1 << ((rank * 3 + index * 7) % i64::BITS as usize)),
        Some(ReduceOp::BitOr) => 1 << ((rank * 3 + index * 7) % i64::BITS as usize),
        Some(ReduceOp::BitXor) => (1 + rank as i64).wrapping_mul(-0x1234_5678_9abc_def5) + index as i64,
        // One false rank, or one true one, in some places, and none in others.
        Some(ReduceOp::And) if (rank + index).is_multiple_of(23) => 0,
        Some(ReduceOp::Or) if !(rank + index).is_multiple_of(23) => 0,
        Some(ReduceOp::Xor) if (rank * rank + index).is_multiple_of(3) => 0,
        _ => ((rank * 3 + index * 7) % 6) as i64 + 1,
    }
}

/// The reduction at `index` over these ranks.
fn reduced<T: Value>(op: ReduceOp, ranks: std::ops::Range<usize>, index: usize) -> T {
    let count = ranks.len();
    let mut values = ranks.map(|rank| given(Some(op), rank, index));
    match op {
        // What is combined with no other stays as it was given.
        _ if count == 1 => T::of(values.sum()),
        ReduceOp::Sum => T::of(values.sum()),
        ReduceOp::Prod => T::of(values.product()),
        ReduceOp::Min => T::of(values.min().unwrap_or_default()),
        ReduceOp::Max => T::of(values.max().unwrap_or_default()),
        ReduceOp::Avg => T::average(values.sum(), count),
        ReduceOp::BitAnd => T::of(values.fold(-1, |all, value| all & value)),
        ReduceOp::BitOr => T::of(values.fold(0, |all, value| all | value)),
        ReduceOp::BitXor => T::of(values.fold(0, |all, value| all ^ value)),
        ReduceOp::And => T::of(values.all(|value| value != 0).into()),
        ReduceOp::Or => T::of(values.any(|value| value != 0).into()),
        ReduceOp::Xor => T::of((values.filter(|value| *value != 0).count() % 2) as i64),
        other => panic!("{other} is new"),
    }
}

/// One row, but for the world that it is run in.
#[derive(Clone, Copy, Debug)]
struct Row {
    collective: Collective,
    algorithm: Algorithm,
    placement: Placement,
    dtype: DType,
    op: ReduceOp,
    /// Of the vector; of a part, where it has parts.
    count: usize,
}

impl Row {
    fn op(&self) -> Option<ReduceOp> {
        self.collective.reduces().then_some(self.op)
    }

    /// What `rank` gets at `index` of the vector; `None` where that is not said.
    fn expected<T: Value>(&self, n: usize, rank: usize, index: usize) -> Option<T> {
        let moved = |from: usize, at: usize| Some(T::of(given(self.op(), from, at)));
        let (count, in_place) = (self.count, self.placement == Placement::InPlace);
        let part = |index: usize| index / count.max(1);
        match self.collective {
            Collective::AllReduce => Some(reduced(self.op, 0..n, index)),
            Collective::ReduceScatter => (part(index) == rank).then(|| reduced(self.op, 0..n, index)),
            Collective::Reduce { root } => (root.index() == rank).then(|| reduced(self.op, 0..n, index)),
            Collective::AllGather => moved(part(index), index),
            Collective::Broadcast { root } => moved(root.index(), index),
            Collective::Gather { root } if root.index() == rank => moved(part(index), index),
            Collective::Gather { .. } => moved(rank, index),
            Collective::Scatter { root } => moved(root.index(), index),
            Collective::AllToAll => moved(part(index), rank * count + index % count.max(1)),
            Collective::Scan => Some(reduced(self.op, 0..rank + 1, index)),
            Collective::ExScan if rank > 0 => Some(reduced(self.op, 0..rank, index)),
            Collective::ExScan if in_place => moved(rank, index),
            Collective::ExScan => None,
            other => panic!("{other} is new"),
        }
    }

    /// This rank's part of it.
    fn run<T: Value>(&self, comm: &mut Communicator) {
        let (me, n) = (comm.rank().index(), comm.size());
        let Row { collective, algorithm, placement, op, count, .. } = *self;
        let whole = 0..if collective.has_parts() { n * count } else { count };
        let part = if collective.has_parts() { me * count..(me + 1) * count } else { whole.clone() };
        let is_root = collective.root().is_none_or(|root| root.index() == me);
        let root = collective.root().unwrap_or_default();
        let fill = |buffer: &mut [T], range: std::ops::Range<usize>| {
            let values = range.map(|index| T::of(given(self.op(), me, index)));
            buffer.iter_mut().zip(values).for_each(|(place, value)| *place = value);
        };
        // In memory that other processes map, on some ranks, and not on others.
        let memory = |comm: &Communicator, len: usize| match (me + count).is_multiple_of(2) {
            true => comm.alloc::<T>(len),
            false => Buffer::zeroed(len),
        };
        let in_place = match collective {
            Collective::Gather { .. } | Collective::Scatter { .. } if !is_root => part.clone(),
            _ => whole.clone(),
        };
        let (got, range) = if placement == Placement::InPlace {
            let mut buffer = memory(comm, in_place.len());
            match collective {
                Collective::AllGather => fill(&mut buffer[part.clone()], part.clone()),
                Collective::Gather { .. } if is_root => fill(&mut buffer[part.clone()], part.clone()),
                Collective::Broadcast { .. } | Collective::Scatter { .. } if !is_root => {}
                _ => fill(&mut buffer, in_place.clone()),
            }
            let calls = comm.using(algorithm);
            let done = if count.is_multiple_of(2) {
                match collective {
                    Collective::AllReduce => calls.all_reduce(buffer, op),
                    Collective::AllGather => calls.all_gather(buffer),
                    Collective::ReduceScatter => calls.reduce_scatter(buffer, op),
                    Collective::Broadcast { .. } => calls.broadcast(buffer, root),
                    Collective::Reduce { .. } => calls.reduce(buffer, op, root),
                    Collective::Gather { .. } => calls.gather(buffer, root),
                    Collective::Scatter { .. } => calls.scatter(buffer, root),
                    Collective::AllToAll => calls.all_to_all(buffer),
                    Collective::Scan => calls.scan(buffer, op),
                    Collective::ExScan => calls.exscan(buffer, op),
                    other => panic!("{other} is new"),
                }
            } else {
                let len = buffer.len();
                let prepared = match collective {
                    Collective::AllReduce => calls.prepare_all_reduce::<T>(len, op),
                    Collective::AllGather => calls.prepare_all_gather(len),
                    Collective::ReduceScatter => calls.prepare_reduce_scatter(len, op),
                    Collective::Broadcast { .. } => calls.prepare_broadcast(len, root),
                    Collective::Reduce { .. } => calls.prepare_reduce(len, op, root),
                    Collective::Gather { .. } => calls.prepare_gather(len, root),
                    Collective::Scatter { .. } => calls.prepare_scatter(len, root),
                    Collective::AllToAll => calls.prepare_all_to_all(len),
                    Collective::Scan => calls.prepare_scan(len, op),
                    Collective::ExScan => calls.prepare_exscan(len, op),
                    other => panic!("{other} is new"),
                };
                prepared.unwrap().run(comm, buffer)
            };
            (done.wait().unwrap(), in_place)
        } else {
            let (given, got) = match collective {
                Collective::AllGather => (part.clone(), whole.clone()),
                Collective::ReduceScatter => (whole.clone(), part.clone()),
                Collective::Reduce { .. } if !is_root => (whole.clone(), 0..0),
                Collective::Gather { .. } => (part.clone(), if is_root { whole.clone() } else { 0..0 }),
                Collective::Scatter { .. } => (if is_root { whole.clone() } else { 0..0 }, part.clone()),
                _ => (whole.clone(), whole.clone()),
            };
            let mut input = memory(comm, given.len());
            fill(&mut input, given.clone());
            let (before, output) = (input.to_vec(), memory(comm, got.len()));
            let calls = comm.using(algorithm);
            let done = match collective {
                Collective::AllReduce => calls.all_reduce_into(input, output, op),
                Collective::AllGather => calls.all_gather_into(input, output),
                Collective::ReduceScatter => calls.reduce_scatter_into(input, output, op),
                Collective::Reduce { .. } => calls.reduce_into(input, output, op, root),
                Collective::Gather { .. } => calls.gather_into(input, output, root),
                Collective::Scatter { .. } => calls.scatter_into(input, output, root),
                Collective::AllToAll => calls.all_to_all_into(input, output),
                Collective::Scan => calls.scan_into(input, output, op),
                Collective::ExScan => calls.exscan_into(input, output, op),
                other => panic!("{other} is new"),
            };
            let (input, output) = done.wait().unwrap();
            assert_eq!(*input, *before, "{self:?}, {n} ranks, rank {me}: the input was written");
            (output, got)
        };
        assert_eq!(got.len(), range.len(), "{self:?}, {n} ranks, rank {me}");
        for (index, got) in range.zip(got.iter()) {
            if let Some(expected) = self.expected::<T>(n, me, index) {
                assert_eq!(*got, expected, "{self:?}, {n} ranks, rank {me}, element {index}");
            }
        }
    }

    fn run_typed(&self, comm: &mut Communicator) {
        match self.dtype {
            DType::F32 => self.run::<f32>(comm),
            DType::F64 => self.run::<f64>(comm),
            DType::F16 => self.run::<f16>(comm),
            DType::BF16 => self.run::<bf16>(comm),
            DType::I8 => self.run::<i8>(comm),
            DType::I16 => self.run::<i16>(comm),
            DType::I32 => self.run::<i32>(comm),
            DType::I64 => self.run::<i64>(comm),
            DType::U8 => self.run::<u8>(comm),
            DType::U16 => self.run::<u16>(comm),
            DType::U32 => self.run::<u32>(comm),
            DType::U64 => self.run::<u64>(comm),
            other => panic!("{other} is new"),
        }
    }
}

/// All collectives; roots are another rank in each world.
fn collectives(n: usize) -> [Collective; 10] {
    use Collective as C;
    let root = |at: usize| Rank((at % n) as u32);
    [
        C::AllReduce,
        C::AllGather,
        C::ReduceScatter,
        C::AllToAll,
        C::Scan,
        C::ExScan,
        C::Broadcast { root: root(n / 2) },
        C::Reduce { root: root(n / 3 + 1) },
        C::Gather { root: root(n - 1) },
        C::Scatter { root: root(2 * n / 3) },
    ]
}

/// The reductions that there are for this.
fn reductions(collective: Collective, dtype: DType) -> Vec<ReduceOp> {
    let is_scan = matches!(collective, Collective::Scan | Collective::ExScan);
    let exists = |op: &ReduceOp| op.supports(dtype) && !(is_scan && *op == ReduceOp::Avg);
    ReduceOp::ALL.iter().copied().filter(exists).collect()
}

/// The rows of a world. Elements and reductions go round, so that each meets each algorithm in some world.
fn rows(n: usize, counts: &[usize]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut turn = n;
    for collective in collectives(n) {
        let placements: &[Placement] = match collective {
            Collective::Broadcast { .. } => &[Placement::InPlace],
            _ => &[Placement::InPlace, Placement::OutOfPlace],
        };
        for algorithm in Algorithm::ALL.iter().copied().filter(|algorithm| algorithm.supports(collective)) {
            for placement in placements.iter().copied() {
                for count in counts.iter().copied() {
                    turn += 1;
                    let dtype = DType::ALL[turn % DType::ALL.len()];
                    let ops = reductions(collective, dtype);
                    let op = ops[(turn + turn / DType::ALL.len()) % ops.len()];
                    rows.push(Row { collective, algorithm, placement, dtype, op, count });
                }
            }
        }
    }
    rows
}

/// Runs the rows in a world; says how many they are. A world may take as long as it likes, beside whatever else runs, as long as
/// rows come to an end: what hangs in one is told by its deadline.
fn run(link: Link, n: usize, rows: Vec<Row>) -> usize {
    let count = rows.len();
    run_stepwise(WATCHDOG, connect(link, n), move |mut comm, steps| {
        // Before the watchdog, so that the report of the call tells what hangs.
        comm.set_deadline(WATCHDOG / 2);
        for row in &rows {
            row.run_typed(&mut comm);
            steps.one_more();
        }
    });
    count
}

/// Nothing, one, one more than ranks, and more than a cache line of every type.
const COUNTS: [usize; 5] = [0, 1, 7, 18, 67];

#[test]
fn every_row_of_the_table_is_right() {
    let mut count = 0;
    for n in 1..=17 {
        count += run(Link::Memory, n, rows(n, &COUNTS));
    }
    for link in [Link::Shm, Link::Tcp] {
        for n in [2, 3, 5, 8] {
            count += run(link, n, rows(n, &COUNTS));
        }
    }
    assert!(count >= ROWS_MIN, "{count} rows");
}

/// Each reduction of each type: all of it, a part of it, one rank's, and those before a rank.
#[test]
fn every_reduction_of_every_type_is_right() {
    let n = 5;
    let mut rows = Vec::new();
    for collective in collectives(n).into_iter().filter(|collective| collective.reduces()) {
        for dtype in DType::ALL.iter().copied() {
            for op in reductions(collective, dtype) {
                let algorithm =
                    Algorithm::ALL.iter().find(|algorithm| algorithm.supports(collective)).unwrap();
                let placement = Placement::InPlace;
                rows.push(Row { collective, algorithm: *algorithm, placement, dtype, op, count: 33 });
            }
        }
    }
    for link in [Link::Memory, Link::Tcp] {
        run(link, n, rows.clone());
    }
}

/// More than goes without being asked for, and more than a frame holds.
#[test]
fn every_row_is_right_where_vectors_are_large() {
    for link in common::LINKS {
        for n in [2, 3] {
            let large = rows(n, &[70_001]).into_iter();
            run(link, n, large.filter(|row| row.dtype.size() > 1).collect());
        }
    }
}
