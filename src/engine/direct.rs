//! An all-reduce among ranks of one process, in place: each rank reduces its block straight from all vectors and writes
//! the result to all of them in the same pass.
//!
//! It does what the steps of a two-shot plan say, recognised by their shape ([`Blocks`]), without a state for each of
//! them. Nobody but the reducer of a block reads or writes it from the moment its owner lends it: so a rank lends each
//! peer the block that the peer reduces, once, when it is called, and has its result when all peers are done with theirs
//! and it is done with its own. All members see the same plan and are in one process, so all of them take this way, or none.

use std::sync::Arc;

use super::call::CallDesc;
use super::head::Head;
use super::io::{Io, Via};
use super::program::Program;
use super::run::{PASSES, SLICE, take_back};
use crate::buffer::parts::Parts;
use crate::buffer::raw::Raw;
use crate::element::DType;
use crate::kernel::Reduction;
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

/// One in flight.
#[derive(Debug)]
pub(crate) struct Direct {
    pub head: Head,
    pub part: Part,
}

/// This rank's part of one.
#[derive(Debug)]
pub(crate) struct Part {
    seq: u64,
    digest: u64,
    reduction: Reduction,
    program: Arc<Program>,
    parts: Parts,
    lease: Option<Arc<Lease>>,
    memory: Kept,
    /// This rank in the communicator.
    me: usize,
    /// Peers that are not known to lend.
    missing: usize,
    /// Bytes of the own block reduced; `None` before that has begun.
    done: Option<usize>,
    complete: bool,
    /// A peer lends for another call under this number.
    pub contradicted: bool,
}

/// Leases of a communicator that stand.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// The own one, while nothing in flight has it.
    mine: Option<Arc<Lease>>,
    /// Something in flight has it.
    taken: bool,
    /// By rank.
    theirs: Vec<Option<Arc<Lease>>>,
}

impl Standing {
    /// Whether all of `ranks` have lent by one before, and the own one is free.
    pub(super) fn is_ready(&self, ranks: usize) -> bool {
        let theirs = self.theirs.iter().filter(|lease| lease.is_some()).count();
        self.mine.is_some() && theirs + 1 == ranks
    }

    /// Leases that stand no more may hold memory that was left to them, because this rank was in it: whether its own part
    /// went well or not.
    fn let_go(&mut self) {
        let theirs = self.theirs.iter_mut();
        theirs
            .filter(|lease| lease.as_ref().is_some_and(|lease| lease.is_revoked()))
            .for_each(|lease| *lease = None);
    }

    /// A lease that `from` will lend by again.
    fn keep(&mut self, from: usize, lease: Arc<Lease>) {
        if self.theirs.len() <= from {
            self.theirs.resize(from + 1, None);
        }
        self.theirs[from] = Some(lease);
    }
}

/// Allocations of an ended one, for the next.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// By rank: where its block is, in a vector of so many bytes of this type that this plan has cut: the next is mostly
    /// alike.
    cuts: Vec<std::ops::Range<usize>>,
    cut: Option<(u64, DType, usize)>,
    /// By rank: its block of the own vector; what it lends for this one operation; whether it is known to lend.
    blocks: Vec<Raw>,
    offers: Vec<Option<Arc<Lease>>>,
    lends: Vec<bool>,
    sources: Vec<Raw>,
    copies: Vec<Raw>,
}

impl Direct {
    /// Whether a call is one.
    pub(crate) fn fits(program: &Program, members: &[u32], io: &Io) -> bool {
        program.direct.is_some() && members.iter().all(|world| io.via(*world as usize) != Via::Stream)
    }

    /// A peer has begun, with an equal digest. Says whether it lends as it has to.
    pub(crate) fn accept_offer(&mut self, from: usize, lease: Arc<Lease>, standing: &mut Standing) -> bool {
        self.part.accept_offer(from, lease, standing)
    }

    /// Moves as far as it can for now. Says whether anything moved; [`Io::unfinished`], whether more could.
    pub(crate) fn advance(&mut self, standing: &Standing, io: &mut Io) -> bool {
        self.part.advance(&self.head.members, standing, io)
    }
}

