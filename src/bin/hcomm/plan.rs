//! `hcomm plan`: a plan as text and as a picture.

use std::path::PathBuf;
use std::process::ExitCode;

use hcomm::path::{Algorithm, Explanation, Facts, Placement, RANKS_MAX, choose, draw, prove};
use hcomm::{DType, Rank};

use crate::failure::{Failure, Outcome, print, writable};
use crate::names::{self, Kind, Link, counted};
use crate::progress::during;

const DETAILS: &str = "\
Prints every step of every rank for a vector of COUNT elements, what the plan costs and promises, and that it was \
proved: it ends on any link, reads nothing before it is written, and every contribution is in the result once.

Without --algorithm it is the one that N ranks on this machine would take: also how many processors they have counts.

In the column `action`:
  send #0 to 1      message number 0 of those from this rank to rank 1:
                    each pair of sender and receiver counts its own
  #0 of 1           message number 0 of those from rank 1 to this one
  place #0 of 1     stores that message where it belongs, as it is
  reduce … + …      combines what lies here with messages, in this order
  finish            these elements are complete with it: an average is divided
  copy              within this rank's memory
  output            the vector that was handed in, where the result comes as well
  input             the vector that was handed in, with --into
  scratch 0         memory beside it, area number 0; the line of the rank
                    says which elements have room there

A vector is cut into blocks of whole granules of 16 elements, so that no two ranks write to one line of a cache; where it has \
parts, into these. Elements fewer than a granule stay in one block, so that blocks of a \
small vector may be empty, as 20..20: their messages carry nothing.

In the column `after`, `~3` means: goes as far as step 3 has come; `3`: starts when step 3 is done.

The picture has a lane per rank over logical time, a box per chunk of each step, and an arrow per message, so that one \
sees what overlaps with what. The upper half of a lane is what its rank sends, the lower half what it does with what \
has come.

Examples:
  hcomm plan all_reduce -n 4 --count 1000
  hcomm plan all_reduce -n 4 --link memory
  hcomm plan all_reduce -n 5 --algorithm halving-doubling --svg plan.svg
  hcomm plan broadcast -n 8 --algorithm binomial-tree --root 3
  hcomm plan all_to_all -n 4 --into";

/// Draws a plan: which rank sends what to whom, and when
#[derive(clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    /// What is planned
    #[arg(value_parser = names::planned(), value_name = "OP")]
    kind: Kind,
    /// How many ranks
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = names::rank_count(), allow_negative_numbers = true)]
    ranks: u32,
    /// The algorithm; without, the one that would be chosen for ranks on this machine
    #[arg(long, value_parser = names::algorithm())]
    algorithm: Option<Algorithm>,
    /// What would connect the ranks; the choice of an algorithm depends on it
    #[arg(long, value_enum, default_value_t = Link::Auto)]
    link: Link,
    /// Elements of the whole vector; without, 1000, or the next number that has equal parts where OP needs them
    #[arg(long, value_name = "C", value_parser = names::size, allow_negative_numbers = true)]
    count: Option<usize>,
    /// Element type; the choice of an algorithm depends on bytes
    #[arg(long, default_value = "f32", value_parser = names::dtype())]
    dtype: DType,
    /// From one buffer to another
    #[arg(long)]
    into: bool,
    /// The root, of operations that have one [default: 0]
    #[arg(long, value_name = "R", value_parser = names::number(0, RANKS_MAX as u32 - 1), allow_negative_numbers = true)]
    root: Option<u32>,
    /// Draws it into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Into how many chunks the picture cuts each step
    #[arg(long, default_value_t = 4, value_name = "K", value_parser = names::number(1, 64), allow_negative_numbers = true)]
    chunks: u32,
}

/// What the cost is told in.
const LETTERS: &str =
    "α: time of a message, β: of a byte sent, γ: of a byte reduced; m: bytes of the vector, n: ranks";

