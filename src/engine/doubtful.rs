//! Calls that something may be wrong with before they begin.

use std::sync::Arc;

use super::call::{Op, Outcome, Request, Work};
use super::peer::Standing;
use super::point::OFFERS_MAX;
use super::state::{Ended, State};
use crate::buffer::parts::Parts;
use crate::error::Error;
use crate::rank::Seq;

impl State {
    /// Begins a call that something may be wrong with.
    pub(super) fn begin_doubtful(&mut self, op: Arc<Op>, request: &mut Request) {
        if let Work::GivenUp = request.work {
            self.pass_over(request);
            return;
        }
        let Some(channel) = self.channels[request.channel].as_mut() else { return };
        let collective = request.desc.tag.is_none();
        let (mut calls, mut aborted) = (Vec::new(), None);
        // Who was told that nothing will be called knows.
        let mut known = channel.parted;
        // Who disagreed may be lost because of it.
        let late = if collective { channel.late.take() } else { None };
        let mut refusal = late.or_else(|| channel.failure(request));
        if collective {
            let (others, given_up) = channel.tombs.take(request.seq);
            calls = others;
            aborted = given_up.map(|(by, cause)| channel.aborted(request, by, cause));
        }
        // Given up while it waited for room, or for whoever drove.
        if op.is_cancelled() && collective {
            refusal = refusal.or_else(|| {
                let operation = request.desc.operation.into();
                let communicator = channel.name.clone();
                Some(Error::Cancelled { operation, seq: Seq(request.seq), communicator })
            });
        }
        if let Work::Refuse(error) = &request.work {
            refusal = refusal.or_else(|| Some((**error).clone()));
        }
        // Whoever gave it up has told all; where ranks disagree, this one has its say as well.
        known |= refusal.is_none() && calls.is_empty() && aborted.is_some();
        let aborted = aborted.filter(|_| calls.is_empty());
        if let Some(error) =
            refusal.or(aborted).or_else(|| self.departed(request)).or_else(|| self.overdone(request))
        {
            if collective {
                self.drop_kept(request.channel, request.seq);
                self.tell_failed(request.channel, request.seq);
                if !known {
                    self.publish_failure(request.channel, request.seq, &error);
                }
            }
            let call = ((request.channel, request.seq), (&request.desc, request.priority));
            self.record_unbegun(call.0, call.1, self.now, &error);
            let outcome = Outcome {
                result: Err(error),
                parts: Some(std::mem::replace(&mut request.parts, Parts::NONE)),
                arrival: None,
            };
            self.ended.push(Ended { op, key: None, outcome, blocks: Vec::new(), windows: None });
            return;
        }
        self.launch(op, request, calls);
    }

    /// A call that ended while it waited takes its number.
    fn pass_over(&mut self, request: &Request) {
        if let Some(channel) = self.channels[request.channel].as_mut() {
            channel.tombs.take(request.seq);
        }
        self.drop_kept(request.channel, request.seq);
        self.tell_failed(request.channel, request.seq);
    }

    fn tell_failed(&mut self, channel: usize, seq: u64) {
        if let Some(channel) = self.channels[channel].as_mut() {
            channel.told(seq);
        }
    }

    /// What came for a number that will not begin is of no use.
    pub(super) fn drop_kept(&mut self, index: usize, seq: u64) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        while let Some(stashed) = channel.unkeep(seq) {
            let world = channel.members[stashed.from] as usize;
            stashed.discard(world, &mut self.io);
        }
    }

    /// A send to a rank that has accepted none of very many before.
    pub(super) fn overdone(&self, request: &Request) -> Option<Error> {
        let Work::Send { to } = request.work else { return None };
        let waiting = self.channels[request.channel].as_ref()?.matching[to].offers.len();
        if waiting < OFFERS_MAX {
            return None;
        }
        Some(Error::Limit {
            operation: request.desc.operation.into(),
            what: format!("messages to rank {to} that wait to be received").into(),
            limit: OFFERS_MAX as u64,
            hint: "await some of them first".into(),
        })
    }

    /// A call that needs somebody who has left before can't be begun. What he called before he left can: all that he
    /// had to send has come.
    pub(super) fn departed(&self, request: &Request) -> Option<Error> {
        let channel = self.channels[request.channel].as_ref()?;
        let closed = |rank: &usize| {
            let gone = self.peers[channel.members[*rank] as usize].standing != Standing::Here;
            channel.closed[*rank].or(gone.then_some(0))
        };
        let misses = |rank: &usize| match request.work {
            Work::Collective(_) => closed(rank).is_some_and(|called| called <= request.seq),
            // One who only closes may have begun to receive it before.
            Work::Send { to } => to == *rank && closed(rank).is_some(),
            Work::Recv { wish, .. } => {
                let is_silent = |rank: &usize| channel.leaving[*rank] || closed(rank).is_some();
                let others = || (0..channel.members.len()).filter(|other| *other != channel.rank);
                let is_alone = || match wish.from() {
                    Some(from) => from == *rank && is_silent(rank),
                    None => *rank != channel.rank && others().all(|other| is_silent(&other)),
                };
                channel.board.first_held(wish).is_none() && is_alone()
            }
            Work::Claimed { .. } | Work::Admit | Work::Refuse(_) | Work::GivenUp | Work::Rebuild => false,
        };
        let rank = (0..channel.members.len()).find(misses)?;
        Some(self.has_left(request.channel, rank, request.desc.operation, request.seq))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::channel::Channel;
    use super::super::io::{Io, Via};
    use super::super::{CallDesc, Priority, Tagged};
    use super::*;
    use crate::buffer::pool::Pool;
    use crate::element::DType;
    use crate::rank::{Rank, Tag};

    /// A program can tell what ends by itself from what it does wrong.
    #[test]
    fn a_send_beyond_the_limit_is_told_so() {
        let io = Io::new(0, vec![Via::Myself, Via::Stream], Pool::new(64 << 20, 16 << 20), None);
        let mut state = State::new(io, vec![String::new(); 2], Instant::now());
        let channel = state.open(Channel::new(0, "world".into(), [0, 1].into(), 0));
        let desc = CallDesc {
            root: Some(Rank(1)),
            tag: Some(Tagged::Of(Tag(7))),
            ..CallDesc::new("send", DType::U8, 0)
        };
        let request = Request {
            channel,
            seq: 0,
            digest: desc.digest(),
            desc,
            work: Work::Send { to: 1 },
            parts: Parts::NONE,
            deadline: Duration::MAX,
            priority: Priority::Normal,
        };
        for (waiting, refused) in [(OFFERS_MAX as u64 - 1, false), (OFFERS_MAX as u64, true)] {
            state.channels[channel].as_mut().unwrap().matching[1].offers.extend(0..waiting);
            let error = state.overdone(&request);
            assert_eq!(error.is_some(), refused, "{error:?}");
            let Some(error) = error else { continue };
            assert!(matches!(error, Error::Limit { limit: 131_072, .. }) && !error.is_fatal());
            let said =
                "send: there are 131072 messages to rank 1 that wait to be received, which is the limit";
            assert!(error.to_string().starts_with(said), "{error}");
        }
    }
}
