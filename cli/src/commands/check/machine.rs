//! Checks of the machine apart from Docker and iptables. [`MachineFacts`] is read from it; the findings are pure.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use windlass_kit::preflight::Finding;

/// Programs that conflict with Windlass, with advice.
const CONFLICTING_PROGRAMS: [(&str, &str); 8] = [
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

/// Time synchronization daemons.
const TIME_DAEMONS: [&str; 6] = ["systemd-timesyn", "chronyd", "ntpd", "openntpd", "ptp4l", "phc2sys"];
/// The cgroup controllers that pods' limits need.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// The timeout of commands.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of cgroups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cgroups {
    pub(super) version: u8,
    /// Missing controllers.
    pub(super) missing: Vec<String>,
    /// Why a cgroup could not be created.
    pub(super) refused: Option<String>,
}

/// The facts of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MachineFacts {
    /// Running programs, and enabled firewalls.
    pub(super) programs: Vec<String>,
    /// Values of `/proc/sys`, by their paths below it.
    pub(super) sysctls: BTreeMap<String, String>,
    /// The number of swap areas.
    pub(super) swaps: usize,
    /// Free and total bytes of the file system of the data directory.
    pub(super) disk: Option<(u64, u64)>,
    /// Its free and total inodes.
    pub(super) inodes: Option<(u64, u64)>,
    /// There is no default route, so the node has only a loopback address.
    pub(super) node_ip_is_loopback: bool,
    /// Whether the kernel's clock is synchronized, if known.
    pub(super) clock_synchronized: Option<bool>,
    pub(super) cgroups: Cgroups,
}

/// The sysctls that are checked.
const SYSCTLS: [&str; 4] =
    ["net/ipv4/ip_forward", "fs/inotify/max_user_instances", "fs/inotify/max_user_watches", "kernel/pid_max"];

/// The output of a command, if it exits in time.
fn command_output(program: &str, args: &[&str]) -> Option<String> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let deadline = Instant::now() + COMMAND_TIMEOUT;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Asks systemd, since the crates here have no safe interface to adjtimex.
fn clock_synchronized() -> Option<bool> {
    match command_output("timedatectl", &["show", "--property=NTPSynchronized", "--value"])?.as_str() {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

/// Checks by creating a cgroup and removing it.
fn cgroups(root: &Path) -> Cgroups {
    let unified = fs::read_to_string(root.join("cgroup.controllers")).ok();
    let has = |name: &str| match &unified {
        Some(controllers) => controllers.split_whitespace().any(|c| c == name),
        None => root.join(name).is_dir(),
    };
    let missing = CONTROLLERS.iter().filter(|name| !has(name)).map(|name| (*name).to_owned()).collect();
    let probe = if unified.is_some() { root.to_owned() } else { root.join("memory") };
    let probe = probe.join(format!("windlass-check-{}", std::process::id()));
    let refused = fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe)).err().map(|error| error.to_string());
    Cgroups { version: if unified.is_some() { 2 } else { 1 }, missing, refused }
}

/// Reads all facts.
pub(super) fn read(data_dir: &Path, node_ip_is_loopback: bool) -> MachineFacts {
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
    // The directory itself may not exist yet.
    let space = data_dir.ancestors().find_map(|dir| nix::sys::statvfs::statvfs(dir).ok());
    let bytes =
        |s: &nix::sys::statvfs::Statvfs| (s.blocks_available() * s.fragment_size(), s.blocks() * s.fragment_size());
    MachineFacts {
        programs,
        sysctls: SYSCTLS
            .iter()
            .map(|name| ((*name).to_owned(), text(&format!("/proc/sys/{name}")).trim().to_owned()))
            .collect(),
        swaps: text("/proc/swaps").lines().skip(1).count(),
        disk: space.as_ref().map(bytes),
        inodes: space.as_ref().map(|s| (s.files_available(), s.files())),
        node_ip_is_loopback,
        clock_synchronized: clock_synchronized(),
        cgroups: cgroups(Path::new("/sys/fs/cgroup")),
    }
}

