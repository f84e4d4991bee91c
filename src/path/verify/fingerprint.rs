//! A hash over everything in a plan that is the same on every machine and in every build.
//!
//! FNV-1a (Glenn Fowler, Landon Curt Noll, Kiem-Phong Vo, 1991) over 64-bit words in an explicit encoding, in which
//! every list has its length before it, followed by a mixing of the bits. It tells plans apart that differ by
//! accident; it is no defence against a forger.

use crate::path::plan::{
    Action, After, Collective, Placement, Plan, Post, Range, RankPlan, Source, Space, Step,
};

/// Raised whenever the encoding or the meaning of a plan changes.
const VERSION: u64 = 3;

/// The plan's fingerprint.
pub(super) fn fingerprint(plan: &Plan) -> u64 {
    let mut hash = Fnv::new();
    hash.word(VERSION);
    hash.collective(plan.collective);
    hash.text(plan.algorithm);
    hash.word(u64::from(plan.blocks));
    hash.word(u64::from(plan.granule));
    hash.word(match plan.placement {
        Placement::InPlace => 0,
        Placement::OutOfPlace => 1,
    });
    hash.list(plan.edges.as_deref().unwrap_or_default(), |hash, edges| hash.word(*edges));
    hash.list(&plan.ranks, Fnv::rank);
    hash.finish()
}

/// FNV-1a, fed with words.
pub(crate) struct Fnv(u64);

impl Fnv {
    pub(crate) const fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn word(&mut self, word: u64) {
        for byte in word.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.word(text.len() as u64);
        for byte in text.bytes() {
            self.word(u64::from(byte));
        }
    }

    /// FNV leaves its high bits weak in the last bytes; this is the finalizer of MurmurHash3 (Austin Appleby, 2011).
    pub(crate) const fn finish(&self) -> u64 {
        let mut hash = self.0;
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^ hash >> 33
    }

    fn list<T>(&mut self, items: &[T], each: impl Fn(&mut Self, &T)) {
        self.word(items.len() as u64);
        for item in items {
            each(self, item);
        }
    }

    fn collective(&mut self, collective: Collective) {
        let kind = match collective {
            Collective::AllReduce => 0,
            Collective::AllGather => 1,
            Collective::ReduceScatter => 2,
            Collective::Broadcast { .. } => 3,
            Collective::Reduce { .. } => 4,
            Collective::Gather { .. } => 5,
            Collective::Scatter { .. } => 6,
            Collective::AllToAll => 7,
            Collective::Scan => 8,
            Collective::ExScan => 9,
        };
        self.word(kind);
        self.word(u64::from(collective.root().unwrap_or_default().0));
    }

    fn rank(&mut self, part: &RankPlan) {
        self.list(&part.steps, Fnv::step);
        self.list(&part.scratch, Fnv::range);
    }

    fn step(&mut self, step: &Step) {
        match &step.action {
            Action::Send { to, message, src } => {
                self.word(0);
                self.message(to.0, *message);
                self.range(src);
            }
            Action::Place { from, message, dst } => {
                self.word(1);
                self.message(from.0, *message);
                self.range(dst);
            }
            Action::Copy { src, dst } => {
                self.word(2);
                self.range(src);
                self.range(dst);
            }
            Action::Reduce { dst, srcs, post } => {
                self.word(3);
                self.range(dst);
                self.list(srcs, Fnv::source);
                self.word(match post {
                    Post::None => 0,
                    Post::Finish => 1,
                });
            }
        }
        self.list(&step.after, |hash, after| {
            let kind = match after {
                After::Stream(_) => 0,
                After::Whole(_) => 1,
            };
            hash.word(kind << 32 | u64::from(after.step()));
        });
    }

    fn source(&mut self, source: &Source) {
        match source {
            Source::Local(range) => {
                self.word(0);
                self.range(range);
            }
            Source::Peer { from, message } => {
                self.word(1);
                self.message(from.0, *message);
            }
        }
    }

    fn message(&mut self, peer: u32, message: u16) {
        self.word(u64::from(peer) << 32 | u64::from(message));
    }

    fn range(&mut self, range: &Range) {
        self.word(match range.space {
            Space::Input => 0,
            Space::Output => 1,
            Space::Scratch(area) => 2 + u64::from(area),
        });
        self.word(u64::from(range.first) << 32 | u64::from(range.count));
    }
}
