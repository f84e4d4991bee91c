//! Making a communicator anew among those of its ranks that are left: how they agree on who that is.
//!
//! Each rank that calls has a *view*: which ranks it gives up, because their process is lost, or because they have left
//! or closed the communicator. It tells its view to all others that it has not given up, takes over what they give up,
//! and tells again whenever its view has grown. It *decides* once all ranks outside of its view have last told the very
//! same view; it tells them its decision, and holds to it. Who is told a decision by a rank that it has not given up
//! decides likewise. What a rank says that was given up is not listened to.
//!
//! Why it ends: views only grow, within the ranks of the communicator; a rank that does not call is waited for until the
//! deadline, and named.
//!
//! Why all decide the same: who decides on a view has heard it from every rank outside of it, and tells no other view
//! from then on. Were there two decisions, then a rank outside of both views has told both, so that one contains the
//! other; the rank that decided on the smaller one has not told the larger, so the larger gives that rank up. It was
//! lost, or had left, and had told its decision to the others before; those that heard it hold to it. Only ranks that
//! give each other up although both live, since the network between them broke, may end apart: then one of them learns
//! that it was given up, or its new communicator fails at once. Identifiers contain the members, so frames never mix.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::call::{Op, Request};
use super::channel::channel_id;
use super::head::Head;
use super::peer::Standing;
use super::shared::Engine;
use super::state::{Flight, State};
use super::trouble::{decode, encode};
use crate::buffer::parts::Parts;
use crate::error::{Error, Report};
use crate::link::RunKey;
use crate::link::frame::{Header, Kind, Outgoing};
use crate::rank::{Rank, Seq};

/// A call of `rebuild` that waits for the decision.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub head: Head,
    /// One byte per rank: 1 for those that were given up, once decided.
    pub parts: Parts,
    /// Ranks that have not told an equal view yet.
    pub open: Vec<usize>,
}

/// How far a communicator is in being made anew.
#[derive(Debug, Default)]
pub(crate) struct Rebuild {
    /// Which ranks are given up, by rank.
    gone: Vec<bool>,
    /// What each rank has told last.
    views: Vec<Option<Vec<bool>>>,
    /// What this rank has told last: `None` before it was called here.
    told: Option<Vec<bool>>,
    decided: bool,
    waiting: Option<RunKey>,
    /// Nobody here will have the successor, which is of this epoch.
    unwanted: Option<u64>,
}

/// A view, as ranks tell it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct View {
    pub gone: Vec<bool>,
    pub decided: bool,
}

impl Rebuild {
    pub(crate) fn new(ranks: usize) -> Self {
        Rebuild { gone: vec![false; ranks], views: vec![None; ranks], ..Rebuild::default() }
    }

    /// The call is over, whichever way; what this rank has told holds.
    pub(super) fn end(&mut self, key: RunKey) {
        if self.waiting == Some(key) {
            self.waiting = None;
        }
    }

    /// Which ranks the successor is without, if others may have made one with this rank in it: those of a decision, or of the
    /// view that the others had heard.
    pub(super) fn agreed(&self) -> Option<&Vec<bool>> {
        self.told.as_ref().map(|told| if self.decided { &self.gone } else { told })
    }

    /// Ranks that have not told the view that this rank has.
    fn open(&self, me: usize) -> Vec<usize> {
        let told = |rank: &usize| self.views[*rank].as_ref() == Some(&self.gone);
        (0..self.gone.len()).filter(|rank| *rank != me && !self.gone[*rank] && !told(rank)).collect()
    }
}

/// Sets epochs apart from splits.
const EPOCH: u64 = u64::from_le_bytes(*b"rebuilt ");

/// The identifier of what a communicator becomes in `epoch` without the ranks that are `gone`.
pub(crate) fn successor_id(id: u64, epoch: u64, gone: impl IntoIterator<Item = bool>) -> u64 {
    let left = (0u64..).zip(gone).filter(|(_, gone)| !gone).map(|(rank, _)| rank);
    let words: Vec<u64> = [EPOCH, epoch].into_iter().chain(left).collect();
    channel_id(id, &words)
}

