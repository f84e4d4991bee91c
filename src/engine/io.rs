//! What operations in flight need of the outside: frames to peers, staging memory, wake-ups to be issued.
//!
//! Everything here is queued and goes out at the end of a turn: nothing is sent, and nobody woken, in the middle of a
//! state change.

use std::collections::VecDeque;
use std::sync::Arc;

use super::order::Priority;
use super::room::Memory;
use crate::buffer::arena::{Arena, Place, Shared};
use crate::buffer::parts::Parts;
use crate::buffer::pool::Pool;
use crate::buffer::raw::Raw;
use crate::link::frame::{Header, Kind, Lent, Outgoing, PAYLOAD_MAX, Payload};
use crate::link::memory::{Hub, Lease, Message};
use crate::link::shm::{Grant, Loan, Reach};
use crate::link::{Class, RunKey};
use crate::runtime::allowance;

/// A message up to this size may be sent before its receiver has called: it is small enough to be kept for him.
pub(crate) const EAGER_MAX: usize = 64 << 10;
/// Eager bytes that one peer keeps for us at most, if there is memory for so much; beyond it, messages wait until they are asked for.
pub(crate) const EAGER_WINDOW: usize = 1 << 20;
/// What an eager frame counts besides its payload, so that empty messages are bounded too.
pub(crate) const EAGER_OVERHEAD: usize = 256;
/// Lent bytes queued on one connection at most: what is urgent, or aborted, waits for no more than this.
const QUEUE_MAX: usize = 1 << 20;
/// An urgent message up to this size goes over the fast connection, whatever waits on the other one: as long as one
/// connection's eager budget, so that control waits no longer behind it than behind small messages.
const URGENT_MAX: usize = EAGER_WINDOW;
/// Urgent payload beyond this waits while so much is queued on the fast connection: what control, and small messages,
/// wait behind.
const URGENT_QUEUE: usize = 2 * PAYLOAD_MAX;
/// Memory that is in no segment is read where it lies from this size on: the system copies slower than this process does, and what is
/// smaller stays in the cache on its way through a ring.
pub(crate) const UNMAPPED_MIN: usize = 1 << 20;
/// Frames waiting to leave beyond which a peer gets no answers that it can do without: it asks and does not read.
const ANSWERS_MAX: usize = 1024;

/// How a peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Myself,
    Memory,
    Stream,
}

#[derive(Debug)]
pub(crate) struct PeerIo {
    pub via: Via,
    /// Lent payload bytes queued and not yet released, per class.
    queued: [usize; 2],
    /// Eager bytes sent that the peer has not consumed, as far as we know.
    eager_sent: u64,
    eager_returned: u64,
    /// Eager bytes that came from the peer; of these, what we consumed, and what we last told him.
    eager_received: u64,
    pub consumed: u64,
    pub consumed_told: u64,
    /// Frames that wait to leave on the connection for control.
    pub waiting: usize,
    /// If it is a process that shares memory: what is read where it lies, and bytes that were.
    reach: Option<Box<Reach>>,
    pub pulled: u64,
}

#[derive(Debug)]
pub(crate) struct Io {
    pub me: usize,
    pub peers: Vec<PeerIo>,
    pub outbox: Vec<(usize, Class, Outgoing)>,
    pub pool: Arc<Pool>,
    /// Memory that other processes read where it lies.
    pub arena: Option<Arc<Arena>>,
    /// Peers that segments are to be handed to, or that are to be told of some that are gone.
    handing: Vec<usize>,
    /// Peers that have handed over segments, or taken some back, which were not looked at.
    pub heralds: Vec<usize>,
    /// Operations that wait for segments.
    awaiting: Vec<RunKey>,
    /// Peers that were found out while something moved, and by what.
    pub accused: Vec<(usize, String)>,
    pub hub: Option<Arc<Hub>>,
    /// Messages that did not fit into an inbox.
    mailbox: VecDeque<(usize, Message)>,
    /// Peers of this host for whom something was published.
    pub published: Vec<usize>,
    /// Hints given so far.
    marks: usize,
    /// Buffers for frames that come before their operation, reused.
    spare: Vec<Vec<u8>>,
    leases: Vec<Arc<Lease>>,
    /// Somebody found no room.
    pub full: bool,
    /// Somebody stopped to let others have their turn.
    pub unfinished: bool,
    /// Eager bytes that one peer keeps for us at most.
    pub eager_window: u64,
}