/// Certificates, leases and event times depend on the clock.
fn clock(facts: &MachineFacts) -> Finding {
    let keeper = TIME_DAEMONS.iter().find(|name| facts.programs.iter().any(|p| p == *name));
    let advice =
        "certificates, tokens and leases of a wrong clock are refused: install and start chrony or systemd-timesyncd";
    match (facts.clock_synchronized, keeper) {
        (Some(true), _) => Finding::pass("clock", "synchronised"),
        (None, Some(keeper)) => Finding::pass("clock", format!("{keeper} keeps it")),
        (Some(false), Some(keeper)) => {
            let advice = "wait until it has found its servers, or name others that can be reached";
            Finding::warn("clock", format!("{keeper} runs and has not synchronised it"), advice)
        }
        (Some(false), None) => Finding::warn("clock", "not synchronised, and nothing runs that would do so", advice),
        (None, None) => Finding::warn("clock", "nothing runs that would synchronise it", advice),
    }
}

fn limits(cgroups: &Cgroups) -> Finding {
    let Cgroups { version, missing, refused } = cgroups;
    if let Some(why) = refused {
        let advice = "mount /sys/fs/cgroup writable, or delegate it to this service (Delegate=yes): pods live in groups of their own";
        return Finding::fail("cgroup controllers", format!("no group can be made (version {version}): {why}"), advice);
    }
    if missing.is_empty() {
        return Finding::pass("cgroup controllers", format!("version {version}, with {}", CONTROLLERS.join(", ")));
    }
    let advice = "limits of pods that need them have no effect; turn them on at the kernel's command line (cgroup_enable=), or have them delegated";
    Finding::warn("cgroup controllers", format!("version {version}, without {}", missing.join(", ")), advice)
}

/// The findings; the minimums of free space are the default eviction thresholds.
pub(super) fn findings(facts: &MachineFacts) -> Vec<Finding> {
    let mut all = Vec::new();
    for (what, room, unit) in [("disk", facts.disk, "bytes"), ("inodes", facts.inodes, "inodes")] {
        // File systems without a fixed number of inodes say 0.
        let Some((free, whole)) = room.filter(|(_, whole)| *whole > 0) else { continue };
        let percent = free.saturating_mul(100) / whole;
        let least = if unit == "bytes" { 10 } else { 5 };
        let seen = format!("{percent} % of the {unit} are free where the data is");
        all.push(if percent < least {
            Finding::warn(what, seen, format!("make room: below {least} % the node evicts pods, or set evictionHard"))
        } else {
            Finding::pass(what, seen)
        });
    }
    for (program, advice) in CONFLICTING_PROGRAMS {
        if facts.programs.iter().any(|p| p == program) {
            all.push(Finding::warn(format!("other programs: {program}"), "it runs on this machine", advice));
        }
    }
    let number = |name: &str| facts.sysctls.get(name).and_then(|v| v.parse::<u64>().ok());
    match number("net/ipv4/ip_forward") {
        Some(0) => all.push(Finding::pass("forwarding", "off; windlass turns net.ipv4.ip_forward on when it starts")),
        Some(_) => all.push(Finding::pass("forwarding", "on")),
        None => all.push(Finding::fail(
            "forwarding",
            "net.ipv4.ip_forward cannot be read",
            "mount /proc with its sys directory: pods reach nothing without forwarding",
        )),
    }
    for (name, least) in
        [("fs/inotify/max_user_instances", 128), ("fs/inotify/max_user_watches", 8192), ("kernel/pid_max", 32_768)]
    {
        let setting = name.replace('/', ".");
        if let Some(value) = number(name).filter(|value| *value < least) {
            let advice =
                format!("set {setting} = {least} or more in /etc/sysctl.d: pods of many processes run out of it");
            all.push(Finding::warn(setting, value.to_string(), advice));
        }
    }
    all.push(if facts.swaps == 0 {
        Finding::pass("swap", "none")
    } else {
        let advice =
            "pods may be swapped out before their limits are reached; swapoff -a and /etc/fstab where that hurts";
        Finding::warn("swap", format!("{} in use", facts.swaps), advice)
    });
    all.push(clock(facts));
    all.push(limits(&facts.cgroups));
    if facts.node_ip_is_loopback {
        let advice = "set nodeIP to an address of this machine: without one nothing outside reaches its pods";
        all.push(Finding::warn("the node's address", "there is no default route, so it is 127.0.0.1", advice));
    }
    all
}
