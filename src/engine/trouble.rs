//! What goes wrong: deadlines, cancellation, ranks that are lost or leave. Who is told, and in what words. Contradictions are
//! in [`dispute`](super::dispute).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::io::Via;
use super::matching::{Content, Unexpected};
use super::peer::Standing;
use super::reports::brief;
use super::state::{Flight, State};
use crate::error::{CallInfo, Error, Report};
use crate::link::RunKey;
use crate::link::frame::{CONTROL_MAX, Header, Kind, Outgoing, PANICKED, POINT, TO_SENDER};
use crate::rank::{Rank, Seq, Tag};

/// Why a rank gave an operation up, as the others are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Cause {
    Deadline(Box<Report>),
    Cancelled,
    Lost {
        rank: Rank,
        host: String,
        cause: String,
    },
    /// Somebody who is needed has left; the communicator is of use without him.
    Departed {
        rank: Rank,
        host: String,
    },
    Failed(String),
}

impl State {
    pub(super) fn broadcast(&mut self, index: usize, header: Header, body: &[u8]) {
        let Some(channel) = &self.channels[index] else { return };
        let (members, rank) = (channel.members.clone(), channel.rank);
        for (other, world) in members.iter().enumerate() {
            if other != rank && self.peers[*world as usize].standing == Standing::Here {
                self.io.control(*world as usize, Outgoing::with_body(header, body.to_vec()));
            }
        }
    }

    pub(super) fn tell(&mut self, index: usize, rank: usize, frame: Outgoing) {
        let Some(channel) = &self.channels[index] else { return };
        let world = channel.members[rank] as usize;
        self.io.control(world, frame);
    }

    // --- aborts

    /// Tells all members that a number is given up.
    pub(super) fn publish_abort(&mut self, index: usize, seq: u64, cause: &Cause) {
        let Some(channel) = &self.channels[index] else { return };
        let header = Header::new(Kind::Abort, channel.id, seq);
        self.broadcast(index, header, &encode_cause(cause));
    }

    pub(crate) fn on_abort(
        &mut self,
        index: usize,
        from: usize,
        header: &Header,
        body: &[u8],
    ) -> Result<(), String> {
        let cause: Cause = decode(body)?;
        let Some(channel) = self.channels[index].as_mut() else { return Ok(()) };
        if header.flags & POINT != 0 {
            let world = channel.members[from] as usize;
            let matching = &mut channel.matching[from];
            if header.flags & TO_SENDER != 0 {
                matching.offers.remove(&header.number);
            }
            let side = if header.flags & TO_SENDER != 0 { &matching.sends } else { &matching.receives };
            match side.get(&header.number).copied() {
                Some(key) => self.finish_aborted(key, from, &cause),
                // Over byte links an offer that was given up is refused to whoever accepts it.
                None if header.flags & TO_SENDER == 0 && self.io.via(world) == Via::Memory => {
                    channel.board.given_up(from, header.number, cause);
                }
                None => {}
            }
            return Ok(());
        }
        let seq = header.number;
        if let Cause::Lost { rank, host, cause } = &cause {
            if rank.index() < channel.members.len() {
                self.fail(index, rank.index(), host, cause);
            }
        } else if let Some(key) = channel.flight(seq) {
            self.finish_aborted(key, from, &cause);
        } else if seq >= channel.called {
            channel.tombs.give_up(seq, from, cause)?;
            self.heed_abort(index, seq);
        }
        Ok(())
    }

    pub(super) fn finish_aborted(&mut self, key: RunKey, by: usize, cause: &Cause) {
        let Some(flight) = self.flight(key) else { return };
        let head = flight.head();
        let (operation, seq, index) = (head.desc.operation.into(), Seq(head.seq), head.channel);
        let communicator = self.name(index);
        let me = self.channels[index].as_ref().map_or(0, |channel| channel.rank);
        let error = match cause.clone() {
            // Who was waited for sees that somebody gave up, whether he has called by then or not.
            Cause::Deadline(report) if !report.late.contains(&Rank(me as u32)) => Error::Deadline(report),
            Cause::Departed { rank, host } => {
                Error::Left { operation, seq, communicator, rank, host: host.into() }
            }
            other => {
                let cause = other.to_string().into();
                Error::Aborted { operation, seq, communicator, by: Rank(by as u32), cause }
            }
        };
        self.finish(key, Err(error));
    }

