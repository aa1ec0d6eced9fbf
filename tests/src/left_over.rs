//! What a node or an engine that was killed has left in a testbed.

use std::fs;

use nix::sys::signal::Signal;

use crate::Testbed;

impl Testbed {
    /// Unmounts the volumes of pods that are left because their node was killed, not taken down.
    pub(crate) fn unmount(&self) {
        let below = format!("{}/", self.dir().display());
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut mounts: Vec<&str> =
            table.lines().filter_map(|l| l.split(' ').nth(4)).filter(|m| m.starts_with(&below)).collect();
        mounts.sort_unstable_by_key(|m| std::cmp::Reverse(m.len()));
        for mounted in mounts {
            let _ = nix::mount::umount2(mounted, nix::mount::MntFlags::MNT_DETACH);
        }
    }

    /// Kills the shims, recognised by this testbed's directory, and their children that an engine could not end because
    /// it hung or was gone.
    pub(crate) fn end_shims(&self) {
        let place = self.dir().join("exec").display().to_string();
        let numbers =
            fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
        for pid in numbers.collect::<Vec<i32>>() {
            let output = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let output = String::from_utf8_lossy(&output);
            if !output.contains("containerd-shim") || !output.contains(&place) {
                continue;
            }
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()).chain([pid]) {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}
