//! A link moves bytes, and may stop in the middle of an element; what is computed may not.

use super::super::io::{Io, Via};
use super::super::state::State;
use super::super::trouble::{Cause, encode};
use super::*;
use crate::buffer::pool::Pool;
use crate::link::{Handler, Sink};

/// More than an eager message, and one frame.
const COUNT: usize = 30_000;

/// A frame arrives.
fn arrive(state: &mut State, peer: usize, mut header: Header, payload: &[u8]) {
    header.length = payload.len() as u32;
    let sink = match Handler::begin(state, peer, &header).unwrap() {
        Sink::Direct(raw, key) => {
            raw.copy_from_slice(payload);
            Sink::Direct(raw, key)
        }
        Sink::Owned(_) => Sink::Owned(payload.to_vec()),
        other => other,
    };
    state.end(peer, &header, sink).unwrap();
    state.advance();
}

fn rank_of_four() -> (State, usize) {
    let vias = vec![Via::Myself, Via::Stream, Via::Stream, Via::Stream];
    let io = Io::new(0, vias, Pool::new(64 << 20, 16 << 20), None);
    let mut state = State::new(io, vec![String::new(); 4], std::time::Instant::now());
    let channel = state.open(Channel::new(CHANNEL, "world".into(), (0..4).collect(), 0));
    (state, channel)
}

/// To another rank, the end of a rank that left in order can look like a loss: those who know better are told what is so.
#[test]
fn who_has_left_is_not_lost_because_another_rank_says_so() {
    let lost = Cause::Lost { rank: Rank(2), host: "node".into(), cause: "reset".into() };
    for left in [false, true] {
        let (mut state, channel) = rank_of_four();
        if left {
            let bye = Header::new(Kind::Bye, 0, 0);
            arrive(&mut state, 2, bye, &[]);
            arrive(&mut state, 2, bye, &[]);
        }
        arrive(&mut state, 1, Header::new(Kind::Abort, CHANNEL, 0), &encode(&lost));
        let failed = state.channels[channel].as_ref().and_then(|channel| channel.failed.clone());
        match failed {
            Some(Error::Left { rank, .. }) => assert!(left && rank == Rank(2)),
            Some(Error::PeerLost { rank, .. }) => assert!(!left && rank == Rank(2)),
            other => panic!("{left}: {other:?}"),
        }
    }
}

/// The sum goes into memory that is still being sent, as far as it has left.
#[test]
fn a_sum_into_memory_that_is_still_sent_is_right() {
    let plan = PlanCache::new()
        .get(Algorithm::RecursiveDoubling, Collective::AllReduce, crate::path::Placement::InPlace, 4)
        .unwrap();
    let program = Arc::new(Program::new(plan, 0));
    let desc = CallDesc { op: Some(ReduceOp::Sum), ..CallDesc::new("all_reduce", DType::F32, COUNT) };
    let (mut state, channel) = rank_of_four();
    let op = Arc::new(Op::default());
    let mut request = Request {
        channel,
        seq: 0,
        desc,
        digest: desc.digest(),
        work: Work::Collective(program.clone()),
        parts: Parts::from_vec(vec![1f32; COUNT]),
        deadline: WATCHDOG,
        priority: Priority::Normal,
    };
    state.start(op, &mut request);
    let key = state.key_at(0).unwrap();
    let bytes = COUNT * 4;
    let values = |factor: usize| -> Vec<u8> {
        (0..COUNT).flat_map(|index| ((factor * index) as f32).to_le_bytes()).collect()
    };
    let mut sends = Vec::new();
    for peer in [1, 2] {
        let step = program.outgoing(peer, 0).unwrap();
        sends.push(step as u16);
        let mut credit = Header::new(Kind::Credit, CHANNEL, 0);
        (credit.digest, credit.offset) = (desc.digest(), bytes as u64);
        arrive(&mut state, peer, credit, &[]);
        let mut data = Header::new(Kind::Data, CHANNEL, 0);
        data.digest = desc.digest();
        arrive(&mut state, peer, data, &values(peer));
    }
    for part in [1001, 2, bytes - 1003] {
        state.released(key, sends[0], part);
        state.advance();
    }
    state.released(key, sends[1], bytes);
    state.advance();
    let outcome = state.woken.pop().expect("it is over").take_outcome().expect("it has ended");
    outcome.result.unwrap();
    let sum: Vec<f32> = outcome.parts.unwrap().into_vec();
    for (index, value) in sum.into_iter().enumerate() {
        assert_eq!(value, (3 * index + 1) as f32, "index {index}");
    }
}
