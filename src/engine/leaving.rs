//! Ranks that have begun to close a communicator. They send no more messages on it and begin to receive none, which the
//! others are told at once: a receive that waits for one, or a send that waits to be taken, would wait for its deadline,
//! since who closes waits for them.

use super::matching::{Content, Unexpected};
use super::shared::Engine;
use super::state::{Flight, State};
use super::trouble::Cause;
use crate::link::frame::{Header, Kind, POINT, TO_SENDER};
use crate::rank::Rank;

impl Engine {
    /// This rank closes a communicator: what it called before goes on.
    pub(crate) fn leave(&self, channel: usize) {
        // The messages among it are announced before.
        self.after_calls(|core| core.state.leave(channel));
    }
}

impl State {
    fn leave(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        let me = channel.rank;
        channel.leaving[me] = true;
        let header = Header::new(Kind::Leaving, channel.id, 0);
        self.broadcast(index, header, &[]);
        let Some(channel) = self.channels[index].as_mut() else { return };
        for (from, message) in channel.board.take_all() {
            self.refuse_unreceived(index, from, message);
        }
        self.end_posted(index, me);
    }

    /// A rank closes a communicator; what it had sent on it has been announced.
    pub(super) fn said_leaving(&mut self, index: usize, from: usize) -> Result<(), String> {
        let Some(channel) = self.channels[index].as_mut() else { return Ok(()) };
        if std::mem::replace(&mut channel.leaving[from], true) {
            return Err("has begun to leave a communicator twice".into());
        }
        self.end_posted(index, from);
        Ok(())
    }

    /// Ends the receives that no message of this rank has come for.
    fn end_posted(&mut self, index: usize, from: usize) {
        let Some(channel) = &self.channels[index] else { return };
        // Who takes a message of anybody waits for the last.
        let nobody_else =
            (0..channel.members.len()).all(|rank| rank == channel.rank || channel.is_silent(rank));
        let ends = |of: Option<usize>| of.map_or(nobody_else, |of| of == from);
        let posted = channel.board.posted().filter(|(_, of)| ends(*of));
        let keys: Vec<_> = posted.map(|(key, _)| key).collect();
        for key in keys {
            if !self.is_awaited(key) {
                // Nobody asks what became of it.
                self.cancel(key);
                continue;
            }
            let Some(Flight::Point(point)) = self.flight(key) else { continue };
            let (operation, seq) = (point.head.desc.operation, point.head.seq);
            let error = self.has_left(index, from, operation, seq);
            self.finish(key, Err(error));
        }
    }

    /// A message that this rank will not receive any more, since it closes the communicator.
    pub(super) fn refuse_unreceived(&mut self, index: usize, from: usize, message: Unexpected) {
        let Some(channel) = &self.channels[index] else { return };
        let (me, world) = (channel.rank, channel.members[from] as usize);
        match message.content {
            Content::Whole(bytes) => self.io.discard_eager(world, bytes),
            Content::Offered | Content::Leased(_) => {
                let host = self.peers[channel.members[me] as usize].label.clone();
                let cause = Cause::Departed { rank: Rank(me as u32), host };
                self.abort_message(index, from, message.number, POINT | TO_SENDER, cause);
            }
            Content::Local(sender) => {
                let Some(flight) = self.flight(sender) else { return };
                let (operation, seq) = (flight.head().desc.operation, flight.head().seq);
                let error = self.has_left(index, me, operation, seq);
                self.finish(sender, Err(error));
            }
            Content::GivenUp(_) => {}
        }
    }
}
