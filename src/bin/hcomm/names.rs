//! What the command line calls things: operations, types, sizes.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use hcomm::path::{Algorithm, Collective, RANKS_MAX};
use hcomm::{DType, Rank, ReduceOp, SharedMemory};

/// A longer measurement of one size is a slip of the pen: this one would take a day.
const SECONDS_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What connects the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Link {
    /// Processes: through shared memory where they can, else over sockets
    Auto,
    /// Threads of one process
    Memory,
    /// Processes, through shared memory or not at all
    Shm,
    /// Processes, over sockets
    Tcp,
}

impl Link {
    /// The name, as the command line takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Link::Auto => "auto",
            Link::Memory => "memory",
            Link::Shm => "shm",
            Link::Tcp => "tcp",
        }
    }

    /// What processes are to share.
    pub const fn shared_memory(self) -> SharedMemory {
        match self {
            Link::Auto | Link::Memory => SharedMemory::Auto,
            Link::Shm => SharedMemory::Require,
            Link::Tcp => SharedMemory::Never,
        }
    }
}

/// An operation that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Kind {
    /// Combines the vectors of all ranks; all get the result
    AllReduce,
    /// Gives all ranks the vector of one
    Broadcast,
    /// Gives all ranks the parts of all
    AllGather,
    /// Combines the vectors of all ranks; each gets a part of the result
    ReduceScatter,
    /// Combines the vectors of all ranks; one gets the result
    Reduce,
    /// Gives one rank the parts of all
    Gather,
    /// Gives each rank a part of one rank's
    Scatter,
    /// Gives each rank a part of each
    AllToAll,
    /// Combines the vectors of the ranks up to each
    Scan,
    /// Combines the vectors of the ranks before each
    #[value(name = "exscan")]
    ExScan,
    /// Ends when all have begun
    Barrier,
    /// Each rank sends to the next and receives from the one before
    SendRecv,
}

impl Kind {
    /// The name, as the command line takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all_reduce",
            Kind::Broadcast => "broadcast",
            Kind::AllGather => "all_gather",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::Reduce => "reduce",
            Kind::Gather => "gather",
            Kind::Scatter => "scatter",
            Kind::AllToAll => "all_to_all",
            Kind::Scan => "scan",
            Kind::ExScan => "exscan",
            Kind::Barrier => "barrier",
            Kind::SendRecv => "send_recv",
        }
    }

    /// What its plans compute; messages have none.
    pub const fn collective(self, root: Rank) -> Option<Collective> {
        match self {
            Kind::AllReduce | Kind::Barrier => Some(Collective::AllReduce),
            Kind::Broadcast => Some(Collective::Broadcast { root }),
            Kind::AllGather => Some(Collective::AllGather),
            Kind::ReduceScatter => Some(Collective::ReduceScatter),
            Kind::Reduce => Some(Collective::Reduce { root }),
            Kind::Gather => Some(Collective::Gather { root }),
            Kind::Scatter => Some(Collective::Scatter { root }),
            Kind::AllToAll => Some(Collective::AllToAll),
            Kind::Scan => Some(Collective::Scan),
            Kind::ExScan => Some(Collective::ExScan),
            Kind::SendRecv => None,
        }
    }

    /// Whether it computes, so that a reduction can be chosen.
    pub const fn reduces(self) -> bool {
        matches!(self, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce | Kind::Scan | Kind::ExScan)
    }

    /// Whether its buffer is cut into one part per rank.
    pub const fn has_parts(self) -> bool {
        matches!(self, Kind::AllGather | Kind::ReduceScatter | Kind::Gather | Kind::Scatter | Kind::AllToAll)
    }

    /// Whether one rank is unlike the others.
    pub const fn has_root(self) -> bool {
        matches!(self, Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter)
    }

    /// Whether it can be done from one buffer to another.
    pub const fn has_input(self) -> bool {
        !matches!(self, Kind::Broadcast | Kind::Barrier | Kind::SendRecv)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Takes the name of an operation that has a plan: all but messages.
pub fn planned() -> impl TypedValueParser<Value = Kind> {
    let kinds = Kind::value_variants().iter().filter(|kind| kind.collective(Rank(0)).is_some());
    PossibleValuesParser::new(kinds.filter_map(Kind::to_possible_value))
        .try_map(|name| Kind::from_str(&name, false))
}

/// Takes the name of an element type.
pub fn dtype() -> impl TypedValueParser<Value = DType> {
    one_of(DType::ALL, DType::name)
}

/// Takes the name of a reduction.
pub fn reduce_op() -> impl TypedValueParser<Value = ReduceOp> {
    one_of(ReduceOp::ALL, ReduceOp::name)
}

/// Takes the name of an algorithm.
pub fn algorithm() -> impl TypedValueParser<Value = Algorithm> {
    one_of(Algorithm::ALL, Algorithm::name)
}

fn one_of<T: Copy + Send + Sync + 'static>(
    values: &'static [T],
    name_of: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.iter().map(|value| name_of(*value))).map(move |name| {
        let found = values.iter().find(|value| name_of(**value) == name);
        *found.expect("the parser lets only these names through")
    })
}

