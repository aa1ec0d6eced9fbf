//! Facts about the machine that pods depend on.

use std::path::Path;

/// The capability that a negative OOM score needs.
const CAP_SYS_RESOURCE: u64 = 24;

/// Bytes of memory and of swap of the machine.
pub(crate) fn total_memory_and_swap() -> (i64, i64) {
    use procfs::Current as _;
    let Ok(all) = procfs::Meminfo::current() else { return (0, 0) };
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(0);
    (bytes(all.mem_total), bytes(all.swap_total))
}

/// The host's /etc/hosts as it is now.
pub(crate) fn hosts() -> String {
    std::fs::read_to_string("/etc/hosts").unwrap_or_default()
}

/// Whether the kernel confines processes by AppArmor, as upstream finds out.
pub(crate) fn app_armor_enabled() -> bool {
    Path::new("/sys/kernel/security/apparmor").exists()
        && std::fs::read("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.first() == Some(&b'Y'))
}

/// The Docker configuration files of the node: credentials that all its pods may use.
pub(crate) fn docker_configs(data_dir: &Path) -> Vec<serde_json::Value> {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".docker/config.json"));
    let read = |path: std::path::PathBuf| serde_json::from_slice(&std::fs::read(path).ok()?).ok();
    [data_dir.join("config.json")].into_iter().chain(home).filter_map(read).collect()
}

/// Whether containers can be given a negative OOM score: Docker Engine must have the capability. Without it a container
/// with such a score fails to start.
pub(crate) fn negative_oom_allowed() -> bool {
    let holder = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "dockerd"));
    let status = holder.unwrap_or_else(|| "/proc/self".into()).join("status");
    let allowed = std::fs::read_to_string(status).is_ok_and(|text| has_capability(&text, CAP_SYS_RESOURCE));
    if !allowed {
        tracing::warn!(
            "Docker Engine lacks CAP_SYS_RESOURCE; setting no negative OOM scores, so the OOM killer does not spare guaranteed pods"
        );
    }
    allowed
}

fn has_capability(status: &str, bit: u64) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|set| set & (1 << bit) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_set_decides() {
        assert!(has_capability("Name:\tx\nCapEff:\t000001ffffffffff\n", 24));
        assert!(!has_capability("CapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n", 24));
        assert!(!has_capability("", 24));
    }
}