    pub(crate) fn name(&self, index: usize) -> Arc<str> {
        self.channels[index].as_ref().map(|channel| channel.name.clone()).unwrap_or_default()
    }

    pub(super) fn cancel(&mut self, key: RunKey) {
        let Some(flight) = self.flight(key) else { return };
        let collective = flight.is_collective();
        let head = flight.head();
        let (operation, seq, index) = (head.desc.operation.into(), head.seq, head.channel);
        if collective {
            self.publish_abort(index, seq, &Cause::Cancelled);
        }
        self.give_up_message(key);
        let communicator = self.name(index);
        self.finish(key, Err(Error::Cancelled { operation, seq: Seq(seq), communicator }));
    }

    /// A call that failed at once takes its number all the same, and the others learn its outcome.
    pub(crate) fn publish_failure(&mut self, index: usize, seq: u64, error: &Error) {
        let cause = match error.clone() {
            Error::PeerLost { rank, host, cause, .. } => {
                Cause::Lost { rank, host: host.to_string(), cause: cause.to_string() }
            }
            Error::Left { rank, host, .. } => Cause::Departed { rank, host: host.to_string() },
            Error::Cancelled { .. } => Cause::Cancelled,
            Error::Deadline(report) => Cause::Deadline(brief(&report)),
            other => Cause::Failed(other.to_string()),
        };
        self.publish_abort(index, seq, &cause);
    }

    /// A protocol violation found while frames were adopted, when no connection is at hand to be closed.
    pub(crate) fn broke_protocol(&mut self, key: RunKey, from: usize, problem: String) {
        let peer = self.flight(key).map(|flight| flight.head().members[from] as usize);
        let text = problem.clone();
        self.finish(key, Err(Error::Protocol { rank: Rank(from as u32), problem: problem.into() }));
        if let Some(peer) = peer {
            self.offends(peer, &text);
        }
    }

    // --- point to point

    /// A message does not fit the receive that its tag matches.
    pub(crate) fn refuse_message(&mut self, key: RunKey, index: usize, from: usize, message: &Unexpected) {
        let Some(Flight::Point(point)) = self.flight(key) else { return };
        let (head, longer) = (&point.head, point.is_too_short_for(message));
        let (operation, seq, call, room) = (head.desc.operation, head.seq, head.desc.info(), head.desc.count);
        let desc = head.desc.of_message(message.bytes, message.digest);
        let tag = Some(Tag(message.tag));
        let called = if desc.is_of_round() { "contribute" } else { "send" };
        let sender = CallInfo { operation: called.into(), root: None, tag, ..desc.info() };
        let Some(channel) = &self.channels[index] else { return };
        let error = if longer {
            Error::Truncated {
                operation: operation.into(),
                seq: Seq(seq),
                communicator: channel.name.clone(),
                from: Rank(from as u32),
                tag: Tag(message.tag),
                dtype: desc.dtype,
                count: desc.count as u64,
                room: room as u64,
            }
        } else {
            channel.mismatch(operation, seq, &[(channel.rank, call), (from, sender)])
        };
        match message.content {
            Content::Local(sender) => {
                self.finish_aborted(sender, from, &Cause::Failed(error.to_string()));
            }
            // It has left its sender, who need not know that yet.
            Content::Whole(_) => {}
            _ => self.refuse_send(index, from, message.number, &error),
        }
        self.finish(key, Err(error));
    }

    fn refuse_send(&mut self, index: usize, to: usize, number: u64, error: &Error) {
        self.abort_message(index, to, number, POINT | TO_SENDER, Cause::Failed(error.to_string()));
    }

    /// A receiver accepts a message that its sender has given up.
    pub(crate) fn refuse_accept(&mut self, index: usize, to: usize, number: u64) {
        let cause = Cause::Failed("its sender has given it up".into());
        self.abort_message(index, to, number, POINT, cause);
    }

