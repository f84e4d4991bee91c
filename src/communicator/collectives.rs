//! What a collective call is, in the terms in which ranks compare it, and the plan that does it.

use std::sync::{Arc, PoisonError};

use super::Communicator;
use super::view::{View, Way};
use crate::buffer::parts::{Cut, Cuts, Sizes};
use crate::element::{DType, ReduceOp};
use crate::engine::call::mix;
use crate::engine::{CallDesc, Priority, Program};
use crate::error::Error;
use crate::path::{
    Algorithm, Collective, Explanation, Extent, Placement, Space, VerifiedPlan, choose, direct, out_of_place,
};

/// Programs kept per communicator: as many as there are algorithms, some roots, and some of the caller's own.
const PROGRAMS_MAX: usize = 32;

impl Communicator {
    /// Options for one call: this algorithm instead of the one that would be chosen. All ranks must ask for the same.
    pub fn using(&mut self, algorithm: Algorithm) -> View<'_> {
        self.plain().using(algorithm)
    }

    /// Options for one call: this plan, of the caller's own making, for the collective and the number of ranks that it
    /// was made for. All ranks must give an equal one: its [fingerprint](VerifiedPlan::fingerprint) is compared as the
    /// rest of the call is. Give the same `Arc` again and again; what a plan needs is looked up once for each.
    ///
    /// ```
    /// use std::sync::{Arc, PoisonError};
    ///
    /// use hcomm::path::{self, After, Collective, Operand, Plan, PlanBuilder, Post, Range, Space};
    /// use hcomm::{Communicator, Rank, ReduceOp};
    ///
    /// /// All send to rank 0, which sums in rank order and sends the result to all.
    /// fn star(ranks: u32) -> Plan {
    ///     let all = Range::new(Space::Output, 0, 1);
    ///     let mut plan = PlanBuilder::new(Collective::AllReduce, "star", ranks, 1, 1);
    ///     let sent: Vec<_> = (1..ranks).map(|rank| plan.send(Rank(rank), Rank(0), all, &[])).collect();
    ///     let mut operands = vec![Operand::Local(all)];
    ///     operands.extend(sent.iter().map(|sent| Operand::Message(sent.message)));
    ///     let sum = plan.reduce(Rank(0), all, &operands, Post::Finish, &[]);
    ///     for (rank, sent) in (1..ranks).zip(sent) {
    ///         let back = plan.send(Rank(0), Rank(rank), all, &[After::Stream(sum)]);
    ///         plan.place(back.message, all, &[After::Stream(sent.step)]);
    ///     }
    ///     plan.build()
    /// }
    ///
    /// // Proved here, for all ranks together; a plan that could hang, race or forget a rank is refused.
    /// let plan = Arc::new(path::verify(star(3)).unwrap());
    /// let threads: Vec<_> = Communicator::local(3).into_iter().map(|mut comm| {
    ///     let plan = plan.clone();
    ///     std::thread::spawn(move || {
    ///         let rank = comm.rank().0 as f32;
    ///         comm.with_plan(&plan).all_reduce(vec![rank, 10.0], ReduceOp::Sum).wait().unwrap()
    ///     })
    /// }).collect();
    /// for thread in threads {
    ///     assert_eq!(thread.join().unwrap(), [3.0, 30.0]);
    /// }
    /// ```
    pub fn with_plan(&mut self, plan: &Arc<VerifiedPlan>) -> View<'_> {
        self.plain().with_plan(plan)
    }

    pub(super) fn plain(&mut self) -> View<'_> {
        View { communicator: self, way: Way::Chosen, priority: Priority::Normal }
    }

    /// Which algorithm a call would use, why, what it costs, and which guarantee of equal bits holds. Local: any rank may ask,
    /// by itself.
    ///
    /// `count` is the whole vector's length in elements.
    ///
    /// # Errors
    ///
    /// If there is no plan for such a call.
    pub fn explain(&self, collective: Collective, count: usize, dtype: DType) -> Result<Explanation, Error> {
        let choice = choose(&self.facts, collective, bytes(count, dtype), None)
            .map_err(|error| refused("explain", &error))?;
        let plan = self.proved("explain", choice.algorithm, collective, Placement::InPlace)?;
        Ok(Explanation::new(choice, &plan, count, dtype.size()))
    }
}

