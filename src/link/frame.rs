//! Frames: the one header of all byte links.

use crate::buffer::raw::Raw;

use super::RunKey;
use super::shm::Grant;

/// First bytes of every frame.
const MAGIC: u32 = 0x4d4d_4348; // "HCMM", little endian
/// Changes whenever frames do; checked at rendezvous too, so that a mismatch is told before any frame.
pub(crate) const VERSION: u8 = 10;
/// Payload of one frame at most: small enough to stay in a core's second-level cache until it is reduced.
pub(crate) const PAYLOAD_MAX: usize = 128 << 10;
/// Frames with text or descriptors are no longer than this.
pub(crate) const CONTROL_MAX: usize = 16 << 10;
/// Size of every header; payload follows.
pub(crate) const HEADER_BYTES: usize = 64;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Part of a collective's message: `item` is the message number, `offset` where it belongs.
    Data = 1,
    /// The receiver takes message `item` up to `offset`.
    Credit = 2,
    /// The sender has no eager budget and asks for credit for message `item`.
    Request = 3,
    /// A whole small point-to-point message: `item` is the tag.
    Eager = 4,
    /// A point-to-point message of `offset` bytes wants to be sent: `item` is the tag.
    Offer = 5,
    /// The receiver takes the offered message `number`.
    Accept = 6,
    /// Part of an accepted message, at `offset`.
    Body = 7,
    /// The operation `number` is given up; payload says why.
    Abort = 8,
    /// How far the sender is, and in what; payload is a status.
    Status = 9,
    /// Reports consumed eager bytes (in the header) and nothing else.
    Consumed = 10,
    /// The sender will not use this channel again; payload is what it called last.
    Close = 11,
    /// The sender will not send anything again.
    Bye = 12,
    /// Payload is the sender's call under `number`, which the receiver's contradicts.
    Mismatch = 13,
    /// Which ranks the sender gives up, and whether that is decided.
    Rebuild = 14,
    /// The channel is for a key of communicator `offset`; payload is the key.
    Key = 15,
    /// The deadlines of the channel are held by the sender, or not any longer.
    Hold = 16,
    /// The sender has begun to close the channel: on it, it sends no more messages, and begins to receive none.
    Leaving = 17,
    /// Of a collective's message `item` the receiver may read up to `offset` in the sender's memory; payload says where that is,
    /// the first time.
    Lend = 18,
    /// The receiver has read it up to `offset`.
    Taken = 19,
    /// The receiver can't read further than `offset` where message `item` is lent: the rest is to be sent.
    Declined = 20,
    /// Message `item` of a collective has `offset` bytes, which its receiver may not know.
    Size = 21,
}

impl Kind {
    /// By their bytes, which begin at 1.
    pub(crate) const ALL: [Kind; 21] = [
        Kind::Data,
        Kind::Credit,
        Kind::Request,
        Kind::Eager,
        Kind::Offer,
        Kind::Accept,
        Kind::Body,
        Kind::Abort,
        Kind::Status,
        Kind::Consumed,
        Kind::Close,
        Kind::Bye,
        Kind::Mismatch,
        Kind::Rebuild,
        Kind::Key,
        Kind::Hold,
        Kind::Leaving,
        Kind::Lend,
        Kind::Taken,
        Kind::Declined,
        Kind::Size,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte).wrapping_sub(1)).copied()
    }
}

/// Payload counts against the eager budget.
pub(crate) const EAGER: u16 = 1;
/// The frame asks for the receiver's own call or status.
pub(crate) const ASK: u16 = 2;
/// The frame's number is a message's between two ranks.
pub(crate) const POINT: u16 = 4;
/// That message is one that the frame's receiver sends.
pub(crate) const TO_SENDER: u16 = 8;
/// The sender's thread panics, which closes the channel.
pub(crate) const PANICKED: u16 = 16;
/// The sender holds the channel's deadlines.
pub(crate) const HELD: u16 = 32;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub kind: Kind,
    pub flags: u16,
    /// Which communicator.
    pub channel: u64,
    /// Number of the operation, or of the message between two ranks.
    pub number: u64,
    /// Message number of a plan, or a tag.
    pub item: u32,
    /// Payload bytes.
    pub length: u32,
    pub offset: u64,
    /// Of the call: kind, type, count, reduction, root, plan.
    pub digest: u64,
    /// Counts the frames of a connection.
    pub frame: u32,
    /// Number of the next frame expected from the peer: all before it were applied.
    pub acknowledged: u32,
    /// Eager bytes that the sender of this header has consumed so far.
    pub consumed: u64,
}

