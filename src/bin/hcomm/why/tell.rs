//! In words: who waits, for whom, why, and what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use hcomm::{Outcome, Rank, Report, ReportKind};

use super::merge::{Picture, Side, Unanswered};
use crate::names::ranks;

/// The story of the newest run, or of all.
pub fn tell(reports: &[Report], all: bool) -> String {
    let mut runs: BTreeMap<&str, Vec<&Report>> = BTreeMap::new();
    for report in reports {
        runs.entry(&report.run).or_default().push(report);
    }
    let mut runs: Vec<Vec<&Report>> = runs.into_values().collect();
    runs.sort_by_key(|reports| reports.iter().map(|report| report.unix_ms).max());
    if all && runs.len() > 1 {
        let count = runs.len();
        let told =
            runs.iter().zip(1..).map(|(run, number)| format!("Run {number} of {count}:\n\n{}", story(run)));
        return told.collect::<Vec<_>>().join("\n");
    }
    let mut text = runs.last().map(|run| story(run)).unwrap_or_default();
    if let earlier @ 1.. = runs.len().saturating_sub(1) {
        let _ = writeln!(
            text,
            "\nReports of earlier runs are in the file: {earlier}. `hcomm why --all` tells of them."
        );
    }
    text
}

/// The whole story of a run, communicator by communicator.
fn story(reports: &[&Report]) -> String {
    let mut communicators: BTreeMap<&str, Vec<&Report>> = BTreeMap::new();
    for report in reports {
        communicators.entry(&report.communicator).or_default().push(report);
    }
    let mut stories: Vec<String> = Vec::new();
    for (name, reports) in communicators {
        stories.push(Case::new(latest(reports)).tell(name));
    }
    let mut text = stories.join("\n");
    last_operations(reports, &mut text);
    text
}

/// What each rank had called last, on whatever communicator.
fn last_operations(reports: &[&Report], text: &mut String) {
    /// So many of a rank, and of so many ranks, show what came before; the rest is in the file.
    const TOLD: usize = 20;
    const RANKS_TOLD: usize = 4;
    let mut last: BTreeMap<(u32, Rank), &Report> = BTreeMap::new();
    for report in reports.iter().filter(|report| !report.recent.is_empty()) {
        let known = last.entry((report.pid, report.rank)).or_insert(report);
        if report.unix_ms >= known.unix_ms {
            *known = report;
        }
    }
    for report in last.values().take(RANKS_TOLD) {
        let recent = &report.recent;
        let _ = writeln!(text, "\nLast operations of rank {} of \"{}\":", report.rank, report.communicator);
        let skipped = recent.len().saturating_sub(TOLD);
        for (at, record) in recent.iter().enumerate() {
            if at >= skipped || record.outcome == Outcome::InFlight {
                let _ = writeln!(text, "  {record}");
            }
        }
    }
    if let more @ 1.. = last.len().saturating_sub(RANKS_TOLD) {
        let _ = writeln!(text, "\nThose of {more} more are in the reports.");
    }
}

/// Of several reports of one rank about one call, that which knows most: the last.
fn latest(mut reports: Vec<&Report>) -> Vec<&Report> {
    let last = |report: &Report| std::cmp::Reverse((report.unix_ms, report.waited));
    reports.sort_by(|a, b| {
        let key = |report: &Report| (report.rank, report.seq, last(report));
        (key(a), &a.operation).cmp(&(key(b), &b.operation))
    });
    reports.dedup_by_key(|report| (report.rank, report.seq, &report.operation));
    reports
}

/// What a rank that is waited for does, as far as its state's words tell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Conduct {
    Silent,
    Busy,
    NotCalled,
    Idle,
    Elsewhere,
    Unknown,
}

impl Conduct {
    fn of(state: &str) -> Self {
        let words = [
            ("but is in ", Conduct::Elsewhere),
            ("has not been heard from", Conduct::Silent),
            // Whoever is in no operation is busy with something else, in the normal course of things.
            ("has not called", Conduct::NotCalled),
            ("is in no operation", Conduct::Idle),
            ("busy elsewhere", Conduct::Busy),
            ("is in ", Conduct::Elsewhere),
        ];
        words.iter().find(|(part, _)| state.contains(part)).map_or(Conduct::Unknown, |(_, conduct)| *conduct)
    }

