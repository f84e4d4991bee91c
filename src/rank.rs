//! Newtypes for what must not be mixed up: ranks, tags and numbers of calls.

use std::fmt;
use std::num::{ParseIntError, TryFromIntError};
use std::str::FromStr;

/// A member of a communicator: `0..size`. Where an operation, a builder or a simulated network takes one, a `u32` does as well;
/// plans and lists are of `Rank`s.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl TryFrom<usize> for Rank {
    type Error = TryFromIntError;

    fn try_from(rank: usize) -> Result<Self, TryFromIntError> {
        rank.try_into().map(Rank)
    }
}

impl From<&Rank> for Rank {
    fn from(rank: &Rank) -> Self {
        *rank
    }
}

impl From<Rank> for u32 {
    fn from(rank: Rank) -> Self {
        rank.0
    }
}

impl From<Rank> for usize {
    fn from(rank: Rank) -> Self {
        rank.index()
    }
}

impl FromStr for Rank {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Rank)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u32> for Rank {
    fn from(rank: u32) -> Self {
        Rank(rank)
    }
}

/// Tells messages between the same two ranks apart; chosen by the user.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Tag(pub u32);

impl From<Tag> for u32 {
    fn from(tag: Tag) -> Self {
        tag.0
    }
}

impl FromStr for Tag {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Tag)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u32> for Tag {
    fn from(tag: u32) -> Self {
        Tag(tag)
    }
}

/// The number of a call on a communicator. Collectives count 0, 1, 2, … in call order: they have the same number on all ranks.
///
/// `send` and `recv` have a count of their own, one for both, also from 0: it is that of the rank alone, so that a rank's fourth
/// send is #7 if it has called `recv` four times before, and the receive of its message has another number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