impl Communicator {
    /// What is called, in the terms in which ranks compare it, and the program that does it.
    pub(super) fn describe(
        &mut self,
        operation: &'static str,
        collective: Collective,
        op: Option<ReduceOp>,
        lengths: Lengths,
        dtype: DType,
        way: &Way,
    ) -> (CallDesc, Result<Arc<Program>, Error>) {
        let count = self.count(collective, lengths);
        let mut desc = CallDesc {
            op,
            root: collective.root(),
            ..CallDesc::new(operation, dtype, count.as_ref().map_or(lengths.output, |count| *count))
        };
        let program = count.map_err(|problem| Error::invalid(operation, problem));
        let program = program.and_then(|_| self.plan(&desc, collective, lengths.placement(), way));
        self.fingerprint(&mut desc, program.as_ref());
        (desc, program)
    }

    /// The same of parts that are not equal, and where they lie.
    pub(super) fn describe_unequal(
        &mut self,
        operation: &'static str,
        collective: Collective,
        op: Option<ReduceOp>,
        (lengths, counts): (Lengths, Result<Counts<'_>, String>),
        dtype: DType,
        way: &Way,
    ) -> (CallDesc, Result<(Arc<Program>, Cuts), Error>) {
        let agreed = if let Ok(Counts::Agreed(counts)) = counts { Some(counts) } else { None };
        let is_own = agreed.is_none();
        let cut = counts.and_then(|counts| match counts {
            Counts::Agreed(counts) => self.agreed_cuts(collective, lengths, counts),
            Counts::Own { input, output } => self.own_cuts(collective, lengths, [input, output]),
            Counts::Apart(parts) => apart(lengths, parts),
        });
        let most = lengths.input.unwrap_or_default().max(lengths.output);
        let total = |cuts: &Cuts| match &cuts.output {
            Cut::InTurn(ends) => ends.last().copied().unwrap_or_default(),
            Cut::Apart(_) => most,
        };
        let mut desc = CallDesc {
            op,
            root: collective.root(),
            own_count: is_own,
            ..CallDesc::new(operation, dtype, if is_own { most } else { cut.as_ref().map_or(most, total) })
        };
        let invalid = |problem| Error::invalid(operation, problem);
        let program = cut.map_err(invalid).and_then(|cuts| {
            // How long the vector is, nobody knows: the choice depends on ranks alone.
            let chosen = Way::Algorithm(direct(&self.facts, collective, lengths.placement()));
            let way = if is_own && matches!(way, Way::Chosen) { &chosen } else { way };
            let program = self.plan(&desc, collective, lengths.placement(), way)?;
            let fits = if is_own { program.plan.is_direct() } else { program.plan.keeps_places() };
            if fits {
                return Ok((program, cuts));
            }
            let name = program.plan.algorithm;
            Err(invalid(if is_own {
                format!("by \"{name}\" parts come through ranks that don't know how long they are")
            } else {
                format!("the plan \"{name}\" puts parts where others were, which may be of another length")
            }))
        });
        self.fingerprint(&mut desc, program.as_ref().map(|(program, _)| program));
        if let (Some(counts), Ok(_)) = (agreed, &program) {
            desc.fingerprint ^= counts.iter().fold(1, |word, count| mix(word ^ *count as u64));
        }
        (desc, program)
    }

    fn fingerprint<E>(&self, desc: &mut CallDesc, program: Result<&Arc<Program>, E>) {
        if let Ok(program) = program {
            desc.algorithm = program.plan.algorithm;
            desc.fingerprint = program.plan.fingerprint() ^ self.key_word;
        }
    }

    /// Where each part lies in the buffers, of which each holds all of them, or this rank's, or nothing.
    fn agreed_cuts(
        &self,
        collective: Collective,
        lengths: Lengths,
        counts: &[usize],
    ) -> Result<Cuts, String> {
        let me = self.rank();
        let cuts = self.cuts(counts)?;
        let total = cuts[counts.len()];
        lengths.fit(|space| match collective.extent(lengths.placement(), space, me) {
            Extent::All => (total, "the sum of all counts"),
            Extent::Part => (counts[me.index()], "this rank's count"),
            Extent::None => (0, "since only the root's is used"),
        })?;
        let cut = Cut::InTurn(cuts);
        Ok(Cuts { output: cut.clone(), input: cut, sizes: Sizes::Agreed })
    }

    /// The same where each rank knows its own: those of a buffer that holds all parts; of one that holds one part, that is all of it.
    fn own_cuts(
        &self,
        collective: Collective,
        lengths: Lengths,
        counts: [&[usize]; 2],
    ) -> Result<Cuts, String> {
        let (ranks, me) = (self.size(), self.rank());
        self.check_root(collective)?;
        let extent = |space| collective.extent(lengths.placement(), space, me);
        let part = |len| (0..=ranks).map(|block| if block > me.index() { len } else { 0 }).collect();
        let cut = |space, len: usize| {
            let counts = counts[usize::from(space == Space::Output)];
            let fits = |needed, why| fit(lengths.name(space), len, (needed, why));
            match extent(space) {
                Extent::All => {
                    let cuts = self.cuts(counts)?;
                    fits(cuts[ranks], "the sum of the counts").map(|()| cuts)
                }
                Extent::Part => Ok(part(len)),
                Extent::None => fits(0, "since only the root's is used").map(|()| part(0)),
            }
        };
        let mut output: Arc<[usize]> = cut(Space::Output, lengths.output)?;
        let input = lengths.input.map_or_else(|| Ok(output.clone()), |len| cut(Space::Input, len))?;
        let own = |cuts: &[usize]| cuts[me.index() + 1] - cuts[me.index()];
        let is_root = collective.root() == Some(me);
        let sizes = match collective {
            Collective::Scatter { .. } if !is_root => Sizes::Learned,
            _ => Sizes::Told,
        };
        if lengths.input.is_some() && (is_root || collective.root().is_none()) {
            let (gives, gets) = (own(&input), own(&output));
            if matches!(collective, Collective::Scatter { .. }) && gives < gets {
                output = part(gives);
            } else if gives != gets {
                return Err(format!(
                    "this rank has {gives} elements for itself, but room for {gets}: give it as many"
                ));
            }
        }
        Ok(Cuts { output: Cut::InTurn(output), input: Cut::InTurn(input), sizes })
    }

    /// Where parts of such lengths begin, and the last one ends.
    fn cuts(&self, counts: &[usize]) -> Result<Arc<[usize]>, String> {
        if counts.len() != self.size() {
            return Err(format!("{} counts for {} ranks: give one for each", counts.len(), self.size()));
        }
        let mut cuts = vec![0usize];
        for count in counts {
            let end = cuts[cuts.len() - 1].checked_add(*count).ok_or("more elements than there can be")?;
            cuts.push(end);
        }
        Ok(cuts.into())
    }

    fn check_root(&self, collective: Collective) -> Result<(), String> {
        let ranks = self.size();
        match collective.root().filter(|root| root.index() >= ranks) {
            Some(root) => Err(format!(
                "there is no rank {root} among {ranks} to be the root: give one from 0 to {}",
                ranks - 1
            )),
            None => Ok(()),
        }
    }

    /// Elements of the vector that buffers of such lengths hold, or of which they hold parts.
    fn count(&self, collective: Collective, lengths: Lengths) -> Result<usize, String> {
        let (ranks, me) = (self.size(), self.rank());
        self.check_root(collective)?;
        let Lengths { input, output } = lengths;
        let placement = lengths.placement();
        let extent = |space| collective.extent(placement, space, me);
        // By the first buffer that has something, and then the other one has to fit.
        let (name, len, of) = match (input, extent(Space::Input)) {
            (Some(input), of) if of != Extent::None => ("input", input, of),
            _ => ("buffer", output, extent(Space::Output)),
        };
        let count = match of {
            Extent::Part => len.checked_mul(ranks).ok_or("more elements than there can be")?,
            _ if collective.has_parts() && !len.is_multiple_of(ranks) => {
                return Err(format!(
                    "{} {name} of {len} elements can't be cut into {ranks} equal parts, one per rank: give {}, padded if \
                     need be",
                    if name == "input" { "an" } else { "a" },
                    len.next_multiple_of(ranks)
                ));
            }
            _ => len,
        };
        if input.is_none() {
            return Ok(count);
        }
        lengths.fit(|space| match extent(space) {
            Extent::All => (count, "as many as the vector has"),
            Extent::Part => (count / ranks, "as many as a part has"),
            Extent::None => (0, "since only the root's is used"),
        })?;
        Ok(count)
    }

    fn plan(
        &mut self,
        desc: &CallDesc,
        collective: Collective,
        placement: Placement,
        way: &Way,
    ) -> Result<Arc<Program>, Error> {
        let CallDesc { operation, count, dtype, op, .. } = *desc;
        if let Some(op) = op.filter(|op| !op.supports(dtype)) {
            return Err(Error::invalid(operation, unsupported(op, dtype)));
        }
        if matches!(collective, Collective::Scan | Collective::ExScan) && op == Some(ReduceOp::Avg) {
            let problem = "the ranks before one differ in number, so there is no average over them: use sum, and divide it";
            return Err(Error::invalid(operation, problem.to_string()));
        }
        let forced = match way {
            Way::Plan(plan) => return self.own_program(operation, collective, placement, plan),
            Way::Algorithm(algorithm) => Some(*algorithm),
            Way::Chosen => None,
        };
        let choice = choose(&self.facts, collective, bytes(count, dtype), forced)
            .map_err(|error| refused(operation, &error))?;
        self.program(operation, choice.algorithm, collective, placement)
    }

    /// The program of an algorithm for this rank, from the cache.
    fn program(
        &mut self,
        operation: &str,
        algorithm: Algorithm,
        collective: Collective,
        placement: Placement,
    ) -> Result<Arc<Program>, Error> {
        let of = (algorithm, collective, placement);
        let known =
            self.programs.iter().find(|known| matches!(known.of, Of::Algorithm(known) if known == of));
        if let Some(known) = known {
            return Ok(known.program.clone());
        }
        let plan = self.proved(operation, algorithm, collective, placement)?;
        Ok(self.keep_program(Of::Algorithm(of), plan))
    }

    /// The plan of an algorithm, from the table that all parts of the world share.
    fn proved(
        &self,
        operation: &str,
        algorithm: Algorithm,
        collective: Collective,
        placement: Placement,
    ) -> Result<Arc<VerifiedPlan>, Error> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = plans.get(algorithm, collective, placement, self.members.len() as u32);
        plan.map_err(|error| refused(operation, &error))
    }