impl Part {
    /// The part of rank `me` of `ranks` in a call that [`fits`](Direct::fits).
    pub(crate) fn new(
        (seq, digest, desc): (u64, u64, &CallDesc),
        (me, ranks): (usize, usize),
        program: Arc<Program>,
        parts: Parts,
        mut memory: Kept,
    ) -> Part {
        let raw = parts.raw();
        memory.cut(&program, desc.dtype, raw.len());
        memory.blocks.clear();
        memory.blocks.extend(memory.cuts.iter().map(|cut| raw.sub(cut.clone())));
        memory.offers.clear();
        memory.offers.resize(ranks, None);
        memory.lends.clear();
        memory.lends.resize(ranks, false);
        memory.lends[me] = true;
        let post = program.direct.as_ref().map_or(Post::None, |blocks| blocks.post);
        Part {
            seq,
            digest,
            reduction: desc.reduction(post, ranks),
            program,
            parts,
            lease: None,
            memory,
            me,
            missing: ranks - 1,
            done: None,
            complete: false,
            contradicted: false,
        }
    }

    /// Bytes that this rank reduces.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.blocks[self.me].len()
    }

    /// Lends its block to each peer: by the lease that stands, which they look at, or else by one of its own.
    pub(crate) fn lend(&mut self, channel_id: u64, members: &[u32], standing: &mut Standing, io: &mut Io) {
        let Part { seq, digest, .. } = *self;
        let blocks = self.memory.blocks.iter().copied();
        let peers = (0..self.memory.blocks.len()).filter(|peer| *peer != self.me);
        let peers = peers.map(|peer| members[peer] as usize);
        let known = standing.mine.take();
        let is_new = known.is_none();
        let lease = known.unwrap_or_else(|| io.lease(digest ^ DIRECT, blocks.clone(), !standing.taken));
        standing.taken = true;
        lease.arm(seq, digest, blocks);
        for peer in peers {
            if is_new {
                let mut header = Header::new(Kind::Data, channel_id, seq);
                header.digest = digest;
                io.message(peer, header, Vec::new(), Some(lease.clone()));
            } else {
                io.publish(peer);
            }
        }
        self.lease = Some(lease);
    }

    fn accept_offer(&mut self, from: usize, lease: Arc<Lease>, standing: &mut Standing) -> bool {
        if lease.digest != self.digest ^ DIRECT || from == self.me {
            return false;
        }
        if lease.standing {
            standing.keep(from, lease);
        } else {
            self.memory.offers[from] = Some(lease);
        }
        true
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// As of [`Direct`].
    pub(crate) fn advance(&mut self, members: &[u32], standing: &Standing, io: &mut Io) -> bool {
        if self.complete || self.missing > 0 && !self.find_missing(standing) {
            return false;
        }
        let bytes = self.bytes();
        let mut moved = false;
        for _ in 0..PASSES {
            if self.done == Some(bytes) {
                break;
            }
            if !self.reduce(members, standing, io) {
                return moved;
            }
            moved = true;
        }
        io.unfinished |= self.done != Some(bytes);
        self.complete = self.done == Some(bytes) && self.is_written();
        moved | self.complete
    }

    /// Looks for peers that have begun. Says whether all have.
    fn find_missing(&mut self, standing: &Standing) -> bool {
        for peer in 0..self.memory.lends.len() {
            if self.memory.lends[peer] {
                continue;
            }
            let lease = self.memory.lease_of(peer, standing);
            match lease.and_then(|lease| lease.armed(self.me, self.seq)) {
                Some(digest) if digest == self.digest => {
                    self.memory.lends[peer] = true;
                    self.missing -= 1;
                }
                Some(_) => self.contradicted = true,
                None => {}
            }
        }
        self.missing == 0
    }

    /// Whether all peers are done with their blocks.
    fn is_written(&self) -> bool {
        (0..self.memory.blocks.len()).all(|peer| self.is_written_by(peer))
    }

    fn is_written_by(&self, peer: usize) -> bool {
        let Some(lease) = &self.lease else { return true };
        peer == self.me || lease.is_finished(peer, self.seq)
    }

    /// Reduces the next slice of the own block. Not, if a peer has given it up: that will be told.
    fn reduce(&mut self, members: &[u32], standing: &Standing, io: &mut Io) -> bool {
        let bytes = self.bytes();
        let Part { seq, me, reduction, ref program, ref mut memory, .. } = *self;
        let Some(Blocks { order, .. }) = &program.direct else { return false };
        let done = self.done.unwrap_or(0);
        let end = (done + SLICE).min(bytes);
        let own = memory.blocks[me];
        memory.sources.clear();
        memory.copies.clear();
        for peer in order {
            let raw = if *peer == me {
                Some(own)
            } else {
                // Whatever else its owner does by it: while it is armed for this number and not revoked, this is its memory.
                let lease = memory.lease_of(*peer, standing);
                let lease = lease.filter(|lease| lease.armed(me, seq).is_some());
                lease.and_then(|lease| lease.enter(me)).filter(|raw| raw.len() == bytes)
            };
            let Some(raw) = raw else { break };
            memory.sources.push(raw.sub(done..end));
            if *peer != me {
                memory.copies.push(raw.sub(done..end));
            }
        }
        let entered = memory.sources.len();
        let all = entered == order.len();
        if all && end > done {
            own.sub(done..end).reduce_from(reduction, &memory.sources, &memory.copies);
        }
        for peer in order[..entered].iter().filter(|peer| **peer != me) {
            let Some(lease) = memory.lease_of(*peer, standing) else { continue };
            if all && end == bytes {
                lease.finish(me, seq);
                io.publish(members[*peer] as usize);
            } else {
                lease.pass(me);
            }
        }
        // Also if a peer has ended its operation meanwhile: its memory stays while somebody is in it, so the sum is right.
        if all {
            self.done = Some(end);
        }
        all
    }

    /// The ranks that have not begun, or are not done with their blocks.
    pub(crate) fn waits_for(&self) -> Vec<usize> {
        let waits = |peer: &usize| !self.memory.lends[*peer] || !self.is_written_by(*peer);
        (0..self.memory.lends.len()).filter(waits).collect()
    }

    /// Ends it: gives back its vector unless somebody is still at it, and lets go of all others'.
    pub(crate) fn end(&mut self, mut standing: Option<&mut Standing>, io: &mut Io) -> (Option<Parts>, Kept) {
        let mut memory = std::mem::take(&mut self.memory);
        memory.offers.clear();
        let parts = std::mem::replace(&mut self.parts, Parts::NONE);
        if let Some(standing) = standing.as_deref_mut() {
            standing.let_go();
        }
        let Some(lease) = self.lease.take() else { return (Some(parts), memory) };
        let parts = take_back(&lease, self.complete, parts);
        if !lease.standing {
            if parts.is_some() {
                io.recycle_lease(lease);
            }
        } else if let Some(standing) = standing {
            // One that was revoked stands no more; the next that is sent does.
            standing.taken = false;
            standing.mine = Some(lease).filter(|_| self.complete);
        }
        (parts, memory)
    }
}

