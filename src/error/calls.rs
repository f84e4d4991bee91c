//! What ranks have called, and how they are told to disagree.

use std::fmt;

use crate::element::{DType, ReduceOp};
use crate::rank::{Rank, Tag};

/// A call, as ranks compare it: everything that must be equal on all of them.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct CallInfo {
    /// "all_reduce", "send", …
    pub operation: String,
    /// Element type.
    pub dtype: DType,
    /// Elements per rank. Of a collective in which each rank gives its own counts, those of its buffer.
    pub count: u64,
    /// Reduction, where there is one.
    pub op: Option<ReduceOp>,
    /// Root or peer, where there is one.
    pub root: Option<Rank>,
    /// Tag, for point to point.
    pub tag: Option<Tag>,
    /// Algorithm of the plan.
    pub algorithm: String,
    /// The plan's fingerprint, with that of a key or a group: it tells plans apart that have one name. Shown where nothing else differs.
    pub plan: u64,
    /// Of a collective of unequal parts, how long they are, where that is in question.
    pub counts: Option<Counts>,
}

/// How long the parts of a collective are, in elements.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Counts {
    /// Of each rank's part, as all ranks have to give it.
    Parts(Vec<u64>),
    /// Each rank gives its own, and what one sends another has to take.
    Own {
        /// What it sends to each rank; `None` where nothing is sent.
        sent: Vec<Option<u64>>,
        /// What it takes from each rank; `None` where nothing is taken, or whatever comes.
        taken: Vec<Option<u64>>,
    },
}

impl CallInfo {
    /// Whether it is a call of rank `me` that does not go with what another rank calls.
    pub(crate) fn contradicts(&self, me: usize, other: &CallInfo, rank: usize) -> bool {
        let clash =
            |mine: &Counts, others: &Counts| mine.clash(me, others, rank) || others.clash(rank, mine, me);
        !self.is_told_as(other)
            || self
                .counts
                .as_ref()
                .zip(other.counts.as_ref())
                .is_some_and(|(mine, others)| clash(mine, others))
    }

    /// Equal but for counts that each rank gives itself, or that are not known of one.
    fn is_told_as(&self, other: &CallInfo) -> bool {
        let CallInfo { operation, dtype, count, op, root, tag, algorithm, plan, counts } = other;
        let (same_counts, has_own) = match (&self.counts, counts) {
            (Some(Counts::Own { .. }), Some(Counts::Own { .. })) => (true, true),
            (Some(Counts::Parts(mine)), Some(Counts::Parts(others))) => (mine == others, false),
            (None, Some(Counts::Own { .. })) | (Some(Counts::Own { .. }), None) => (false, false),
            _ => (true, false),
        };
        let mine = (self.dtype, self.op, self.root, self.tag, self.plan);
        same_counts
            && (has_own || self.count == *count)
            && mine == (*dtype, *op, *root, *tag, *plan)
            && self.operation == *operation
            && self.algorithm == *algorithm
    }
}

impl Counts {
    /// Whether rank `me` sends rank `other` what that does not take.
    fn clash(&self, me: usize, others: &Counts, other: usize) -> bool {
        self.passed(me, others, other).is_some_and(|(sent, taken)| sent != taken)
    }

    /// What one sends, and the other takes.
    fn passed(&self, me: usize, others: &Counts, other: usize) -> Option<(u64, u64)> {
        let (Counts::Own { sent, .. }, Counts::Own { taken, .. }) = (self, others) else { return None };
        (*sent.get(other)?).zip(*taken.get(me)?)
    }
}

impl CallInfo {
    fn is_of_message(&self) -> bool {
        self.tag.is_some() || is_of_message(&self.operation)
    }

    fn tell_message(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.operation)?;
        // A look takes whatever there is.
        if !matches!(self.operation.as_str(), "probe" | "matched_probe") {
            write!(f, "{} × {}, ", self.count, self.dtype)?;
        }
        if let Some(peer) = self.root {
            write!(f, "peer {peer}, ")?;
        }
        match self.tag {
            Some(tag) => write!(f, "tag {tag})"),
            None => f.write_str("any tag)"),
        }
    }
}

/// Whether this is between two ranks, whom nobody else waits for.
pub(super) fn is_of_message(operation: &str) -> bool {
    matches!(
        operation,
        "send" | "recv" | "recv_from" | "probe" | "matched_probe" | "contribute" | "reduce_first" | "pull"
    )
}

