//! Contradictions: ranks that call different things under one number. Each tells what it called, and all are told all of it.

use std::time::Duration;

use super::channel::met_by;
use super::head::differ;
use super::state::State;
use super::trouble::{decode, encode};
use crate::error::{CallInfo, Error};
use crate::link::RunKey;
use crate::link::frame::{ASK, Header, Kind, Outgoing};

/// How long a contradicted operation waits to learn what everybody called.
const VERDICT: Duration = Duration::from_millis(100);

impl State {
    /// Somebody's digest under this number is another one: everybody tells what he called.
    pub(crate) fn contradicted(&mut self, key: RunKey) {
        let until = self.now + VERDICT;
        let Some(flight) = self.flight(key) else { return };
        if flight.head().verdict.is_some() {
            return;
        }
        let info = flight.info();
        let head = flight.head_mut();
        head.verdict = Some(until);
        let (index, id, seq) = (head.channel, head.channel_id, head.seq);
        let Some(rank) = self.channels[index].as_ref().map(|channel| channel.rank) else { return };
        if let Some(flight) = self.flight(key) {
            flight.head_mut().calls.push((rank, info.clone()));
        }
        let mut header = Header::new(Kind::Mismatch, id, seq);
        header.flags = ASK;
        self.broadcast(index, header, &encode(&info));
    }

    /// A frame for a number that is over here, with another digest than ours had.
    pub(crate) fn contradicted_past(&mut self, index: usize, from: usize, header: &Header) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        let id = channel.id;
        let Some(past) = channel.past_call(header.number) else { return };
        if header.digest == past.desc.digest() || header.digest == 0 || !past.answers(from) {
            return;
        }
        let mut answer = Header::new(Kind::Mismatch, id, header.number);
        answer.flags = ASK;
        let body = encode(&past.info());
        self.tell(index, from, Outgoing::with_body(answer, body));
    }

    pub(crate) fn on_mismatch(
        &mut self,
        index: usize,
        from: usize,
        header: &Header,
        body: &[u8],
    ) -> Result<(), String> {
        let call: CallInfo = decode(body)?;
        let Some(channel) = self.channels[index].as_mut() else { return Ok(()) };
        let seq = header.number;
        if let Some(key) = channel.flight(seq) {
            self.contradict(key, vec![(from, call)]);
        } else if seq >= channel.called {
            channel.tombs.contradict(seq, from, call)?;
        } else if let Some(past) = channel.past_call(seq) {
            let (operation, told, info) = (past.desc.operation, past.told, past.info());
            let answer = header.flags & ASK != 0 && past.answers(from);
            let body = encode(&info);
            if info.contradicts(channel.rank, &call, from) && !told {
                channel.told(seq);
                let calls = [(channel.rank, info), (from, call)];
                let late = channel.mismatch(operation, seq, &calls);
                channel.late.get_or_insert(late);
                // All at once: this rank may leave when it is told, and not hear who asks later.
                let answer = Header::new(Kind::Mismatch, header.channel, seq);
                self.broadcast(index, answer, &body);
            } else if answer {
                let answer = Header::new(Kind::Mismatch, header.channel, seq);
                self.tell(index, from, Outgoing::with_body(answer, body));
            }
        }
        Ok(())
    }

    /// Others have told what they call under the number of this operation; what somebody called is known then.
    pub(crate) fn contradict(&mut self, key: RunKey, told: Vec<(usize, CallInfo)>) {
        if told.is_empty() {
            return;
        }
        self.contradicted(key);
        let Some(flight) = self.flight(key) else { return };
        let head = flight.head_mut();
        for (from, call) in told {
            if head.calls.iter().all(|(rank, _)| *rank != from) {
                head.calls.push((from, call));
            }
        }
        if head.calls.len() == head.members.len() {
            self.decide(key);
        }
    }

    pub(super) fn decide(&mut self, key: RunKey) {
        let Some(flight) = self.flight(key) else { return };
        let head = flight.head();
        let (index, operation, seq, mut calls) =
            (head.channel, head.desc.operation, head.seq, head.calls.clone());
        let Some(channel) = &self.channels[index] else { return };
        for (rank, call) in channel.parting_calls(seq) {
            if calls.iter().all(|(told, _)| *told != rank) {
                calls.push((rank, call.clone()));
            }
        }
        let differ = differ(&calls);
        let error = match &channel.failed {
            // Whoever contradicted is gone, and what it called will never be known.
            Some(failed) if !differ && matches!(failed, Error::PeerLost { .. } | Error::Left { .. }) => {
                met_by(failed.clone(), operation, seq)
            }
            _ => channel.mismatch(operation, seq, &calls),
        };
        self.finish(key, Err(error));
    }
}
