//! What the agent reads of the machine itself.

/// The capability that lowering an OOM score needs.
const CAP_SYS_RESOURCE: u64 = 24;

/// Bytes of memory of the machine.
pub(crate) fn total_memory() -> i64 {
    use procfs::Current as _;
    procfs::Meminfo::current().ok().and_then(|m| i64::try_from(m.mem_total).ok()).unwrap_or(0)
}

/// The AppArmor profiles that the kernel has; none where it has no AppArmor.
pub(crate) fn app_armor_profiles() -> std::collections::BTreeSet<String> {
    let text = std::fs::read_to_string("/sys/kernel/security/apparmor/profiles").unwrap_or_default();
    // Each line is a name and its mode: `docker-default (enforce)`.
    text.lines().filter_map(|line| Some(line.rsplit_once(" (")?.0.to_owned())).collect()
}

/// Docker configurations of the node itself: registries that all its pods may use.
pub(crate) fn docker_configs(data_dir: &std::path::Path) -> Vec<serde_json::Value> {
    let home = std::env::var_os("HOME").map(|home| std::path::Path::new(&home).join(".docker/config.json"));
    let read = |path: std::path::PathBuf| serde_json::from_slice(&std::fs::read(path).ok()?).ok();
    [data_dir.join("config.json")].into_iter().chain(home).filter_map(read).collect()
}

/// Whether containers can be given a negative OOM score: Docker Engine itself must hold the capability.
/// Without it a container with such a score fails to start.
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
            "Docker Engine lacks CAP_SYS_RESOURCE, so negative OOM scores are left out: when memory runs out, \
             guaranteed pods are not spared before others"
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
    use super::has_capability;

    #[test]
    fn the_effective_set_decides() {
        assert!(has_capability("Name:\tx\nCapEff:\t000001ffffffffff\n", 24));
        assert!(!has_capability("CapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n", 24));
        assert!(!has_capability("", 24));
    }
}
