//! From a plan that works in one buffer, the plan that works from one buffer to another.
//!
//! Who reads a block of the output that nothing was written to reads what was handed in, which lies in the input now. What is
//! written to blocks that the output does not have goes to a scratch area. What nobody writes, since it was in its place before, is
//! copied. A send of the input keeps nobody from writing, so that nothing waits for its end.
//!
//! Messages, sums, and hence bits are those of the plan in place.

use crate::path::plan::{Action, After, Placement, Plan, Range, RankPlan, Source, Space, Step, StepId};
use crate::path::verify::{Found, Touched, VerifiedPlan, VerifyError, touched, verify};
use crate::rank::Rank;

/// The same plan from one buffer to another; one that is that already, as it is.
///
/// # Errors
///
/// If there is no second buffer for what it computes, or what comes of it can't be proved.
///
/// ```
/// use hcomm::path::{self, Algorithm, Collective, Placement};
///
/// let in_place = path::verify(path::build(Algorithm::Ring, Collective::AllReduce, 4)?)?;
/// let plan = path::out_of_place(&in_place)?;
/// assert_eq!(plan.placement, Placement::OutOfPlace);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn out_of_place(plan: &VerifiedPlan) -> Result<VerifiedPlan, VerifyError> {
    if plan.placement == Placement::OutOfPlace {
        return Ok(plan.clone());
    }
    let touched = touched(plan);
    let derive = |simply: bool| {
        let mut derived: Plan = (**plan).clone();
        derived.placement = Placement::OutOfPlace;
        let ranks = (0..).map(Rank).zip(&touched);
        let parts =
            ranks.map(|(rank, touched)| Part { old: plan, new: &derived, rank, touched }.derive(simply));
        let parts: Vec<RankPlan> = parts.collect();
        derived.ranks = parts;
        derived
    };
    verify(derive(true)).or_else(|_| verify(derive(false)))
}

/// One rank's part.
struct Part<'a> {
    old: &'a Plan,
    /// Of which only the spans are right.
    new: &'a Plan,
    rank: Rank,
    touched: &'a Touched,
}