    /// A message is given up here. If its other side works on it, that waits for nothing from now on.
    pub(super) fn give_up_message(&mut self, key: RunKey) {
        let Some(Flight::Point(point)) = self.flight(key) else { return };
        let (index, Some(peer)) = (point.head.channel, point.peer) else { return };
        match point.engaged() {
            Some((number, true)) => self.refuse_accept(index, peer, number),
            Some((number, false)) => {
                let cause = Cause::Failed("its receiver has given it up".into());
                self.abort_message(index, peer, number, POINT | TO_SENDER, cause);
            }
            None => {}
        }
    }

    /// Tells the other side of a message that it is over.
    pub(super) fn abort_message(&mut self, index: usize, to: usize, number: u64, flags: u16, cause: Cause) {
        let Some(channel) = &self.channels[index] else { return };
        let mut header = Header::new(Kind::Abort, channel.id, number);
        header.flags = flags;
        self.tell(index, to, Outgoing::with_body(header, encode(&cause)));
    }

    // --- ranks that are gone

    /// A process or host is gone.
    pub(crate) fn lost(&mut self, peer: usize, cause: String) {
        if self.peers[peer].standing != Standing::Here {
            return;
        }
        tracing::warn!(rank = peer, host = self.peers[peer].label, cause, "lost a rank");
        self.peers[peer].goes(Standing::Lost(cause), self.now);
        for index in 0..self.channels.len() {
            if let Some(rank) = self.channels[index].as_ref().and_then(|channel| channel.rank_of(peer)) {
                self.forget_hold(index, rank);
                self.fail_channel(index, rank);
            }
        }
    }

    /// A communicator with a lost member is of no more use. All members are told, so that they blame the same rank even
    /// if they see others leave because of it first.
    pub(crate) fn fail_channel(&mut self, index: usize, rank: usize) {
        let Some(channel) = &self.channels[index] else { return };
        let peer = channel.members[rank] as usize;
        let Standing::Lost(cause) = self.peers[peer].standing.clone() else { return };
        self.fail(index, rank, &self.peers[peer].label.clone(), &cause);
    }

    pub(super) fn fail(&mut self, index: usize, rank: usize, host: &str, cause: &str) {
        self.give_up(index, rank);
        let Some(channel) = &self.channels[index] else { return };
        if channel.failed.is_some() || channel.rank == rank {
            return;
        }
        // Whoever has said so here has left in order, even if its end looked otherwise to another rank.
        let left = self.has_left_in_order(channel, rank);
        let Some(channel) = self.channels[index].as_mut() else { return };
        let communicator = channel.name.clone();
        let rank = Rank(rank as u32);
        let error = |operation: &str, seq| {
            let (operation, seq) = (operation.into(), Seq(seq));
            let (communicator, host) = (communicator.clone(), host.into());
            if left {
                Error::Left { operation, seq, communicator, rank, host }
            } else {
                Error::PeerLost { operation, seq, communicator, rank, host, cause: cause.into() }
            }
        };
        let called = channel.called;
        channel.failed = Some(error("next call", called));
        // Under a key, its communicator's failure says it.
        if channel.family.is_none() {
            self.publish_abort(index, called, &Cause::Lost { rank, host: host.into(), cause: cause.into() });
        }
        let mut told = false;
        for key in self.keys_on(index) {
            let Some(flight) = self.flight(key) else { continue };
            if matches!(flight, Flight::Rebuild(_)) {
                continue;
            }
            let head = flight.head_mut();
            // It may be gone because ranks disagree: that is told, soon.
            head.bereft = true;
            if head.verdict.is_none() {
                let error = error(head.desc.operation, head.seq);
                self.finish(key, Err(error));
                told = true;
            }
        }
        if let Some(channel) = self.channels[index].as_mut() {
            channel.failure_told = told;
        }
        self.discard_kept(index);
        for key in self.keys_on_index(index) {
            self.fail(key, rank.index(), host, cause);
        }
        self.discard_unused_keys_on(index);
    }

    pub(super) fn keys_on(&self, index: usize) -> Vec<RunKey> {
        self.flights()
            .filter(|flight| flight.head().channel == index)
            .map(|flight| flight.head().key)
            .collect()
    }

