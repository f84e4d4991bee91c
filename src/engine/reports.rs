//! Waiting long: who is told, what is said, and who is to blame.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::board::Wish;
use super::call::Op;
use super::channel::Channel;
use super::state::{Flight, STALL, State};
use super::status::{Current, Status};
use super::trouble::{Cause, decode, encode};
use crate::error::{Error, RankReport, Report, ReportKind};
use crate::link::RunKey;
use crate::link::frame::{ASK, Header, Kind, Outgoing};
use crate::rank::{Rank, Seq};

/// When a waiting operation tells again where it is: after a second, then with a warning after five, then doubling.
const REMARKS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// Ranks named at most: those beyond do not fit into a frame and would explain no more.
const WAITS_TOLD: usize = 1024;

impl State {
    /// An operation waits long: when that is worth the next remark.
    pub(super) fn put_off_remark(&mut self, key: RunKey) {
        let now = self.now;
        let Some(flight) = self.flight(key) else { return };
        let head = flight.head_mut();
        let waited = now.saturating_duration_since(head.started);
        let after = REMARKS.get(head.remarks as usize).copied().unwrap_or(waited * 2);
        head.remarks += 1;
        head.remark = head.started + after.max(waited + STALL);
    }

    /// Tells the others where this rank is, and its user what it waits for if that takes very long.
    pub(super) fn remark(&mut self, key: RunKey) {
        let now = self.now;
        let Some(flight) = self.flight(key) else { return };
        let head = flight.head();
        let index = head.channel;
        if now.saturating_duration_since(head.started) >= REMARKS[1] {
            let report = self.report(key);
            match (report, self.held_by(index)) {
                (Some(report), None) => tracing::warn!("{report}"),
                (Some(report), Some(who)) => {
                    tracing::info!("{report}; deadlines are suspended here, by {who}");
                }
                (None, _) => {}
            }
        }
        self.tell_status(index, None);
    }

    /// How long the program has been away, for others to be told. If it awaits nothing here, since it last polled. One that
    /// sleeps in an await polls nothing either, in the normal course of things: it is called, and is away if it does not
    /// come, which shows the next time that somebody is told.
    pub(super) fn unpolled_ms(&mut self) -> u64 {
        self.date_poll();
        let unanswered = self.called_at.filter(|at| *at > self.polled_at);
        let since = match unanswered {
            _ if self.asleep().next().is_none() => self.polled_at,
            Some(called) => called,
            None => {
                self.call_sleepers();
                self.now
            }
        };
        self.now.saturating_duration_since(since).as_millis() as u64
    }

    /// A poll that nobody has dated was now, or since the last that was: the program is not said to be away longer than it is.
    pub(super) fn date_poll(&mut self) {
        if std::mem::take(&mut self.polled_since) {
            self.polled_at = self.polled_at.max(self.now);
        }
    }

    /// Calls over which the program has gone to sleep, on whatever communicator.
    fn asleep(&self) -> impl Iterator<Item = &Arc<Op>> {
        let delayed = self.channels.iter().flatten().flat_map(|channel| &channel.delayed);
        let waiting = self.flights().map(|flight| &flight.head().op).chain(delayed.map(|(op, ..)| op));
        waiting.filter(|op| op.is_asleep())
    }

    /// Calls all who sleep: whoever is in front may be a future that is kept and not polled.
    fn call_sleepers(&mut self) {
        let recently = |at: Instant| self.now.saturating_duration_since(at) < STALL;
        // Whoever polls just now need not come, nor one who has just come.
        if self.polled_at == self.now || self.called_at.is_some_and(recently) {
            return;
        }
        self.called_at = Some(self.now);
        let asleep: Vec<_> = self.asleep().cloned().collect();
        self.woken.extend(asleep);
    }

    /// Tells the members of a communicator, or one of them, where this rank is.
    fn tell_status(&mut self, index: usize, to: Option<usize>) {
        let unpolled_ms = self.unpolled_ms();
        let Some(channel) = &self.channels[index] else { return };
        let oldest = self
            .flights()
            .filter(|flight| flight.head().channel == index)
            .min_by_key(|flight| flight.head().started);
        let current = oldest.map(|flight| Current {
            seq: flight.head().seq,
            call: flight.head().desc.info(),
            waits_for: flight.needs().into_iter().take(WAITS_TOLD).map(|rank| rank as u32).collect(),
        });
        let digest = oldest.map_or(0, |flight| flight.head().digest);
        let collective = oldest.is_some_and(Flight::is_collective);
        let family = channel.family.as_ref().map_or(channel.id, |family| family.parent);
        let elsewhere = if current.is_none() { self.elsewhere(family) } else { None };
        let number = current.as_ref().map_or(channel.called, |current| current.seq);
        let status = Status { next: channel.called, current, unpolled_ms, elsewhere };
        let mut header = Header::new(Kind::Status, channel.id, number);
        // A collective's digest goes along, so that a contradiction is found before any payload shows it.
        header.digest = if collective { digest } else { 0 };
        match to {
            Some(rank) => self.tell(index, rank, Outgoing::with_body(header, encode(&status))),
            None => {
                header.flags = ASK;
                self.broadcast(index, header, &encode(&status));
            }
        }
    }

