//! Facts about the machine that pods depend on.

use std::path::Path;

/// The capability that a negative OOM score needs.
const CAP_SYS_RESOURCE: u64 = 24;

/// Bytes of memory of the machine.
pub(crate) fn total_memory() -> i64 {
    use procfs::Current as _;
    procfs::Meminfo::current().ok().and_then(|m| i64::try_from(m.mem_total).ok()).unwrap_or(0)
}

/// The upstream name servers of systemd-resolved.
const RESOLVED_CONF: &str = "/run/systemd/resolve/resolv.conf";

/// The resolv.conf that pods get the host's name servers from: the `configured` one, `None` where that is empty.
/// Without configuration it is /etc/resolv.conf, or systemd-resolved's own file where that one names its stub on a
/// loopback address, which does not exist in a pod.
///
/// # Errors
/// When the configured file cannot be read.
pub(crate) fn resolv_conf(configured: Option<&Path>) -> Result<Option<String>, String> {
    match configured {
        Some(none) if none.as_os_str().is_empty() => Ok(None),
        Some(path) => match std::fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(e) => Err(format!("failed to read resolvConf {}: {e}", path.display())),
        },
        None => Ok(Some(choose(read("/etc/resolv.conf"), || std::fs::read_to_string(RESOLVED_CONF).ok()))),
    }
}

fn choose(usual: String, upstream: impl FnOnce() -> Option<String>) -> String {
    // The addresses of systemd-resolved's stub.
    let is_stub = |line: &str| {
        let mut words = line.split_whitespace();
        words.next() == Some("nameserver") && matches!(words.next(), Some("127.0.0.53" | "127.0.0.54"))
    };
    if usual.lines().any(is_stub) { upstream().unwrap_or(usual) } else { usual }
}

/// The host's /etc/hosts as it is now.
pub(crate) fn hosts() -> String {
    read("/etc/hosts")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The AppArmor profiles that are loaded; none on a kernel without AppArmor.
pub(crate) fn app_armor_profiles() -> std::collections::BTreeSet<String> {
    let text = std::fs::read_to_string("/sys/kernel/security/apparmor/profiles").unwrap_or_default();
    // Each line is a name and its mode: `docker-default (enforce)`.
    text.lines().filter_map(|line| Some(line.rsplit_once(" (")?.0.to_owned())).collect()
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
    fn the_name_servers_behind_the_stub() {
        let stub = "# by systemd-resolved\nnameserver 127.0.0.53\noptions edns0\nsearch example.com\n";
        let real = || Some("nameserver 192.0.2.53\nsearch example.com\n".to_owned());
        assert_eq!(choose(stub.to_owned(), real), real().unwrap());
        assert_eq!(choose(stub.to_owned(), || None), stub, "what else is there");
        let own = "nameserver 127.0.0.1\n";
        assert_eq!(choose(own.to_owned(), real), own, "a name server of somebody's own");
    }

    #[test]
    fn the_file_that_is_set() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        assert!(resolv_conf(Some(&path)).unwrap_err().contains("resolvConf"));
        for text in ["nameserver 192.0.2.1\n", "nameserver 192.0.2.2\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(resolv_conf(Some(&path)).unwrap().as_deref(), Some(text), "read anew");
        }
        assert_eq!(resolv_conf(Some(Path::new(""))), Ok(None));
    }

    #[test]
    fn the_effective_set_decides() {
        assert!(has_capability("Name:\tx\nCapEff:\t000001ffffffffff\n", 24));
        assert!(!has_capability("CapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n", 24));
        assert!(!has_capability("", 24));
    }
}
