//! An all-reduce among ranks of one process, in place: each rank reduces its block straight from all vectors and writes
//! the result to all of them in the same pass.
//!
//! It does what the steps of a two-shot plan say, recognised by their shape ([`Blocks`]), without a state for each of
//! them. Nobody but the reducer of a block reads or writes it from the moment its owner lends it: so a rank lends each
//! peer the block that the peer reduces, once, when it is called, and has its result when all peers are done with theirs
//! and it is done with its own. All members see the same plan and are in one process, so all of them take this way, or none.

use std::sync::Arc;

use super::head::Head;
use super::io::{Io, Via};
use super::program::Program;
use super::run::{PASSES, SLICE, take_back};
use crate::buffer::parts::Parts;
use crate::buffer::raw::Raw;
use crate::link::frame::{Header, Kind};
use crate::link::memory::Lease;
use crate::path::{Post, Range};

/// In the digest of a lease: what it lends is lent in this way.
const DIRECT: u64 = 0xd1ec_7000_0000_0000;

/// A rank's part of a plan in which each rank reduces one block and writes it to all others.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// By rank of the communicator: what it reduces.
    pub of: Vec<Range>,
    /// The ranks in the order of the sum.
    pub order: Vec<usize>,
    pub post: Post,
}

#[derive(Debug)]
pub(crate) struct Direct {
    pub head: Head,
    program: Arc<Program>,
    parts: Parts,
    lease: Option<Arc<Lease>>,
    memory: Kept,
    /// This rank in the communicator.
    me: usize,
    /// Peers that have not lent yet.
    missing: usize,
    /// Bytes of the own block reduced; `None` before that has begun.
    done: Option<usize>,
    complete: bool,
}

/// Allocations of an ended one, for the next.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// By rank: its block of the own vector, and what it lends.
    blocks: Vec<Raw>,
    offers: Vec<Option<Arc<Lease>>>,
    sources: Vec<Raw>,
    copies: Vec<Raw>,
}

impl Direct {
    /// Whether a call is one.
    pub(crate) fn fits(program: &Program, members: &[u32], io: &Io) -> bool {
        program.direct.is_some() && members.iter().all(|world| io.via(*world as usize) != Via::Stream)
    }

    /// Begins one that [`fits`](Self::fits).
    pub(crate) fn start(
        head: Head,
        me: usize,
        program: Arc<Program>,
        parts: Parts,
        mut memory: Kept,
        io: &mut Io,
    ) -> Direct {
        let ranks = head.members.len();
        let size = head.desc.dtype.size();
        let raw = parts.raw();
        let partition = program.partition(raw.len() / size);
        memory.blocks.clear();
        memory.blocks.extend(program.direct.iter().flat_map(|blocks| &blocks.of).map(|range| {
            let elements = partition.elements(*range);
            raw.sub(elements.start * size..elements.end * size)
        }));
        memory.offers.clear();
        memory.offers.resize(ranks, None);
        let lease = io.lease(head.digest ^ DIRECT, memory.blocks.iter().copied());
        let mut header = Header::new(Kind::Data, head.channel_id, head.seq);
        header.digest = head.digest;
        for peer in (0..ranks).filter(|peer| *peer != me) {
            io.message(head.members[peer] as usize, header, Vec::new(), Some(lease.clone()));
        }
        Direct {
            head,
            program,
            parts,
            lease: Some(lease),
            memory,
            me,
            missing: ranks - 1,
            done: None,
            complete: false,
        }
    }

    /// A peer has begun, with an equal digest. Says whether it lends as it has to.
    pub(crate) fn accept_offer(&mut self, from: usize, lease: Arc<Lease>) -> bool {
        if lease.digest != self.head.digest ^ DIRECT || from == self.me {
            return false;
        }
        if self.memory.offers[from].replace(lease).is_none() {
            self.missing -= 1;
        }
        true
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Moves as far as it can for now. Says whether anything moved; [`Io::unfinished`], whether more could.
    pub(crate) fn advance(&mut self, io: &mut Io) -> bool {
        if self.missing > 0 || self.complete {
            return false;
        }
        let program = self.program.clone();
        let Some(blocks) = &program.direct else { return false };
        let bytes = self.memory.blocks[self.me].len();
        let mut moved = false;
        for _ in 0..PASSES {
            if self.done == Some(bytes) {
                break;
            }
            if !self.reduce(blocks, bytes, io) {
                return moved;
            }
            moved = true;
        }
        io.unfinished |= self.done != Some(bytes);
        self.complete = self.done == Some(bytes) && self.is_written();
        moved | self.complete
    }

    /// Whether all peers are done with their blocks.
    fn is_written(&self) -> bool {
        let Some(lease) = &self.lease else { return true };
        self.memory
            .blocks
            .iter()
            .enumerate()
            .all(|(peer, block)| peer == self.me || lease.taken(peer) == Some(block.len()))
    }

    /// Reduces the next slice of the own block. Not, if a peer has given it up: that will be told.
    fn reduce(&mut self, blocks: &Blocks, bytes: usize, io: &mut Io) -> bool {
        let Kept { blocks: own, offers, sources, copies } = &mut self.memory;
        let done = self.done.unwrap_or(0);
        let end = (done + SLICE).min(bytes);
        let mut entered = 0;
        for peer in &blocks.order {
            let raw = match &offers[*peer] {
                Some(lease) => lease.enter(self.me),
                None => Some(own[self.me]),
            };
            let Some(raw) = raw.filter(|raw| raw.len() == bytes) else { break };
            entered += 1;
            let slice = raw.sub(done..end);
            sources.push(slice);
            if *peer != self.me {
                copies.push(slice);
            }
        }
        let all = entered == blocks.order.len();
        if all && end > done {
            own[self.me].sub(done..end).reduce_from(self.head.reduction(blocks.post), sources, copies);
        }
        sources.clear();
        copies.clear();
        let mut stood = all;
        for peer in &blocks.order[..entered] {
            let Some(lease) = &offers[*peer] else { continue };
            if all {
                stood &= lease.leave(self.me, end);
                io.publish(self.head.members[*peer] as usize);
            } else {
                lease.pass(self.me);
            }
        }
        if stood {
            self.done = Some(end);
        }
        stood
    }

    /// The ranks that have not begun, or are not done with their blocks.
    pub(crate) fn waits_for(&self) -> Vec<usize> {
        let written = |peer: usize| {
            self.lease.as_ref().is_none_or(|lease| lease.taken(peer) == Some(self.memory.blocks[peer].len()))
        };
        (0..self.head.members.len())
            .filter(|peer| *peer != self.me && (self.memory.offers[*peer].is_none() || !written(*peer)))
            .collect()
    }

    /// Ends it: gives back its vector unless somebody is still at it, and lets go of all others'.
    pub(crate) fn end(&mut self, io: &mut Io) -> (Option<Parts>, Kept) {
        let mut memory = std::mem::take(&mut self.memory);
        memory.offers.clear();
        let parts = std::mem::replace(&mut self.parts, Parts::NONE);
        let Some(lease) = self.lease.take() else { return (Some(parts), memory) };
        let parts = take_back(&lease, self.complete, parts);
        if parts.is_some() {
            io.recycle_lease(lease);
        }
        (parts, memory)
    }
}
