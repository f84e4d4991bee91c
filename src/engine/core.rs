//! State and links together: one turn moves everything that can move, without waiting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::{Op, Outcome};
use super::io::{Io, Via};
use super::links::Counters;
use super::near::Side;
use super::neighbours::Neighbours;
use super::state::State;
use super::wires::{Pair, PeerLink, Wires, untoken, via};
use crate::buffer::pool::Pool;
use crate::buffer::raw::Raw;
use crate::error::LinkKind;
use crate::link::Class;
use crate::link::conn::Conn;
use crate::link::frame::PAYLOAD_MAX;
use crate::link::memory::Hub;

#[cfg(feature = "testing")]
use crate::link::sim;
use crate::runtime::poller::Poller;

/// Bytes read or written on one connection before others get their turn. While something urgent is in flight, a bulk
/// connection is read a frame at a time.
pub(super) const TURN_BYTES: usize = 1 << 20;
/// A bulk connection that has not moved for so many looks counts as quiet: then the only peer's fast connection is read
/// without asking the poll set, which is asked once in so many looks.
const QUIET: u32 = 8;
/// The same while nothing is in flight that a bulk connection is for.
const SILENT: u32 = 64;
/// Where all that comes shows in memory, the poll set tells of ended processes only, who waits for one asks it before he
/// sleeps, and it is asked otherwise once in so many looks.
const SELDOM: u32 = 1024;
/// Of so many calls that are over at once, in a row, one is followed by a turn: others may have something to say.
const OVERS: u32 = 64;
/// For so long at most, swaps keep others from being read.
const PAST: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Core {
    pub state: State,
    pub(super) links: Vec<Option<Pair>>,
    /// Of links, also of those that are gone.
    pub(super) kinds: Vec<LinkKind>,
    /// Counters of links that are gone.
    pub(super) counters: Vec<Counters>,
    pub(super) poller: Poller,
    hub: Option<Arc<Hub>>,
    pub(super) neighbours: Arc<Neighbours>,
    /// A connection has frames, and may take them.
    pub(super) writable: bool,
    /// Looks since anything moved on a bulk connection.
    pub(super) quiet: u32,
    /// The next look asks the poll set in any case.
    asks: bool,
    /// Calls that were over at once.
    overs: u32,
    /// When the poll set was asked last.
    pub(super) asked_at: Instant,
    /// Where vectors come that are swapped, aligned for any element.
    pub(super) window: Vec<u64>,
    /// Of a call through shared memory, empty in between.
    pub(super) sides: Vec<Side>,
    pub(super) sources: Vec<Raw>,
    /// The only peer that has connections, if they are sockets.
    only: Option<usize>,
    /// What comes shows in the poll set only: it is asked in every look.
    has_sockets: bool,
    /// This rank has said goodbye.
    pub(super) leaving: bool,
    /// In the place of the poll set.
    #[cfg(feature = "testing")]
    fabric: Option<Arc<sim::Fabric>>,
    /// Their callers are told once what is to be reported is written: they may end the process.
    pub failed: Vec<(Arc<Op>, Outcome)>,
}

impl Core {
    pub(crate) fn new(
        me: usize,
        peers: Vec<PeerLink>,
        labels: Vec<String>,
        pool: Arc<Pool>,
        hub: Option<Arc<Hub>>,
        poller: Poller,
        now: Instant,
    ) -> std::io::Result<Self> {
        let wires = Wires::new(me, peers, &poller)?;
        let Wires { kinds, links, neighbours, reaches, .. } = wires;
        let vias = kinds.iter().map(|kind| via(*kind)).collect();
        let mut io = Io::new(me, vias, pool, hub.clone());
        io.add_reaches(reaches);
        let state = State::new(io, labels, now);
        let mut linked = links.iter().enumerate().filter(|(_, pair)| pair.is_some()).map(|(peer, _)| peer);
        let only = linked.next().filter(|_| linked.next().is_none());
        let has_sockets = links.iter().flatten().any(|pair| !pair.fast.is_looked_at());
        let counters = vec![Counters::default(); links.len()];
        Ok(Core {
            state,
            links,
            kinds,
            counters,
            poller,
            hub,
            neighbours: Arc::new(neighbours),
            writable: false,
            #[cfg(feature = "testing")]
            fabric: wires.fabric,
            quiet: 0,
            asks: false,
            overs: 0,
            asked_at: now,
            window: Vec::new(),
            sides: Vec::new(),
            sources: Vec::new(),
            only,
            has_sockets,
            leaving: false,
            failed: Vec::new(),
        })
    }

