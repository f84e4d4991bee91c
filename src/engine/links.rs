//! What is known about links to peers, and the guard that finds slow ones.
//!
//! The guard looks at a connection for bulk payload at the end of an operation of at least [`SAMPLE_BYTES`], and compares
//! how fast the system has got bytes acknowledged, over the time in which it had any to send, with the best that this
//! link has sustained: the highest rate that ten samples in a row reached. A peer that has not called grants no credit, so
//! that waiting for it is no time in which there was something to send. Where a peer that has called does not read, as it is
//! stopped or starved, it is told that it was that. A link that was slow from the beginning is not found in this way.

use std::time::Instant;

use super::core::Core;
use super::peer::Standing;
use crate::error::{Error, LinkReport, LinkState, Report};
use crate::link::tcp::Traffic;
use crate::rank::Rank;
use crate::runtime::tcp_info::{TcpInfo, tcp_info};

/// Shorter operations say nothing about throughput.
pub(super) const SAMPLE_BYTES: usize = 1 << 20;
/// The system counts busy time in ticks of up to 10 ms; shorter samples are added up.
const SAMPLE_BUSY_US: u64 = 20_000;
/// So many samples in a row are no coincidence, whether fast or slow.
const IN_A_ROW: usize = 10;
/// So many good ones in a row, and it has recovered.
const GOOD_IN_A_ROW: u32 = 3;

/// What the guard remembers of a link.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// Where the last sample ended: bytes handed to the system, and what it had counted then.
    handed: u64,
    acked: u64,
    busy_us: u64,
    reader_us: u64,
    /// Of the last samples, oldest first, whether the peer did not read most of the time.
    unread: [bool; IN_A_ROW],
    /// Bytes per second of the last samples, oldest first, and the best sustained.
    rates: [u64; IN_A_ROW],
    best: u64,
    slow: usize,
    good: u32,
    degraded: bool,
    /// When and why that was last changed.
    changed: Option<(Instant, String)>,
}

/// What a sample has changed.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    None,
    Slow,
    Recovered,
}

impl Guard {
    /// Whether enough was sent since the last look to ask the system.
    fn is_due(&mut self, handed: u64) -> bool {
        let due = handed - self.handed >= SAMPLE_BYTES as u64;
        if due {
            self.handed = handed;
        }
        due
    }

    /// What made the last samples slow, as far as the system tells.
    fn cause(&self) -> &'static str {
        let unread = self.unread.iter().filter(|unread| **unread).count();
        if unread > IN_A_ROW / 2 {
            "what was sent was not read: a stopped, starved or busy peer, or a relay"
        } else {
            "the network"
        }
    }

    fn sample(&mut self, info: TcpInfo) -> Change {
        let busy_us = info.busy_us.saturating_sub(self.busy_us);
        if busy_us < SAMPLE_BUSY_US {
            return Change::None;
        }
        let bytes = info.acked.saturating_sub(self.acked);
        let reader_us = info.reader_us.saturating_sub(self.reader_us);
        (self.acked, self.busy_us, self.reader_us) = (info.acked, info.busy_us, info.reader_us);
        self.unread.rotate_left(1);
        self.unread[IN_A_ROW - 1] = reader_us > busy_us / 2;
        let rate = bytes.saturating_mul(1_000_000) / busy_us;
        self.rates.rotate_left(1);
        self.rates[IN_A_ROW - 1] = rate;
        self.best = self.rates.iter().copied().min().unwrap_or(0).max(self.best);
        if rate < self.best / 2 {
            (self.slow, self.good) = (self.slow + 1, 0);
        } else {
            (self.slow, self.good) = (0, self.good + 1);
        }
        if !self.degraded && self.slow >= IN_A_ROW {
            self.degraded = true;
            return Change::Slow;
        }
        if self.degraded && self.good >= GOOD_IN_A_ROW {
            self.degraded = false;
            return Change::Recovered;
        }
        Change::None
    }
}

