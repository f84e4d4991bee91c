//! One picture out of the reports of all ranks: how far all came, what each was in, who waited for whom, and how the
//! links were.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use hcomm::{LinkReport, LinkState, Rank, Report, Seq};

use crate::names::ranks;

/// Older than any own report.
const OLDER: Duration = Duration::from_nanos(1);

/// What a rank was in, by its own report or by what it had told others.
pub struct Seen<'a> {
    pub operation: Option<(&'a str, Seq)>,
    pub waits_for: &'a [Rank],
    /// How long before a report it was told; zero for an own report.
    age: Duration,
    /// How long it has been in its operation, by its own report.
    waited: Option<Duration>,
    /// Completed collectives at most.
    completed: Option<Seq>,
}

pub struct Picture<'a> {
    pub ranks: BTreeMap<Rank, Seen<'a>>,
    /// Links that are not as they should be: who reports, and what.
    links: Vec<(Rank, &'a LinkReport)>,
}

impl<'a> Picture<'a> {
    pub fn new(reports: &[&'a Report]) -> Self {
        let mut ranks: BTreeMap<Rank, Seen<'_>> = BTreeMap::new();
        let mut put = |rank: Rank, seen: Seen<'a>| {
            if ranks.get(&rank).is_none_or(|known| seen.age < known.age) {
                ranks.insert(rank, seen);
            }
        };
        for report in reports {
            let waits_for = if report.waits_for.is_empty() { &report.late } else { &report.waits_for };
            let operation = Some((report.operation.as_str(), report.seq));
            let (age, waited) = (Duration::ZERO, Some(report.waited));
            put(report.rank, Seen { operation, waits_for, age, waited, completed: report.completed });
            for known in &report.known {
                let operation = known.operation.as_ref().map(|(operation, seq)| (operation.as_str(), *seq));
                let completed = known.next.0.checked_sub(1).map(Seq);
                let age = known.age.max(OLDER);
                put(
                    known.rank,
                    Seen { operation, waits_for: &known.waits_for, age, waited: None, completed },
                );
            }
        }
        // Who has reported himself was there, and what he has closed since explains nothing.
        let gone_since = |report: &Report, link: &LinkReport| {
            link.state == LinkState::Down
                && !report.late.contains(&link.rank)
                && reports.iter().any(|other| other.rank == link.rank)
        };
        let worth = |report: &Report, link: &LinkReport| {
            (link.state != LinkState::Ready || link.retransmissions > 0) && !gone_since(report, link)
        };
        let links = reports.iter().flat_map(|report| {
            let worth = report.links.iter().filter(|link| worth(report, link));
            worth.map(|link| (report.rank, link))
        });
        let mut links: Vec<_> = links.collect();
        links.sort_by_key(|(from, link)| (*from, link.rank));
        links.dedup_by_key(|(from, link)| (*from, link.rank));
        Picture { ranks, links }
    }

    pub fn tell(&self, text: &mut String) {
        let completed: Vec<_> = self.ranks.values().map(|seen| seen.completed).collect();
        let completed = match completed.iter().min().copied().flatten() {
            Some(seq) => format!("up to {seq}"),
            None => "none".into(),
        };
        let _ = writeln!(text, "  collectives that all have completed, as far as is known: {completed}");
        *text += "\nWhat each rank was in:\n";
        if self.ranks.values().any(|seen| !seen.waits_for.is_empty()) {
            *text += "  (→ names the direct neighbour in the plan that it waits for; the first lines, who is the cause)\n";
        }
        for (rank, seen) in &self.ranks {
            let _ = match seen.operation {
                Some((operation, seq)) => write!(text, "  rank {rank} {operation} {seq}"),
                None => write!(text, "  rank {rank} nothing"),
            };
            if !seen.waits_for.is_empty() {
                let _ = write!(text, " → {}", ranks(seen.waits_for));
            }
            let _ = match seen.age {
                Duration::ZERO => Ok(()),
                OLDER => write!(text, " (told just before)"),
                age => write!(text, " (told {age:.1?} before)"),
            };
            *text += "\n";
        }
        if self.links.is_empty() {
            return;
        }
        *text += "\nLinks:\n";
        for (from, link) in &self.links {
            let why = match link.reason.as_str() {
                "" => String::new(),
                // Not known, or just then.
                reason if link.state_age.is_zero() => format!(" ({reason})"),
                reason => format!(" for {:.1?} ({reason})", link.state_age),
            };
            let _ = writeln!(
                text,
                "  rank {from} to rank {} ({}): {}{why}, {} bytes sent, {} received, {} retransmissions, round trip {} µs",
                link.rank,
                link.address,
                link.state,
                link.sent_bytes,
                link.received_bytes,
                link.retransmissions,
                link.rtt_us
            );
        }
    }

