//! Whether the kernel killed something for want of memory: the counter of this process's control group.

use std::fs;
use std::path::{Path, PathBuf};

/// Reads the counter of kernel kills of the control group that this process is in.
#[derive(Clone, Debug)]
pub struct OomCounter {
    file: Option<PathBuf>,
    last: u64,
}

impl OomCounter {
    /// Starts counting from now. Where there is no such counter, nothing is ever found.
    #[must_use]
    pub fn start() -> OomCounter {
        let file = fs::read_to_string("/proc/self/cgroup")
            .ok()
            .and_then(|text| events_file(&text, Path::new("/sys/fs/cgroup")));
        let mut counter = OomCounter { file, last: 0 };
        counter.rose();
        counter
    }

    /// Whether there was a kill since the last call.
    pub fn rose(&mut self) -> bool {
        let now = self
            .file
            .as_ref()
            .and_then(|file| fs::read_to_string(file).ok())
            .and_then(|text| kills(&text))
            .unwrap_or(self.last);
        let rose = now > self.last;
        self.last = now;
        rose
    }
}

/// The events file of the group that `/proc/self/cgroup` names (version 2's line: `0::/path`).
fn events_file(cgroup: &str, mount: &Path) -> Option<PathBuf> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(mount.join(path.trim_start_matches('/')).join("memory.events"))
}

fn kills(events: &str) -> Option<u64> {
    let line = events.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_rising_counter_is_a_kill() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("memory.events");
        let write = |kills: u64| {
            fs::write(
                &file,
                format!("low 0\noom 9\noom_kill {kills}\noom_group_kill 0\n"),
            )
        };
        write(3).unwrap();
        let mut counter = OomCounter {
            file: Some(file.clone()),
            last: 0,
        };
        counter.rose();
        assert!(!counter.rose());
        write(4).unwrap();
        assert!(counter.rose());
        assert!(!counter.rose());
        fs::remove_file(&file).unwrap();
        assert!(!counter.rose(), "no counter, no kill");
    }

    #[test]
    fn the_group_of_this_process_is_found() {
        let path = events_file("1:name=x:/y\n0::/user.slice/a\n", Path::new("/sys/fs/cgroup"));
        assert_eq!(
            path.unwrap(),
            Path::new("/sys/fs/cgroup/user.slice/a/memory.events")
        );
    }
}