    pub(crate) fn on_status(
        &mut self,
        index: usize,
        from: usize,
        header: &Header,
        body: &[u8],
    ) -> Result<(), String> {
        let status: Status = decode(body)?;
        let now = self.now;
        let Some(channel) = self.channels[index].as_mut() else { return Ok(()) };
        let waits_for = status.current.as_ref().map_or(&[][..], |current| &current.waits_for);
        let ranks = channel.members.len();
        if waits_for.len() > ranks || waits_for.iter().any(|rank| *rank as usize >= ranks) {
            return Err(format!("waits for ranks that a communicator of {ranks} does not have"));
        }
        let elsewhere = status.elsewhere.as_ref().map_or(&[][..], |elsewhere| &elsewhere.waits_for);
        let world = self.peers.len();
        if elsewhere.len() > world || elsewhere.iter().any(|rank| *rank as usize >= world) {
            return Err(format!("waits for ranks that a world of {world} does not have"));
        }
        let peer = channel.members[from] as usize;
        channel.statuses[from] = Some((now, status));
        if header.digest != 0 {
            match channel.flight(header.number) {
                Some(key) if self.flight(key).is_some_and(|flight| flight.head().digest != header.digest) => {
                    self.contradicted(key);
                }
                Some(_) => {}
                None => self.contradicted_past(index, from, header),
            }
        }
        if header.flags & ASK != 0 && self.io.may_answer(peer) {
            self.tell_status(index, Some(from));
        }
        Ok(())
    }

    pub(super) fn expire(&mut self, key: RunKey) {
        let Some(report) = self.report(key) else { return };
        let Some(flight) = self.flight(key) else { return };
        let (index, seq) = (flight.head().channel, flight.head().seq);
        let collective = flight.is_collective();
        let report = Box::new(report);
        if collective {
            self.publish_abort(index, seq, &Cause::Deadline(brief(&report)));
        }
        self.give_up_message(key);
        self.finish(key, Err(Error::Deadline(report)));
    }

    /// What is worth writing down about an operation that failed; nothing for one that its caller gave up.
    pub(super) fn note_report(&mut self, key: RunKey, error: &Error) {
        let Some(flight) = self.look_up(key) else { return };
        let report = self.report_of(flight, error).map(|report| (flight.head().members.clone(), report));
        self.reports.extend(report);
    }

    fn report_of(&self, flight: &Flight, error: &Error) -> Option<Report> {
        let head = flight.head();
        let channel = self.channels[head.channel].as_ref()?;
        let (kind, late, cause) = match error {
            // Another rank may have told this one first, with a report of its own.
            Error::Deadline(report) if report.rank.index() == channel.rank => {
                return Some((**report).clone());
            }
            Error::Deadline(report) => (ReportKind::Deadline, report.late.clone(), report.cause.clone()),
            Error::PeerLost { rank, host, cause, .. } => {
                (ReportKind::PeerLost, vec![*rank], format!("rank {rank} ({host}) is lost: {cause}"))
            }
            Error::Left { rank, host, .. } => {
                (ReportKind::Left, vec![*rank], format!("rank {rank} ({host}) has left"))
            }
            Error::Mismatch { .. } => (ReportKind::Mismatch, Vec::new(), error.to_string()),
            Error::Protocol { rank, .. } => (ReportKind::Protocol, vec![*rank], error.to_string()),
            _ => return None,
        };
        let point = matches!(flight, Flight::Point(_));
        Some(Report {
            operation: if point { head.desc.info().to_string() } else { head.desc.operation.into() },
            seq: Seq(head.seq),
            waited: self.now.saturating_duration_since(head.started),
            late,
            cause,
            kind,
            ..self.about(head.channel, &flight.waits_for())?
        })
    }

    /// What every report on a communicator has: who writes it, and what is known of the others.
    pub(super) fn about(&self, index: usize, waits_for: &[usize]) -> Option<Report> {
        let channel = self.channels[index].as_ref()?;
        let rank = |rank: &usize| Rank(*rank as u32);
        let known = channel.statuses.iter().enumerate().filter_map(|(from, status)| {
            let (seen, status) = status.as_ref()?;
            let current = status.current.as_ref();
            Some(RankReport {
                rank: Rank(from as u32),
                next: Seq(status.next),
                operation: current.map(|current| (current.call.to_string(), Seq(current.seq))),
                waits_for: current
                    .map_or_else(Vec::new, |current| current.waits_for.iter().copied().map(Rank).collect()),
                age: self.now.saturating_duration_since(*seen),
            })
        });
        Some(Report {
            communicator: channel.name.to_string(),
            rank: Rank(channel.rank as u32),
            completed: channel.oldest().checked_sub(1).map(Seq),
            waits_for: waits_for.iter().map(rank).collect(),
            known: known.collect(),
            ..Report::default()
        })
    }