    const fn cause(self) -> &'static str {
        match self {
            Conduct::Silent => "the process has not started, is stopped, or can't be reached",
            Conduct::Busy => {
                "the program has begun an operation, does something else, and has not come back to it"
            }
            Conduct::NotCalled => "the program has not come to this call, or leaves it out",
            Conduct::Idle => "the program has not called the other side of this message",
            Conduct::Elsewhere => "in another operation: ranks call in different orders",
            Conduct::Unknown => "what is waited for was not done",
        }
    }

    const fn advice(self) -> &'static str {
        match self {
            Conduct::Silent => {
                "See whether the process is there (ps), is not stopped (state T: SIGSTOP, a debugger), and what it \
                 wrote last; then whether the host can be reached."
            }
            Conduct::Busy => {
                "Look what the program's threads do (gdb -p PID -batch -ex 'thread apply all bt', or py-spy dump). Long work and \
                 blocking calls belong on a thread of their own, not on the runtime's."
            }
            Conduct::NotCalled => {
                "Look where the program is (gdb -p PID -batch -ex 'thread apply all bt', or py-spy dump). A collective under a \
                 condition that differs between ranks (if rank == 0, a shorter last batch) is the usual reason; another is \
                 long work before it, which Communicator::set_deadline must allow for."
            }
            Conduct::Idle => "Compare the peer ranks and tags of send and recv on both sides.",
            Conduct::Elsewhere => {
                "Compare the order of calls of these ranks: all ranks call the collectives of a communicator in the \
                 same order, with the same arguments; and wait on several communicators in the same order."
            }
            Conduct::Unknown => "Look at the log, and where the program is (gdb -p PID, or py-spy dump).",
        }
    }
}

/// All that is known about one communicator.
struct Case<'a> {
    reports: Vec<&'a Report>,
    /// Who is waited for, and what is known of him, as those know who have waited longest.
    late: BTreeMap<Rank, Option<&'a str>>,
    picture: Picture<'a>,
}

impl<'a> Case<'a> {
    fn new(reports: Vec<&'a Report>) -> Self {
        let mut by_wait = reports.clone();
        by_wait.sort_by_key(|report| report.waited);
        let mut late = BTreeMap::new();
        for report in by_wait {
            for rank in &report.late {
                late.entry(*rank).or_insert(None);
            }
            for (rank, state) in &report.states {
                late.insert(*rank, Some(state.as_str()));
            }
        }
        let picture = Picture::new(&reports);
        Case { reports, late, picture }
    }

    fn tell(&self, name: &str) -> String {
        let mut text = format!("On communicator \"{name}\":\n\n");
        self.waiting(&mut text);
        self.picture.tell(&mut text);
        self.states(&mut text);
        text += "\nLikely cause:\n";
        for cause in self.causes() {
            text += &paragraph(&cause);
        }
        text += "\nWhat to do next:\n";
        for advice in self.advice() {
            text += &paragraph(&advice);
        }
        text
    }

