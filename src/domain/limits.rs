//! What the machine must grant, checked before anybody is bothered.

use std::fs;
use std::sync::{Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::config::JoinConfig;
use crate::error::InitError;

/// Descriptors beyond the connections: listeners, epoll, event descriptors, and what the user opens meanwhile.
const DESCRIPTORS_MARGIN: u64 = 32;
/// Threads that a membership needs at most: set-up, name look-up, and the service thread.
const THREADS_NEEDED: u64 = 3;

static RAISING: Mutex<()> = Mutex::new(());

/// What a rank between processes needs.
pub(super) fn check(config: &JoinConfig) -> Result<(), InitError> {
    let others = u64::from(config.world - 1);
    // The root holds one control connection per rank as well, until all are ready.
    let control = if config.rank.0 == 0 { others } else { 1 };
    grant(2 * others + control, THREADS_NEEDED)
}

/// What ranks of one process need: each a poll set of two descriptors, and one to be woken by while its thread waits.
pub(crate) fn check_local_limits(ranks: u32) -> Result<(), InitError> {
    grant(3 * u64::from(ranks), 1)
}

/// Raises the soft limit of descriptors if that suffices, and fails if the hard one doesn't.
fn grant(more_descriptors: u64, more_threads: u64) -> Result<(), InitError> {
    let needed = open_descriptors() + more_descriptors + DESCRIPTORS_MARGIN;
    // Ranks of one process must not lower what another of them has raised.
    let _one_at_a_time = RAISING.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = getrlimit(Resource::Nofile);
    if let Some(raised) = descriptors(needed, limit)? {
        setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum }).map_err(
            |errno| InitError::Io { what: "raising the limit of open files".into(), error: errno.into() },
        )?;
        tracing::debug!(raised, "raised the soft limit of open files");
    }
    threads(more_threads, threads_left())
}

/// The soft limit to set, if it must change.
fn descriptors(needed: u64, limit: Rlimit) -> Result<Option<u64>, InitError> {
    if limit.current.is_none_or(|soft| soft >= needed) {
        return Ok(None);
    }
    match limit.maximum {
        Some(hard) if hard < needed => Err(InitError::Limit {
            what: "file descriptors".into(),
            needed,
            available: hard,
            hint: format!("raise the hard limit (`ulimit -Hn {needed}`, or LimitNOFILE= of the service)"),
        }),
        _ => Ok(Some(needed)),
    }
}

fn threads(needed: u64, available: Option<u64>) -> Result<(), InitError> {
    match available {
        Some(available) if available < needed => Err(InitError::Limit {
            what: "threads".into(),
            needed,
            available,
            hint: "raise the limit of tasks (pids.max of the control group, TasksMax= of the service)".into(),
        }),
        _ => Ok(()),
    }
}

fn open_descriptors() -> u64 {
    fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64)
}

/// What the control group still grants. RLIMIT_NPROC counts all of the user's processes and doesn't hold for root, so
/// that only starting a thread can tell; that failure is an [`InitError::Limit`] as well.
fn threads_left() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let read = |file: &str| -> Option<u64> {
        fs::read_to_string(format!("/sys/fs/cgroup/{path}/{file}")).ok()?.trim().parse().ok()
    };
    Some(read("pids.max")?.saturating_sub(read("pids.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(soft: u64, hard: u64) -> Rlimit {
        Rlimit { current: Some(soft), maximum: Some(hard) }
    }

    #[test]
    fn the_soft_limit_is_raised_only_if_that_helps() {
        assert_eq!(descriptors(100, limit(100, 200)).unwrap(), None);
        assert_eq!(descriptors(150, limit(100, 200)).unwrap(), Some(150));
        assert_eq!(descriptors(150, Rlimit { current: None, maximum: None }).unwrap(), None);
        let error = descriptors(300, limit(64, 200)).unwrap_err();
        assert!(matches!(error, InitError::Limit { needed: 300, available: 200, .. }), "{error}");
    }

    #[test]
    fn too_few_threads_are_told() {
        threads(3, None).unwrap();
        threads(3, Some(3)).unwrap();
        assert!(matches!(threads(3, Some(2)), Err(InitError::Limit { needed: 3, available: 2, .. })));
    }
}