/// Takes a number of ranks.
pub fn rank_count() -> impl TypedValueParser<Value = u32> {
    |text: &str| match text {
        // What clap makes of `-np`.
        "p" => Err("mpirun's -np is -n here, as in -n 4".to_string()),
        _ => number_in(1, RANKS_MAX as u32, text),
    }
}

/// Takes a whole number from `min` to `max`; the largest there is stands for no bound.
pub fn number(min: u32, max: u32) -> impl TypedValueParser<Value = u32> {
    move |text: &str| number_in(min, max, text)
}

fn number_in(min: u32, max: u32, text: &str) -> Result<u32, String> {
    let bounds = match max {
        u32::MAX => format!("of {min} or more"),
        _ => format!("from {min} to {max}"),
    };
    let number = text.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("not a whole number {bounds}"))
}

/// Reads a time in seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = time.filter(|time| *time <= SECONDS_MAX);
    time.ok_or_else(|| format!("not a number of seconds from 0 to {}", SECONDS_MAX.as_secs()))
}

/// Reads `64`, `64K`, `1M`, `2G`: bytes, in powers of 1024.
pub fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "k" | "K" | "KiB" => 10,
        "m" | "M" | "MiB" => 20,
        "g" | "G" | "GiB" => 30,
        _ => return Err("not a whole number such as 8, 64K, 1M or 2G".into()),
    };
    let number: usize = digits.parse().map_err(|_| "not a whole number such as 8, 64K, 1M or 2G")?;
    number.checked_mul(1 << shift).ok_or_else(|| "more than there can be".into())
}

/// "1 rank", "2 ranks".
pub fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// "rank 1", "ranks 0, 2".
pub fn ranks(list: &[impl fmt::Display]) -> String {
    let names: Vec<String> = list.iter().map(|rank| rank.to_string()).collect();
    format!("rank{} {}", if list.len() == 1 { "" } else { "s" }, names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        for (text, bytes) in [("8", 8), ("64K", 65536), ("1MiB", 1 << 20), ("2g", 2 << 30), ("0B", 0)] {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in ["", "K", "1T", "-1", "1.5K", "99999999999G", "1 K"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_told_their_bounds() {
        assert_eq!(number_in(2, u32::MAX, "7"), Ok(7));
        for text in ["x", "1.5", "-1", "1", "4294967296", ""] {
            assert_eq!(number_in(2, u32::MAX, text), Err("not a whole number of 2 or more".into()), "{text}");
        }
        assert_eq!(number_in(1, 64, "65"), Err("not a whole number from 1 to 64".into()));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["-1", "x", "NaN", "inf", "1e9"] {
            assert_eq!(seconds(text), Err("not a number of seconds from 0 to 86400".into()), "{text}");
        }
    }
}