impl Engine {
    /// Nobody here will have what a communicator becomes in `epoch`.
    pub(crate) fn renounce_successor(&self, id: u64, epoch: u64) {
        self.shared.with_core(|core| core.state.renounce_successor(id, epoch));
        self.shared.drive();
    }
}

impl State {
    fn renounce_successor(&mut self, id: u64, epoch: u64) {
        if let Some(index) = self.channel_of(id) {
            // What is in flight there may be the agreement itself.
            if let Some(channel) = self.channels[index].as_mut() {
                channel.rebuild.unwanted = Some(epoch);
            }
        } else if let Some(gone) = self.closed.agreed(id) {
            self.renounce(successor_id(id, epoch, gone), 0);
        }
    }

    /// A communicator is closed: so is what others may have made of it, unless somebody here may still want that.
    pub(super) fn close_successor(&mut self, id: u64, rebuild: &Rebuild) {
        let Some(gone) = rebuild.agreed() else { return };
        match rebuild.unwanted {
            Some(epoch) => self.renounce(successor_id(id, epoch, gone.iter().copied()), 0),
            None => self.closed.agree(id, gone.clone()),
        }
    }

    /// Begins a call of `rebuild`, or takes one up again that was given up before.
    pub(super) fn start_rebuild(&mut self, op: Arc<Op>, request: &mut Request) {
        let index = request.channel;
        self.cancel_all(index);
        for key in self.keys_on_index(index) {
            self.cancel_all(key);
        }
        for rank in 0..self.channels[index].as_ref().map_or(0, |channel| channel.members.len()) {
            let Some(channel) = &self.channels[index] else { return };
            let here = self.peers[channel.members[rank] as usize].standing == Standing::Here;
            if rank != channel.rank && (!here || channel.closed[rank].is_some()) {
                self.give_up(index, rank);
            }
        }
        let Some(channel) = self.channels[index].as_mut() else { return };
        // A call that was dropped is taken up by the next.
        if let Some(key) = channel.rebuild.waiting.take() {
            self.cancel(key);
        }
        let Some(head) = self.new_head(op, request) else { return };
        let (key, parts) = (head.key, std::mem::replace(&mut request.parts, Parts::NONE));
        self.place_flight(key, Flight::Rebuild(Waiting { head, parts, open: Vec::new() }));
        if let Some(channel) = self.channels[index].as_mut() {
            channel.rebuild.waiting = Some(key);
            // Who asks again tells again: the first time it may not have been known whom to tell.
            let gone = channel.rebuild.gone.clone();
            channel.rebuild.told.get_or_insert(gone);
        }
        self.tell_view(index);
        self.reconsider(index);
    }