/// Counters of a link, those of both its connections together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    traffic: Traffic,
    retransmissions: u64,
    rtt_us: u32,
}

impl Core {
    /// A large operation has ended: looks at the links that carried much of it.
    pub(super) fn examine_links(&mut self) {
        for peer in 0..self.links.len() {
            let Some(pair) = self.links[peer].as_mut() else { continue };
            if !pair.guard.is_due(pair.bulk.traffic().sent_bytes) {
                continue;
            }
            let Some(info) = pair.bulk.socket().and_then(tcp_info) else { continue };
            let change = pair.guard.sample(info);
            let (last, best, cause) = (pair.guard.rates[IN_A_ROW - 1], pair.guard.best, pair.guard.cause());
            let reason = match change {
                Change::None => None,
                Change::Slow => {
                    Some(format!("{last} bytes per second, of {best} that it has sustained: {cause}"))
                }
                Change::Recovered => Some(format!("{last} bytes per second again, after it was slow")),
            };
            if let Some(reason) = reason {
                pair.guard.changed = Some((self.state.now, reason));
            }
            let host = &self.state.peers[peer].label;
            let TcpInfo { rtt_us, retransmissions, .. } = info;
            match change {
                Change::None => {}
                Change::Slow => tracing::warn!(
                    rank = peer,
                    host,
                    bytes_per_s = last,
                    best_bytes_per_s = best,
                    retransmissions,
                    rtt_us,
                    cause,
                    "a link has become slow"
                ),
                Change::Recovered => {
                    tracing::warn!(rank = peer, host, bytes_per_s = last, "a slow link has recovered");
                }
            }
        }
    }

    /// Why the link to a process is of this kind and no better one.
    pub(crate) fn explain_link(&mut self, peer: usize, reason: String) {
        if let Some(pair) = &mut self.links[peer] {
            pair.guard.changed = Some((self.state.now, reason));
        }
    }

    /// Keeps the counters of a link that is about to go.
    pub(super) fn keep_counters(&mut self, peer: usize) {
        if let Some(counters) = self.count(peer) {
            self.counters[peer] = counters;
        }
    }

    fn count(&self, peer: usize) -> Option<Counters> {
        let pair = self.links[peer].as_ref()?;
        let infos = [&pair.fast, &pair.bulk].map(|conn| conn.socket().and_then(tcp_info).unwrap_or_default());
        Some(Counters {
            traffic: pair.fast.traffic() + pair.bulk.traffic(),
            retransmissions: infos.iter().map(|info| u64::from(info.retransmissions)).sum(),
            rtt_us: infos[0].rtt_us,
        })
    }

    /// What is known about the link to a process, by its rank in the world.
    pub(crate) fn link(&self, peer: usize, rank: Rank, now: Instant) -> LinkReport {
        let known = &self.state.peers[peer];
        let guard = self.links[peer].as_ref().map(|pair| &pair.guard);
        let degraded = guard.is_some_and(|guard| guard.degraded);
        let changed = guard.and_then(|guard| guard.changed.clone());
        let (state, (since, reason)) = match &known.standing {
            Standing::Here => {
                let state = if degraded { LinkState::Degraded } else { LinkState::Ready };
                (state, changed.unwrap_or((known.stands_since, String::new())))
            }
            Standing::Left => (LinkState::Down, (known.stands_since, "its process has left".into())),
            Standing::Lost(cause) => (LinkState::Down, (known.stands_since, cause.clone())),
        };
        let Counters { traffic, retransmissions, rtt_us } = self.count(peer).unwrap_or(self.counters[peer]);
        LinkReport {
            rank,
            kind: self.kinds[peer],
            state,
            address: known.label.clone(),
            sent_bytes: traffic.sent_bytes,
            received_bytes: traffic.received_bytes,
            pulled_bytes: self.state.io.peers[peer].pulled,
            sent_frames: traffic.sent_frames,
            received_frames: traffic.received_frames,
            retransmissions,
            rtt_us,
            best_bytes_per_s: guard.map_or(0, |guard| guard.best),
            state_age: now.saturating_duration_since(since),
            reason,
        }
    }

