//! The links to all other ranks, as they are made, and by what the poll set knows them.

#[cfg(feature = "testing")]
use std::sync::Arc;

use super::io::Via;
use super::links::Guard;
use super::meet::Meetings;
use super::neighbours::Neighbours;
use crate::error::LinkKind;
use crate::link::conn::Conn;
#[cfg(feature = "testing")]
use crate::link::sim;
use crate::link::{Class, shm, tcp};
use crate::runtime::poller::Poller;

/// Both connections to one peer.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) fast: Conn,
    pub(super) bulk: Conn,
    pub(super) guard: Guard,
    pub(super) swaps: Meetings,
    /// Nothing more will come, by class.
    pub(super) ended: [bool; 2],
}

impl Pair {
    fn new(fast: Conn, bulk: Conn) -> Self {
        Pair { fast, bulk, guard: Guard::default(), swaps: Meetings::default(), ended: [false; 2] }
    }

    /// Through memory, one socket tells the end of both, and something rings.
    fn watch(&self, peer: usize, poller: &Poller) -> std::io::Result<()> {
        let (fast, bulk) = (self.fast.descriptors(), self.bulk.descriptors());
        let of_both = fast.into_iter().chain(if self.fast.is_looked_at() { Vec::new() } else { bulk });
        of_both.zip([Class::Fast, Class::Bulk]).try_for_each(|(fd, class)| poller.add(fd, token(peer, class)))
    }

    pub(super) fn conn(&mut self, class: Class) -> &mut Conn {
        match class {
            Class::Fast => &mut self.fast,
            Class::Bulk => &mut self.bulk,
        }
    }
}

/// How another rank is reached, as the engine is given it.
#[derive(Debug)]
pub(crate) enum PeerLink {
    Myself,
    Memory,
    Tcp {
        fast: std::net::TcpStream,
        bulk: std::net::TcpStream,
    },
    Shm(shm::Ends),
    #[cfg(feature = "testing")]
    Sim(Arc<sim::Fabric>),
}

/// The links to all other ranks, as they are made.
#[derive(Default)]
pub(super) struct Wires {
    pub kinds: Vec<LinkKind>,
    pub links: Vec<Option<Pair>>,
    pub neighbours: Neighbours,
    pub reaches: Vec<(usize, shm::Reach)>,
    #[cfg(feature = "testing")]
    pub fabric: Option<Arc<sim::Fabric>>,
}

impl Wires {
    pub(super) fn new(me: usize, peers: Vec<PeerLink>, poller: &Poller) -> std::io::Result<Self> {
        let mut wires = Wires::default();
        for (index, peer) in peers.into_iter().enumerate() {
            let (kind, pair) = wires.link(me, index, peer);
            if let Some(pair) = &pair {
                pair.watch(index, poller)?;
            }
            wires.kinds.push(kind);
            wires.links.push(pair);
        }
        Ok(wires)
    }

    #[cfg_attr(not(feature = "testing"), expect(unused_variables, reason = "a simulated link has two ends"))]
    fn link(&mut self, me: usize, index: usize, peer: PeerLink) -> (LinkKind, Option<Pair>) {
        match peer {
            PeerLink::Myself => (LinkKind::Myself, None),
            PeerLink::Memory => (LinkKind::Memory, None),
            PeerLink::Tcp { fast, bulk } => {
                let conn = |socket, class| Conn::Tcp(tcp::Conn::new(socket, class));
                let pair = Pair::new(conn(fast, Class::Fast), conn(bulk, Class::Bulk));
                (LinkKind::Tcp, Some(pair))
            }
            PeerLink::Shm(ends) => {
                let ([fast, bulk], bell, reach) = shm::Conn::pair(ends, &mut self.neighbours.naps);
                self.reaches.push((index, reach));
                self.neighbours.add(index, bell);
                (LinkKind::SharedMemory, Some(Pair::new(Conn::Shm(fast), Conn::Shm(bulk))))
            }
            #[cfg(feature = "testing")]
            PeerLink::Sim(of) => {
                let conn = |class| Conn::Sim(sim::Conn::new(of.clone(), me, index, class));
                let pair = Pair::new(conn(Class::Fast), conn(Class::Bulk));
                self.fabric = Some(of);
                (LinkKind::Tcp, Some(pair))
            }
        }
    }
}

pub(super) fn via(kind: LinkKind) -> Via {
    match kind {
        LinkKind::Myself => Via::Myself,
        LinkKind::Memory => Via::Memory,
        LinkKind::Tcp | LinkKind::SharedMemory => Via::Stream,
    }
}

pub(super) fn unwatch(poller: &Poller, conn: &Conn) {
    for descriptor in conn.descriptors() {
        poller.remove(descriptor);
    }
}

pub(super) fn token(peer: usize, class: Class) -> u64 {
    (peer as u64) << 1 | class as u64
}

pub(super) fn untoken(token: u64) -> (usize, Class) {
    ((token >> 1) as usize, if token & 1 == 0 { Class::Fast } else { Class::Bulk })
}
