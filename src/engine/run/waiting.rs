//! Whom a collective in flight waits for.

use super::super::program::{Act, From};
use super::{Input, Run};

impl Run {
    /// The ranks that this one still waits for: for their data, or until they have taken ours.
    pub(crate) fn waits_for(&self) -> Vec<usize> {
        let mut ranks = Vec::new();
        for (index, step) in self.program.steps.iter().enumerate() {
            let state = &self.steps[index];
            if state.complete {
                continue;
            }
            match &step.act {
                Act::Send { to, .. } if self.is_sent(index) => ranks.push(*to),
                Act::Place { input, pushed: true } if self.inputs[*input].via_memory => {
                    ranks.push(self.endpoint(*input).from);
                }
                Act::Place { input, .. } => self.push_missing(*input, &mut ranks),
                Act::Reduce { srcs, .. } => {
                    for src in srcs {
                        if let From::Input(input) = src {
                            self.push_missing(*input, &mut ranks);
                        }
                    }
                }
                _ => {}
            }
        }
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Everything of a `Send` that may go has gone, and its receiver has not taken it.
    fn is_sent(&self, index: usize) -> bool {
        let (limit, _) = self.limit(&self.program, index);
        limit > self.steps[index].done
    }

    fn push_missing(&self, input: usize, ranks: &mut Vec<usize>) {
        let Input { from, .. } = self.endpoint(input);
        let state = &self.inputs[input];
        let len = self.steps[self.program.inputs[input].step].raw.len();
        let missing = match &state.lent {
            Some(lent) => lent.readable < len,
            None if state.via_memory => self.offers[from].is_none(),
            None => !state.complete,
        };
        let slot = self.program.inputs[input].sender_step;
        let unread =
            || self.offers[from].as_ref().is_some_and(|lease| lease.readable(slot).is_none_or(|n| n < len));
        if missing || state.via_memory && unread() {
            ranks.push(from);
        }
    }
}