    /// The program of a caller's plan for this rank.
    fn own_program(
        &mut self,
        operation: &str,
        collective: Collective,
        placement: Placement,
        plan: &Arc<VerifiedPlan>,
    ) -> Result<Arc<Program>, Error> {
        // A plan in place does for two buffers, too; but not the other way round.
        let fits = plan.placement == placement || placement == Placement::OutOfPlace;
        if plan.collective != collective || plan.ranks.len() != self.size() || !fits {
            let problem = format!(
                "the plan \"{}\" is for {}{} on {} ranks, the call is {collective} on \"{}\" of {}: give it a plan for that, or \
                 call without .with_plan()",
                plan.algorithm,
                plan.collective,
                if fits { "" } else { " out of place" },
                plan.ranks.len(),
                self.name,
                self.size()
            );
            return Err(Error::invalid(operation, problem));
        }
        let is_it =
            |of: &Of| matches!(of, Of::Plan(of, as_it_is) if Arc::ptr_eq(of, plan) && *as_it_is == placement);
        if let Some(known) = self.programs.iter().find(|known| is_it(&known.of)) {
            return Ok(known.program.clone());
        }
        let run = match placement {
            Placement::InPlace => plan.clone(),
            Placement::OutOfPlace => {
                Arc::new(out_of_place(plan).map_err(|error| refused(operation, &error))?)
            }
        };
        Ok(self.keep_program(Of::Plan(plan.clone(), placement), run))
    }

