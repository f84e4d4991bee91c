//! Equal bits: on all ranks, from run to run, whichever algorithm of a family, link and cut.

use crate::common::{LINKS, Link, Random, world};
use half::{bf16, f16};
use hcomm::path::Algorithm;
use hcomm::{Communicator, Element, ReduceOp};

/// More than one slice of work, more than one frame, and no multiple of anything.
const COUNT: usize = 20_483;
const MESH: [Algorithm; 3] = [Algorithm::MeshOneShot, Algorithm::MeshTwoShot, Algorithm::FlatTree];
const TREE: [Algorithm; 2] = [Algorithm::RecursiveDoubling, Algorithm::HalvingDoubling];

/// Values of very different magnitudes: every association rounds differently.
fn input(rank: usize, count: usize) -> Vec<f32> {
    let mut random = Random(rank as u64 + 1);
    (0..count)
        .map(|_| {
            let word = random.next();
            let mantissa = (word as u32 >> 9) as f32 / (1 << 23) as f32 + 1.0;
            let sign = if word >> 63 == 0 { 1.0 } else { -1.0 };
            sign * mantissa * 2f32.powi((word >> 40) as i32 % 24 - 12)
        })
        .collect()
}

/// A hash of the exact bytes (FNV-1a over 64-bit steps).
fn hash<T: Element>(values: &[T]) -> u64 {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn reduce<T: Element>(comm: &mut Communicator, algorithm: Algorithm, input: &[T]) -> Vec<T> {
    comm.using(algorithm).all_reduce(input.to_vec(), ReduceOp::Sum).wait().unwrap()
}

/// Per algorithm, the hash that all ranks got in every run.
fn hashes(link: Link, n: usize, runs: usize) -> Vec<(Algorithm, u64)> {
    let all = world(link, n, move |mut comm| {
        let mine = input(comm.rank().index(), COUNT);
        [MESH[0], MESH[1], MESH[2], TREE[0], TREE[1], Algorithm::Ring].map(|algorithm| {
            let first = hash(&reduce(&mut comm, algorithm, &mine));
            for run in 1..runs {
                assert_eq!(hash(&reduce(&mut comm, algorithm, &mine)), first, "{algorithm} run {run}");
            }
            (algorithm, first)
        })
    });
    for (rank, of) in all.iter().enumerate() {
        assert_eq!(*of, all[0], "{link:?} n {n}: rank {rank} has other bits than rank 0");
    }
    all[0].to_vec()
}

#[test]
fn all_ranks_runs_links_and_algorithms_of_a_family_agree() {
    agree(20, 4);
}

#[test]
#[ignore = "takes a minute"]
fn a_hundred_runs_agree() {
    agree(100, 100);
}

fn agree(memory_runs: usize, tcp_runs: usize) {
    for n in [3, 4, 5, 8] {
        let memory = hashes(Link::Memory, n, memory_runs);
        let tcp = hashes(Link::Tcp, n, tcp_runs);
        assert_eq!(memory, tcp, "n {n}: memory and TCP");
        let of = |algorithm| memory.iter().find(|(of, _)| *of == algorithm).unwrap().1;
        assert_eq!(of(MESH[0]), of(MESH[1]), "n {n}: one-shot and two-shot");
        assert_eq!(of(MESH[0]), of(MESH[2]), "n {n}: one-shot and the flat tree");
        assert_eq!(of(TREE[0]), of(TREE[1]), "n {n}: recursive doubling and halving–doubling");
        // The inputs do tell associations apart.
        assert_ne!(of(MESH[0]), of(Algorithm::Ring), "n {n}");
    }
}

#[test]
fn mesh_sums_are_in_rank_order() {
    for link in LINKS {
        for n in [3, 4, 5] {
            world(link, n, move |mut comm| {
                let all: Vec<Vec<f32>> = (0..n).map(|rank| input(rank, 5000)).collect();
                let expected: Vec<u32> = (0..5000)
                    .map(|index| all[1..].iter().fold(all[0][index], |sum, of| sum + of[index]).to_bits())
                    .collect();
                let other: Vec<u32> = (0..5000)
                    .map(|index| {
                        all[..n - 1].iter().rev().fold(all[n - 1][index], |sum, of| sum + of[index]).to_bits()
                    })
                    .collect();
                assert_ne!(expected, other, "the inputs tell associations apart");
                let mine = &all[comm.rank().index()];
                for algorithm in MESH {
                    let sum = reduce(&mut comm, algorithm, mine);
                    let bits: Vec<u32> = sum.iter().map(|value| value.to_bits()).collect();
                    assert_eq!(bits, expected, "{link:?} n {n} {algorithm}");
                }
            });
        }
    }
}

#[test]
fn however_a_vector_is_cut_into_calls_its_sum_is_the_same() {
    for link in LINKS {
        for n in [3, 4, 5, 8] {
            world(link, n, move |mut comm| {
                let mine = input(comm.rank().index(), COUNT);
                let whole = comm.all_reduce(mine.clone(), ReduceOp::Sum).wait().unwrap();
                for pieces in [3, 7, 64] {
                    let mut parts = Vec::new();
                    for part in mine.chunks(COUNT.div_ceil(pieces)) {
                        parts.extend(comm.all_reduce(part.to_vec(), ReduceOp::Sum).wait().unwrap());
                    }
                    assert_eq!(hash(&parts), hash(&whole), "{link:?} n {n} in {pieces} pieces");
                }
            });
        }
    }
}

fn narrow_sums_agree<T: Element>(from: fn(f32) -> T, to: fn(T) -> f32) {
    for n in [3, 5, 8] {
        let of = |link| {
            world(link, n, move |mut comm| {
                let all: Vec<Vec<T>> =
                    (0..n).map(|rank| input(rank, 3001).into_iter().map(from).collect()).collect();
                let mine = &all[comm.rank().index()];
                let one = reduce(&mut comm, MESH[0], mine);
                assert_eq!(hash(&one), hash(&reduce(&mut comm, MESH[1], mine)));
                for (index, sum) in one.iter().enumerate() {
                    // All inputs of a step are summed in f32, and rounded once.
                    let exact = all.iter().fold(None, |sum, of| {
                        let value = to(of[index]);
                        Some(sum.map_or(value, |sum: f32| sum + value))
                    });
                    assert_eq!(to(*sum).to_bits(), to(from(exact.unwrap())).to_bits(), "n {n} index {index}");
                }
                let tree = reduce(&mut comm, TREE[0], mine);
                assert_eq!(hash(&tree), hash(&reduce(&mut comm, TREE[1], mine)), "n {n}");
                (hash(&one), hash(&tree))
            })
        };
        let (memory, tcp) = (of(Link::Memory), of(Link::Tcp));
        assert!(memory.iter().chain(&tcp).all(|hash| *hash == memory[0]), "n {n}");
    }
}

#[test]
fn sums_of_16_bits_round_once() {
    narrow_sums_agree::<f16>(f16::from_f32, f16::to_f32);
    narrow_sums_agree::<bf16>(bf16::from_f32, bf16::to_f32);
}

#[test]
fn special_values_come_out_as_ieee_754_says() {
    for link in LINKS {
        world(link, 3, |mut comm| {
            let me = comm.rank().index();
            let rows: [[f32; 3]; 8] = [
                [f32::NAN, 1.0, 2.0],
                [1.0, 2.0, f32::NAN],
                [f32::INFINITY, f32::NEG_INFINITY, 1.0],
                [f32::INFINITY, 1.0, -5.0],
                [-0.0, -0.0, -0.0],
                [0.0, -0.0, -0.0],
                [f32::MAX, f32::MAX, -f32::MAX],
                [f32::MIN_POSITIVE / 4.0, 0.0, f32::MIN_POSITIVE / 8.0],
            ];
            let mine: Vec<f32> = rows.iter().map(|row| row[me]).collect();
            for algorithm in [MESH[0], MESH[1], MESH[2], TREE[0], TREE[1], Algorithm::Ring] {
                let sum = reduce(&mut comm, algorithm, &mine);
                assert!(sum[0].is_nan() && sum[1].is_nan() && sum[2].is_nan(), "{algorithm}: {sum:?}");
                assert_eq!(sum[3], f32::INFINITY);
                assert_eq!(sum[4].to_bits(), (-0.0f32).to_bits(), "{algorithm}");
                assert_eq!(sum[5].to_bits(), 0.0f32.to_bits(), "{algorithm}");
                let expected = f32::MIN_POSITIVE / 4.0 + f32::MIN_POSITIVE / 8.0;
                assert_eq!(sum[7].to_bits(), expected.to_bits(), "{algorithm}: denormals are kept");
            }
            // In rank order it overflows, and stays there.
            assert_eq!(reduce(&mut comm, MESH[1], &mine)[6], f32::INFINITY);
            let max = comm.all_reduce(mine.clone(), ReduceOp::Max).wait().unwrap();
            let min = comm.all_reduce(mine, ReduceOp::Min).wait().unwrap();
            assert!(
                max[0].is_nan() && max[1].is_nan() && min[0].is_nan() && min[1].is_nan(),
                "{max:?} {min:?}"
            );
            assert_eq!((max[2], min[2]), (f32::INFINITY, f32::NEG_INFINITY));
        });
    }
}