    /// The peer will send nothing more. With two connections, it says so on each.
    pub(crate) fn said_bye(&mut self, peer: usize) {
        self.peers[peer].byes += 1;
        if self.peers[peer].byes >= 2 || self.io.via(peer) != Via::Stream {
            self.left(peer);
        }
    }

    /// The peer has left in order: what needs it can't end well, the rest can.
    pub(crate) fn left(&mut self, peer: usize) {
        if self.peers[peer].standing != Standing::Here {
            return;
        }
        self.peers[peer].goes(Standing::Left, self.now);
        for index in 0..self.channels.len() {
            if let Some(rank) = self.channels[index].as_ref().and_then(|channel| channel.rank_of(peer)) {
                self.on_close(index, rank, 0);
            }
        }
    }

    /// This rank will not use a communicator again: the others are told, once nothing of it is in flight here.
    pub(crate) fn say_close(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        channel.closing = true;
        self.wind_up_keys(index);
        self.end_left_over(index);
        self.close_idle(index);
    }

    /// Closes a communicator that is to be closed and has nothing in flight.
    pub(crate) fn close_idle(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_ref() else { return };
        let busy = !channel.delayed.is_empty() || channel.live > 0;
        if busy || !channel.closing && !channel.winding_up || self.waits_for_keys(channel.id) {
            return;
        }
        let (closing, family) = (channel.closing, channel.family.clone());
        self.part(index);
        if closing {
            self.close(index);
        }
        self.closed_key(family);
    }

    /// Tells the others, once, that this rank will not use a communicator again.
    fn part(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_mut().filter(|channel| !channel.parted) else { return };
        channel.parted = true;
        self.forget_own_hold(index);
        let Some(channel) = self.channels[index].as_mut() else { return };
        let closed = Error::Closed { communicator: channel.name.clone() };
        channel.failed.get_or_insert(closed);
        let mut header = Header::new(Kind::Close, channel.id, channel.called);
        header.flags = if channel.panicked[channel.rank] { PANICKED } else { 0 };
        let (members, rank) = (channel.members.clone(), channel.rank);
        let calls = encode(&channel.last_calls());
        self.broadcast(index, header, &calls);
        for (other, world) in members.iter().enumerate() {
            if other != rank {
                self.io.control_bulk(*world as usize, Outgoing::control(header));
            }
        }
        self.discard_kept(index);
    }

    /// A rank says on each of its connections that it will not use this communicator again: what it sent before has
    /// come once all of them say so.
    pub(crate) fn said_close(
        &mut self,
        index: usize,
        rank: usize,
        header: &Header,
        calls: &[u8],
    ) -> Result<(), String> {
        let calls = if calls.is_empty() { Vec::new() } else { decode(calls)? };
        let Some(channel) = self.channels[index].as_mut() else { return Ok(()) };
        let connections = if self.io.via(channel.members[rank] as usize) == Via::Stream { 2 } else { 1 };
        if channel.closes[rank] == connections {
            return Err("has closed a communicator twice".into());
        }
        channel.closes[rank] += 1;
        channel.parting[rank].extend(calls);
        if channel.closes[rank] == connections {
            channel.panicked[rank] = header.flags & PANICKED != 0;
            self.on_close(index, rank, header.number);
        }
        Ok(())
    }

    /// A rank will not use this communicator again, from number `called` on, and all it sent has come.
    pub(crate) fn on_close(&mut self, index: usize, rank: usize, called: u64) {
        self.advance();
        let Some(channel) = self.channels[index].as_mut() else { return };
        channel.closed[rank].get_or_insert(called);
        self.forget_hold(index, rank);
        self.give_up(index, rank);
        for key in self.keys_on(index) {
            self.part_with_closed(key);
        }
        self.fail_panicked(index, rank);
        self.review_delayed_on(index);
        self.closes_keys(index, rank);
    }

