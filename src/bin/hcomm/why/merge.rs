//! One picture out of the reports of all ranks: how far all came, what each was in, who waited for whom, and how the
//! links were.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use hcomm::{LinkReport, LinkState, Rank, Report, Seq};

/// What a rank was in, by its own report or by what it had told others.
pub struct Seen<'a> {
    pub operation: Option<(&'a str, Seq)>,
    pub waits_for: &'a [Rank],
    /// How long before a report it was told; zero for an own report.
    age: Duration,
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
            put(report.rank, Seen { operation, waits_for, age: Duration::ZERO, completed: report.completed });
            for known in &report.known {
                let operation = known.operation.as_ref().map(|(operation, seq)| (operation.as_str(), *seq));
                let completed = known.next.0.checked_sub(1).map(Seq);
                // Older than any own report.
                let age = known.age.max(Duration::from_nanos(1));
                put(known.rank, Seen { operation, waits_for: &known.waits_for, age, completed });
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
        let _ = match completed.iter().min().copied().flatten() {
            Some(seq) => {
                writeln!(text, "  the last collective that all are known to have completed, at most: {seq}")
            }
            None => writeln!(text, "  no collective is known to have been completed by all"),
        };
        *text += "\nWhat each rank was in:\n";
        for (rank, seen) in &self.ranks {
            let _ = match seen.operation {
                Some((operation, seq)) => write!(text, "  rank {rank} {operation} {seq}"),
                None => write!(text, "  rank {rank} nothing"),
            };
            if !seen.waits_for.is_empty() {
                let _ = write!(text, " → {}", super::tell::ranks(seen.waits_for));
            }
            if !seen.age.is_zero() {
                let _ = write!(text, " (told {:.1?} before)", seen.age);
            }
            *text += "\n";
        }
        if self.links.is_empty() {
            return;
        }
        *text += "\nLinks:\n";
        for (from, link) in &self.links {
            let why = match link.reason.as_str() {
                "" => String::new(),
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
        // A message's call is told with its arguments.
        let message = |operation: &str| operation.starts_with("send(") || operation.starts_with("recv(");
        seen.waits_for.iter().copied().find(|next| {
            let other = self.ranks.get(next).and_then(|seen| seen.operation);
            other.is_some_and(|(other, number)| message(operation) || message(other) || number != seq)
        })
    }
}