    /// Everything known about why an operation does not end.
    pub(crate) fn report(&mut self, key: RunKey) -> Option<Report> {
        let now = self.now;
        let flight = self.flight(key)?;
        if let Flight::Rebuild(_) = flight {
            let found = self.look_up(key)?;
            return if let Flight::Rebuild(waiting) = found { self.rebuild_report(waiting) } else { None };
        }
        let (mut waits, mut any) = (flight.waits_for(), flight.waits_for_any());
        let mut point = matches!(flight, Flight::Point(_));
        let head = flight.head();
        let (index, mut seq, started, call) = (head.channel, head.seq, head.started, head.desc.info());
        if let Some((of, first)) = self.awaited_for_admission(index, key) {
            (waits, seq, any, point) = (first, of, false, false);
        }
        let channel = self.channels[index].as_ref()?;
        let (late, cycle) = match any {
            true => (waits.clone(), String::new()),
            false => culprits(channel.rank, &waits, seq, point, &channel.statuses),
        };
        let states = late.iter().map(|rank| {
            let state = match &channel.statuses[*rank] {
                Some((seen, status)) => status.describe(seq, point, *seen, now, &channel.members),
                None if started + STALL > now => "has not told yet where it is".to_string(),
                None => "has not been heard from: not started, stopped, or cut off".to_string(),
            };
            (Rank(*rank as u32), state)
        });
        let mut cause = if cycle.is_empty() { uncalled_key(channel, &late, seq) } else { cycle };
        if cause.is_empty() && !any {
            cause = self.circle(channel, &call, seq, &waits);
        }
        if let (Some(tag), true) = (call.tag, !matches!(call.operation.as_str(), "send" | "contribute"))
            && let Some(other) = waits.first().and_then(|peer| channel.board.first_held(Wish::of_rank(*peer)))
            && let (_, other) = other
            && other.tag != tag.0
        {
            let tags = format!(
                "rank {} sends tag {} and this waits for tag {tag}: do the tags differ?",
                waits[0], other.tag
            );
            cause = if cause.is_empty() { tags } else { format!("{tags}; {cause}") };
        }
        Some(Report {
            operation: if point { call.to_string() } else { call.operation },
            seq: Seq(seq),
            waited: now.saturating_duration_since(started),
            late: late.iter().map(|rank| Rank(*rank as u32)).collect(),
            states: states.collect(),
            cause,
            ..self.about(index, &waits)?
        })
    }
}

/// Who is late under a key because he has not called it.
fn uncalled_key(channel: &Channel, late: &[usize], seq: u64) -> String {
    let Some(family) = &channel.family else { return String::new() };
    let called = |rank: &usize| match &channel.statuses[*rank] {
        Some((_, status)) => status.current.is_some() || status.next > seq,
        None => true,
    };
    let names: Vec<String> = late.iter().filter(|rank| !called(rank)).map(usize::to_string).collect();
    let who = match &names[..] {
        [] => return String::new(),
        [one] => format!("rank {one} has"),
        _ => format!("ranks {} have", names.join(", ")),
    };
    let again = if seq > 0 { format!(" for #{seq}") } else { String::new() };
    format!("rank {} waits on key {:?}, {who} not called it{again}", channel.rank, family.key)
}

/// What the others are told: it must fit a frame, and they know by themselves what ranks have told.
pub(super) fn brief(report: &Report) -> Box<Report> {
    /// States in words, of a hundred bytes each or so; a frame of control holds 16 KiB.
    const STATES_MAX: usize = 50;
    let states = report.states.iter().take(STATES_MAX).cloned().collect();
    Box::new(Report { states, known: Vec::new(), links: Vec::new(), recent: Vec::new(), ..report.clone() })
}

/// Follows who waits for whom: the ranks at which it ends, or the cycle in which it does not.
pub(super) fn culprits(
    me: usize,
    waits: &[usize],
    seq: u64,
    point: bool,
    statuses: &[Option<(Instant, Status)>],
) -> (Vec<usize>, String) {
    let mut late = Vec::new();
    let mut seen = vec![false; statuses.len()];
    let mut open: Vec<(usize, Vec<usize>)> = waits.iter().map(|rank| (*rank, vec![me])).collect();
    while let Some((rank, mut path)) = open.pop() {
        if path.contains(&rank) {
            let from = path.iter().position(|of| *of == rank).unwrap_or(0);
            let names: Vec<String> = path[from..].iter().chain([&rank]).map(usize::to_string).collect();
            // Ranks of one collective wait for each other in the normal course of things.
            if point {
                return (waits.to_vec(), format!("ranks wait for each other: {}", names.join(" → ")));
            }
            continue;
        }
        if std::mem::replace(&mut seen[rank], true) {
            continue;
        }
        let current = statuses[rank].as_ref().and_then(|(_, status)| status.current.as_ref());
        match current {
            Some(current) if (point || current.seq == seq) && !current.waits_for.is_empty() => {
                path.push(rank);
                open.extend(current.waits_for.iter().map(|next| (*next as usize, path.clone())));
            }
            _ => late.push(rank),
        }
    }
    late.retain(|rank| *rank != me);
    if late.is_empty() {
        late = waits.to_vec();
    }
    late.sort_unstable();
    (late, String::new())
}