    /// Ends an operation that waits for a rank which will send nothing more.
    pub(super) fn part_with_closed(&mut self, key: RunKey) {
        let Some(flight) = self.flight(key) else { return };
        if matches!(flight, Flight::Rebuild(_)) {
            return;
        }
        let head = flight.head();
        let collective = flight.is_collective();
        let (index, desc, seq, disputed) = (head.channel, head.desc, head.seq, head.verdict.is_some());
        let Some(channel) = &self.channels[index] else { return };
        if channel.closed.iter().all(Option::is_none) {
            return;
        }
        let Some(flight) = self.flight(key) else { return };
        // From anybody: one who is left will do.
        let open = flight.waits_for_any();
        let waits = flight.waits_for();
        let Some(channel) = &self.channels[index] else { return };
        if disputed {
            // That is what is told, and may be why this one leaves. What those that have left had called is known.
            let told = channel.parting_calls(seq).map(|(rank, call)| (rank, call.clone())).collect();
            self.contradict(key, told);
            return;
        }
        let is_gone = |rank: &usize| channel.closed[*rank].is_some();
        if open && !waits.iter().all(is_gone) {
            return;
        }
        let Some(rank) = waits.into_iter().find(is_gone) else { return };
        // It has sent all it had to, but not what is waited for: what it called says why.
        let called = channel.parting_calls(seq).find(|(of, _)| *of == rank).map(|(_, call)| call.clone());
        if let Some(called) = called.filter(|called| collective && *called != desc.info()) {
            self.contradict(key, vec![(rank, called)]);
            return;
        }
        // A contradiction that nobody was told of may be why this one leaves.
        let Some(channel) = self.channels[index].as_mut() else { return };
        let late = channel.late.take();
        if late.is_none() && channel.panicked[rank] {
            // All on this communicator fail with it.
            return;
        }
        let error = late.unwrap_or_else(|| self.has_left(index, rank, desc.operation, seq));
        if collective {
            // Others may wait for that rank only through this one.
            self.publish_failure(index, seq, &error);
        }
        self.finish(key, Err(error));
    }

    pub(super) fn has_left(&self, index: usize, rank: usize, operation: &str, seq: u64) -> Error {
        let world = self.channels[index].as_ref().map_or(0, |channel| channel.members[rank] as usize);
        Error::Left {
            operation: operation.into(),
            seq: Seq(seq),
            communicator: self.name(index),
            rank: Rank(rank as u32),
            host: self.peers[world].label.as_str().into(),
        }
    }
}

pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Serialisation into memory can't fail; an empty body would be refused by the receiver.
    postcard::to_stdvec(value).unwrap_or_default()
}

/// A report of many ranks is cut to what a frame holds.
fn encode_cause(cause: &Cause) -> Vec<u8> {
    let mut body = encode(cause);
    let mut cut = cause.clone();
    while body.len() > CONTROL_MAX {
        match &mut cut {
            Cause::Deadline(report) if report.late.len() > 1 || !report.states.is_empty() => {
                report.states.truncate(report.states.len() / 2);
                report.known.truncate(report.known.len() / 2);
                report.links.truncate(report.links.len() / 2);
                report.waits_for.truncate(report.waits_for.len() / 2);
                report.late.truncate((report.late.len() / 2).max(1));
            }
            _ => cut = Cause::Failed(cause.to_string().chars().take(CONTROL_MAX / 8).collect()),
        }
        body = encode(&cut);
    }
    body
}

