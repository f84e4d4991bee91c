//! Breaks plans, one change at a time.

use hcomm::Rank;
use hcomm::path::{Action, After, Plan, Post, Range, Source, Space};

use crate::player::Random;

/// What was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    DropStep,
    SwapActions,
    ShiftRange,
    GrowRange,
    DropDependencies,
    DropDependency,
    WeakenDependency,
    RenumberMessage,
    OtherPeer,
    DropSource,
    DoubleSource,
    SwapSources,
    FlipFinish,
    SwapDependent,
    OtherSpace,
    AddDependency,
}

/// No built-in plan survives these: each touches an end of a message or what a result is made of, and no plan has a
/// dependency that it does not need. So two steps of which one waits for the other never do the same in the other order: one
/// sends or sums what the other has made, or makes what the other still lends.
const FATAL: [Kind; 11] = [
    Kind::DropDependencies,
    Kind::DropDependency,
    Kind::DropStep,
    Kind::ShiftRange,
    Kind::GrowRange,
    Kind::RenumberMessage,
    Kind::OtherPeer,
    Kind::DropSource,
    Kind::DoubleSource,
    Kind::FlipFinish,
    Kind::SwapDependent,
];

/// These may leave a plan right: where two steps are swapped that wait for the same, each does the other's work, and the
/// result is the same. So what passes is played, in any order of events, and must compute what it says.
const OTHER: [Kind; 5] = [
    Kind::SwapActions,
    Kind::WeakenDependency,
    Kind::OtherSpace,
    Kind::AddDependency,
    // Right where one rank sums for all; wrong where each does for itself.
    Kind::SwapSources,
];

/// A mutant that can't be right, if the random place allows the random change.
pub fn fatal(plan: &Plan, random: &mut Random) -> Option<(Kind, Plan)> {
    mutate(plan, FATAL[random.below(FATAL.len())], random)
}

/// Any mutant.
pub fn any(plan: &Plan, random: &mut Random) -> Option<(Kind, Plan)> {
    let at = random.below(FATAL.len() + OTHER.len());
    mutate(plan, FATAL.iter().chain(&OTHER).copied().nth(at)?, random)
}

fn mutate(plan: &Plan, kind: Kind, random: &mut Random) -> Option<(Kind, Plan)> {
    let mut mutant = plan.clone();
    let rank = random.below(plan.ranks.len());
    let count = plan.ranks[rank].steps.len();
    let step = (count > 0).then(|| random.below(count))?;
    match kind {
        Kind::DropStep => drop_step(&mut mutant, rank, step),
        Kind::SwapActions => {
            let other = random.below(count);
            let steps = &mut mutant.ranks[rank].steps;
            let (one, two) = (steps[step].action.clone(), steps[other].action.clone());
            (steps[step].action, steps[other].action) = (two, one);
        }
        Kind::SwapDependent => {
            let after = &plan.ranks[rank].steps[step].after;
            let on = (!after.is_empty()).then(|| after[random.below(after.len())])?;
            swap_dependent(&mut mutant, rank, on, step);
        }
        Kind::AddDependency => {
            let on = (step > 0).then(|| random.below(step))? as u16;
            mutant.ranks[rank].steps[step].after.push(After::Whole(on));
        }
        _ => change_step(&mut mutant, kind, rank, step, random)?,
    }
    (mutant != *plan).then_some((kind, mutant))
}

/// The dependencies of what waited for the step go with it; the numbers of later steps go down.
fn drop_step(plan: &mut Plan, rank: usize, step: usize) {
    let steps = &mut plan.ranks[rank].steps;
    steps.remove(step);
    for later in &mut steps[step..] {
        later.after.retain(|after| after.step() as usize != step);
        for after in &mut later.after {
            *after = match *after {
                After::Stream(on) if on as usize > step => After::Stream(on - 1),
                After::Whole(on) if on as usize > step => After::Whole(on - 1),
                same => same,
            };
        }
    }
}

/// The step and the one that it waits for change places, and which of them waits for the other.
fn swap_dependent(plan: &mut Plan, rank: usize, on: After, step: usize) {
    let (first, steps) = (on.step() as usize, &mut plan.ranks[rank].steps);
    steps[step].after.retain(|after| *after != on);
    steps.swap(first, step);
    steps[step].after.push(on);
    for later in &mut steps[step + 1..] {
        for after in &mut later.after {
            let number = match after.step() as usize {
                number if number == first => step,
                number if number == step => first,
                number => number,
            } as u16;
            *after = match *after {
                After::Stream(_) => After::Stream(number),
                After::Whole(_) => After::Whole(number),
                other => other,
            };
        }
    }
}

fn change_step(plan: &mut Plan, kind: Kind, rank: usize, step: usize, random: &mut Random) -> Option<()> {
    let ranks = plan.ranks.len();
    let what = &mut plan.ranks[rank].steps[step];
    match kind {
        Kind::ShiftRange => {
            let range = range_mut(&mut what.action);
            range.first = if random.below(2) == 0 { range.first + 1 } else { range.first.checked_sub(1)? };
        }
        Kind::GrowRange => {
            let range = range_mut(&mut what.action);
            range.count = if random.below(2) == 0 { range.count + 1 } else { range.count - 1 };
        }
        Kind::OtherSpace => {
            let range = range_mut(&mut what.action);
            range.space = if range.space == Space::Output { Space::Scratch(0) } else { Space::Output };
        }
        Kind::DropDependencies => what.after.clear(),
        Kind::DropDependency => {
            let at = (!what.after.is_empty()).then(|| random.below(what.after.len()))?;
            what.after.remove(at);
        }
        Kind::WeakenDependency => {
            let at = (!what.after.is_empty()).then(|| random.below(what.after.len()))?;
            what.after[at] = match what.after[at] {
                After::Whole(on) => After::Stream(on),
                After::Stream(on) => After::Whole(on),
                other => other,
            };
        }
        Kind::RenumberMessage | Kind::OtherPeer => renumber(&mut what.action, kind, ranks, random)?,
        _ => change_reduction(&mut what.action, kind, random)?,
    }
    Some(())
}

fn range_mut(action: &mut Action) -> &mut Range {
    match action {
        Action::Send { src, .. } => src,
        Action::Place { dst, .. } | Action::Copy { dst, .. } | Action::Reduce { dst, .. } => dst,
        other => panic!("{other:?} is new"),
    }
}

fn renumber(action: &mut Action, kind: Kind, ranks: usize, random: &mut Random) -> Option<()> {
    let (peer, message) = match action {
        Action::Send { to, message, .. } => (to, message),
        Action::Place { from, message, .. } => (from, message),
        Action::Reduce { srcs, .. } => {
            let at = random.below(srcs.len());
            match &mut srcs[at] {
                Source::Peer { from, message } => (from, message),
                _ => return None,
            }
        }
        _ => return None,
    };
    if kind == Kind::OtherPeer {
        *peer = Rank(random.below(ranks + 1) as u32);
    } else {
        *message = random.below(4) as u16;
    }
    Some(())
}

fn change_reduction(action: &mut Action, kind: Kind, random: &mut Random) -> Option<()> {
    let Action::Reduce { srcs, post, .. } = action else { return None };
    let (one, two) = (random.below(srcs.len()), random.below(srcs.len()));
    match kind {
        Kind::DropSource => drop(srcs.remove(one)),
        Kind::DoubleSource => srcs.push(srcs[one]),
        Kind::SwapSources => srcs.swap(one, two),
        Kind::FlipFinish => *post = if *post == Post::None { Post::Finish } else { Post::None },
        _ => return None,
    }
    Some(())
}
