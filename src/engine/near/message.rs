//! A small message between two ranks: written to the ring by its sender, and read from there by who has called for it.

use super::super::board::Wish;
use super::super::call::Request;
use super::super::core::Core;
use super::super::io::EAGER_MAX;
use super::super::shared::Submitted;
use super::Looks;
use crate::buffer::raw::Raw;
use crate::link::Class;
use crate::link::frame::{EAGER, Header, Kind};
use crate::runtime::clock::Clock;
use crate::runtime::spin::SpinPolicy;

/// One of so many bytes, as its sender and its receiver have called it.
fn header(request: &Request, channel: u64, number: u64) -> Header {
    let mut header = Header::new(Kind::Eager, channel, number);
    (header.item, header.digest, header.flags) = (request.desc.tag_word(), request.digest, EAGER);
    header.length = request.parts.raw().len() as u32;
    header
}

impl Core {
    /// Sends a message, if it can leave before the call returns.
    pub(super) fn near_send(&mut self, request: &mut Request, to: usize) -> Option<Submitted> {
        let raw = request.parts.raw();
        let channel = self.state.channels[request.channel].as_ref()?;
        let peer = channel.members[to] as usize;
        let leaves = raw.len() <= EAGER_MAX
            && channel.is_blameless()
            && self.is_clear()
            && self.is_near(peer)
            && self.has_near_room(peer, raw.len())
            && self.state.departed(request).is_none()
            && self.state.overdone(request).is_none();
        if !leaves {
            return None;
        }
        let channel = self.state.channels[request.channel].as_mut()?;
        let header = header(request, channel.id, channel.matching[to].number());
        self.begin_near(request);
        self.send_near(peer, header, raw);
        Some(self.over_near(request))
    }

    /// Receives a message, if it is the next that comes from there, for which it waits a moment.
    pub(super) fn near_receive(
        &mut self,
        request: &mut Request,
        from: usize,
        policy: SpinPolicy,
        clock: &Clock,
    ) -> Option<Submitted> {
        let raw = request.parts.raw();
        let tag = request.desc.tag_word();
        let channel = self.state.channels[request.channel].as_ref()?;
        let (peer, matching) = (channel.members[from] as usize, &channel.matching[from]);
        let wish = Wish::exact(from, tag);
        let may_come = raw.len() <= EAGER_MAX
            && channel.is_blameless()
            && !channel.board.is_asked_for(from, tag)
            && channel.board.first_held(wish).is_none()
            && channel.board.watchers.is_empty()
            && self.is_near(peer)
            && self.state.departed(request).is_none();
        if !may_come {
            return None;
        }
        let due = header(request, channel.id, matching.due);
        // Others would wait for it.
        let waits = self.state.live == 0 && self.is_clear();
        let sleeps = !waits || self.neighbours.sleeps(peer);
        if !self.await_message(peer, &due, raw, self.near_looks(raw.len(), sleeps, policy)) {
            if !sleeps {
                self.state.meetings.met(false);
            }
            return None;
        }
        self.state.meetings.met(true);
        self.begin_near(request);
        if let Err((peer, broken)) = self.take_near(peer, &due) {
            self.begin_flight(clock);
            self.broken(peer, Class::Fast, broken);
            return None;
        }
        if let Some(channel) = self.state.channels[request.channel].as_mut() {
            channel.matching[from].due += 1;
        }
        Some(self.over_near(request))
    }

    /// Whether it has come, and is where it belongs.
    fn await_message(&self, peer: usize, due: &Header, raw: Raw, mut looks: Looks) -> bool {
        let mut placed = 0;
        loop {
            let before = placed;
            let all;
            (placed, all) = self.place_near(peer, due, raw, placed);
            if all {
                return true;
            }
            if placed == before && !looks.pause(&self.neighbours, std::iter::once(peer)) {
                return false;
            }
        }
    }
}
