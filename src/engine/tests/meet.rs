//! Ranks of one process, each on its thread, whose calls are over before they return if they meet.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::super::keeper::Keeper;
use super::super::{Engine, PeerLink, Priority, Program, Request, Submitted, Work};
use super::{CHANNEL, Channel, Memory, sum_of, watched};
use crate::buffer::parts::Parts;
use crate::error::Error;
use crate::link::memory::Hub;
use crate::path::{Algorithm, Collective, PlanCache};
use crate::runtime::spin::SpinPolicy;

struct Member {
    engine: Arc<Engine>,
    channel: usize,
    rank: usize,
    program: Arc<Program>,
    next: u64,
    /// Calls that were over before they returned.
    met: usize,
    deadline: Duration,
}

/// All look for their peers, whatever the number of processors.
fn world(ranks: usize) -> Vec<Member> {
    let hub = Hub::new(ranks);
    let plan = PlanCache::new()
        .get(Algorithm::MeshTwoShot, Collective::AllReduce, crate::path::Placement::InPlace, ranks as u32)
        .unwrap();
    let member = |rank: usize| {
        let peer = |peer| if peer == rank { PeerLink::Myself } else { PeerLink::Memory };
        let peers = (0..ranks).map(peer).collect();
        let labels = (0..ranks).map(|rank| format!("host{rank}")).collect();
        let (hub, memory) = (Some(hub.clone()), Memory { limit: 64 << 20 });
        let engine =
            Engine::kept(rank, peers, labels, hub, SpinPolicy::Look, memory, Keeper::Thread).unwrap();
        let all = (0..ranks as u32).collect();
        let channel = engine.open(Channel::new(CHANNEL, "world".into(), all, rank));
        let program = Arc::new(Program::new(plan.clone(), rank));
        Member { engine, channel, rank, program, next: 0, met: 0, deadline: Duration::from_secs(60) }
    };
    (0..ranks).map(member).collect()
}

impl Member {
    fn begin(&mut self, values: Vec<f32>) -> Submitted {
        let desc = sum_of(&self.program, values.len());
        self.next += 1;
        self.engine.submit(Request {
            channel: self.channel,
            seq: self.next - 1,
            desc,
            digest: desc.digest(),
            work: Work::Collective(self.program.clone()),
            parts: Parts::from_vec(values),
            deadline: self.deadline,
            priority: Priority::Normal,
        })
    }

    fn end(&mut self, call: Submitted) -> Result<Vec<f32>, Error> {
        match call {
            Submitted::Over(parts) => {
                self.met += 1;
                Ok(parts.into_vec())
            }
            Submitted::Flying(op) => {
                self.engine.block_on(&op);
                let outcome = op.take_outcome().unwrap();
                outcome.result.map(|()| outcome.parts.unwrap().into_vec())
            }
        }
    }
}

/// Values whose sum depends on the order of addition.
fn value(rank: usize, seq: u64, index: usize) -> f32 {
    let word = (rank as u64 + 1) * 0x9e37 + seq * 31 + index as u64;
    (word % 1013) as f32 * if word.is_multiple_of(3) { 1e7 } else { 1e-3 }
}

fn values(rank: usize, seq: u64, count: usize) -> Vec<f32> {
    (0..count).map(|index| value(rank, seq, index)).collect()
}

fn sum(ranks: usize, seq: u64, count: usize) -> Vec<u32> {
    let of = |index| (1..ranks).fold(value(0, seq, index), |sum, rank| sum + value(rank, seq, index));
    (0..count).map(|index| of(index).to_bits()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs `act` for each rank on its own thread; gives back what they say.
fn all<R: Send + 'static>(ranks: usize, act: impl Fn(Member) -> R + Clone + Send + 'static) -> Vec<R> {
    watched("ranks that may meet", move || {
        let threads: Vec<_> = world(ranks)
            .into_iter()
            .map(|member| {
                let act = act.clone();
                std::thread::spawn(move || act(member))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn calls_meet_and_those_that_do_not_go_on_with_equal_bits() {
    let met_before = Arc::new(AtomicUsize::new(0));
    let pause = Arc::new(Barrier::new(2));
    let both = all(2, move |mut member| {
        let mut flown = 0;
        for seq in 0..100_000 {
            if seq % 1000 == 0 {
                met_before.fetch_add(member.met, Ordering::SeqCst);
                pause.wait();
                // As often as it takes, on a machine that is busy otherwise.
                if seq >= 2000 && met_before.load(Ordering::SeqCst) > 0 {
                    break;
                }
                pause.wait();
            }
            let count = [0, 1, 7, 100, 5000][seq as usize % 5];
            let mine = values(member.rank, seq, count);
            if seq % 64 == member.rank as u64 {
                std::thread::sleep(Duration::from_micros(50));
            }
            let before = Instant::now();
            let call = member.begin(mine);
            flown += usize::from(matches!(call, Submitted::Flying(_)));
            // Whoever asks where this rank is learns that it was here just now.
            if let Submitted::Over(_) = call {
                let polled_at = member.engine.shared.with_core(|core| core.state.polled_at);
                assert!(polled_at >= before, "call {seq}: {:?} ago", before - polled_at);
            }
            let result = member.end(call).unwrap();
            assert_eq!(bits(&result), sum(2, seq, count), "call {seq}");
        }
        (member.met, flown)
    });
    assert!(both.iter().any(|(met, _)| *met > 0), "nobody ever met: {both:?}");
    assert!(both.iter().all(|(_, flown)| *flown > 0), "all always met: {both:?}");
}

#[test]
fn ranks_that_outnumber_processors_may_meet_as_well() {
    for ranks in [3, 4, 5, 8] {
        all(ranks, move |mut member| {
            for seq in 0..200 {
                let count = [3, 1000][seq as usize % 2];
                let mine = values(member.rank, seq, count);
                let call = member.begin(mine);
                assert_eq!(
                    bits(&member.end(call).unwrap()),
                    sum(ranks, seq, count),
                    "{ranks} ranks, call {seq}"
                );
            }
        });
    }
}

#[test]
fn a_rank_that_calls_something_else_meets_nobody() {
    for ranks in [2, 3] {
        all(ranks, move |mut member| {
            for seq in 0..60 {
                let odd = seq % 20 == 19;
                let count = if odd && member.rank == 1 { 9 } else { 8 };
                let call = member.begin(values(member.rank, seq, count));
                match member.end(call) {
                    Ok(result) => {
                        assert!(!odd, "call {seq} went well");
                        assert_eq!(bits(&result), sum(ranks, seq, count), "call {seq}");
                    }
                    Err(Error::Mismatch { seq: of, .. }) => assert!(odd && of.0 == seq, "call {seq}, {of:?}"),
                    Err(error) => panic!("call {seq}: {error}"),
                }
            }
        });
    }
}

#[test]
fn one_that_never_comes_is_waited_for_and_given_up() {
    let ends = all(2, |mut member| {
        for seq in 0..100 {
            let call = member.begin(values(member.rank, seq, 8));
            member.end(call).unwrap();
        }
        if member.rank == 1 {
            // Stays, and calls nothing for as long as the other has patience.
            std::thread::sleep(Duration::from_millis(300));
            return None;
        }
        member.deadline = Duration::from_millis(100);
        let call = member.begin(values(0, 100, 8));
        assert!(matches!(call, Submitted::Flying(_)));
        Some(member.end(call).unwrap_err())
    });
    let [Some(Error::Deadline { .. }), None] = &ends[..] else { panic!("{ends:?}") };
}
