//! Built-in plans are proved, compute the right thing in any order of events, and broken plans are refused.

#[path = "plans/mutate.rs"]
mod mutate;
#[path = "plans/player.rs"]
mod player;

use hcomm::Rank;
use hcomm::path::{
    Action, Algorithm, Collective, Facts, Order, Placement, Range, Space, Step, VerifiedPlan, association,
    build, choose, draw, prove, verify,
};
use player::{Links, Number, Player, Random};

fn collectives(n: u32) -> Vec<Collective> {
    use Collective as C;
    let mut all = vec![C::AllReduce, C::AllGather, C::ReduceScatter, C::AllToAll, C::Scan, C::ExScan];
    let mut roots = vec![0, n / 2, n - 1];
    roots.dedup();
    for root in roots.into_iter().map(Rank) {
        all.extend([C::Broadcast { root }, C::Reduce { root }, C::Gather { root }, C::Scatter { root }]);
    }
    all
}

fn supported(n: u32) -> impl Iterator<Item = (Algorithm, Collective)> {
    let pairs = Algorithm::ALL
        .iter()
        .copied()
        .flat_map(move |algorithm| collectives(n).into_iter().map(move |collective| (algorithm, collective)));
    pairs.filter(|(algorithm, collective)| algorithm.supports(*collective))
}

fn proved(algorithm: Algorithm, collective: Collective, n: u32) -> VerifiedPlan {
    proved_as(algorithm, collective, Placement::InPlace, n)
}

fn proved_as(algorithm: Algorithm, collective: Collective, placement: Placement, n: u32) -> VerifiedPlan {
    match prove(algorithm, collective, placement, n) {
        Ok(plan) => plan,
        Err(error) => panic!("{algorithm}, {collective}, {placement:?}, {n} ranks: {error}"),
    }
}

fn placements(collective: Collective) -> &'static [Placement] {
    match collective {
        Collective::Broadcast { .. } => &[Placement::InPlace],
        _ => &[Placement::InPlace, Placement::OutOfPlace],
    }
}

/// All worlds where it is cheap; those at and around powers of two, and the largest, where it is not.
fn worlds() -> impl Iterator<Item = u32> {
    (1..=64).filter(|&n| !cfg!(debug_assertions) || n <= 24 || [31, 32, 33, 47, 63, 64].contains(&n))
}

#[test]
fn every_built_in_plan_is_proved() {
    for n in worlds() {
        for (algorithm, collective) in supported(n) {
            for placement in placements(collective).iter().copied() {
                let plan = proved_as(algorithm, collective, placement, n);
                assert_eq!(plan.algorithm, algorithm.name());
                assert_eq!((plan.collective, plan.placement), (collective, placement));
            }
        }
    }
}

#[test]
fn one_rank_has_nothing_to_do() {
    for (algorithm, collective) in supported(1) {
        assert!(proved(algorithm, collective, 1).ranks[0].steps.is_empty());
    }
}

#[test]
fn sums_are_associated_by_the_world_alone_within_a_family() {
    for n in [2, 3, 4, 5, 6, 7, 8, 9, 12, 16] {
        let mesh = formula(Algorithm::MeshOneShot, Collective::AllReduce, n);
        let tree = formula(Algorithm::RecursiveDoubling, Collective::AllReduce, n);
        assert!(n == 2 || mesh != tree);
        assert_eq!(mesh, formula(Algorithm::MeshTwoShot, Collective::AllReduce, n));
        assert_eq!(mesh, formula(Algorithm::FlatTree, Collective::AllReduce, n));
        assert_eq!(mesh, formula(Algorithm::MeshOneShot, Collective::ReduceScatter, n));
        assert_eq!(tree, formula(Algorithm::HalvingDoubling, Collective::AllReduce, n));
        assert_eq!(tree, formula(Algorithm::HalvingDoubling, Collective::ReduceScatter, n));
        assert_eq!(tree, formula(Algorithm::DoubleTree, Collective::AllReduce, n));
        for root in [0, n / 2, n - 1].map(Rank) {
            assert_eq!(tree, formula(Algorithm::DoubleTree, Collective::Reduce { root }, n));
            assert_eq!(tree, formula(Algorithm::BinomialTree, Collective::Reduce { root }, n));
        }
    }
}

