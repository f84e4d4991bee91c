//! Frames that wait to leave on one connection, whichever link it is of.

use std::collections::VecDeque;

use super::RunKey;
use super::frame::{EAGER, Kind, Outgoing, Payload};

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub frames: VecDeque<Outgoing>,
    /// Payload bytes of them that have not left.
    pub bytes: usize,
    /// A goodbye is the last of them, or has left.
    pub says_bye: bool,
}

impl Outbox {
    /// Nothing follows a goodbye.
    pub(crate) fn push(&mut self, frame: Outgoing) {
        if self.says_bye {
            return;
        }
        self.says_bye = frame.header.kind == Kind::Bye;
        self.bytes += frame.payload.bytes().len();
        self.frames.push_back(frame);
    }

    /// The operation is over: its frames do not leave. The first, if it has `begun` to, is finished from a copy, and so are those
    /// that the receiver counts, as messages or against its budget: it may keep them for later. Returns the lent bytes that
    /// will not leave.
    pub(crate) fn forget(&mut self, run: RunKey, mut begun: bool) -> usize {
        let mut gone = 0;
        self.frames.retain_mut(|frame| {
            let begun = std::mem::take(&mut begun);
            match frame.payload {
                Payload::Lent { raw, run: of, .. } if of == run => {
                    let leaves = begun || frame.header.flags & EAGER != 0;
                    if leaves {
                        frame.payload = Payload::Owned(raw.to_vec());
                    } else {
                        gone += raw.len();
                    }
                    leaves
                }
                _ => true,
            }
        });
        self.bytes -= gone;
        gone
    }

    /// Nothing leaves any more.
    pub(crate) fn clear(&mut self) {
        self.frames.clear();
        self.bytes = 0;
    }
}