    /// Deadlines that have passed here, before their callers are told: the links to the late ranks.
    pub(super) fn note_links(&mut self) {
        for at in 0..self.state.ended.len() {
            let Err(Error::Deadline(report)) = &self.state.ended[at].outcome.result else { continue };
            let call = |of: &Report| (of.rank, of.seq, of.communicator.clone(), of.operation.clone());
            let Some((members, _)) = self.state.reports.iter().find(|(_, told)| call(told) == call(report))
            else {
                continue;
            };
            let links = report.late.iter().filter_map(|rank| Some((*rank, *members.get(rank.index())?)));
            let links = links.map(|(rank, world)| self.link(world as usize, rank, self.state.now)).collect();
            if let Err(Error::Deadline(report)) = &mut self.state.ended[at].outcome.result {
                report.links = links;
            }
        }
    }

    /// What went wrong since the last call, with the links of those who are in it.
    pub(super) fn take_reports(&mut self) -> Vec<Report> {
        let reports = std::mem::take(&mut self.state.reports);
        let with_links = |(members, mut report): (std::sync::Arc<[u32]>, Report)| {
            let others = members.iter().zip(0..).filter(|(_, rank)| *rank != report.rank.0);
            report.links =
                others.map(|(world, rank)| self.link(*world as usize, Rank(rank), self.state.now)).collect();
            report
        };
        reports.into_iter().map(with_links).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of one MiB each, at so many bytes per microsecond.
    fn feed(guard: &mut Guard, info: &mut TcpInfo, rate: u64, samples: usize) -> Vec<Change> {
        let sample = |_| {
            info.acked += rate * 50_000;
            info.busy_us += 50_000;
            guard.sample(*info)
        };
        (0..samples).map(sample).filter(|change| *change != Change::None).collect()
    }

    #[test]
    fn ten_slow_samples_in_a_row_and_no_fewer_make_a_link_slow() {
        let (mut guard, mut info) = (Guard::default(), TcpInfo::default());
        assert_eq!(feed(&mut guard, &mut info, 100, 10), []);
        for _ in 0..3 {
            assert_eq!(feed(&mut guard, &mut info, 10, 9), []);
            assert_eq!(feed(&mut guard, &mut info, 51, 1), []);
        }
        assert_eq!(feed(&mut guard, &mut info, 49, 20), [Change::Slow]);
        assert!(guard.degraded);
        assert_eq!(feed(&mut guard, &mut info, 90, 2), []);
        assert_eq!(feed(&mut guard, &mut info, 10, 1), []);
        assert_eq!(feed(&mut guard, &mut info, 60, 9), [Change::Recovered]);
        assert!(!guard.degraded);
    }

    #[test]
    fn it_is_told_whether_the_peer_did_not_read() {
        for (reader_us, told) in [(40_000, "not read"), (20_000, "network")] {
            let (mut guard, mut info) = (Guard::default(), TcpInfo::default());
            feed(&mut guard, &mut info, 100, 10);
            for _ in 0..IN_A_ROW {
                info.reader_us += reader_us;
                feed(&mut guard, &mut info, 10, 1);
            }
            assert!(guard.degraded && guard.cause().contains(told), "{}", guard.cause());
        }
    }

    #[test]
    fn one_burst_is_no_measure_and_short_samples_add_up() {
        let (mut guard, mut info) = (Guard::default(), TcpInfo::default());
        feed(&mut guard, &mut info, 10, 10);
        feed(&mut guard, &mut info, 5000, 9);
        assert_eq!(feed(&mut guard, &mut info, 10, 30), []);
        let best = guard.best;
        for _ in 0..3 {
            info.acked += 1 << 30;
            info.busy_us += SAMPLE_BUSY_US / 4;
            assert_eq!(guard.sample(info), Change::None);
        }
        assert_eq!((guard.best, guard.slow), (best, 0));
    }
}