    /// Asks the poll set which connections can be read and written again.
    pub(crate) fn collect(&mut self) {
        self.asked_at = self.state.now;
        let (links, quiet, may_write) = (&mut self.links, &mut self.quiet, &mut self.writable);
        let heralds = &mut self.state.io.heralds;
        let mut found = |peer: usize, class, readable, writable, ended| {
            if class == Class::Bulk {
                *quiet = 0;
            }
            *may_write |= writable;
            if let Some(Some(pair)) = links.get_mut(peer) {
                if ended && pair.fast.is_looked_at() {
                    // One socket for both.
                    pair.fast.unblock(false, false, true);
                    pair.bulk.unblock(false, false, true);
                }
                if readable && class == Class::Fast && pair.fast.is_looked_at() && !heralds.contains(&peer) {
                    heralds.push(peer);
                }
                pair.conn(class).unblock(readable, writable, ended);
            }
        };
        #[cfg(feature = "testing")]
        if let Some(fabric) = &self.fabric {
            let found = |peer, class, readable, writable| found(peer, class, readable, writable, false);
            return fabric.collect(self.state.io.me, found);
        }
        self.poller.collect(|token, readable, writable, ended| {
            let (peer, class) = untoken(token);
            found(peer, class, readable, writable, ended);
        });
    }

    /// Finds out what can be read. The poll set is cheap and takes no lock of any socket, so that who writes to one is
    /// not held up by who waits for it; where there is but one connection to expect anything on, reading that tells as
    /// much, and brings the data as well.
    fn look(&mut self) {
        self.quiet = self.quiet.wrapping_add(1);
        let period = if self.state.exchanges_only() { SILENT } else { QUIET };
        let asks = std::mem::take(&mut self.asks);
        if !asks
            && self.quiet >= QUIET
            && !self.quiet.is_multiple_of(period)
            && let Some(Some(pair)) = self.only.map(|peer| self.links[peer].as_mut())
        {
            pair.fast.unblock(!pair.fast.is_shut(), false, false);
        } else if self.has_sockets || asks || self.quiet.is_multiple_of(SELDOM) {
            self.collect();
        }
    }

    /// Whether this look may leave out all but one connection that data is expected on, neither too often nor for too long;
    /// else the next one leaves out none.
    pub(super) fn may_look_past(&mut self, now: Instant) -> bool {
        self.quiet = self.quiet.wrapping_add(1);
        let is_due = now.saturating_duration_since(self.asked_at) > PAST;
        self.asks |= is_due || self.quiet < QUIET || self.quiet.is_multiple_of(SILENT);
        !self.asks
    }

    /// Whether no other rank is reached by a socket.
    pub(super) fn only_shares(&self) -> bool {
        !self.has_sockets
    }

    /// After a call that is over: whether nothing is in flight, nor waits to begin or to leave, and others have been looked at
    /// not long ago.
    pub(super) fn may_rest(&mut self) -> bool {
        self.overs = self.overs.wrapping_add(1);
        let State { live, room, io, .. } = &self.state;
        !self.overs.is_multiple_of(OVERS)
            && *live == 0
            && room.delayed == 0
            && io.outbox.is_empty()
            && !io.has_mail()
            && !self.writable
    }

    /// The next look is at the poll set, whatever is quiet.
    pub(crate) fn ask_poll_set(&mut self) {
        self.asks = true;
    }

    /// One turn, with a `look` at what has come. Says whether anything moved.
    pub(crate) fn turn(&mut self, look: bool) -> bool {
        // What was just called leaves first: somebody may wait for it.
        let mut moved = self.flush() && self.write();
        if look && self.has_links() {
            self.look();
        }
        moved |= self.receive();
        moved |= self.state.take_segments();
        moved |= self.read();
        moved |= self.state.proceed();
        let left = self.flush() | self.write();
        // What was released may let others move; what they send goes out in this turn.
        if left && self.state.proceed() {
            self.flush();
            self.write();
        }
        moved |= left;
        self.settle();
        moved
    }

    /// Messages of ranks in this process.
    fn receive(&mut self) -> bool {
        let Some(hub) = &self.hub else { return false };
        let me = self.state.io.me;
        let mut any = self.state.io.flush_mailbox();
        // A look costs less than trying to take one.
        while !hub.inbox_is_empty(me)
            && let Some(message) = hub.receive(me)
        {
            any = true;
            let from = message.from;
            if let Err(problem) = self.state.message(message) {
                self.state.lost(from, format!("it broke the protocol: {problem}"));
            }
        }
        if hub.take_refused(me) {
            // Whoever found no room may sleep.
            (0..self.state.peers.len())
                .filter(|peer| *peer != me)
                .for_each(|peer| self.state.io.publish(peer));
        }
        for peer in 0..self.state.peers.len() {
            if self.state.io.via(peer) == Via::Memory && hub.gone(peer) && hub.inbox_is_empty(me) {
                self.state.left(peer);
            }
        }
        any
    }

    fn read(&mut self) -> bool {
        let mut moved = false;
        let urgent = self.state.order.has_urgent();
        for class in [Class::Fast, Class::Bulk] {
            let budget = if urgent && class == Class::Bulk { PAYLOAD_MAX } else { TURN_BYTES };
            for peer in 0..self.links.len() {
                let Some(pair) = self.links[peer].as_mut() else { continue };
                let conn = pair.conn(class);
                if conn.read_blocked() {
                    continue;
                }
                match conn.read(peer, budget, &mut self.state) {
                    Ok(any) => {
                        moved |= any;
                        if any && conn.is_looked_at() {
                            self.state.io.call(peer);
                        } else if any && class == Class::Bulk {
                            self.quiet = 0;
                        }
                    }
                    Err(broken) => self.broken(peer, class, broken),
                }
            }
        }
        moved
    }

