//! What the machine itself is like, apart from Docker and iptables. What is read is told by [`Facts`]; what it means
//! is pure.

use std::{collections::BTreeMap, fs, path::Path};

use windlass_kit::finding::Finding;

/// Programs that would do the same work a second time, or take rules away, and what to do about each.
const OTHERS: [(&str, &str); 8] = [
    ("kubelet", "stop it (systemctl disable --now kubelet): two agents would fight for the same containers"),
    ("kube-proxy", "stop it: two proxies would fight for the same rules"),
    ("cri-dockerd", "stop it (systemctl disable --now cri-docker): windlass talks to Docker itself"),
    ("k3s-server", "stop it (systemctl disable --now k3s): it brings a kubelet and a proxy of its own"),
    ("k3s-agent", "stop it (systemctl disable --now k3s-agent): it brings a kubelet and a proxy of its own"),
    ("k0s", "stop it (k0s stop): it brings a kubelet and a proxy of its own"),
    (
        "firewalld",
        "when it is loaded again it takes all rules away, and windlass writes them again after some seconds; let the pods' range pass (firewall-cmd --zone=trusted --add-source=RANGE)",
    ),
    ("ufw", "its rules come before those of services: let the pods' range pass (ufw route allow from RANGE)"),
];

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Programs that run, and services that are on.
    pub(super) programs: Vec<String>,
    /// Values of `/proc/sys`, by their paths below it.
    pub(super) sysctls: BTreeMap<String, String>,
    /// Lines of `/proc/swaps` without the heading.
    pub(super) swaps: usize,
    /// Free and all bytes of the file system that the data is on, or will be.
    pub(super) disk: Option<(u64, u64)>,
    /// Free and all inodes of it.
    pub(super) inodes: Option<(u64, u64)>,
    /// No route leads out, so that the node has no address but loopback.
    pub(super) node_ip_is_loopback: bool,
}

/// Files below `/proc/sys` that are judged.
const SYSCTLS: [&str; 4] =
    ["net/ipv4/ip_forward", "fs/inotify/max_user_instances", "fs/inotify/max_user_watches", "kernel/pid_max"];

/// Reads everything.
pub(super) fn read(data_dir: &Path, node_ip_is_loopback: bool) -> Facts {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut programs: Vec<String> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .collect();
    if text("/etc/ufw/ufw.conf").lines().any(|l| l.trim().eq_ignore_ascii_case("ENABLED=yes")) {
        programs.push("ufw".to_owned());
    }
    programs.sort_unstable();
    programs.dedup();
    // The folder itself may not be there yet.
    let space = data_dir.ancestors().find_map(|dir| nix::sys::statvfs::statvfs(dir).ok());
    let bytes =
        |s: &nix::sys::statvfs::Statvfs| (s.blocks_available() * s.fragment_size(), s.blocks() * s.fragment_size());
    Facts {
        programs,
        sysctls: SYSCTLS
            .iter()
            .map(|name| ((*name).to_owned(), text(&format!("/proc/sys/{name}")).trim().to_owned()))
            .collect(),
        swaps: text("/proc/swaps").lines().skip(1).count(),
        disk: space.as_ref().map(bytes),
        inodes: space.as_ref().map(|s| (s.files_available(), s.files())),
        node_ip_is_loopback,
    }
}

/// Judges it; percents of free room are those below which the node would call itself full.
pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    for (what, room, unit) in [("disk", facts.disk, "bytes"), ("inodes", facts.inodes, "inodes")] {
        // File systems without a fixed number of inodes say 0.
        let Some((free, whole)) = room.filter(|(_, whole)| *whole > 0) else { continue };
        let percent = free.saturating_mul(100) / whole;
        let least = if unit == "bytes" { 10 } else { 5 };
        let seen = format!("{percent} % of the {unit} are free where the data is");
        all.push(if percent < least {
            Finding::doubtful(
                what,
                seen,
                format!("make room: below {least} % the node evicts pods, or set evictionHard"),
            )
        } else {
            Finding::fine(what, seen)
        });
    }
    for (program, advice) in OTHERS {
        if facts.programs.iter().any(|p| p == program) {
            all.push(Finding::doubtful(format!("other programs: {program}"), "it runs on this machine", advice));
        }
    }
    let number = |name: &str| facts.sysctls.get(name).and_then(|v| v.parse::<u64>().ok());
    match number("net/ipv4/ip_forward") {
        Some(0) => all.push(Finding::fine("forwarding", "off; windlass turns net.ipv4.ip_forward on when it starts")),
        Some(_) => all.push(Finding::fine("forwarding", "on")),
        None => all.push(Finding::missing(
            "forwarding",
            "net.ipv4.ip_forward cannot be read",
            "mount /proc with its sys folder: pods reach nothing without forwarding",
        )),
    }
    for (name, least) in
        [("fs/inotify/max_user_instances", 128), ("fs/inotify/max_user_watches", 8192), ("kernel/pid_max", 32_768)]
    {
        let setting = name.replace('/', ".");
        if let Some(value) = number(name).filter(|value| *value < least) {
            let advice =
                format!("set {setting} = {least} or more in /etc/sysctl.d: pods of many processes run out of it");
            all.push(Finding::doubtful(setting, value.to_string(), advice));
        }
    }
    all.push(if facts.swaps == 0 {
        Finding::fine("swap", "none")
    } else {
        let advice =
            "pods may be swapped out before their limits are reached; swapoff -a and /etc/fstab where that hurts";
        Finding::doubtful("swap", format!("{} in use", facts.swaps), advice)
    });
    if facts.node_ip_is_loopback {
        let advice = "set nodeIP to an address of this machine: without one nothing outside reaches its pods";
        all.push(Finding::doubtful("the node's address", "there is no default route, so it is 127.0.0.1", advice));
    }
    all
}