impl Io {
    pub(crate) fn new(me: usize, vias: Vec<Via>, pool: Arc<Pool>, hub: Option<Arc<Hub>>) -> Self {
        let peers = vias.len().saturating_sub(1);
        let eager_window = Memory { limit: pool.memory_limit() }.eager_window(peers) as u64;
        let peer = |via| PeerIo {
            via,
            queued: [0; 2],
            eager_sent: 0,
            eager_returned: 0,
            eager_received: 0,
            consumed: 0,
            consumed_told: 0,
            waiting: 0,
            reach: None,
            pulled: 0,
        };
        Io {
            me,
            peers: vias.into_iter().map(peer).collect(),
            outbox: Vec::new(),
            pool,
            arena: None,
            handing: Vec::new(),
            heralds: Vec::new(),
            awaiting: Vec::new(),
            accused: Vec::new(),
            hub,
            mailbox: VecDeque::new(),
            published: Vec::new(),
            marks: 0,
            spare: Vec::new(),
            leases: Vec::new(),
            full: false,
            unfinished: false,
            eager_window,
        }
    }

    pub(crate) fn via(&self, peer: usize) -> Via {
        self.peers[peer].via
    }

    // --- memory that is read where it lies

    /// These peers are processes that share memory.
    pub(crate) fn add_reaches(&mut self, reaches: Vec<(usize, Reach)>) {
        if !reaches.is_empty() {
            self.arena = Some(Arena::new(allowance::check_segment));
        }
        for (peer, reach) in reaches {
            self.peers[peer].reach = Some(Box::new(reach));
        }
    }

    pub(crate) fn reach(&mut self, peer: usize) -> Option<&mut Reach> {
        self.peers[peer].reach.as_deref_mut()
    }

    /// Descriptors that peers which share memory take beyond two each.
    pub(crate) fn bells(&self) -> usize {
        self.peers.iter().filter(|peer| peer.reach.is_some()).count()
    }

    /// Bytes that this process writes for others to read, but for buffers.
    pub(crate) fn lane_bytes(&self) -> usize {
        self.peers.iter().flat_map(|peer| &peer.reach).map(|reach| reach.lane_bytes).sum()
    }

    /// Where memory of an operation lies for other processes.
    pub(crate) fn place_of(&self, parts: &Parts) -> Option<Place> {
        parts.place(self.arena.as_ref()?)
    }

    /// Lets a peer read something of a segment.
    pub(crate) fn lend_to(&mut self, peer: usize, segment: &Arc<Shared>) -> Option<Loan> {
        let loan = self.reach(peer)?.lend(segment)?;
        self.note_handing(peer);
        Some(loan)
    }

    fn note_handing(&mut self, peer: usize) {
        if self.reach(peer).is_some_and(|reach| reach.has_to_hand()) && !self.handing.contains(&peer) {
            self.handing.push(peer);
        }
    }

    /// Lets a peer read all memory of an operation, if that pays.
    pub(crate) fn lend_all(&mut self, peer: usize, parts: &Parts) -> Option<(Loan, Lent)> {
        if let Some(place) = self.place_of(parts) {
            let loan = self.lend_to(peer, &place.segment)?;
            return Some((loan, Lent::new(loan.segment?, place.offset, loan.grant)));
        }
        let raw = parts.raw();
        if raw.len() < UNMAPPED_MIN {
            return None;
        }
        let loan = self.lend_unmapped(peer)?;
        Some((loan, Lent::unmapped(raw.as_ptr() as u64, loan.grant)))
    }

    /// Lets a peer read memory that is in no segment.
    pub(crate) fn lend_unmapped(&mut self, peer: usize) -> Option<Loan> {
        self.reach(peer)?.lend_unmapped()
    }

