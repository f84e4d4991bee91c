//! What every operation in flight has: its name, its times, and what is known about its trouble.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::{CallDesc, Op};
use super::order::Priority;
use crate::error::CallInfo;
use crate::link::RunKey;

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
    /// When to speak up next about having waited long: status first, then warnings.
    pub remark: Instant,
    pub remarks: u32,
    /// What ranks call under this number, once somebody contradicted, and when that is decided.
    pub calls: Vec<(usize, CallInfo)>,
    /// Working memory set aside for it.
    pub aside: usize,
    pub verdict: Option<Instant>,
    pub priority: Priority,
    /// It waits for its turn, where turns have an order.
    pub queued: bool,
}

/// How much longer a verdict waits while no call is known that differs: who contradicts has told it, and a network that
/// loses may bring it after some attempts only.
const PATIENCE: Duration = Duration::from_secs(5);

impl Head {
    /// When a contradicted operation ends with what is known then.
    pub(crate) fn verdict_due(&self) -> Option<Instant> {
        let differ = self.calls.windows(2).any(|pair| pair[0].1 != pair[1].1);
        self.verdict.map(|at| if differ { at } else { at + PATIENCE })
    }
}