/// The same tree for each, turned until it ends at its owner.
#[test]
fn a_sum_that_goes_round_depends_on_its_owner() {
    let plan = proved(Algorithm::Bruck, Collective::ReduceScatter, 5);
    assert_eq!(association(&plan, 4), "((1 + 3) + (2 + (0 + 4)))");
    assert_eq!(association(&plan, 0), "((2 + 4) + (3 + (1 + 0)))");
}

/// In halves of a vector: a rank that passes on to two in one tree has little to do in the other.
#[test]
fn two_trees_share_what_there_is_to_pass_on() {
    let sent = |plan: &VerifiedPlan, rank: usize| {
        let of = |step: &Step| matches!(step.action, Action::Send { .. }).then(|| step.action.range().count);
        plan.ranks[rank].steps.iter().filter_map(of).sum::<u32>()
    };
    for n in 2..=64 {
        let plan = proved(Algorithm::DoubleTree, Collective::AllReduce, n);
        assert!((0..n as usize).all(|rank| sent(&plan, rank) <= 6), "{n} ranks");
        let plan = proved(Algorithm::DoubleTree, Collective::Broadcast { root: Rank(n / 2) }, n);
        assert!((0..n as usize).all(|rank| sent(&plan, rank) <= 3), "{n} ranks");
    }
}

/// The association that all blocks share.
fn formula(algorithm: Algorithm, collective: Collective, n: u32) -> String {
    let plan = proved(algorithm, collective, n);
    let first = association(&plan, 0);
    assert!((1..plan.blocks).all(|block| association(&plan, block) == first), "{algorithm}, {n} ranks");
    first
}

#[test]
fn every_plan_computes_what_it_says_in_any_order_of_events() {
    for n in [1, 2, 3, 4, 5, 7, 8, 13] {
        for (algorithm, collective) in supported(n) {
            for placement in placements(collective).iter().copied() {
                let plan = proved_as(algorithm, collective, placement, n);
                in_any_order(&plan, n);
            }
        }
    }
}

fn in_any_order(plan: &VerifiedPlan, n: u32) {
    let mut random = Random::new(u64::from(n));
    for count in counts(n as usize, plan.collective) {
        let inputs = player::inputs(n, count, |rank, at| i64::from(rank + 1) * 1000 + at as i64);
        for links in [Links::Roomy, Links::Weakest] {
            let results = Player::new(plan, &inputs, links, &mut random).run().unwrap();
            player::check(plan, &inputs, &results).unwrap_or_else(|error| {
                panic!(
                    "{}, {}, {:?}, {n} ranks, {count}: {error}",
                    plan.algorithm, plan.collective, plan.placement
                )
            });
        }
    }
}

fn counts(n: usize, collective: Collective) -> Vec<usize> {
    let all = [0, 1, n - 1, n, n + 1, 17, 1000, 2 * 16 * n + 1];
    match collective {
        // Parts are equal, so a vector is a multiple of the ranks.
        _ if collective.has_parts() => all.map(|count| count * n).into_iter().take(6).collect(),
        _ => all.to_vec(),
    }
}

/// Values of very different size, so that the order of a sum is seen in its last bits.
fn awkward(rank: u32, at: usize) -> f32 {
    let mut random = Random::new(u64::from(rank) << 32 | at as u64);
    let scale = [1e-3, 1.0, 7e3, 1e7][random.below(4)];
    (random.below(2_000_001) as f32 / 1e6 - 1.0) * scale
}

/// Of what is the same on all ranks.
fn bits(plan: &VerifiedPlan, count: usize, seed: u64) -> Vec<Vec<u32>> {
    let inputs = player::inputs(plan.ranks.len() as u32, count, awkward);
    let results = Player::new(plan, &inputs, Links::Roomy, &mut Random::new(seed)).run().unwrap();
    results.iter().map(|result| result.iter().map(|value| value.unwrap().to_bits()).collect()).collect()
}