    pub(crate) fn take_back(&mut self, peer: usize, grant: Grant) {
        if let Some(reach) = self.reach(peer) {
            reach.take_back(grant);
        }
    }

    /// Whoever is gone lends nothing more, and is lent nothing.
    pub(crate) fn let_go(&mut self, peer: usize) {
        if let Some(reach) = self.reach(peer) {
            reach.let_go();
        }
    }

    /// Whether a peer still lends what was read until now.
    pub(crate) fn stands(&mut self, peer: usize, grant: Grant) -> bool {
        self.reach(peer).is_some_and(|reach| reach.stands(grant))
    }

    /// A peer can't map the segment that this is lent in: nobody reads it there.
    pub(crate) fn decline(&mut self, peer: usize, loan: Loan) -> Result<(), String> {
        let known = self.reach(peer).is_some_and(|reach| reach.decline(loan));
        self.take_back(peer, loan.grant);
        known.then_some(()).ok_or_else(|| "declines a segment that it was not given".into())
    }

    /// Takes what a peer hands over, or takes back. Says whether there may be more, which is looked at in the next turn.
    pub(crate) fn receive_segments(&mut self, peer: usize) -> Result<bool, String> {
        let Some(reach) = self.reach(peer) else { return Ok(false) };
        let more = reach.receive(peer)?;
        if more && !self.heralds.contains(&peer) {
            self.heralds.push(peer);
        }
        Ok(more)
    }

    /// Goes on once segments have come.
    pub(crate) fn await_segments(&mut self, key: RunKey) {
        if !self.awaiting.contains(&key) {
            self.awaiting.push(key);
        }
    }

    /// It waits for nothing any more.
    pub(crate) fn forget_waiter(&mut self, key: RunKey) {
        self.awaiting.retain(|of| *of != key);
    }