/// Elements where nobody says how many.
const COUNT: usize = 1000;

/// Prints and draws.
pub fn run(args: &Args) -> Outcome {
    let kind = args.kind;
    let ranks = args.ranks as usize;
    let some = if kind.has_parts() { COUNT.next_multiple_of(ranks) } else { COUNT };
    let count = args.count.unwrap_or(some);
    let (count, dtype) = if kind == Kind::Barrier { (1, DType::U8) } else { (count, args.dtype) };
    let Some(collective) = kind.collective(Rank(args.root.unwrap_or(0))) else {
        return Err(Failure::usage(format!("{kind} has no plan: messages go straight to their receiver")));
    };
    if args.root.is_some() && !kind.has_root() {
        return Err(Failure::usage(format!("--root: {kind} has none")));
    }
    if args.into && !kind.has_input() {
        return Err(Failure::usage(format!("--into: {kind} has one buffer only")));
    }
    let placement = if args.into { Placement::OutOfPlace } else { Placement::InPlace };
    if kind.has_parts() && count % ranks != 0 {
        return Err(Failure::usage(format!(
            "{kind} needs equal parts: --count {count} is no multiple of -n {ranks}"
        )));
    }
    if let Some(algorithm) = args.algorithm {
        possible(kind, algorithm)?;
    }
    args.svg.as_deref().map_or(Ok(()), writable)?;
    let bytes = (count as u64).saturating_mul(dtype.size() as u64);
    let (facts, assumed) = here(args.ranks, args.link);
    let choice = choose(&facts, collective, bytes, args.algorithm).map_err(Failure::usage)?;
    let what = format!("{} of {kind} for {}", choice.algorithm, counted(ranks, "rank"));
    let plan =
        during(&format!("proving {what}"), || prove(choice.algorithm, collective, placement, args.ranks));
    let plan = plan.map_err(Failure::usage)?;
    let explanation = Explanation::new(choice, &plan, count, dtype.size());
    if kind == Kind::Barrier {
        print("A barrier is an all_reduce of one byte:\n");
    }
    print(draw::text(&plan, count));
    if args.algorithm.is_none() {
        print(format_args!("chosen for {assumed}"));
    }
    print(explanation);
    print(LETTERS);
    print(format_args!("verified: fingerprint {:016x}", plan.fingerprint()));
    if let Some(path) = &args.svg {
        let picture = during(&format!("drawing {what}"), || draw::svg(&plan, count, args.chunks));
        let written = std::fs::write(path, picture);
        written.map_err(|error| Failure::other(format!("can't write {}: {error}", path.display())))?;
        print(format_args!("drawn: {}", path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// What that many ranks on this machine would agree on, as facts and for people.
fn here(ranks: u32, link: Link) -> (Facts, String) {
    let facts = Facts::new(ranks);
    let told = counted(ranks as usize, "rank");
    match link {
        Link::Memory => (facts.within_process(), format!("{told} of one process")),
        Link::Auto | Link::Shm | Link::Tcp => {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            let over = if link == Link::Tcp { "over TCP" } else { "through shared memory" };
            let told = format!("{told} on one host with {}, {over}", counted(processors, "processor"));
            (facts.crowded(ranks as usize > processors).sharing(link != Link::Tcp), told)
        }
    }
}

/// Whether the algorithm can do it; if not, says which can.
pub fn possible(kind: Kind, algorithm: Algorithm) -> Result<(), Failure> {
    let Some(collective) = kind.collective(Rank(0)) else {
        return Err(Failure::usage(format!(
            "{kind} has no algorithm: messages go straight to their receiver"
        )));
    };
    if algorithm.supports(collective) {
        return Ok(());
    }
    let able = Algorithm::ALL.iter().filter(|other| other.supports(collective)).map(|other| other.name());
    let able: Vec<&str> = able.collect();
    Err(Failure::usage(format!("{algorithm} has no {kind}; there are {}", able.join(", "))))
}