impl fmt::Display for CallInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(self.operation.as_str(), "barrier" | "close" | "rebuild" | "ready") {
            // What they are made of is nobody's call.
            return f.write_str(&self.operation);
        }
        if self.operation == "create" {
            return write!(f, "create(group {:016x})", self.plan);
        }
        if self.is_of_message() {
            return self.tell_message(f);
        }
        match &self.counts {
            Some(Counts::Own { .. }) => write!(f, "{}({}", self.operation, self.dtype)?,
            Some(Counts::Parts(counts)) => {
                write!(f, "{}({} × {}, counts {counts:?}", self.operation, self.count, self.dtype)?;
            }
            None => write!(f, "{}({} × {}", self.operation, self.count, self.dtype)?,
        }
        if let Some(op) = self.op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        if !self.algorithm.is_empty() {
            write!(f, ", {}", self.algorithm)?;
        }
        f.write_str(")")
    }
}

/// Each call once, with those who call it; the fewest, who are mostly wrong, first.
pub(super) fn list_calls(calls: &[(Rank, CallInfo)]) -> String {
    let mut groups: Vec<(&CallInfo, Vec<Rank>)> = Vec::new();
    for (rank, call) in calls {
        match groups.iter_mut().find(|(known, _)| known.is_told_as(call)) {
            Some((_, ranks)) => ranks.push(*rank),
            None => groups.push((call, vec![*rank])),
        }
    }
    groups.sort_by_key(|(_, ranks)| ranks.len());
    let texts: Vec<String> = groups.iter().map(|(call, _)| call.to_string()).collect();
    let each = groups.iter().zip(&texts).map(|((call, ranks), text)| {
        // By their names alone they would agree.
        let is_unique = texts.iter().filter(|other| *other == text).count() == 1;
        let plan = if is_unique { String::new() } else { format!(" by plan {:016x}", call.plan) };
        match ranks[..] {
            [rank] => format!("rank {rank} calls {text}{plan}"),
            _ => format!("ranks {} call {text}{plan}", runs(ranks)),
        }
    });
    let texts: Vec<String> = each.collect();
    if groups.len() == 1 { pairs(calls).unwrap_or_else(|| texts.join("; ")) } else { texts.join("; ") }
}

/// Of ranks that call the same, who sends what the other does not take.
fn pairs(calls: &[(Rank, CallInfo)]) -> Option<String> {
    /// Pairs that are named: what is wrong with one is mostly wrong with all.
    const NAMED: usize = 4;
    let all = calls.iter().flat_map(|one| calls.iter().map(move |other| (one, other)));
    let wrong = all.filter_map(|((from, sends), (to, takes))| {
        let passed = sends.counts.as_ref()?.passed(from.index(), takes.counts.as_ref()?, to.index());
        passed.filter(|(sent, taken)| sent != taken).map(|(sent, taken)| {
            format!("rank {from} sends {sent} × {} to rank {to}, which takes {taken}", sends.dtype)
        })
    });
    let wrong: Vec<String> = wrong.collect();
    let rest = match wrong.len().saturating_sub(NAMED) {
        0 => String::new(),
        1 => "; and another pair".to_string(),
        more => format!("; and {more} more pairs"),
    };
    let (_, call) = calls.first().filter(|_| !wrong.is_empty())?;
    let named = wrong.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    Some(format!("all call {call}, but {named}{rest}"))
}

/// "0–6, 8".
fn runs(ranks: &[Rank]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank.0 => *last = rank.0,
            _ => runs.push((rank.0, rank.0)),
        }
    }
    let each = runs.iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}–{last}"),
    });
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_call_the_same_are_told_together() {
        let call = |count| CallInfo {
            operation: "all_reduce".into(),
            dtype: DType::F32,
            count,
            op: Some(ReduceOp::Sum),
            root: None,
            tag: None,
            algorithm: "ring".into(),
            plan: 1,
            counts: None,
        };
        let barrier = CallInfo { operation: "barrier".into(), ..call(1) };
        let mut calls: Vec<(Rank, CallInfo)> = (0..12).map(|rank| (Rank(rank), call(1000))).collect();
        calls[7].1 = call(999);
        (calls[9].1, calls[10].1) = (barrier.clone(), barrier);
        let told = list_calls(&calls);
        assert_eq!(
            told,
            "rank 7 calls all_reduce(999 × f32, sum, ring); ranks 9, 10 call barrier; \
             ranks 0–6, 8, 11 call all_reduce(1000 × f32, sum, ring)"
        );
        let create = |plan| CallInfo { operation: "create".into(), plan, ..call(9) };
        let groups: Vec<_> =
            [0xa, 0xb].map(create).into_iter().zip(0..).map(|(call, rank)| (Rank(rank), call)).collect();
        assert_eq!(
            list_calls(&groups),
            "rank 0 calls create(group 000000000000000a); rank 1 calls create(group 000000000000000b)"
        );
        calls.truncate(3);
        calls[1].1.plan = 0xabc;
        assert_eq!(
            list_calls(&calls),
            "rank 1 calls all_reduce(1000 × f32, sum, ring) by plan 0000000000000abc; \
             ranks 0, 2 call all_reduce(1000 × f32, sum, ring) by plan 0000000000000001"
        );
    }
}
