//! What other libraries' own tests run: how many ranks, how many elements, and which types. What comes out is computed as for
//! every row here.

use hcomm::path::{Algorithm, Collective, Placement};
use hcomm::{DType, ReduceOp};

use super::common::Link;
use super::{Row, collectives, run};

/// Worlds, and what is called in each.
struct List {
    /// Which of the collectives, by name; roots are those of the table.
    collective: &'static str,
    ranks: &'static [usize],
    counts: &'static [usize],
    dtypes: &'static [DType],
    op: ReduceOp,
}

const fn list(
    collective: &'static str,
    ranks: &'static [usize],
    counts: &'static [usize],
    dtypes: &'static [DType],
) -> List {
    List { collective, ranks, counts, dtypes, op: ReduceOp::Sum }
}

/// pytorch/gloo, `gloo/test/allreduce_test.cc`: ring, halving–doubling, cubes of bases 2, 3 and 4, and the interface of today.
const GLOO: [List; 5] = [
    list(
        "all_reduce",
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        &[0, 4, 100, 1000, 10_000],
        &[DType::F32],
    ),
    list("all_reduce", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 24, 32], &[0, 1, 64, 1000], &[DType::F32]),
    list("all_reduce", &[1, 3, 9, 27], &[0, 1, 64, 1000], &[DType::F32]),
    list("all_reduce", &[1, 2, 4, 7], &[0, 1, 10, 100, 1000, 10_000], &[DType::U64]),
    list("all_reduce", &[4], &[1024], &[DType::F16]),
];

/// Element counts for what is listed by ranks only.
const ANY: &[usize] = &[1, 10, 129];
const SIGNED: &[DType] = &[DType::I32];

/// pmodels/mpich, `test/mpi/coll/testlist.in`: the ranks that each program is run by.
const MPICH: [List; 10] = [
    list("all_reduce", &[4, 5, 7, 10], ANY, SIGNED),
    list("reduce", &[5, 10], ANY, SIGNED),
    list("all_gather", &[10], ANY, SIGNED),
    list("all_to_all", &[8], ANY, SIGNED),
    list("broadcast", &[1, 4, 5, 8, 10], ANY, SIGNED),
    list("reduce_scatter", &[4, 5, 6, 8, 10], ANY, SIGNED),
    list("scan", &[4], ANY, SIGNED),
    list("exscan", &[5, 10], ANY, SIGNED),
    list("gather", &[4], ANY, SIGNED),
    list("scatter", &[4], ANY, SIGNED),
];

/// The same list: a program for each predefined reduction, over all types that it is for.
const MPICH_REDUCTIONS: [(ReduceOp, &[usize]); 10] = [
    (ReduceOp::And, &[4]),
    (ReduceOp::Or, &[4]),
    (ReduceOp::Xor, &[4, 5]),
    (ReduceOp::BitAnd, &[4]),
    (ReduceOp::BitOr, &[4]),
    (ReduceOp::BitXor, &[4, 5]),
    (ReduceOp::Prod, &[5, 6]),
    (ReduceOp::Sum, &[4]),
    (ReduceOp::Min, &[4]),
    (ReduceOp::Max, &[5]),
];

/// By every algorithm, in one buffer and from one to another; how many rows there were.
fn run_list(list: &List) -> usize {
    let mut count = 0;
    for n in list.ranks.iter().copied() {
        let named = |collective: &Collective| collective.name() == list.collective;
        let collective = collectives(n).into_iter().find(named).unwrap();
        let mut rows = Vec::new();
        for algorithm in Algorithm::ALL.iter().copied().filter(|algorithm| algorithm.supports(collective)) {
            for placement in [Placement::InPlace, Placement::OutOfPlace] {
                if placement == Placement::OutOfPlace && list.collective == "broadcast" {
                    continue;
                }
                for (dtype, op) in list.dtypes.iter().map(|dtype| (*dtype, list.op)) {
                    rows.extend(list.counts.iter().map(|count| Row {
                        collective,
                        algorithm,
                        placement,
                        dtype,
                        op,
                        count: *count,
                    }));
                }
            }
        }
        count += run(Link::Memory, n, rows);
    }
    count
}

#[test]
fn what_gloo_tests_is_right() {
    let count = GLOO.iter().map(run_list).sum::<usize>();
    let collective = Collective::AllReduce;
    let algorithms = Algorithm::ALL.iter().filter(|algorithm| algorithm.supports(collective)).count();
    let worlds: usize = GLOO.iter().map(|list| list.ranks.len() * list.counts.len()).sum();
    assert_eq!((worlds, count), (168, 2 * algorithms * worlds));
}

#[test]
fn what_mpich_tests_is_right() {
    assert!(MPICH.iter().all(|list| run_list(list) >= list.ranks.len() * ANY.len()));
    for (op, ranks) in MPICH_REDUCTIONS {
        let dtypes: Vec<DType> = DType::ALL.iter().copied().filter(|dtype| op.supports(*dtype)).collect();
        let list = List { collective: "all_reduce", ranks, counts: &[10], dtypes: dtypes.leak(), op };
        assert!(run_list(&list) >= list.dtypes.len() * ranks.len());
    }
}