impl Header {
    pub(crate) const fn new(kind: Kind, channel: u64, number: u64) -> Self {
        Header {
            kind,
            flags: 0,
            channel,
            number,
            item: 0,
            length: 0,
            offset: 0,
            digest: 0,
            frame: 0,
            acknowledged: 0,
            consumed: 0,
        }
    }

    /// What is known only when the frame begins to leave.
    pub(crate) fn stamp(&mut self, frame: u32, acknowledged: u32, consumed: u64) {
        self.frame = frame;
        self.acknowledged = acknowledged;
        self.consumed = consumed;
    }

    /// Whether both are the same but for what is stamped.
    pub(crate) fn is_like(&self, other: &Header) -> bool {
        let of = |header: &Header| {
            let Header { kind, flags, channel, number, item, length, offset, digest, .. } = *header;
            (kind, flags, channel, number, item, length, offset, digest)
        };
        of(self) == of(other)
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = VERSION;
        out[5] = self.kind as u8;
        out[6..8].copy_from_slice(&self.flags.to_le_bytes());
        out[8..16].copy_from_slice(&self.channel.to_le_bytes());
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        out[24..28].copy_from_slice(&self.item.to_le_bytes());
        out[28..32].copy_from_slice(&self.length.to_le_bytes());
        out[32..40].copy_from_slice(&self.offset.to_le_bytes());
        out[40..48].copy_from_slice(&self.digest.to_le_bytes());
        out[48..52].copy_from_slice(&self.frame.to_le_bytes());
        out[52..56].copy_from_slice(&self.acknowledged.to_le_bytes());
        out[56..64].copy_from_slice(&self.consumed.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if word(0) != MAGIC {
            return Err(format!("not a frame: starts with {:08x}", word(0)));
        }
        if bytes[4] != VERSION {
            return Err(format!("frame version {} instead of {VERSION}", bytes[4]));
        }
        let kind = Kind::from_byte(bytes[5]).ok_or_else(|| format!("unknown frame kind {}", bytes[5]))?;
        let header = Header {
            kind,
            flags: u16::from_le_bytes([bytes[6], bytes[7]]),
            channel: long(8),
            number: long(16),
            item: word(24),
            length: word(28),
            offset: long(32),
            digest: long(40),
            frame: word(48),
            acknowledged: word(52),
            consumed: long(56),
        };
        if header.length as usize > header.length_max() {
            return Err(format!("{kind:?} frame of {} bytes exceeds {}", header.length, header.length_max()));
        }
        if !header.has_fitting_flags() {
            return Err(format!("{kind:?} frame with flags {:#x}", header.flags));
        }
        Ok(header)
    }

    fn has_fitting_flags(&self) -> bool {
        let (needed, allowed) = match self.kind {
            Kind::Data => (0, EAGER),
            Kind::Eager => (EAGER, EAGER),
            Kind::Status | Kind::Mismatch => (0, ASK),
            Kind::Abort => (0, POINT | TO_SENDER),
            Kind::Lend | Kind::Taken | Kind::Declined => (0, POINT),
            Kind::Close => (0, PANICKED),
            Kind::Hold => (0, HELD),
            _ => (0, 0),
        };
        self.flags & needed == needed && self.flags & !allowed == 0
    }

    fn length_max(&self) -> usize {
        match self.kind {
            Kind::Data | Kind::Eager | Kind::Body => PAYLOAD_MAX,
            Kind::Abort | Kind::Status | Kind::Mismatch | Kind::Close | Kind::Rebuild | Kind::Key => {
                CONTROL_MAX
            }
            Kind::Lend => LENT_BYTES,
            _ => 0,
        }
    }
}

/// Where memory lies that the other process reads: which segment, where in it, and the grant. Others than processes that share
/// memory never tell that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lent {
    pub segment: u32,
    pub slot: u32,
    pub offset: u64,
    pub number: u64,
}