    /// A member will take no part any more: lost, or gone of its own will.
    pub(super) fn give_up(&mut self, index: usize, rank: usize) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        if !channel.rebuild.decided && !std::mem::replace(&mut channel.rebuild.gone[rank], true) {
            self.reconsider(index);
        }
    }

    pub(super) fn on_view(&mut self, index: usize, from: usize, body: &[u8]) -> Result<(), String> {
        let View { gone, decided } = decode(body)?;
        let Some(channel) = self.channels[index].as_mut() else { return Ok(()) };
        let (me, rebuild) = (channel.rank, &mut channel.rebuild);
        if gone.len() != rebuild.gone.len() || gone[from] {
            return Err("a view of other ranks than there are".into());
        }
        if rebuild.decided || rebuild.gone[from] {
            return Ok(());
        }
        if decided && !gone[me] {
            if rebuild.told.is_none() {
                return Err("a decision that this rank had no part in".into());
            }
            rebuild.gone.clone_from(&gone);
            self.decide_members(index);
            return Ok(());
        }
        rebuild.views[from] = Some(gone.clone());
        for (rank, _) in gone.iter().enumerate().filter(|(_, gone)| **gone) {
            rebuild.gone[rank] = true;
        }
        // A lost process was told of in words of its own; who has left may be needed by nobody here.
        self.reconsider(index);
        Ok(())
    }

    /// Something is new: tells the others if the view has grown, and decides if all agree.
    fn reconsider(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        let (me, rebuild) = (channel.rank, &mut channel.rebuild);
        let Some(told) = &mut rebuild.told else { return };
        if rebuild.decided {
            self.conclude(index);
            return;
        }
        if rebuild.gone[me] {
            let Some(key) = rebuild.waiting else { return };
            let communicator = channel.name.clone();
            let cause = "the other ranks have given this one up: the network between them broke".into();
            self.finish(key, Err(Error::Failed { communicator, lost: None, cause }));
            return;
        }
        if *told != rebuild.gone {
            told.clone_from(&rebuild.gone);
            self.tell_view(index);
        }
        let Some(channel) = self.channels[index].as_ref() else { return };
        let open = channel.rebuild.open(me);
        if open.is_empty() {
            self.decide_members(index);
        } else if let Some(key) = channel.rebuild.waiting
            && let Some(Flight::Rebuild(waiting)) = self.flight(key)
        {
            waiting.open = open;
        }
    }

    /// From here on the members are settled: the old communicator is of no more use.
    fn decide_members(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        channel.rebuild.decided = true;
        channel.failed = Some(Error::Closed { communicator: channel.name.clone() });
        self.tell_view(index);
        self.cancel_all(index);
        self.discard_kept(index);
        self.replace_keys(index);
        self.conclude(index);
    }

    fn conclude(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        let Some(key) = channel.rebuild.waiting else { return };
        let gone: Vec<u8> = channel.rebuild.gone.iter().map(|gone| u8::from(*gone)).collect();
        if let Some(Flight::Rebuild(waiting)) = self.flight(key) {
            waiting.parts.raw().copy_from_slice(&gone);
            self.finish(key, Ok(()));
        }
    }

    fn tell_view(&mut self, index: usize) {
        let Some(channel) = &self.channels[index] else { return };
        let rebuild = &channel.rebuild;
        let body = encode(&View { gone: rebuild.gone.clone(), decided: rebuild.decided });
        let header = Header::new(Kind::Rebuild, channel.id, channel.called);
        let to: Vec<usize> = (0..rebuild.gone.len())
            .filter(|rank| *rank != channel.rank && !rebuild.gone[*rank])
            .filter(|rank| self.peers[channel.members[*rank] as usize].standing == Standing::Here)
            .collect();
        for rank in to {
            self.tell(index, rank, Outgoing::with_body(header, body.clone()));
        }
    }

    /// Operations that are still in flight when a rank calls `rebuild` are over, here and elsewhere.
    pub(super) fn cancel_all(&mut self, index: usize) {
        for key in self.keys_on(index) {
            if !matches!(self.flight(key), Some(Flight::Rebuild(_))) {
                self.cancel(key);
            }
        }
    }

    /// What is known about a rebuild that does not end.
    pub(super) fn rebuild_report(&self, waiting: &Waiting) -> Option<Report> {
        let channel = self.channels[waiting.head.channel].as_ref()?;
        let views = &channel.rebuild.views;
        let state = |rank: &usize| {
            let told = match (&views[*rank], &channel.statuses[*rank]) {
                (Some(_), _) => "has called rebuild and sees other ranks gone".to_string(),
                (None, Some((seen, status))) => {
                    let what = status.describe(waiting.head.seq, true, *seen, self.now, &channel.members);
                    format!("has not called rebuild; {what}")
                }
                (None, None) => "has not called rebuild, and has not been heard from".to_string(),
            };
            (Rank(*rank as u32), told)
        };
        let gone: Vec<String> = (0..channel.rebuild.gone.len())
            .filter(|rank| channel.rebuild.gone[*rank])
            .map(|rank| rank.to_string())
            .collect();
        Some(Report {
            operation: "rebuild".into(),
            seq: Seq(waiting.head.seq),
            waited: self.now.saturating_duration_since(waiting.head.started),
            late: waiting.open.iter().map(|rank| Rank(*rank as u32)).collect(),
            states: waiting.open.iter().map(state).collect(),
            cause: match gone.len() {
                0 => "no rank is known to be gone".into(),
                1 => format!("lost or left already: rank {}", gone[0]),
                _ => format!("lost or left already: ranks {}", gone.join(", ")),
            },
            ..self.about(waiting.head.channel, &waiting.open)?
        })
    }
}