    /// Where a rank is, as others have it: host, address and process.
    fn address(&self, rank: Rank) -> Option<&'a str> {
        let links = self.reports.iter().flat_map(|report| &report.links);
        links.filter(|link| link.rank == rank).map(|link| link.address.as_str()).find(|at| !at.is_empty())
    }

    /// Whose process it is, if that is one that is known.
    fn process(&self, ranks: &[Rank]) -> Option<u32> {
        let [rank] = ranks else { return None };
        let own = self.reports.iter().find(|report| report.rank == *rank && report.pid != 0);
        let told = || self.address(*rank)?.rsplit_once("process ")?.1.parse().ok();
        own.map(|report| report.pid).or_else(told)
    }

    fn waiting(&self, text: &mut String) {
        for tries in self.reports.chunk_by(|one, next| is_retry(one, next)) {
            let Some(report) = tries.last() else { continue };
            let Report { rank, waited, operation, .. } = report;
            let seq = match tries {
                [first, .., last] => format!("{} to {}, {} times,", first.seq, last.seq, tries.len()),
                _ => report.seq.to_string(),
            };
            let process = match report.pid {
                0 => String::new(),
                pid => format!(" (process {pid})"),
            };
            let call = format!("in {operation} {seq}");
            let what = match report.kind {
                ReportKind::Mismatch if Side::of(operation).is_some() => {
                    format!("found {call} that the two sides of the message differ")
                }
                ReportKind::Mismatch => format!("found {call} that ranks call different things"),
                // It met the end of another when it called.
                _ if waited.is_zero() => format!("has waited {call}"),
                _ => format!("has waited {waited:.1?} {call}"),
            };
            let late = match report.kind {
                ReportKind::Mismatch => String::new(),
                _ if report.late.is_empty() => String::new(),
                _ => format!(" for {}", ranks(&report.late)),
            };
            let _ = writeln!(text, "  rank {rank}{process} {what}{late}");
        }
    }

    fn states(&self, text: &mut String) {
        // Of one without a state there may be a line above: what it was in.
        let known = |rank: &Rank| self.picture.ranks.contains_key(rank);
        let mut told = self.late.iter().filter(|(rank, state)| state.is_some() || !known(rank)).peekable();
        if told.peek().is_none() {
            return;
        }
        *text += "\nWho is waited for:\n";
        for (rank, state) in told {
            let state = state.unwrap_or("has told nothing about itself");
            let _ = match self.address(*rank) {
                Some(address) => writeln!(text, "  rank {rank} ({address}) {state}"),
                None => writeln!(text, "  rank {rank} {state}"),
            };
        }
    }

    /// Those at which waiting ends: who is waited for and waits for nobody himself.
    fn culprits(&self) -> BTreeMap<Conduct, Vec<Rank>> {
        let waiting: BTreeSet<Rank> = self.reports.iter().map(|report| report.rank).collect();
        let ends = self.late.iter().filter(|(rank, _)| !waiting.contains(rank));
        // If everybody waits, everybody is part of it.
        let chosen: Vec<_> =
            if ends.clone().count() > 0 { ends.collect() } else { self.late.iter().collect() };
        let mut culprits: BTreeMap<Conduct, Vec<Rank>> = BTreeMap::new();
        for (rank, state) in chosen {
            culprits.entry(state.map_or(Conduct::Unknown, Conduct::of)).or_default().push(*rank);
        }
        culprits
    }

    fn causes(&self) -> Vec<String> {
        let mut causes: Vec<String> = Vec::new();
        let mut events: BTreeSet<String> = BTreeSet::new();
        for report in self.reports.iter().filter(|report| !report.cause.is_empty()) {
            let cause = from_the_first(&report.cause);
            if events.insert(event(&cause, &report.communicator).into()) {
                causes.push(cause);
            }
        }
        let named = causes.iter().any(|cause| cause.contains("wait for each other"));
        if let Some(cycle) = self.picture.cycle().filter(|_| !named) {
            let names: Vec<String> = cycle.iter().map(Rank::to_string).collect();
            causes.push(format!("ranks {CIRCLE}{}", names.join(ARROW)));
        }
        let unanswered = self.picture.unanswered().into_iter();
        causes.splice(..0, unanswered.map(|message| message.told()));
        if causes.is_empty() {
            causes.extend(
                self.culprits()
                    .into_iter()
                    .map(|(conduct, who)| format!("{}: {}", ranks(&who), conduct.cause())),
            );
        }
        if causes.is_empty() {
            causes.push("the reports don't tell".into());
        }
        causes
    }

    fn advice(&self) -> Vec<String> {
        let mut advice = self.remedies();
        if self.is(ReportKind::Deadline) {
            advice.push(
                "If it is only slow, give it more time: Communicator::set_deadline for all operations, \
                 Operation::timeout for one."
                    .into(),
            );
        }
        advice
    }

    fn is(&self, kind: ReportKind) -> bool {
        self.reports.iter().any(|report| report.kind == kind)
    }

    fn said(&self, part: &str) -> bool {
        self.reports.iter().any(|report| report.cause.contains(part))
    }

    /// What puts right that which went wrong.
    fn remedies(&self) -> Vec<String> {
        if self.said("do the tags differ") {
            return vec!["Compare the tags of send and recv on both sides.".into()];
        }
        if self.is(ReportKind::Mismatch) {
            return self.on_mismatch();
        }
        if self.said("its thread panicked") {
            return vec![PANICKED.into()];
        }
        if self.is(ReportKind::PeerLost) {
            return vec![LOST.into()];
        }
        if self.is(ReportKind::Left) {
            // Who gives up first leaves, and the others see no more than that.
            let before = self.on_waiting_in_a_circle().filter(|_| self.is(ReportKind::Deadline));
            return before.into_iter().chain([LEFT.into()]).collect();
        }
        if self.is(ReportKind::Protocol) {
            return vec!["Look whether all ranks run the same build, and who else reaches the ports.".into()];
        }
        if let Some(circle) = self.on_waiting_in_a_circle() {
            return vec![circle];
        }
        let each = self.culprits().into_iter().map(|(conduct, who)| {
            let process = self.process(&who).map_or("PID".into(), |pid| pid.to_string());
            format!("{}: {}", ranks(&who), conduct.advice().replace("PID", &process))
        });
        each.collect()
    }

    /// Messages and collectives are compared by different things.
    fn on_mismatch(&self) -> Vec<String> {
        let differing = self.reports.iter().filter(|report| report.kind == ReportKind::Mismatch);
        let (messages, collectives): (Vec<&Report>, Vec<&Report>) =
            differing.partition(|report| Side::of(&report.operation).is_some());
        let mut advice = Vec::new();
        if !messages.is_empty() {
            advice.push(
                "Compare the two calls above: element type and count of a message must be the same on both sides; which \
                 message it is, its peer and its tag say."
                    .into(),
            );
        }
        if !collectives.is_empty() {
            advice.push(
                "Compare the calls above: operation, type, count, reduction, root and algorithm must be the same on all \
                 ranks."
                    .into(),
            );
        }
        advice
    }

    fn on_waiting_in_a_circle(&self) -> Option<String> {
        if self.said("called in different orders") {
            return Some(
                "Compare the order in which these ranks wait on the communicators named above: all ranks wait in the same \
                 order, or begin the calls on all of them before awaiting any: operations begin at the call."
                    .into(),
            );
        }
        if let Some(message) = self.picture.unanswered().first() {
            return Some(message.advice());
        }
        let circle = self.picture.cycle();
        if circle.is_none() && !self.said("wait for each other") {
            return None;
        }
        let sides: Vec<Option<Side>> = circle.iter().flatten().map(|rank| self.picture.side(*rank)).collect();
        if !sides.is_empty() && sides.iter().all(Option::is_none) {
            return Some(Conduct::Elsewhere.advice().into());
        }
        let all_receive = !sides.is_empty() && sides.iter().all(|side| *side == Some(Side::Receive));
        let first = if all_receive { "send before it receives" } else { "receive before it sends" };
        Some(format!(
            "Let one of them {first}, or begin both before awaiting either: operations begin at the call."
        ))
    }
}

