//! In words: who waits, for whom, why, and what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use hcomm::{Rank, Report, ReportKind};

use super::merge::Picture;

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
    stories.join("\n")
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
            let _ = match report.kind {
                ReportKind::Mismatch => {
                    writeln!(
                        text,
                        "  rank {rank}{process} found in {operation} {seq} that ranks call different things"
                    )
                }
                _ if report.late.is_empty() => {
                    writeln!(text, "  rank {rank}{process} has waited {waited:.1?} in {operation} {seq}")
                }
                _ => {
                    let late = ranks(&report.late);
                    writeln!(
                        text,
                        "  rank {rank}{process} has waited {waited:.1?} in {operation} {seq} for {late}"
                    )
                }
            };
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
        let is = |kind: ReportKind| self.reports.iter().any(|report| report.kind == kind);
        let said = |part: &str| self.reports.iter().any(|report| report.cause.contains(part));
        let mut advice = Vec::new();
        if said("do the tags differ") {
            advice.push("Compare the tags of send and recv on both sides.".to_string());
        } else if is(ReportKind::Mismatch) {
            advice.push(
                "Compare the calls above: operation, type, count, reduction, root and algorithm must be the same on all \
                 ranks."
                    .into(),
            );
        } else if said("its thread panicked") {
            advice.push(
                "A panic has dropped the communicator: that rank's own output has its message, and with RUST_BACKTRACE=1 \
                 where. Communicator::rebuild goes on without it."
                    .into(),
            );
        } else if is(ReportKind::PeerLost) {
            advice.push(
                "A process has ended, or can't be reached: look at its last output and its exit code, and in dmesg on its \
                 host for the out-of-memory killer; then whether the host is there. Communicator::rebuild goes on \
                 without it, under `hcomm run` with --keep-going."
                    .into(),
            );
        } else if is(ReportKind::Left) {
            advice.push(
                "No process was killed: a rank has dropped or closed the communicator, or its program ended, before this \
                 call. Look whether it makes fewer calls than the others (a shorter last batch, an early return), and \
                 whether an error made it leave: its own output says so. Communicator::close waits for all; \
                 Communicator::rebuild goes on without it, under `hcomm run` with --keep-going."
                    .into(),
            );
        } else if is(ReportKind::Protocol) {
            advice.push("Look whether all ranks run the same build, and who else reaches the ports.".into());
        } else if said("called in different orders") {
            advice.push(
                "Compare the order in which these ranks wait on the communicators named above: all ranks wait in the same \
                 order, or begin the calls on all of them before awaiting any: operations begin at the call."
                    .into(),
            );
        } else if said("wait for each other") || self.picture.cycle().is_some() {
            advice.push(
                "Let one of them receive before it sends, or begin both before awaiting either: operations begin at \
                 the call."
                    .into(),
            );
        } else {
            advice.extend(self.culprits().into_iter().map(|(conduct, who)| {
                let process = self.process(&who).map_or("PID".into(), |pid| pid.to_string());
                format!("{}: {}", ranks(&who), conduct.advice().replace("PID", &process))
            }));
        }
        if is(ReportKind::Deadline) {
            advice.push(
                "If it is only slow, give it more time: Communicator::set_deadline for all operations, \
                 Operation::timeout for one."
                    .into(),
            );
        }
        advice
    }
}

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

pub fn ranks(list: &[Rank]) -> String {
    let names: Vec<String> = list.iter().map(Rank::to_string).collect();
    format!("rank{} {}", if list.len() == 1 { "" } else { "s" }, names.join(", "))
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
            "all are known to have completed, at most: #6\n",
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