    /// Ranks that wait for each other in a circle, the first at the end again. Ranks of one collective wait for each
    /// other in the normal course of things, so only different calls count.
    pub fn cycle(&self) -> Option<Vec<Rank>> {
        for start in self.ranks.keys() {
            let mut path = vec![*start];
            while let Some(next) = path.last().and_then(|rank| self.next(*rank)) {
                if let Some(from) = path.iter().position(|rank| *rank == next) {
                    path.push(next);
                    return Some(path.split_off(from));
                }
                path.push(next);
            }
        }
        None
    }

    /// Whom a rank waits for who is in a call of another kind, or a message.
    fn next(&self, rank: Rank) -> Option<Rank> {
        let seen = self.ranks.get(&rank)?;
        let (operation, seq) = seen.operation?;
        let is_message = |operation: &str| Side::of(operation).is_some();
        seen.waits_for.iter().copied().find(|next| {
            let other = self.ranks.get(next).and_then(|seen| seen.operation);
            other.is_some_and(|(other, number)| is_message(operation) || is_message(other) || number != seq)
        })
    }

    /// Which side of its message a rank waits at, if it is in one.
    pub fn side(&self, rank: Rank) -> Option<Side> {
        self.ranks.get(&rank)?.operation.and_then(|(operation, _)| Side::of(operation))
    }

    /// Messages whose other side is in a collective, and does not come out of it before this one comes to it.
    pub fn unanswered(&self) -> Vec<Unanswered<'a>> {
        let ranks = self.ranks.iter().filter_map(|(rank, seen)| {
            let (side, peer) = (self.side(*rank)?, *seen.waits_for.first()?);
            let other = self.ranks.get(&peer)?;
            let (instead, _) = other.operation?;
            // What was told before the other side came to its collective may be over.
            let is_old = other.waited.is_some_and(|waited| seen.age > waited.max(OLDER));
            let stuck = Side::of(instead).is_none() && !is_old && self.leads_to(peer, *rank);
            stuck.then_some(Unanswered { rank: *rank, side, peer, instead })
        });
        ranks.collect()
    }

    /// Whether a rank waits for another, directly or through others.
    fn leads_to(&self, from: Rank, to: Rank) -> bool {
        let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
        while let Some(rank) = open.pop() {
            for next in self.ranks.get(&rank).map_or(&[][..], |seen| seen.waits_for) {
                if *next == to {
                    return true;
                }
                if seen.insert(*next) {
                    open.push(*next);
                }
            }
        }
        false
    }
}

/// A side of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Send,
    Receive,
}

impl Side {
    /// A message's call is told with its arguments.
    pub fn of(operation: &str) -> Option<Self> {
        match operation.split_once('(')?.0 {
            "send" => Some(Side::Send),
            "recv" => Some(Side::Receive),
            _ => None,
        }
    }
}

/// A message that only one side has come to.
pub struct Unanswered<'a> {
    pub rank: Rank,
    pub side: Side,
    pub peer: Rank,
    /// What the other side is in.
    pub instead: &'a str,
}