#[test]
fn all_ranks_get_the_same_bits_and_size_does_not_change_them() {
    for n in [2, 3, 4, 5, 6, 7, 8, 11, 16] {
        for (one, other) in [
            (Algorithm::MeshOneShot, Algorithm::MeshTwoShot),
            (Algorithm::MeshOneShot, Algorithm::FlatTree),
            (Algorithm::RecursiveDoubling, Algorithm::HalvingDoubling),
            (Algorithm::RecursiveDoubling, Algorithm::DoubleTree),
            (Algorithm::Ring, Algorithm::Ring),
        ] {
            let (one, other) =
                (proved(one, Collective::AllReduce, n), proved(other, Collective::AllReduce, n));
            let expected = bits(&one, 999, 1);
            assert!(expected.iter().all(|result| *result == expected[0]), "{n} ranks");
            assert_eq!(expected, bits(&other, 999, 2), "{n} ranks");
        }
    }
}

#[test]
fn awkward_values_show_the_order_of_a_sum() {
    let mesh = bits(&proved(Algorithm::MeshTwoShot, Collective::AllReduce, 5), 999, 1);
    let tree = bits(&proved(Algorithm::HalvingDoubling, Collective::AllReduce, 5), 999, 1);
    assert_ne!(mesh, tree);
}

#[test]
fn fingerprints_tell_plans_apart_and_stay() {
    let mut seen = std::collections::HashSet::new();
    for n in 2..=16 {
        for (algorithm, collective) in supported(n) {
            let again = proved(algorithm, collective, n).fingerprint();
            assert_eq!(again, proved(algorithm, collective, n).fingerprint());
            assert!(seen.insert(again), "{algorithm}, {collective:?}, {n} ranks");
            for placement in placements(collective).iter().skip(1) {
                let other = proved_as(algorithm, collective, *placement, n).fingerprint();
                assert!(seen.insert(other), "{algorithm}, {collective:?}, {placement:?}, {n} ranks");
            }
        }
    }
    // Ranks may run different builds of one version: this number must be the same in all of them.
    let fixed = proved(Algorithm::MeshTwoShot, Collective::AllReduce, 3).fingerprint();
    assert_eq!(fixed, 0x1845_1db2_ef9d_13e8);
}

#[test]
fn the_largest_lengths_can_be_cut() {
    for n in [1, 2, 3, 7, 64] {
        for algorithm in [Algorithm::HalvingDoubling, Algorithm::MeshTwoShot, Algorithm::Ring] {
            let plan = build(algorithm, Collective::AllReduce, n).unwrap();
            for len in [usize::MAX, usize::MAX - 1, usize::MAX / 2, 1 << 40, 15, 16, 17, 0] {
                let partition = plan.partition(len);
                assert_eq!((partition.offset(0), partition.offset(plan.blocks)), (0, len));
                for block in 0..plan.blocks {
                    let elements = partition.elements(Range::new(Space::Output, block, 1));
                    assert!(elements.start <= elements.end && elements.end <= len);
                    assert!(elements.start.is_multiple_of(16) || elements.start == len);
                }
            }
        }
    }
}

#[test]
fn a_choice_does_not_change_bits_with_size() {
    for n in 2..=24 {
        let facts = Facts::new(n);
        let formulas = [1, 1 << 10, 1 << 14, 1 << 15, 1 << 20, 1 << 30].map(|bytes| {
            let choice = choose(&facts, Collective::AllReduce, bytes, None).unwrap();
            association(&proved(choice.algorithm, Collective::AllReduce, n), 0)
        });
        assert!(formulas.iter().all(|formula| *formula == formulas[0]), "{n} ranks");
    }
}

#[test]
fn every_choice_can_be_built() {
    for n in 1..=20 {
        for order in [Order::Fixed, Order::Any] {
            let facts = Facts::new(n).order(order);
            for collective in collectives(n) {
                for bytes in [0, 1, 20_000, 1 << 30] {
                    let choice = choose(&facts, collective, bytes, None).unwrap();
                    assert!(order == Order::Any || choice.algorithm != Algorithm::Ring);
                    build(choice.algorithm, collective, n).unwrap();
                }
            }
        }
    }
}

