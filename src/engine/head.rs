//! What every operation in flight has: its name, its times, and what is known about its trouble.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::{CallDesc, Op};
use super::io::Io;
use super::order::Priority;
use super::room::Need;
use crate::error::CallInfo;
use crate::kernel::Reduction;
use crate::link::RunKey;
use crate::link::frame::{Header, Kind, Outgoing};
use crate::path::Post;

#[derive(Debug)]
pub(crate) struct Head {
    pub key: RunKey,
    pub op: Arc<Op>,
    /// Index of the communicator in the engine, and its name on the wire.
    pub channel: usize,
    pub channel_id: u64,
    pub seq: u64,
    pub digest: u64,
    pub desc: CallDesc,
    /// World rank of each rank of the communicator.
    pub members: Arc<[u32]>,
    pub started: Instant,
    pub deadline: Instant,
    /// For how long it did not run, so far.
    pub paused: Duration,
    /// When to speak up next about having waited long: status first, then warnings.
    pub remark: Instant,
    pub remarks: u32,
    /// What ranks call under this number, once somebody contradicted, and when that is decided.
    pub calls: Vec<(usize, CallInfo)>,
    /// What was set aside for it.
    pub aside: Need,
    pub verdict: Option<Instant>,
    /// Somebody is lost, who may be the one that contradicts, and will not tell what it called.
    pub bereft: bool,
    pub priority: Priority,
    /// It waits for its turn, where turns have an order.
    pub queued: bool,
    /// Its number in the flight recorder.
    pub record: u64,
}

/// How much longer a verdict waits while no call is known that differs: who contradicts has told it, and a network that
/// loses may bring it after some attempts only.
const PATIENCE: Duration = Duration::from_secs(5);

impl Head {
    /// How a reduction of this call is done; `post`: whether it is the last of its elements.
    pub(crate) fn reduction(&self, post: Post) -> Reduction {
        self.desc.reduction(post, self.members.len())
    }

    /// Tells rank `from` that its message is taken up to `upto`.
    pub(crate) fn grant(&self, from: usize, message: u32, upto: usize, io: &mut Io) {
        let mut header = Header::new(Kind::Credit, self.channel_id, self.seq);
        header.item = message;
        header.offset = upto as u64;
        header.digest = self.digest;
        io.control(self.members[from] as usize, Outgoing::control(header));
    }

    /// Rank in the communicator of a world rank that is a member.
    pub(crate) fn rank_of(&self, world: usize) -> usize {
        if self.members.get(world) == Some(&(world as u32)) {
            return world;
        }
        self.members.iter().position(|member| *member as usize == world).unwrap_or(usize::MAX)
    }

    pub(crate) fn deadline_with_pauses(&self) -> Instant {
        self.deadline.checked_add(self.paused).unwrap_or(self.deadline)
    }

    /// When a contradicted operation ends with what is known then.
    pub(crate) fn verdict_due(&self) -> Option<Instant> {
        let waits = !self.bereft && !differ(&self.calls);
        self.verdict.map(|at| if waits { at + PATIENCE } else { at })
    }
}

/// Whether it is known that ranks call different things.
pub(super) fn differ(calls: &[(usize, CallInfo)]) -> bool {
    let mut all = calls.iter().enumerate();
    all.any(|(at, (me, call))| {
        calls[at + 1..].iter().any(|(rank, other)| call.contradicts(*me, other, *rank))
    })
}
