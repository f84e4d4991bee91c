//! Ranks that wait for each other on different communicators.
//!
//! On each of them somebody has not called what the others wait for, since it waits in a call of another one. Who waits is
//! told so ([`Elsewhere`]) when it asks where the others are.

use serde::{Deserialize, Serialize};

use super::channel::Channel;
use super::state::State;
use crate::error::CallInfo;

/// Characters told of a call, and of its communicator's name, at most.
const TEXT_MAX: usize = 300;
/// Ranks told at most: as many as a world has.
const WAITS_MAX: usize = 64;

/// What a rank waits in that is in nothing on the communicator where it is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Elsewhere {
    pub call: String,
    pub seq: u64,
    pub communicator: String,
    pub channel: u64,
    /// Not a message.
    pub collective: bool,
    /// Ranks of the world: it may be a communicator that others are not in.
    pub waits_for: Vec<u32>,
}

impl Elsewhere {
    /// The operation, in words.
    fn operation(&self) -> String {
        format!("{} #{} on \"{}\"", self.call, self.seq, self.communicator)
    }

    /// In words, for the members of a communicator.
    pub(crate) fn describe(&self, members: &[u32]) -> String {
        let ranks: Option<Vec<String>> = self
            .waits_for
            .iter()
            .map(|world| members.iter().position(|member| member == world).map(|rank| rank.to_string()))
            .collect();
        let whom = match (&self.waits_for[..], ranks) {
            ([], _) => String::new(),
            (_, Some(ranks)) => format!(", waiting for {}", ranks.join(", ")),
            (world, None) => {
                let world: Vec<String> = world.iter().map(u32::to_string).collect();
                format!(", waiting for world rank {}", world.join(", "))
            }
        };
        format!("{}{whom}", self.operation())
    }
}

impl State {
    /// The oldest operation in flight: on a communicator or under one of its keys, else on any.
    pub(super) fn elsewhere(&self, parent: u64) -> Option<Elsewhere> {
        let related =
            |channel: &Channel| channel.family.as_ref().map_or(channel.id, |family| family.parent) == parent;
        let flights = self
            .flights()
            .filter_map(|flight| Some((flight, self.channels[flight.head().channel].as_ref()?)));
        let (flight, channel) =
            flights.min_by_key(|(flight, channel)| (!related(channel), flight.head().started))?;
        let cut = |text: String| text.chars().take(TEXT_MAX).collect();
        let waits = flight.needs().into_iter().take(WAITS_MAX);
        Some(Elsewhere {
            call: cut(flight.head().desc.info().to_string()),
            seq: flight.head().seq,
            communicator: cut(channel.name.to_string()),
            channel: channel.id,
            collective: flight.is_collective(),
            waits_for: waits.map(|rank| channel.members[rank]).collect(),
        })
    }

    /// The circle through calls of other communicators in which a call of this one waits, in words; empty if none is
    /// known.
    pub(super) fn circle(&self, channel: &Channel, call: &CallInfo, seq: u64, waits: &[usize]) -> String {
        let me = channel.rank;
        let here = format!("{} #{seq} on \"{}\"", call.operation, channel.name);
        let mut seen = vec![false; channel.members.len()];
        // Ways of waiting: who, and in what; the next of each.
        let start = vec![(me, here.clone())];
        let mut open: Vec<(usize, Vec<(usize, String)>)> =
            waits.iter().map(|rank| (*rank, start.clone())).collect();
        while let Some((rank, mut path)) = open.pop() {
            if rank == me {
                // All in one call of this communicator is no circle: so ranks of a collective wait.
                if path.iter().any(|(_, what)| *what != here) {
                    return told(&path);
                }
                continue;
            }
            if std::mem::replace(&mut seen[rank], true) {
                continue;
            }
            let Some((_, status)) = &channel.statuses[rank] else { continue };
            let next: Vec<usize> = match (&status.current, &status.elsewhere) {
                (Some(current), _) if current.seq == seq && current.call == *call && call.tag.is_none() => {
                    path.push((rank, here.clone()));
                    current.waits_for.iter().map(|next| *next as usize).collect()
                }
                (None, Some(elsewhere)) => {
                    path.push((rank, elsewhere.operation()));
                    let next =
                        elsewhere.waits_for.iter().filter_map(|world| channel.rank_of(*world as usize));
                    next.filter(|next| *next != me || self.is_missed(elsewhere)).collect()
                }
                _ => continue,
            };
            open.extend(next.into_iter().map(|next| (next, path.clone())));
        }
        String::new()
    }

    /// Whether this rank has not called what another one was told to wait in for it.
    fn is_missed(&self, elsewhere: &Elsewhere) -> bool {
        let channel = self.channel_of(elsewhere.channel).and_then(|index| self.channels[index].as_ref());
        !elsewhere.collective || channel.is_none_or(|channel| channel.called <= elsewhere.seq)
    }
}

fn told(path: &[(usize, String)]) -> String {
    let next = path.iter().cycle().skip(1);
    let steps = path.iter().zip(next);
    let steps: Vec<String> =
        steps.map(|((rank, what), (next, _))| format!("rank {rank} in {what} for rank {next}")).collect();
    format!("ranks wait for each other, on communicators called in different orders: {}", steps.join(", "))
}