impl Unanswered<'_> {
    fn told(&self) -> String {
        let Unanswered { rank, peer, instead, .. } = self;
        let what = match self.side {
            Side::Send => "has a message that nobody receives",
            Side::Receive => "waits for a message that nobody sends",
        };
        format!("rank {rank} {what}: rank {peer} is in {instead}, which does not end without rank {rank}")
    }

    fn advice(&self) -> String {
        let Unanswered { rank, peer, .. } = self;
        let (own, other) = match self.side {
            Side::Send => ("send", "recv"),
            Side::Receive => ("recv", "send"),
        };
        format!(
            "Look why rank {peer} does not call {other} before the collective, or why rank {rank} calls {own}: a condition \
             that differs between ranks is the usual reason. A message that is to go on beside the collective is begun on \
             both sides before that is awaited: operations begin at the call."
        )
    }
}

const PANICKED: &str = "\
A panic has dropped the communicator: that rank's own output has its message, and with RUST_BACKTRACE=1 where. \
Communicator::rebuild goes on without it.";

const LOST: &str = "\
A process has ended, or can't be reached: look at its last output and its exit code, and in dmesg on its host for the \
out-of-memory killer; then whether the host is there. Communicator::rebuild goes on without it, under `hcomm run` with \
--keep-going.";

const LEFT: &str = "\
No process was killed: a rank has dropped or closed the communicator, or its program ended, before this call. Look whether \
it makes fewer calls than the others (a shorter last batch, an early return), and whether an error made it leave: its own \
output says so. Communicator::close waits for all; Communicator::rebuild goes on without it, under `hcomm run` with \
--keep-going.";

/// What happened, without what each rank says in its own way: which call of its own it met, how the end of another was
/// seen.
fn event<'a>(cause: &'a str, communicator: &str) -> &'a str {
    let place = format!(" on \"{communicator}\": ");
    let what = cause.split_once(&place).map_or(cause, |(_, what)| what);
    what.split_once(" is lost: ").map_or(what, |(who, _)| who)
}

/// Words before a circle of ranks, the first at its end again.
const CIRCLE: &str = "wait for each other: ";
const ARROW: &str = " → ";