impl Kept {
    /// Cuts a vector of so many bytes as a program does.
    fn cut(&mut self, program: &Program, dtype: DType, bytes: usize) {
        let cut = Some((program.plan.fingerprint(), dtype, bytes));
        if self.cut == cut {
            return;
        }
        self.cut = cut;
        self.cuts.clear();
        let (partition, size) = (program.partition(dtype.elements(bytes)), dtype.size());
        let blocks = program.direct.iter().flat_map(|blocks| &blocks.of);
        self.cuts.extend(blocks.map(|range| {
            let elements = partition.elements(*range);
            elements.start * size..elements.end * size
        }));
    }

    /// What `peer` lends by: for this operation, or whenever it does.
    fn lease_of<'a>(&'a self, peer: usize, standing: &'a Standing) -> Option<&'a Lease> {
        let stands = || standing.theirs.get(peer)?.as_ref();
        self.offers[peer].as_ref().or_else(stands).map(|lease| &**lease)
    }
}

#[cfg(all(test, not(hcomm_loom)))]
mod tests {
    use super::*;
    use crate::buffer::pool::Pool;
    use crate::element::{DType, ReduceOp};
    use crate::path::{self, Algorithm, Collective};

    /// Its owner gave up while this rank read, which went on to the end all the same.
    #[test]
    fn what_a_peer_gave_up_is_let_go_of_however_the_own_part_ends() {
        let plan = path::build(Algorithm::MeshTwoShot, Collective::AllReduce, 2).unwrap();
        let program = Arc::new(Program::new(Arc::new(path::verify(plan).unwrap()), 0));
        let desc = CallDesc { op: Some(ReduceOp::Sum), ..CallDesc::new("all_reduce", DType::U8, 0) };
        let pool = Pool::new(1 << 20, 1 << 20);
        let mut io = Io::new(0, vec![Via::Myself, Via::Memory], pool, None);
        for complete in [false, true] {
            let [revoked, other] = [(); 2].map(|()| Arc::new(Lease::new()));
            let mut standing = Standing::default();
            standing.keep(1, revoked.clone());
            standing.keep(2, other.clone());
            revoked.revoke();
            let terms = (0, desc.digest(), &desc);
            let mut part = Part::new(terms, (0, 2), program.clone(), Parts::NONE, Kept::default());
            part.complete = complete;
            let _ = part.end(Some(&mut standing), &mut io);
            let owners = [&revoked, &other].map(Arc::strong_count);
            assert_eq!(owners, [1, 2], "complete: {complete}");
        }
    }
}
