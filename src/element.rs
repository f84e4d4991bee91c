//! Element types and reductions: what may be in a buffer, and how buffers are combined.

use std::fmt;
use std::str::FromStr;

/// Element type of a buffer, as it is agreed between ranks and told in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    BF16,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
}

impl DType {
    /// All element types.
    pub const ALL: &'static [DType] = &[
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
    ];

    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::I8 | DType::U8 => 1,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        }
    }

    const fn is_integer(self) -> bool {
        !matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// How many elements so many bytes are; sizes are powers of two, and a division takes long.
    pub(crate) const fn elements(self, bytes: usize) -> usize {
        bytes >> self.size().trailing_zeros()
    }

    /// The name Rust gives the type.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
        }
    }
}

/// No element type or reduction has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {what} \"{name}\"; there are {known}")]
pub struct UnknownName {
    what: &'static str,
    name: String,
    known: String,
}

/// The one of `all` that has this name.
fn named<T: Copy>(
    what: &'static str,
    all: &[T],
    name_of: fn(T) -> &'static str,
    name: &str,
) -> Result<T, UnknownName> {
    let names = || all.iter().map(|known| name_of(*known));
    let known = || UnknownName { what, name: name.into(), known: names().collect::<Vec<_>>().join(", ") };
    all.iter().copied().find(|known| name_of(*known) == name).ok_or_else(known)
}

impl FromStr for DType {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        named("element type", DType::ALL, DType::name, name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the ranks' elements are combined.
///
/// | | integers | floats |
/// |---|---|---|
/// | `Sum`, `Prod` | wrap around | IEEE 754; NaN and infinities propagate |
/// | `Min`, `Max` | exact | a NaN in any input gives NaN; −0 is less than +0 |
/// | `Avg` | the wrapped sum divided by the number of ranks, rounded towards zero | the sum divided by the number of ranks |
/// | `BitAnd`, `BitOr`, `BitXor` | bit by bit | refused |
/// | `And`, `Or`, `Xor` | 1 for true, 0 for false; an input is true if it is not 0 | refused |
///
/// An element that is combined with no other is the result as it was given: in a world of one rank, on rank 0 of a scan, on
/// rank 1 of an exscan. So a logical reduction gives, say, 7 there where 7 was given: compare with 0, which is right everywhere.
///
/// `f16` and `bf16`: the inputs of one step are combined in `f32` and rounded once.
/// A floating-point result that is NaN is the canonical one, whatever the sign and payload of the inputs.
///
/// ```
/// use hcomm::ReduceOp;
///
/// assert!(ReduceOp::ALL.iter().all(|op| op.name().parse() == Ok(*op)));
/// let unknown = "mean".parse::<ReduceOp>().unwrap_err().to_string();
/// assert_eq!(unknown, "there is no reduction \"mean\"; there are sum, prod, min, max, avg, bit_and, bit_or, \
///     bit_xor, and, or, xor");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Sum of all ranks' elements.
    Sum,
    /// Product of all ranks' elements.
    Prod,
    /// Smallest of all ranks' elements.
    Min,
    /// Largest of all ranks' elements.
    Max,
    /// Sum divided by the number of ranks.
    Avg,
    /// The bits that are set in all ranks' elements.
    BitAnd,
    /// The bits that are set in any rank's element.
    BitOr,
    /// The bits that are set in an odd number of ranks' elements.
    BitXor,
    /// Whether all ranks' elements are true.
    And,
    /// Whether any rank's element is true.
    Or,
    /// Whether an odd number of ranks' elements are true.
    Xor,
}

impl ReduceOp {
    /// All reductions.
    pub const ALL: &'static [ReduceOp] = &[
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Avg,
        ReduceOp::BitAnd,
        ReduceOp::BitOr,
        ReduceOp::BitXor,
        ReduceOp::And,
        ReduceOp::Or,
        ReduceOp::Xor,
    ];

    /// Lower-case name, as the command line takes it.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
            ReduceOp::BitAnd => "bit_and",
            ReduceOp::BitOr => "bit_or",
            ReduceOp::BitXor => "bit_xor",
            ReduceOp::And => "and",
            ReduceOp::Or => "or",
            ReduceOp::Xor => "xor",
        }
    }

    /// Whether elements of this type can be combined so: bitwise and logical reductions are for integers only, all others
    /// for every type. A call with another type is refused on the rank that makes it, before anything is sent.
    ///
    /// ```
    /// use hcomm::{DType, ReduceOp};
    ///
    /// assert!(ReduceOp::BitXor.supports(DType::U64) && ReduceOp::Sum.supports(DType::F32));
    /// assert!(!ReduceOp::BitXor.supports(DType::F32) && !ReduceOp::And.supports(DType::BF16));
    /// ```
    pub const fn supports(self, dtype: DType) -> bool {
        match self {
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Min | ReduceOp::Max | ReduceOp::Avg => true,
            ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => dtype.is_integer(),
            ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => dtype.is_integer(),
        }
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        named("reduction", ReduceOp::ALL, ReduceOp::name, name)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type that can be sent and reduced: a plain number without padding.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be communicated",
    label = "not an element type",
    note = "element types are f32, f64, half::f16, half::bf16 and the integers of 8 to 64 bits"
)]
pub trait Element: sealed::Sealed + bytemuck::Pod + Send + Sync + Unpin + PartialEq + fmt::Debug {
    /// The type as ranks agree on it.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),+ $(,)?) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }
    )+};
}

elements! {
    f32 => F32, f64 => F64, half::f16 => F16, half::bf16 => BF16,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}
