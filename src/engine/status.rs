//! How far a rank is, told to others when something takes long, and put into words for reports.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::circle::Elsewhere;
use crate::error::CallInfo;

/// What a rank tells about itself on one communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Number that its next collective will have.
    pub next: u64,
    /// The oldest operation it waits in.
    pub current: Option<Current>,
    /// How long its program has been away, in milliseconds: since it last polled anything, or, if it sleeps in an await,
    /// since it was called and has not come.
    pub unpolled_ms: u64,
    /// If it waits in nothing on this communicator: what it waits in on the one whose key this is for, under another key,
    /// or on another communicator.
    pub elsewhere: Option<Elsewhere>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Current {
    pub seq: u64,
    pub call: CallInfo,
    pub waits_for: Vec<u32>,
}

/// A program that was here, or has been called, within this time is not busy with something else.
const BUSY: Duration = Duration::from_millis(100);

impl Status {
    /// The state of a rank that `seq` waits for, in words, for the members of the communicator.
    pub(crate) fn describe(
        &self,
        seq: u64,
        point: bool,
        seen: Instant,
        now: Instant,
        members: &[u32],
    ) -> String {
        let age = now.saturating_duration_since(seen);
        let what = match &self.current {
            Some(current) => {
                let waits: Vec<String> = current.waits_for.iter().map(u32::to_string).collect();
                let waits = if waits.is_empty() {
                    String::new()
                } else {
                    format!(", waiting for {}", waits.join(", "))
                };
                format!("is in {} #{}{waits}", current.call, current.seq)
            }
            None if point || self.next > seq => "is in no operation here".to_string(),
            None if self.next == seq => format!("has not called #{seq}"),
            None => format!("is at #{} and has not called #{seq}", self.next),
        };
        let busy = Duration::from_millis(self.unpolled_ms);
        let elsewhere = match &self.elsewhere {
            // A thread that waits there polls nothing.
            Some(elsewhere) if self.current.is_none() => {
                format!(", but is in {}", elsewhere.describe(members))
            }
            _ if busy > BUSY => format!(", busy elsewhere for {busy:.1?}"),
            _ => String::new(),
        };
        format!("{what}{elsewhere} (told {age:.1?} ago)")
    }
}
