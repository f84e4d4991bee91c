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

    pub(super) fn optional<T: FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("{name} is {text:?}, and not a number in range"))
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

    /// Those that are set, with values, but for that of `secret`; then those of `own` that are not.
    pub(super) fn show(&self, own: &[&str], others: &[&str], secret: &str) -> String {
        let (mut set, mut unset) = (Vec::new(), Vec::new());
        for name in own.iter().chain(others) {
            match (self.lookup)(name) {
                Some(_) if *name == secret => set.push(format!("{name} (set, not shown)")),
                Some(value) => set.push(format!("{name}={value:?}")),
                None if own.contains(name) => unset.push(*name),
                None => {}
            }
        }
        match (set.join(", "), unset.join(", ")) {
            (set, unset) if set.is_empty() => format!("none of {unset}"),
            (set, unset) if unset.is_empty() => set,
            (set, unset) => format!("{set}; not set: {unset}"),
        }
    }
}

fn half(set: &str, value: u32, unset: &str) -> String {
    format!(
        "{set} is {value}, but {unset} is not set, which its launcher sets as well: pass on both, or unset both"
    )
}