pub(super) fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    postcard::from_bytes(body).map_err(|error| format!("unreadable frame: {error}"))
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cause::Deadline(report) => report.fmt(f),
            Cause::Cancelled => f.write_str("cancelled"),
            Cause::Lost { rank, host, cause } => write!(f, "rank {rank} ({host}) is lost: {cause}"),
            Cause::Departed { rank, host } => write!(f, "rank {rank} ({host}) has left"),
            Cause::Failed(cause) => f.write_str(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::circle::Elsewhere;
    use super::super::rebuild::View;
    use super::super::status::{Current, Status};
    use super::*;
    use crate::element::{DType, ReduceOp};
    use crate::rank::Tag;

    /// One of each.
    fn texts() -> [Vec<u8>; 8] {
        let call = CallInfo {
            operation: "all_reduce".into(),
            dtype: DType::F32,
            count: 300,
            op: Some(ReduceOp::Sum),
            root: Some(Rank(1)),
            tag: Some(Tag(9)),
            algorithm: "ring".into(),
            plan: 7,
            counts: None,
        };
        let report = Report {
            operation: "recv".into(),
            seq: Seq(300),
            communicator: "world".into(),
            rank: Rank(0),
            waited: Duration::from_millis(1500),
            late: vec![Rank(1), Rank(300)],
            states: vec![(Rank(1), "is in barrier".into())],
            cause: "cut off".into(),
            completed: Some(Seq(7)),
            waits_for: vec![Rank(1)],
            ..Report::default()
        };
        let current = Current { seq: 3, call: call.clone(), waits_for: vec![0, 1, 300] };
        let elsewhere = Elsewhere {
            call: "barrier".into(),
            seq: 2,
            communicator: "world/0".into(),
            channel: 77,
            collective: true,
            waits_for: vec![0, 300],
        };
        [
            encode(&Cause::Deadline(Box::new(report))),
            encode(&Cause::Lost { rank: Rank(2), host: "node".into(), cause: "killed".into() }),
            encode(&Cause::Departed { rank: Rank(2), host: "node".into() }),
            encode(&Cause::Failed("it can't be".into())),
            encode(&call),
            encode(&Status {
                next: 4,
                current: Some(current),
                unpolled_ms: 90_000,
                elsewhere: Some(elsewhere),
            }),
            encode(&vec![(300u64, call.clone()), (301, call)]),
            encode(&View { gone: vec![false, true, false], decided: true }),
        ]
    }

    proptest! {
        /// Lengths within a text are claims, too: what is decoded is no longer than what came.
        #[test]
        fn damaged_texts_are_decoded_or_refused(
            which in 0usize..8,
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            claim in proptest::option::of(any::<prop::sample::Index>()),
            cut in proptest::option::weighted(0.2, any::<prop::sample::Index>()),
        ) {
            let mut body = texts()[which].clone();
            if let Some(at) = claim {
                let at = at.index(body.len());
                body.splice(at..=at, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
            }
            for (at, byte) in damage {
                let at = at.index(body.len());
                body[at] = byte;
            }
            body.truncate(cut.map_or(body.len(), |at| at.index(body.len())));
            let now = std::time::Instant::now();
            if let Ok(cause) = decode::<Cause>(&body) {
                prop_assert!(cause.to_string().len() <= 40 * body.len() + 100);
                encode_cause(&cause);
            }
            if let Ok(status) = decode::<Status>(&body) {
                prop_assert!(status.current.as_ref().is_none_or(|current| current.waits_for.len() <= body.len()));
                status.describe(1, false, now, now, &[0, 1, 2]);
            }
            if let Ok(call) = decode::<CallInfo>(&body) {
                prop_assert!(call.to_string().len() <= body.len() + 100);
            }
            if let Ok(calls) = decode::<Vec<(u64, CallInfo)>>(&body) {
                prop_assert!(calls.len() <= body.len());
            }
            if let Ok(view) = decode::<View>(&body) {
                prop_assert!(view.gone.len() <= body.len());
            }
        }

        #[test]
        fn any_bytes_are_texts_or_refused(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<Cause>(&body).map(|cause| cause.to_string());
            let _ = decode::<Status>(&body);
            let _ = decode::<CallInfo>(&body).map(|call| call.to_string());
            let _ = decode::<Vec<(u64, CallInfo)>>(&body);
            let _ = decode::<View>(&body);
        }
    }

    #[test]
    fn a_report_of_any_number_of_ranks_fits_into_a_frame() {
        for ranks in [1, 100, 1000, 100_000] {
            let late: Vec<Rank> = (0..ranks).map(Rank).collect();
            let states = late.iter().map(|rank| (*rank, "x".repeat(200))).collect();
            let mut report = Report {
                operation: "all_reduce".into(),
                seq: Seq(1),
                communicator: "world".into(),
                rank: Rank(0),
                waited: Duration::from_secs(1),
                waits_for: late.clone(),
                late,
                states,
                cause: String::new(),
                completed: Some(Seq(7)),
                ..Report::default()
            };
            for text in ["", &"é".repeat(40_000)] {
                report.cause = text.into();
                let body = encode_cause(&Cause::Deadline(Box::new(report.clone())));
                assert!(body.len() <= CONTROL_MAX, "{} bytes for {ranks} ranks", body.len());
                decode::<Cause>(&body).unwrap();
            }
        }
    }
}