    /// Hands what operations want sent to the connections.
    pub(super) fn flush(&mut self) -> bool {
        self.writable |= self.state.io.hand_over();
        if self.state.io.outbox.is_empty() {
            return false;
        }
        self.writable = true;
        debug_assert!(self.state.lends_what_it_has(), "memory of an operation that is over");
        for (peer, class, frame) in self.state.io.outbox.drain(..) {
            if let Some(pair) = self.links[peer].as_mut() {
                let conn = pair.conn(class);
                conn.push(frame);
                if class == Class::Fast {
                    self.state.io.peers[peer].waiting = conn.queued_frames();
                }
            }
        }
        true
    }

    pub(super) fn write(&mut self) -> bool {
        if !std::mem::take(&mut self.writable) {
            return false;
        }
        let mut moved = false;
        for class in [Class::Fast, Class::Bulk] {
            for peer in 0..self.links.len() {
                let consumed = self.state.io.peers[peer].consumed;
                let Some(pair) = self.links[peer].as_mut() else { continue };
                let conn = pair.conn(class);
                if !conn.has_outgoing() || conn.write_blocked() {
                    self.writable |= conn.has_outgoing() && conn.is_looked_at();
                    continue;
                }
                let looked_at = conn.is_looked_at();
                if class == Class::Bulk && !looked_at {
                    self.quiet = 0;
                }
                let before = conn.queued_bytes();
                match conn.write(consumed, TURN_BYTES, &mut self.state) {
                    Ok(any) => {
                        moved |= any;
                        let left = conn.queued_bytes();
                        self.writable |= conn.has_outgoing() && (looked_at || !conn.write_blocked());
                        if any && looked_at {
                            self.state.io.call(peer);
                        }
                        self.state.io.unqueue(peer, class, before - left);
                        self.state.io.peers[peer].consumed_told = consumed;
                        if class == Class::Fast {
                            self.state.io.peers[peer].waiting = conn.queued_frames();
                        }
                    }
                    Err(broken) => self.broken(peer, class, broken),
                }
            }
        }
        moved
    }

    /// Links let go of what has ended; then its owners get it back.
    pub(super) fn settle(&mut self) {
        for (peer, problem) in std::mem::take(&mut self.state.io.accused) {
            self.state.lost(peer, format!("it broke the protocol: {problem}"));
            self.state.offenders.push(peer);
        }
        self.disconnect_offenders();
        // What they lent as they ended is where links find it.
        if !self.state.ended.is_empty() {
            self.flush();
        }
        if !self.state.reports.is_empty() {
            self.note_links();
        }
        for ended in self.state.ended.drain(..) {
            for (peer, pair) in self.links.iter_mut().enumerate() {
                let (Some(pair), Some(key)) = (pair, ended.key) else { continue };
                for class in [Class::Fast, Class::Bulk] {
                    let dropped = pair.conn(class).forget(key);
                    self.state.io.unqueue(peer, class, dropped);
                }
            }
            drop((ended.blocks, ended.windows));
            self.failed.push((ended.op, ended.outcome));
        }
        if std::mem::take(&mut self.state.large) {
            self.examine_links();
        }
    }

    pub(crate) fn tick(&mut self, now: Instant) -> Option<Instant> {
        self.state.now = now;
        self.state.date_poll();
        let next = self.state.tick();
        self.turn(false);
        next
    }

    /// Whether bytes or messages wait to leave.
    pub(crate) fn has_outgoing(&self) -> bool {
        self.state.io.has_mail()
            || self.links.iter().flatten().any(|pair| pair.fast.has_outgoing() || pair.bulk.has_outgoing())
    }

    /// Whether anything could be done without waiting: a connection may have more, or take more.
    pub(crate) fn is_ready(&self) -> bool {
        let ready = |conn: &Conn| {
            !conn.is_shut() && (!conn.read_blocked() || conn.has_outgoing() && !conn.write_blocked())
        };
        self.state.has_unfinished()
            || !self.state.io.heralds.is_empty()
            || self.links.iter().flatten().any(|pair| ready(&pair.fast) || ready(&pair.bulk))
    }

    pub(crate) fn has_links(&self) -> bool {
        self.links.iter().any(Option::is_some)
    }

    /// Changes while peers' systems still take what was sent.
    pub(crate) fn delivered(&mut self) -> u64 {
        self.links.iter_mut().flatten().map(|pair| pair.fast.delivered() + pair.bulk.delivered()).sum()
    }

    /// This rank will not use a communicator again.
    pub(crate) fn close_channel(&mut self, channel: usize) {
        self.state.say_close(channel);
    }
}