    /// Who has waited for segments.
    pub(crate) fn take_waiters(&mut self) -> std::vec::Drain<'_, RunKey> {
        self.awaiting.drain(..)
    }

    /// Hands segments over before frames speak of them, and says which are gone. Says whether some of that has yet to go.
    pub(crate) fn hand_over(&mut self) -> bool {
        if self.arena.as_ref().is_some_and(|arena| arena.take_call()) {
            for peer in 0..self.peers.len() {
                if let Some(reach) = self.reach(peer) {
                    reach.retire();
                    self.note_handing(peer);
                }
            }
        }
        if self.handing.is_empty() {
            return false;
        }
        let mut handing = std::mem::take(&mut self.handing);
        handing.retain(|peer| self.reach(*peer).is_some_and(|reach| !reach.hand_over()));
        self.handing = handing;
        !self.handing.is_empty()
    }

    /// A peer was found out by what it had sent before.
    pub(crate) fn accuse(&mut self, peer: usize, problem: String) {
        self.accused.push((peer, problem));
    }

    /// So many bytes were read in a peer's memory.
    pub(crate) fn pulled(&mut self, peer: usize, bytes: usize) {
        self.peers[peer].pulled += bytes as u64;
    }

    /// Sends a frame without lent payload.
    pub(crate) fn control(&mut self, peer: usize, frame: Outgoing) {
        match self.peers[peer].via {
            Via::Myself => {}
            Via::Stream => self.outbox.push((peer, Class::Fast, frame)),
            Via::Memory => {
                let payload = match frame.payload {
                    Payload::Owned(bytes) => bytes,
                    other => other.bytes().to_vec(),
                };
                self.message(peer, frame.header, payload, None);
            }
        }
    }

    /// Sends a frame behind the bulk payload of a byte link.
    pub(crate) fn control_bulk(&mut self, peer: usize, frame: Outgoing) {
        if self.peers[peer].via == Via::Stream {
            self.outbox.push((peer, Class::Bulk, frame));
        }
    }

    pub(crate) fn message(&mut self, to: usize, header: Header, payload: Vec<u8>, lease: Option<Arc<Lease>>) {
        self.mailbox.push_back((to, Message { from: self.me, header, payload, lease }));
        self.flush_mailbox();
    }

    /// Hands queued messages over, in order, as far as inboxes take them. Says whether any went.
    pub(crate) fn flush_mailbox(&mut self) -> bool {
        let before = self.mailbox.len();
        let Some(hub) = &self.hub else { return false };
        while let Some((to, message)) = self.mailbox.pop_front() {
            if let Err(back) = hub.send(to, message) {
                self.mailbox.push_front((to, back));
                break;
            }
            note(&mut self.published, hub, &mut self.marks, self.me, to);
        }
        self.mailbox.len() < before
    }

    /// Whether messages wait for room in an inbox.
    pub(crate) fn has_mail(&self) -> bool {
        !self.mailbox.is_empty()
    }

    pub(crate) fn publish(&mut self, to: usize) {
        if let Some(hub) = &self.hub {
            note(&mut self.published, hub, &mut self.marks, self.me, to);
        }
    }

    /// Something was published for a peer in another process, who may sleep.
    pub(crate) fn call(&mut self, to: usize) {
        if !self.published.contains(&to) {
            self.published.push(to);
        }
    }

    /// Whether a peer in this process sleeps.
    pub(crate) fn sleeps(&self, peer: usize) -> bool {
        self.hub.as_ref().is_some_and(|hub| hub.is_parked(peer))
    }

    /// Whether more lent bytes may be queued for this peer.
    pub(crate) fn has_room(&mut self, peer: usize, class: Class) -> bool {
        let room = self.peers[peer].queued[class as usize] < QUEUE_MAX;
        self.full |= !room;
        room
    }

    /// The connection for a message of `bytes` that waits for credit, if there is room on it for a frame.
    pub(crate) fn class_with_room(&mut self, peer: usize, priority: Priority, bytes: usize) -> Option<Class> {
        if priority != Priority::Urgent || bytes > URGENT_MAX {
            return self.has_room(peer, Class::Bulk).then_some(Class::Bulk);
        }
        let room = self.peers[peer].queued[Class::Fast as usize] < URGENT_QUEUE;
        self.full |= !room;
        room.then_some(Class::Fast)
    }

    /// Queues lent memory on a byte link.
    pub(crate) fn lend(
        &mut self,
        peer: usize,
        class: Class,
        mut header: Header,
        raw: Raw,
        run: RunKey,
        step: u16,
    ) {
        header.length = raw.len() as u32;
        self.peers[peer].queued[class as usize] += raw.len();
        self.outbox.push((peer, class, Outgoing { header, payload: Payload::Lent { raw, run, step } }));
    }

    /// Lent payload bytes that wait to leave.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.peers.iter().flat_map(|peer| peer.queued).sum()
    }

    /// The same for the rest of a frame that has left in part.
    pub(crate) fn queue_rest(&mut self, peer: usize, class: Class, bytes: usize) {
        self.peers[peer].queued[class as usize] += bytes;
    }

    pub(crate) fn unqueue(&mut self, peer: usize, class: Class, bytes: usize) {
        let queued = &mut self.peers[peer].queued[class as usize];
        *queued = queued.saturating_sub(bytes);
    }

    /// Whether there is eager budget for a message of `bytes`.
    pub(crate) fn has_eager(&self, peer: usize, bytes: usize) -> bool {
        let peer = &self.peers[peer];
        let cost = (bytes + EAGER_OVERHEAD) as u64;
        peer.eager_sent - peer.eager_returned + cost <= self.eager_window
    }

    /// Takes eager budget for a message of `bytes`; says whether there was enough.
    pub(crate) fn take_eager(&mut self, peer: usize, bytes: usize) -> bool {
        let fits = self.has_eager(peer, bytes);
        if fits {
            self.peers[peer].eager_sent += (bytes + EAGER_OVERHEAD) as u64;
        }
        fits
    }

    /// The peer says how many eager bytes it has consumed in all. Says whether budget came back.
    pub(crate) fn returned(&mut self, peer: usize, consumed: u64) -> Result<bool, String> {
        let peer = &mut self.peers[peer];
        if consumed > peer.eager_sent {
            return Err(format!("claims {consumed} eager bytes consumed of {} sent", peer.eager_sent));
        }
        let news = consumed > peer.eager_returned;
        peer.eager_returned = peer.eager_returned.max(consumed);
        Ok(news)
    }

    /// An eager frame begins to come, which must be within the budget. Only byte links ask: in one process there is no
    /// other code.
    pub(crate) fn receive_eager(&mut self, peer: usize, bytes: usize) -> Result<(), String> {
        if bytes > EAGER_MAX {
            return Err(format!("an eager frame of {bytes} bytes exceeds {EAGER_MAX}"));
        }
        let peer = &mut self.peers[peer];
        peer.eager_received += (bytes + EAGER_OVERHEAD) as u64;
        if peer.eager_received - peer.consumed > self.eager_window {
            return Err("eager payload beyond its budget".into());
        }
        Ok(())
    }

    /// Whether a peer gets an answer that it can do without.
    pub(crate) fn may_answer(&self, peer: usize) -> bool {
        self.peers[peer].waiting < ANSWERS_MAX && self.mailbox.len() < ANSWERS_MAX
    }

    /// An eager message of the peer was consumed; tells him in a frame of its own only if nothing else does in time.
    pub(crate) fn consume_eager(&mut self, peer: usize, bytes: usize) {
        let io = &mut self.peers[peer];
        io.consumed += (bytes + EAGER_OVERHEAD) as u64;
        // Whatever waits to leave tells it, too.
        if io.consumed - io.consumed_told >= self.eager_window / 4 && io.waiting < ANSWERS_MAX {
            io.consumed_told = io.consumed;
            let mut header = Header::new(Kind::Consumed, 0, 0);
            header.consumed = io.consumed;
            self.control(peer, Outgoing::control(header));
        }
    }

    pub(crate) fn spare(&mut self, bytes: usize) -> Vec<u8> {
        let of_all = || self.hub.as_ref().and_then(|hub| hub.spare());
        let mut spare = self.spare.pop().or_else(of_all).unwrap_or_default();
        // What was in it before is overwritten, or not looked at.
        spare.resize(bytes, 0);
        spare
    }

    /// Nobody will ask for an eager message of the peer.
    pub(crate) fn discard_eager(&mut self, peer: usize, bytes: Vec<u8>) {
        self.consume_eager(peer, bytes.len());
        self.recycle(bytes);
    }

    pub(crate) fn recycle(&mut self, bytes: Vec<u8>) {
        /// Buffers kept for reuse.
        const SPARE_MAX: usize = 64;
        if bytes.capacity() == 0 || bytes.capacity() > EAGER_MAX {
            return;
        }
        match &self.hub {
            Some(hub) => hub.recycle(bytes),
            None if self.spare.len() < SPARE_MAX => self.spare.push(bytes),
            None => {}
        }
    }

    /// A lease for an operation that lends `ranges`, reused once its readers have let go of it; or one that stands.
    pub(crate) fn lease(
        &mut self,
        digest: u64,
        ranges: impl Iterator<Item = Raw>,
        standing: bool,
    ) -> Arc<Lease> {
        let free = self.leases.iter_mut().position(|lease| Arc::get_mut(lease).is_some());
        let mut lease = match free {
            Some(index) => self.leases.swap_remove(index),
            None => Arc::new(Lease::new()),
        };
        if let Some(lease) = Arc::get_mut(&mut lease) {
            lease.reset(digest, ranges);
            lease.standing = standing;
        }
        lease
    }

    pub(crate) fn recycle_lease(&mut self, lease: Arc<Lease>) {
        /// Leases kept for reuse; more operations than this in flight allocate.
        const LEASES_MAX: usize = 16;
        if self.leases.len() < LEASES_MAX {
            self.leases.push(lease);
        }
    }
}

/// Something was published for `to`: whoever looks learns it now, whoever sleeps at the end of the turn.
fn note(published: &mut Vec<usize>, hub: &Hub, marks: &mut usize, me: usize, to: usize) {
    *marks += 1;
    hub.hint(to, *marks * hub.ranks() + me);
    if !published.contains(&to) {
        published.push(to);
    }
}
