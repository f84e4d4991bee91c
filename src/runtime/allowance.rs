//! What the system still grants to this process: limits that are read beforehand, since to pass them is a signal, or worse.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// A limit of control groups: the controller's name, and for each of the two hierarchies the files that say how much there may
/// be, and how much there is.
#[derive(Clone, Copy)]
pub(crate) struct Controller {
    pub name: &'static str,
    /// Of the one hierarchy.
    pub files: (&'static str, &'static str),
    /// Of the older ones.
    pub old_files: (&'static str, &'static str),
}

const MEMORY: Controller = Controller {
    name: "memory",
    files: ("memory.max", "memory.current"),
    old_files: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
};

/// Whether there can be a segment of so many bytes, mapped in so many; else why not, with what is needed and what there is.
pub(crate) fn check_segment(bytes: u64, mapped: u64) -> Result<(), String> {
    check(bytes, "a file (RLIMIT_FSIZE, `ulimit -f`)", getrlimit(Resource::Fsize).current)?;
    check_addresses(mapped)?;
    check(bytes, "memory of the control group (memory.max)", memory_left())
}

/// Whether so many bytes more can be mapped, and else the same.
pub(crate) fn check_addresses(mapped: u64) -> Result<(), String> {
    let left = getrlimit(Resource::As).current.map(|limit| limit.saturating_sub(addresses_used()));
    check(mapped, "addresses (RLIMIT_AS, `ulimit -v`)", left)
}

fn check(needed: u64, of: &str, available: Option<u64>) -> Result<(), String> {
    match available {
        Some(available) if available < needed => {
            Err(format!("{needed} bytes are needed and {available} available of {of}"))
        }
        _ => Ok(()),
    }
}

/// Bytes of addresses that this process has taken.
fn addresses_used() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// What control groups grant more, but for what they can take back from files at any time.
fn memory_left() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    left_in(MEMORY, &groups, Path::new("/sys/fs/cgroup"))
}

/// What control groups of this process grant more.
pub(crate) fn left(of: Controller) -> Option<u64> {
    left_in(of, &fs::read_to_string("/proc/self/cgroup").ok()?, Path::new("/sys/fs/cgroup"))
}

/// The least that a group of this process, or one that it is within, has left: each limits all below it. `groups` is
/// `/proc/self/cgroup`; `mounted` is where the one hierarchy is, or a folder for each older one.
fn left_in(of: Controller, groups: &str, mounted: &Path) -> Option<u64> {
    let lines = groups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (folder, files) = match controllers {
            "" => (mounted.to_owned(), of.files),
            _ if controllers.split(',').any(|each| each == of.name) => {
                (mounted.join(controllers), of.old_files)
            }
            _ => return None,
        };
        Some((folder, files, path.trim_start_matches('/')))
    });
    let left = |folder: &Path, (max, current)| -> Option<u64> {
        let read = |file| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
        // A group without a limit says "max", which is no number.
        let max: u64 = read(max)?;
        Some(max.saturating_sub(read(current)?.saturating_sub(reclaimable(folder))))
    };
    let each = lines.flat_map(|(root, files, path)| {
        let groups = Path::new(path).ancestors().map(|group| root.join(group)).collect::<Vec<_>>();
        groups.into_iter().filter_map(move |group| left(&group, files))
    });
    each.min()
}

/// Bytes of files that a group holds only because nobody needed the memory.
fn reclaimable(group: &Path) -> u64 {
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let lines = stat.lines().filter_map(|line| line.split_once(' '));
    let inactive = lines.filter(|(name, _)| *name == "inactive_file");
    inactive.filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASKS: Controller = Controller {
        name: "pids",
        files: ("pids.max", "pids.current"),
        old_files: ("pids.max", "pids.current"),
    };

    fn folder(of: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("hcomm-{of}-{}", std::process::id()))
    }

    fn write(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        files.iter().for_each(|(file, text)| fs::write(folder.join(file), format!("{text}\n")).unwrap());
    }

    /// A group says "max" where it has no limit, and the root has no file at all.
    #[test]
    fn the_narrowest_group_on_the_way_up_counts() {
        let mounted = folder("groups");
        let group = |path: &str, max: &str, current: &str| {
            write(&mounted.join(path), &[("pids.max", max), ("pids.current", current)]);
        };
        group("job", "100", "97");
        group("job/step", "max", "90");
        group("job/step/task", "50", "10");
        group("other", "5", "5");
        group("pids/old", "20", "13");
        let left = |groups: &str| left_in(TASKS, groups, &mounted);
        assert_eq!(left("0::/job/step/task\n"), Some(3), "what its ancestor has left");
        assert_eq!(left("0::/job/step\n"), Some(3));
        assert_eq!(left("0::/other/gone\n"), Some(0));
        assert_eq!(left("0::/\n"), None);
        assert_eq!(left("9:cpu,cpuacct:/other\n8:pids:/old\n0::/\n"), Some(7), "an older hierarchy");
        assert_eq!(left("8:pids:/old\n0::/job\n"), Some(3), "both");
        for odd in ["", "0", "0:", "0::", "x:y", "8:pids:/../../old"] {
            assert_eq!(left(odd), None, "{odd}");
        }
        fs::remove_dir_all(mounted).unwrap();
    }

    #[test]
    fn memory_of_files_that_can_be_taken_back_is_not_used() {
        let mounted = folder("memory");
        write(
            &mounted.join("job"),
            &[
                ("memory.max", "1000"),
                ("memory.current", "900"),
                ("memory.stat", "anon 1\ninactive_file 300\nactive_file 7"),
            ],
        );
        let old = [("memory.limit_in_bytes", "500"), ("memory.usage_in_bytes", "100")];
        write(&mounted.join("memory/old"), &old);
        assert_eq!(left_in(MEMORY, "0::/job\n", &mounted), Some(400));
        assert_eq!(left_in(MEMORY, "4:memory:/old\n", &mounted), Some(400));
        fs::remove_dir_all(mounted).unwrap();
    }

    #[test]
    fn what_is_missing_is_told_with_need_and_limit() {
        assert_eq!(check(10, "x", None), Ok(()));
        assert_eq!(check(10, "x", Some(10)), Ok(()));
        assert_eq!(check(10, "x", Some(9)).unwrap_err(), "10 bytes are needed and 9 available of x");
    }
}