/// A circle is one, whoever tells of it: told from its lowest rank on.
fn from_the_first(cause: &str) -> String {
    let Some((before, circle)) = cause.split_once(CIRCLE) else { return cause.into() };
    let (circle, after) = circle.split_at(circle.find([';', ',']).unwrap_or(circle.len()));
    let Ok(mut ranks) = circle.split(ARROW).map(str::parse).collect::<Result<Vec<u32>, _>>() else {
        return cause.into();
    };
    ranks.pop();
    let first = (0..ranks.len()).min_by_key(|index| ranks[*index]).unwrap_or(0);
    ranks.rotate_left(first);
    ranks.extend(ranks.first().copied());
    let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
    format!("{before}{CIRCLE}{}{after}", names.join(ARROW))
}

/// The same rank again in the same call: it has given it up before.
fn is_retry(one: &Report, next: &Report) -> bool {
    (one.rank, one.kind, &one.late, &one.operation) == (next.rank, next.kind, &next.late, &next.operation)
}

/// Indented, in lines that fit.
fn paragraph(text: &str) -> String {
    const WIDTH: usize = 100;
    let mut lines = vec![String::from("  -")];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("    {word}")),
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use hcomm::Seq;
    use serde_json::json;
    use std::time::Duration;

    fn report(rank: u32, operation: &str, seq: u64, late: u32, state: &str) -> Report {
        let mut told = Report::default();
        (told.operation, told.seq, told.communicator) = (operation.into(), Seq(seq), "dp".into());
        (told.rank, told.waited) = (Rank(rank), Duration::from_millis(12_300));
        (told.late, told.states) = (vec![Rank(late)], vec![(Rank(late), state.into())]);
        told
    }

    #[test]
    fn who_has_not_called_is_named() {
        let text = tell(
            &[
                report(0, "all_reduce", 42, 2, "is at #40 and has not called #42 (told 200.0ms ago)"),
                report(1, "all_reduce", 42, 2, "is at #40 and has not called #42 (told 200.0ms ago)"),
            ],
            false,
        );
        assert!(text.contains("rank 0 has waited 12.3s in all_reduce #42 for rank 2"), "{text}");
        assert!(text.contains("- rank 2: the program has not come to this call"), "{text}");
        assert_eq!(text.matches("is at #40").count(), 1, "{text}");
    }

    #[test]
    fn whoever_does_not_come_back_is_told_from_whoever_has_not_come() {
        let of = |state: &str| {
            let text = tell(&[report(0, "all_reduce", 42, 2, state)], false);
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let back = "has begun an operation, does something else, and has not come back to it";
        let text =
            of("is in all_reduce(3 × f32) #41, waiting for 1, busy elsewhere for 2.9s (told 0.1s ago)");
        assert!(text.contains(back) && text.contains("not on the runtime's"), "{text}");
        let text = of("has not called #42, busy elsewhere for 2.9s (told 0.1s ago)");
        assert!(
            text.contains("has not come to this call") && text.contains("a shorter last batch"),
            "{text}"
        );
        assert!(text.contains("busy elsewhere for 2.9s") && !text.contains(back), "{text}");
        let text = of("is in all_reduce(3 × f32) #41, waiting for 1 (told 0.1s ago)");
        assert!(text.contains("ranks call in different orders") && !text.contains(back), "{text}");
    }

    #[test]
    fn a_cycle_of_messages_is_named_and_one_of_a_collective_is_none() {
        let message = |rank, late| report(rank, "recv(1 × f32, peer 0, tag 1)", 0, late, "is in recv");
        let text = tell(&[message(0, 1), message(1, 0)], false);
        assert!(text.contains("ranks wait for each other: 0 → 1 → 0"), "{text}");
        let text =
            tell(&[report(0, "all_reduce", 1, 1, "is in"), report(1, "all_reduce", 1, 0, "is in")], false);
        assert!(!text.contains("wait for each other"), "{text}");
    }

    /// One of three is killed: of what it was in, the others tell.
    #[test]
    fn a_cycle_through_a_lost_rank_is_put_together_from_what_the_others_know() {
        let known = |rank: u32, next: u32| {
            let operation = format!("recv(1 × u8, peer {next}, tag {rank})");
            let age = Duration::from_millis(300);
            json!({ "rank": rank, "next": 8, "operation": [operation, 0], "waits_for": [next], "age": age })
        };
        let link = json!({
            "rank": 2, "kind": "Tcp", "state": "Down", "address": "host b", "sent_bytes": 5, "received_bytes": 6,
            "sent_frames": 1, "received_frames": 1, "retransmissions": 17, "rtt_us": 200, "best_bytes_per_s": 0,
            "state_age": Duration::from_millis(1200), "reason": "its process ended",
        });
        let lost = |rank: u32, next: u32, other| {
            let operation = format!("recv(1 × u8, peer {next}, tag {rank})");
            let mut told = report(rank, &operation, 0, 2, "is in recv");
            (told.waits_for, told.completed) = (vec![Rank(next)], Some(Seq(6 + u64::from(rank))));
            told.known = serde_json::from_value(json!([known(2, 0), known(other, 2)])).unwrap();
            told.links = serde_json::from_value(json!([link])).unwrap();
            told.cause = "rank 2 (host b) is lost: its process ended".into();
            told
        };
        let text = tell(&[lost(0, 1, 1), lost(1, 2, 0)], false);
        for part in [
            "collectives that all have completed, as far as is known: up to #6\n",
            "rank 2 recv(1 × u8, peer 0, tag 2) #0 → rank 0 (told 300.0ms before)",
            "rank 1 recv(1 × u8, peer 2, tag 1) #0 → rank 2\n",
            "ranks wait for each other: 0 → 1 → 2 → 0",
            "rank 2 (host b) is lost",
            "rank 0 to rank 2 (host b): down for 1.2s (its process ended), 5 bytes sent, 6 received, 17 retransmissions, round trip 200 µs",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_circle_over_communicators_is_told_with_what_to_do() {
        let mut told =
            report(0, "barrier", 2, 1, "has not called #2, but is in barrier #0 on \"b\", waiting for 0");
        let text = tell(std::slice::from_ref(&told), false);
        assert!(text.contains("in another operation") && !text.contains("does something else"), "{text}");
        told.cause =
            "ranks wait for each other, on communicators called in different orders: rank 0 in …".into();
        let text = tell(&[told], false);
        assert!(
            text.contains("same order, or begin the calls") && !text.contains("receive before"),
            "{text}"
        );
        assert_eq!(text.matches("wait for each other").count(), 1, "{text}");
    }

    #[test]
    fn a_panic_is_looked_for_in_the_output_of_its_rank() {
        let mut told = report(0, "barrier", 2, 1, "");
        (told.kind, told.states) = (ReportKind::PeerLost, Vec::new());
        told.cause = "rank 1 (host b) is lost: its thread panicked".into();
        let text = tell(&[told], false);
        assert!(text.contains("RUST_BACKTRACE=1") && !text.contains("out-of-memory"), "{text}");
    }

    /// A loop that tries again, two ranks that tell of one circle, and where the late one is.
    #[test]
    fn what_is_the_same_is_told_once() {
        let link = json!({
            "rank": 2, "kind": "Tcp", "state": "Ready", "address": "host b, address 10.0.0.2, process 4711", "sent_bytes": 5,
            "received_bytes": 6, "sent_frames": 1, "received_frames": 1, "retransmissions": 0, "rtt_us": 200,
            "best_bytes_per_s": 0,
        });
        let mut tries: Vec<Report> =
            (3..13).map(|seq| report(0, "barrier", seq, 2, "has not called")).collect();
        tries[9].links = vec![serde_json::from_value(link).unwrap()];
        let text = tell(&tries, false);
        assert!(
            text.contains("rank 0 has waited 12.3s in barrier #3 to #12, 10 times, for rank 2\n"),
            "{text}"
        );
        assert!(
            text.contains("  rank 2 (host b, address 10.0.0.2, process 4711) has not called\n"),
            "{text}"
        );
        assert!(text.contains("gdb -p 4711 "), "{text}");
        let circle = |rank, late, cause: &str| {
            let mut told = report(rank, "recv(1 × u8, peer 1, tag 1)", 0, late, "is in recv");
            told.cause = cause.into();
            told
        };
        let told = [
            circle(1, 2, "ranks wait for each other: 2 → 1 → 2"),
            circle(2, 1, "ranks wait for each other: 1 → 2 → 1"),
        ];
        let text = tell(&told, false);
        assert_eq!(text.matches("wait for each other").count(), 1, "{text}");
        assert!(text.contains("ranks wait for each other: 1 → 2 → 1\n"), "{text}");
    }

    #[test]
    fn the_last_report_of_a_rank_counts() {
        let mut early = report(0, "all_reduce", 42, 2, "has not called #42");
        early.waited = Duration::from_secs(1);
        let text = tell(&[early, report(0, "all_reduce", 42, 2, "has not been heard from")], false);
        assert!(text.contains("12.3s") && !text.contains("1.0s"), "{text}");
        assert!(text.contains("can't be reached"), "{text}");
    }

    #[test]
    fn a_reported_cause_is_believed() {
        let mut told = report(0, "recv(1 × f32, peer 2, tag 1)", 3, 2, "is in no operation here");
        told.cause = "rank 2 sends tag 0 and this waits for tag 1: do the tags differ?".into();
        let text = tell(&[told], false);
        assert!(text.contains("do the tags differ?") && text.contains("Compare the tags"), "{text}");
    }

    #[test]
    fn one_event_is_told_once_however_ranks_see_it() {
        let lost = |rank, call: &str, seen: &str| {
            let mut told = report(rank, call, 3, 2, "is in");
            told.cause = format!("{call} #3 on \"dp\": rank 2 (host b) is lost: {seen}");
            told
        };
        let (reset, closed) =
            (lost(0, "all_reduce", "reset by peer"), lost(1, "barrier", "closed without goodbye"));
        let text = tell(&[reset.clone(), closed], false);
        assert_eq!(text.matches("is lost").count(), 1, "{text}");
        let mut other = lost(1, "barrier", "reset by peer");
        other.cause = other.cause.replace("rank 2", "rank 3");
        assert_eq!(tell(&[reset, other], false).matches("is lost").count(), 2);
    }

    /// It has reported and ended a moment before the other wrote.
    #[test]
    fn a_link_to_a_rank_that_reports_itself_is_no_trouble_unless_it_is_waited_for() {
        let link = json!({
            "rank": 1, "kind": "Tcp", "state": "Down", "address": "host b", "sent_bytes": 5, "received_bytes": 6,
            "sent_frames": 1, "received_frames": 1, "retransmissions": 1, "rtt_us": 200, "best_bytes_per_s": 0,
        });
        let first = |late| {
            let mut told = report(0, "all_reduce", 1, late, "has not called #1");
            told.links = vec![serde_json::from_value(link.clone()).unwrap()];
            told
        };
        let other = report(1, "all_reduce", 1, 2, "has not called #1");
        let told =
            |late| tell(&[first(late), other.clone()], false).contains("rank 0 to rank 1 (host b): down");
        assert!(!told(2) && told(1));
        assert!(tell(&[first(2)], false).contains("rank 0 to rank 1 (host b): down"));
    }

    #[test]
    fn the_newest_run_is_told_and_the_others_when_asked() {
        let mut old = report(0, "all_reduce", 1, 2, "has not called #1");
        (old.run, old.unix_ms, old.waited) = ("b".into(), 1000, Duration::from_secs(77));
        let mut new = report(0, "all_reduce", 1, 2, "has not been heard from");
        (new.run, new.unix_ms, new.pid) = ("a".into(), 2000, 4711);
        let text = tell(&[new.clone(), old.clone()], false);
        assert!(text.contains("rank 0 (process 4711) has waited 12.3s") && !text.contains("77.0s"), "{text}");
        assert!(text.contains("earlier runs are in the file: 1."), "{text}");
        let text = tell(&[new, old], true);
        let (first, last) = (text.find("77.0s").unwrap(), text.find("12.3s").unwrap());
        assert!(text.contains("Run 1 of 2") && first < last, "{text}");
    }

    #[test]
    fn messages_that_do_not_fit_are_compared_by_what_must() {
        let mut told = report(1, "recv(2 × f32, peer 0, tag 1)", 0, 0, "");
        (told.kind, told.late, told.cause) = (ReportKind::Mismatch, Vec::new(), "that".into());
        let text = words(&tell(std::slice::from_ref(&told), false));
        assert!(text.contains("element type and count of a message must be the same"), "{text}");
        assert!(text.contains("that the two sides of the message differ"), "{text}");
        assert!(!text.contains("reduction, root"), "{text}");
        let mut other = told.clone();
        (other.operation, other.seq) = ("barrier".into(), Seq(7));
        let text = words(&tell(&[told, other], false));
        assert!(text.contains("element type and count") && text.contains("reduction, root"), "{text}");
    }

    #[test]
    fn a_time_that_is_none_is_not_told() {
        let link = json!({
            "rank": 2, "kind": "Tcp", "state": "Down", "address": "host b", "sent_bytes": 5, "received_bytes": 6,
            "sent_frames": 1, "received_frames": 1, "retransmissions": 0, "rtt_us": 200, "best_bytes_per_s": 0,
            "reason": "it has left",
        });
        let mut told = report(0, "barrier", 2, 2, "has left");
        (told.waited, told.links) = (Duration::ZERO, vec![serde_json::from_value(link).unwrap()]);
        told.known = serde_json::from_value(json!([{
            "rank": 2, "next": 2, "operation": ["barrier", 1], "waits_for": [0], "age": Duration::ZERO,
        }]))
        .unwrap();
        let text = tell(&[told], false);
        assert!(text.contains("rank 0 has waited in barrier #2 for rank 2\n"), "{text}");
        assert!(text.contains("(host b): down (it has left), 5 bytes"), "{text}");
        assert!(text.contains("rank 2 barrier #1 → rank 0 (told just before)\n"), "{text}");
        assert!(!text.contains("0ns"), "{text}");
        assert_eq!(text.matches("direct neighbour in the plan").count(), 1, "{text}");
    }

    /// What a rank reports that is in a call with this neighbour.
    fn waits(rank: u32, operation: &str, next: u32) -> Report {
        let mut told = report(rank, operation, 0, next, "is in");
        told.waits_for = vec![Rank(next)];
        told
    }

    fn words(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The first gives up by its deadline and leaves; the other sees that, a moment before its own.
    #[test]
    fn a_circle_that_one_has_left_is_still_one() {
        let mut first = waits(0, "send(1048576 × f32, peer 1, tag 0)", 1);
        first.cause = "ranks wait for each other: 0 → 1 → 0".into();
        let mut second = waits(1, "send(1048576 × f32, peer 0, tag 0)", 0);
        (second.kind, second.cause) = (ReportKind::Left, "rank 0 (host b) has left".into());
        let text = words(&tell(&[first, second.clone()], false));
        let circle = text.find("Let one of them receive before it sends").expect(&text);
        assert!(circle < text.find("No process was killed").expect(&text), "{text}");
        assert!(!tell(&[second], false).contains("receive before it sends"));
    }

    #[test]
    fn where_all_receive_one_must_send() {
        let told = [waits(0, "recv(1 × f32, peer 1, tag 0)", 1), waits(1, "recv(1 × f32, peer 0, tag 0)", 0)];
        let text = words(&tell(&told, false));
        assert!(text.contains("Let one of them send before it receives"), "{text}");
    }

    /// Also where the others wait for it only through each other.
    #[test]
    fn a_message_whose_other_side_is_in_a_collective_is_named() {
        for (call, cause, own) in [
            ("recv(1 × f32, peer 0, tag 0)", "rank 2 waits for a message that nobody sends", "calls recv"),
            ("send(9 × f32, peer 0, tag 0)", "rank 2 has a message that nobody receives", "calls send"),
        ] {
            let told = [waits(0, "all_reduce", 1), waits(1, "all_reduce", 2), waits(2, call, 0)];
            let text = words(&tell(&told, false));
            assert!(text.contains(&format!("{cause}: rank 0 is in all_reduce")), "{text}");
            assert!(text.contains(own) && !text.contains("Let one of them"), "{text}");
        }
        // A message that was there before the collective began, and may have ended since.
        let mut told = waits(0, "all_reduce", 2);
        for (ms, expected) in [(20_000, false), (300, true)] {
            told.known = serde_json::from_value(json!([{
                "rank": 2, "next": 0, "operation": ["recv(1 × f32, peer 0, tag 0)", 0], "waits_for": [0],
                "age": Duration::from_millis(ms),
            }]))
            .unwrap();
            let text = tell(std::slice::from_ref(&told), false);
            assert_eq!(text.contains("nobody sends"), expected, "{text}");
        }
        // It comes out of the collective, and sends then.
        let told = [waits(0, "all_reduce", 1), waits(2, "recv(1 × f32, peer 0, tag 0)", 0)];
        assert!(!tell(&told, false).contains("nobody"));
    }

    #[test]
    fn advice_is_for_what_went_wrong() {
        let of = |kind| {
            let mut told = report(0, "all_reduce", 0, 1, "is in");
            (told.kind, told.cause) = (kind, "that".into());
            tell(&[told], false)
        };
        let more_time = "give it more time";
        assert!(of(ReportKind::Deadline).contains(more_time));
        let lost = of(ReportKind::PeerLost);
        assert!(lost.contains("exit code") && !lost.contains(more_time) && !lost.contains("gdb"), "{lost}");
        let left = of(ReportKind::Left);
        assert!(left.contains("No process was killed") && !left.contains("exit code"), "{left}");
        let mismatch = of(ReportKind::Mismatch);
        assert!(mismatch.contains("Compare the calls above") && !mismatch.contains(more_time), "{mismatch}");
        assert!(mismatch.contains("call different things"), "{mismatch}");
    }
}