#[test]
fn plans_can_be_drawn() {
    for (algorithm, collective) in supported(5) {
        let plan = proved(algorithm, collective, 5);
        assert!(draw::text(&plan, 1000).contains("rank 4"));
        assert!(draw::svg(&plan, 1000, 3).contains("rank 4"));
    }
}

const MUTANTS: usize = 1000;

#[test]
fn mutants_that_must_break_a_plan_are_refused() {
    refused(17, MUTANTS, |random| 2 + random.below(7) as u32);
}

/// Fewer, since each takes longer.
#[test]
fn mutants_of_plans_of_many_ranks_are_refused_too() {
    const RANKS: [u32; 8] = [9, 12, 16, 17, 31, 33, 47, 64];
    refused(19, MUTANTS / 10, |random| RANKS[random.below(RANKS.len())]);
}

fn refused(seed: u64, mutants: usize, ranks: impl Fn(&mut Random) -> u32) {
    let mut random = Random::new(seed);
    let mut tried = 0;
    while tried < mutants {
        let n = ranks(&mut random);
        let plan = some_plan(n, &mut random);
        let Some((kind, mutant)) = mutate::fatal(&plan, &mut random) else { continue };
        tried += 1;
        if verify(mutant.clone()).is_ok() {
            panic!("mutant {tried} ({kind:?}) of {} on {n} ranks passes: {mutant:#?}", plan.algorithm);
        }
    }
}

#[test]
fn mutants_that_pass_compute_the_same_in_any_order_of_events() {
    let mut random = Random::new(4711);
    let (mut refused, mut passed) = (0, 0);
    while refused + passed < MUTANTS {
        let plan = some_plan(2 + random.below(7) as u32, &mut random);
        let Some((kind, mutant)) = mutate::any(&plan, &mut random) else { continue };
        let n = plan.ranks.len();
        match verify(mutant) {
            Err(_) => refused += 1,
            Ok(mutant) => {
                passed += 1;
                for count in [n, 20 * n] {
                    let inputs =
                        player::inputs(n as u32, count, |rank, at| i64::from(rank + 1) * 1000 + at as i64);
                    for schedule in 0..40 {
                        let links = if schedule % 4 == 0 { Links::Weakest } else { Links::Roomy };
                        let results = Player::new(&mutant, &inputs, links, &mut random).run();
                        let right = results.and_then(|results| player::check(&mutant, &inputs, &results));
                        right.unwrap_or_else(|error| {
                            panic!("{kind:?} of {}: {error}: {mutant:#?}", plan.algorithm)
                        });
                    }
                }
                same_bits(&mutant, 20 * n, &mut random);
            }
        }
    }
    assert!(refused > MUTANTS * 8 / 10, "only {refused} of {MUTANTS} were refused");
}

fn same_bits(plan: &VerifiedPlan, count: usize, random: &mut Random) {
    if plan.collective != Collective::AllReduce {
        return;
    }
    let expected = bits(plan, count, 1);
    assert!(expected.iter().all(|result| *result == expected[0]));
    for _ in 0..10 {
        assert_eq!(expected, bits(plan, count, random.next()));
    }
}

fn some_plan(n: u32, random: &mut Random) -> hcomm::path::Plan {
    let all: Vec<_> = supported(n).collect();
    let (algorithm, collective) = all[random.below(all.len())];
    build(algorithm, collective, n).unwrap()
}

/// The player finds races by itself: a plan that overwrites what it has lent gives wrong numbers in some order.
#[test]
fn the_player_sees_what_the_verifier_refuses() {
    let mut plan = build(Algorithm::MeshTwoShot, Collective::AllReduce, 3).unwrap();
    for part in &mut plan.ranks {
        part.steps.iter_mut().for_each(|step| step.after.clear());
    }
    assert!(verify(plan.clone()).is_err());
    let inputs = player::inputs(3, 60, |rank, at| i64::from(rank + 1) * 1000 + at as i64);
    let mut random = Random::new(3);
    let wrong = (0..100).filter(|_| {
        let results = Player::new(&plan, &inputs, Links::Roomy, &mut random).run();
        results.and_then(|results| player::check(&plan, &inputs, &results)).is_err()
    });
    assert!(wrong.count() > 50);
    assert_eq!(i64::combine(&[1, 2]), 3);
}
