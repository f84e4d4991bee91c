//! Every step of every rank, as text.

use std::fmt::Write as _;

use crate::path::plan::{Action, After, Partition, Placement, Post, Range, RankPlan, Source, Space};
use crate::path::verify::VerifiedPlan;

/// The plan as a table per rank: step, action, elements (of a vector of `count`), and what it waits for.
///
/// `~3` in the last column means: goes as far as step 3 has come; `3`: starts when step 3 is done.
pub fn text(plan: &VerifiedPlan, count: usize) -> String {
    let partition = plan.partition(count);
    let mut text = title(plan, count) + "\n";
    for (rank, part) in plan.ranks.iter().enumerate() {
        let _ = writeln!(text, "\nrank {rank}{}", scratch(part, &partition));
        text += &rank_table(part, &partition);
    }
    text
}

/// One line that says which plan this is.
pub(super) fn title(plan: &VerifiedPlan, count: usize) -> String {
    let placement = match plan.placement {
        Placement::InPlace => "",
        Placement::OutOfPlace => ", out of place",
    };
    format!(
        "{}{placement} by {} on {}: {} in {}, plan {:016x}",
        plan.collective,
        plan.algorithm,
        counted(plan.ranks.len(), "rank"),
        counted(count, "element"),
        counted(plan.blocks as usize, "block"),
        plan.fingerprint()
    )
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn scratch(part: &RankPlan, partition: &Partition) -> String {
    let areas = part.scratch.iter().map(|span| format!(", {}", place(*span, partition)));
    areas.collect()
}

fn rank_table(part: &RankPlan, partition: &Partition) -> String {
    if part.steps.is_empty() {
        return "  nothing to do\n".to_string();
    }
    let rows: Vec<[String; 4]> = part
        .steps
        .iter()
        .enumerate()
        .map(|(id, step)| {
            let elements = partition.elements(step.action.range());
            let after: Vec<String> = step.after.iter().map(after_text).collect();
            [
                id.to_string(),
                action_text(&step.action, partition),
                format!("{}..{}", elements.start, elements.end),
                after.join(" "),
            ]
        })
        .collect();
    let head = ["step", "action", "elements", "after"].map(str::to_string);
    let width = |column: usize| {
        let cells = std::iter::once(&head).chain(&rows).map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2)];
    let mut text = String::new();
    for [id, action, elements, after] in std::iter::once(&head).chain(&rows) {
        let line =
            format!("  {id:>0$}  {action:<1$}  {elements:>2$}  {after}", widths[0], widths[1], widths[2]);
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn after_text(after: &After) -> String {
    match after {
        After::Stream(step) => format!("~{step}"),
        After::Whole(step) => step.to_string(),
    }
}

fn action_text(action: &Action, partition: &Partition) -> String {
    match action {
        Action::Send { to, message, src } => {
            format!("send #{message} to {to} from {}", space(src.space))
        }
        Action::Place { from, message, dst } => format!("place #{message} of {from} in {}", space(dst.space)),
        Action::Copy { src, dst } => format!("copy {} to {}", place(*src, partition), space(dst.space)),
        Action::Reduce { dst, srcs, post } => {
            let srcs: Vec<String> = srcs.iter().map(source_text).collect();
            let finish = if *post == Post::Finish { ", finish" } else { "" };
            format!("reduce {} into {}{finish}", srcs.join(" + "), space(dst.space))
        }
    }
}

fn source_text(source: &Source) -> String {
    match source {
        Source::Local(range) => space(range.space),
        Source::Peer { from, message } => format!("#{message} of {from}"),
    }
}

fn place(range: Range, partition: &Partition) -> String {
    let elements = partition.elements(range);
    format!("{} {}..{}", space(range.space), elements.start, elements.end)
}

fn space(space: Space) -> String {
    match space {
        Space::Input => "input".to_string(),
        Space::Output => "output".to_string(),
        Space::Scratch(area) => format!("scratch {area}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::{Algorithm, Collective, build, verify};

    #[test]
    fn a_table_shows_every_step() {
        let plan = build(Algorithm::MeshOneShot, Collective::AllReduce, 2).unwrap();
        let table = text(&verify(plan).unwrap(), 20);
        let (title, ranks) = table.split_once('\n').unwrap();
        assert!(title.starts_with("all_reduce by mesh-one-shot on 2 ranks: 20 elements in 1 block, plan "));
        assert_eq!(
            ranks,
            "
rank 0, scratch 0 0..20
  step  action                                          elements  after
     0  copy output 0..20 to scratch 0                     0..20
     1  send #0 to 1 from scratch 0                        0..20  ~0
     2  reduce scratch 0 + #0 of 1 into output, finish     0..20  ~0

rank 1, scratch 0 0..20
  step  action                                          elements  after
     0  copy output 0..20 to scratch 0                     0..20
     1  send #0 to 0 from scratch 0                        0..20  ~0
     2  reduce #0 of 0 + scratch 0 into output, finish     0..20  ~0
"
        );
    }
}