    fn keep_program(&mut self, of: Of, plan: Arc<VerifiedPlan>) -> Arc<Program> {
        let program = Arc::new(Program::new(plan, self.rank));
        if self.programs.len() == PROGRAMS_MAX {
            self.programs.remove(0);
        }
        self.programs.push(Known { of, program: program.clone() });
        program
    }
}

/// How long the parts are, where they are not equal.
#[derive(Debug)]
pub(super) enum Counts<'a> {
    /// As all ranks have to say.
    Agreed(&'a [usize]),
    /// Those in this rank's buffers, where a buffer has all of them.
    Own { input: &'a [usize], output: &'a [usize] },
    /// This rank's, of some ranks: where each part of the input and of the output begins, and how long it is.
    Apart([Vec<(usize, usize)>; 2]),
}

/// Whether a buffer has as many elements as are needed.
fn fit(name: &str, len: usize, (needed, why): (usize, &str)) -> Result<(), String> {
    match len == needed {
        true => Ok(()),
        false => Err(format!("the {name} has {len} elements: give it {needed}, {why}")),
    }
}

/// Parts that lie where they are said to lie.
fn apart(lengths: Lengths, parts: [Vec<(usize, usize)>; 2]) -> Result<Cuts, String> {
    lengths.fit(|space| {
        let parts = &parts[usize::from(space == Space::Output)];
        (parts.iter().map(|(_, len)| len).sum(), "the sum of the counts")
    })?;
    let [input, output] = parts.map(|parts| Cut::Apart(parts.into()));
    Ok(Cuts { output, input, sizes: Sizes::Told })
}