impl Part<'_> {
    fn derive(&self, simply: bool) -> RankPlan {
        let simple = if simply { self.read_input() } else { None };
        simple.unwrap_or_else(|| self.copy_first())
    }

    fn part(&self) -> &RankPlan {
        &self.old.ranks[self.rank.index()]
    }

    fn output(&self) -> Option<Range> {
        self.new.span(self.rank, Space::Output)
    }

    /// Each step reads the input where it read what was handed in. `None` where a step reads some of that and some of what came
    /// since, or writes what is asked for together with what is not.
    fn read_input(&self) -> Option<RankPlan> {
        let is_output = |range: &Range| self.output().is_some_and(|output| output.has(range));
        let is_apart = |range: &Range| {
            self.output()
                .is_none_or(|output| output.blocks().end <= range.first || range.blocks().end <= output.first)
        };
        let mut aside = Aside::new(self.part());
        let mut written = |range: Range| match range.space {
            Space::Output if is_output(&range) => Some(range),
            Space::Output if is_apart(&range) => Some(aside.range(range)),
            Space::Output => None,
            _ => Some(range),
        };
        let mut steps = Vec::new();
        for (index, step) in self.part().steps.iter().enumerate() {
            let mut reads = self.touched.reads[index].iter();
            let mut read = |range: Range| match (range.space, reads.next()?) {
                (Space::Output, Found::Given) => Some(Range { space: Space::Input, ..range }),
                (Space::Output, Found::Both) => None,
                _ => written(range),
            };
            let action = match &step.action {
                Action::Send { to, message, src } => {
                    Action::Send { to: *to, message: *message, src: read(*src)? }
                }
                Action::Copy { src, dst } => {
                    let src = read(*src)?;
                    Action::Copy { src, dst: written(*dst)? }
                }
                Action::Place { from, message, dst } => {
                    Action::Place { from: *from, message: *message, dst: written(*dst)? }
                }
                Action::Reduce { dst, srcs, post } => {
                    let mut source = |source: &Source| match *source {
                        Source::Local(range) => read(range).map(Source::Local),
                        peer => Some(peer),
                    };
                    let srcs = srcs.iter().map(&mut source).collect::<Option<Vec<_>>>()?;
                    Action::Reduce { dst: written(*dst)?, srcs, post: *post }
                }
            };
            let after = self.after(step, &steps);
            steps.push(Step { action, after });
        }
        for range in self.in_its_place() {
            let src = Range { space: Space::Input, ..range };
            steps.push(Step { action: Action::Copy { src, dst: range }, after: Vec::new() });
        }
        Some(RankPlan { steps, scratch: aside.scratch() })
    }

    /// What a step waits for, but for sends of the input: for what these have waited.
    fn after(&self, step: &Step, steps: &[Step]) -> Vec<After> {
        let mut after = Vec::new();
        for &on in &step.after {
            match &steps[usize::from(on.step())] {
                Step { action: Action::Send { src, .. }, after: instead } if src.space == Space::Input => {
                    let whole = matches!(on, After::Whole(_));
                    after.extend(instead.iter().map(|on| if whole { After::Whole(on.step()) } else { *on }));
                }
                _ => after.push(on),
            }
        }
        after
    }

    /// The blocks of the result that are in their place from the start, and stay there.
    fn in_its_place(&self) -> impl Iterator<Item = Range> {
        let given = self.old.given(self.rank).map_or(0..0, |given| given.blocks());
        let output = self.output().map_or(0..0, |output| output.blocks());
        let blocks =
            given.filter(move |block| output.contains(block) && !self.touched.written.contains(block));
        let mut ranges: Vec<Range> = Vec::new();
        for block in blocks.filter(|_| !self.is_first_of_exscan()) {
            match ranges.last_mut() {
                Some(range) if range.blocks().end == block => range.count += 1,
                _ => ranges.push(Range::new(Space::Output, block, 1)),
            }
        }
        ranges.into_iter()
    }

    /// Which has nothing before it, and so no result.
    fn is_first_of_exscan(&self) -> bool {
        self.old.collective == crate::path::Collective::ExScan && self.rank == Rank(0)
    }

    /// What was handed in is copied first, and then all is as it was in one buffer: the output, if it has as many blocks, or else a
    /// scratch area, from which the result is copied.
    fn copy_first(&self) -> RankPlan {
        let Some(buffer) = self.old.span(self.rank, Space::Output) else { return self.part().clone() };
        let mut aside = Aside::new(self.part());
        // Where there is no result, the output stays as it is.
        let has_result = !self.is_first_of_exscan();
        let is_whole = has_result && self.output().is_some_and(|output| output == buffer);
        let mut place = |range: Range| match range.space {
            Space::Output if !is_whole => aside.range(range),
            _ => range,
        };
        let mut steps = Vec::new();
        if let Some(given) = self.old.given(self.rank) {
            let src = Range { space: Space::Input, ..given };
            steps.push(Step { action: Action::Copy { src, dst: place(given) }, after: Vec::new() });
        }
        // Steps have as many numbers more as there are steps before them now.
        let moved = steps.len() as StepId;
        for step in &self.part().steps {
            let mut action = step.action.clone();
            match &mut action {
                Action::Send { src, .. } => *src = place(*src),
                Action::Place { dst, .. } => *dst = place(*dst),
                Action::Copy { src, dst } => (*src, *dst) = (place(*src), place(*dst)),
                Action::Reduce { dst, srcs, .. } => {
                    *dst = place(*dst);
                    for source in srcs {
                        if let Source::Local(range) = source {
                            *range = place(*range);
                        }
                    }
                }
            }
            let moved = |after: &After| match after {
                After::Stream(on) => After::Stream(on + moved),
                After::Whole(on) => After::Whole(on + moved),
            };
            let mut after: Vec<After> = step.after.iter().map(moved).collect();
            if !steps.is_empty() {
                after.push(After::Whole(0));
            }
            steps.push(Step { action, after });
        }
        if let Some(output) = self.output().filter(|_| has_result && !is_whole) {
            let src = place(output);
            let after = (0..steps.len() as StepId).map(After::Whole).collect();
            steps.push(Step { action: Action::Copy { src, dst: output }, after });
        }
        RankPlan { steps, scratch: aside.scratch() }
    }
}

/// A scratch area more, for what the output has no room for.
struct Aside {
    areas: Vec<Range>,
    /// From the first block to beyond the last.
    used: Option<(u32, u32)>,
}

impl Aside {
    fn new(part: &RankPlan) -> Self {
        Aside { areas: part.scratch.clone(), used: None }
    }

    fn space(&self) -> Space {
        // A part that has so many areas is not proved: each takes a step at least.
        Space::Scratch(self.areas.len() as u16)
    }

    fn range(&mut self, range: Range) -> Range {
        let (first, end) = self.used.unwrap_or((range.first, range.first));
        self.used = Some((first.min(range.first), end.max(range.blocks().end)));
        Range { space: self.space(), ..range }
    }

    fn scratch(mut self) -> Vec<Range> {
        if let Some((first, end)) = self.used {
            self.areas.push(Range::new(self.space(), first, end - first));
        }
        self.areas
    }
}
