//! An environment, read variable by variable: through functions, so that a test has one of its own.

use std::str::FromStr;

/// The environment, and what else tells who started this process.
pub(super) struct Env<'a> {
    pub lookup: &'a dyn Fn(&str) -> Option<String>,
    /// The process id of the nearest ancestor of this name.
    pub ancestor: &'a dyn Fn(&str) -> Option<u32>,
}

impl Env<'_> {
    /// A variable that is set to nothing counts as not set.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// A number without a sign, of 64 bits at most.
    pub(super) fn optional<T: FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let bits = u64::BITS - 8 * size_of::<T>() as u32;
        let told = || format!("{name} is {text:?}, which is no number from 0 to {}", u64::MAX >> bits);
        text.parse().map(Some).map_err(|_| told())
    }

    /// The first of these that is set, with its name.
    pub(super) fn either<'n, T: FromStr>(&self, names: [&'n str; 2]) -> Result<Option<(&'n str, T)>, String> {
        for name in names {
            if let Some(value) = self.optional(name)? {
                return Ok(Some((name, value)));
            }
        }
        Ok(None)
    }

    /// Two that a launcher sets together, or not at all.
    pub(super) fn pair(&self, names: [&str; 2]) -> Result<Option<(u32, u32)>, String> {
        match (self.optional(names[0])?, self.optional(names[1])?) {
            (Some(first), Some(second)) => Ok(Some((first, second))),
            (None, None) => Ok(None),
            (Some(first), None) => Err(half(names[0], first, names[1])),
            (None, Some(second)) => Err(half(names[1], second, names[0])),
        }
    }

    /// Those that are set, with values, but for that of `secret`. One set to nothing is shown: it may look as if it were set. Of
    /// `older`, which have a newer name beside theirs, those that say something else.
    pub(super) fn show<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
        older: &[[&str; 2]],
        secret: &str,
    ) -> String {
        let repeats = |name: &str| {
            older.iter().any(|[new, old]| *old == name && (self.lookup)(new) == (self.lookup)(old))
        };
        let shown: Vec<String> = names
            .filter_map(|name| Some((name, (self.lookup)(name).filter(|_| !repeats(name))?)))
            .map(|(name, value)| match name == secret {
                true => format!("{name} (set, not shown)"),
                false => format!("{name}={value:?}"),
            })
            .collect();
        if shown.is_empty() { "no variable of a launcher, or of hcomm".into() } else { shown.join(", ") }
    }
}

fn half(set: &str, value: u32, unset: &str) -> String {
    format!(
        "{set} is {value}, but {unset} is not set, which its launcher sets as well: pass on both, or unset both"
    )
}
