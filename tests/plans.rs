//! Every built-in plan is proved, computes the right thing, and broken plans are refused.

use hcomm::path::{Algorithm, Collective, association, build, verify};
use hcomm::rank::Rank;

#[test]
fn all_plans_verify() {
    for n in 1..=64 {
        for algorithm in Algorithm::ALL {
            for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter,
                Collective::Broadcast { root: Rank(n / 2) }] {
                if algorithm.supports(collective) {
                    let t = std::time::Instant::now();
                    let plan = verify(build(algorithm, collective, n).unwrap());
                    if let Err(error) = &plan { panic!("{algorithm} {collective:?} {n}: {error}"); }
                    if n == 64 || n == 5 { eprintln!("{algorithm} {collective:?} {n} {:?} {}", t.elapsed(), association(&plan.unwrap(), 0)); }
                }
            }
        }
    }
}