/// Bytes of a [`Lent`].
const LENT_BYTES: usize = 24;

/// In the place of a segment's number: memory that is in none, at an address of the process.
const UNMAPPED: u32 = u32::MAX;

impl Lent {
    /// Memory at this address, in no segment.
    pub(crate) fn unmapped(address: u64, grant: Grant) -> Lent {
        Lent { segment: UNMAPPED, slot: grant.slot, offset: address, number: grant.number }
    }

    /// Where it is in the process, if it is in no segment.
    pub(crate) fn address(&self) -> Option<u64> {
        (self.segment == UNMAPPED).then_some(self.offset)
    }

    pub(crate) fn new(segment: u32, offset: usize, grant: Grant) -> Lent {
        Lent { segment, slot: grant.slot, offset: offset as u64, number: grant.number }
    }

    pub(crate) fn encode(self) -> [u8; LENT_BYTES] {
        let mut out = [0; LENT_BYTES];
        out[0..4].copy_from_slice(&self.segment.to_le_bytes());
        out[4..8].copy_from_slice(&self.slot.to_le_bytes());
        out[8..16].copy_from_slice(&self.offset.to_le_bytes());
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Lent> {
        let bytes: &[u8; LENT_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        Some(Lent { segment: word(0), slot: word(4), offset: long(8), number: long(16) })
    }
}

/// Payload of an outgoing frame.
#[derive(Debug)]
pub(crate) enum Payload {
    None,
    /// Memory of an operation, lent until it is copied out.
    Lent {
        raw: Raw,
        run: RunKey,
        step: u16,
    },
    Owned(Vec<u8>),
    /// Where memory lies that the receiver reads.
    Place([u8; LENT_BYTES]),
}

impl Payload {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Payload::None => &[],
            Payload::Lent { raw, .. } => raw.bytes_ref(),
            Payload::Owned(bytes) => bytes,
            Payload::Place(bytes) => bytes,
        }
    }
}

/// A frame to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub header: Header,
    pub payload: Payload,
}

impl Outgoing {
    pub(crate) fn control(header: Header) -> Self {
        Outgoing { header, payload: Payload::None }
    }

    /// Tells where memory lies.
    pub(crate) fn placed(mut header: Header, lent: Lent) -> Self {
        header.length = LENT_BYTES as u32;
        Outgoing { header, payload: Payload::Place(lent.encode()) }
    }

    pub(crate) fn with_body(mut header: Header, body: Vec<u8>) -> Self {
        header.length = body.len() as u32;
        Outgoing { header, payload: Payload::Owned(body) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// One bit in error: refused, or another frame within the same bounds.
        #[test]
        fn a_damaged_header_is_refused_or_keeps_to_its_bounds(kind in 1..=Kind::ALL.len() as u8, rest in any::<[u64; 5]>(), bit in 0usize..512) {
            let kind = Kind::from_byte(kind).unwrap();
            let mut header = Header::new(kind, rest[0], rest[1]);
            header.flags = if kind == Kind::Eager { EAGER } else { 0 };
            header.length = (rest[2] % (header.length_max() as u64 + 1)) as u32;
            (header.offset, header.digest, header.consumed) = (rest[2], rest[3], rest[4]);
            let mut bytes = header.encode();
            prop_assert_eq!(Header::decode(&bytes).unwrap().encode(), bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert!(header.length as usize <= header.length_max() && header.has_fitting_flags());
            }
        }

        #[test]
        fn any_bytes_decode_or_are_refused_within_bounds(bytes in proptest::array::uniform32(any::<u8>()), good in any::<bool>(), kind in any::<u8>()) {
            let mut frame = [0u8; HEADER_BYTES];
            frame[..32].copy_from_slice(&bytes);
            if good {
                frame[0..4].copy_from_slice(&MAGIC.to_le_bytes());
                frame[4] = VERSION;
                frame[5] = kind % (Kind::ALL.len() as u8 + 1);
                frame[7] = 0;
            }
            if let Ok(header) = Header::decode(&frame) {
                prop_assert!(header.length as usize <= PAYLOAD_MAX);
                prop_assert_eq!(header.encode(), frame);
            }
        }
    }
}