/// How many elements a rank has handed in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    /// Of the buffer that is read, if it is another one.
    pub input: Option<usize>,
    pub output: usize,
}

impl Lengths {
    pub(super) const fn in_place(count: usize) -> Self {
        Lengths { input: None, output: count }
    }

    const fn placement(self) -> Placement {
        if self.input.is_some() { Placement::OutOfPlace } else { Placement::InPlace }
    }

    /// What a buffer is called in errors.
    fn name(self, space: Space) -> &'static str {
        match (space, self.input) {
            (Space::Input, _) => "input",
            (_, Some(_)) => "output",
            (_, None) => "buffer",
        }
    }

    /// Whether each buffer has as many elements as are needed, for a reason.
    fn fit(self, needed: impl Fn(Space) -> (usize, &'static str)) -> Result<(), String> {
        let buffers = self.input.map(|len| (Space::Input, len)).into_iter();
        let mut buffers = buffers.chain([(Space::Output, self.output)]);
        buffers.try_for_each(|(space, len)| fit(self.name(space), len, needed(space)))
    }
}

/// A program that was used before.
#[derive(Clone, Debug)]
pub(super) struct Known {
    of: Of,
    program: Arc<Program>,
}

/// Whose plan a program is.
#[derive(Clone, Debug)]
enum Of {
    Algorithm((Algorithm, Collective, Placement)),
    /// The caller's own, as he has given it, and for which calls.
    Plan(Arc<VerifiedPlan>, Placement),
}

/// Length of a vector. There need be no memory for as many elements as are only asked about.
const fn bytes(count: usize, dtype: DType) -> u64 {
    (count as u64).saturating_mul(dtype.size() as u64)
}

pub(super) fn unsupported(op: ReduceOp, dtype: DType) -> String {
    let supported = DType::ALL.iter().filter(|dtype| op.supports(**dtype)).map(|dtype| dtype.name());
    let supported = supported.collect::<Vec<_>>().join(", ");
    format!("{op} is not for elements of {dtype}: give it one of {supported}")
}

fn refused(operation: &str, error: &dyn std::error::Error) -> Error {
    Error::invalid(operation, error.to_string())
}
