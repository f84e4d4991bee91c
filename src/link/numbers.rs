//! The numbers of frames on one connection, and what they must be.

use super::frame::{Header, Kind};
use super::tcp::Traffic;

#[derive(Debug, Default)]
pub(crate) struct Numbers {
    sent: u32,
    received: u32,
    /// Number of the next frame that the peer expects, as it said last.
    acknowledged: u32,
    pub traffic: Traffic,
    /// Its goodbye was the last frame that came.
    pub said_bye: bool,
}

impl Numbers {
    /// Completes a header that begins to leave, with `ahead` frames before it that have not left.
    pub(crate) fn stamp(&self, header: &mut Header, ahead: u32, consumed: u64) {
        header.stamp(self.sent.wrapping_add(ahead), self.received, consumed);
    }

    /// A frame has left.
    pub(crate) fn has_sent(&mut self) {
        self.sent = self.sent.wrapping_add(1);
        self.traffic.sent_frames += 1;
    }

    /// Whether a frame has the number that is due.
    pub(crate) fn is_due(&self, header: &Header) -> bool {
        header.frame == self.received
    }

    /// A frame has come. Acknowledgements only grow, up to what has left, of which a last frame may still be `leaving`;
    /// nothing follows a goodbye.
    pub(crate) fn has_received(&mut self, header: &Header, leaving: bool) -> Result<(), String> {
        if !self.is_due(header) {
            return Err(format!("frame {} where {} was due", header.frame, self.received));
        }
        if self.said_bye {
            return Err(format!("a {:?} frame after its goodbye", header.kind));
        }
        let left = self.sent.wrapping_add(u32::from(leaving));
        let news = header.acknowledged.wrapping_sub(self.acknowledged);
        if news > left.wrapping_sub(self.acknowledged) {
            let claim = header.acknowledged;
            return Err(format!("acknowledges {claim} frames after {}, of {left} sent", self.acknowledged));
        }
        self.acknowledged = header.acknowledged;
        self.received = self.received.wrapping_add(1);
        self.traffic.received_frames += 1;
        self.said_bye |= header.kind == Kind::Bye;
        Ok(())
    }
}
