//! Facts about the machine that pods depend on.

use std::{
    io,
    path::{Path, PathBuf},
};

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

/// The node's Docker configuration files: credentials that all its pods may use. Unreadable or malformed files are
/// logged.
pub(crate) fn docker_configs(data_dir: &Path) -> Vec<serde_json::Value> {
    let (here, home) = (std::env::current_dir().unwrap_or_else(|_| "/".into()), std::env::var_os("HOME"));
    let places = docker_config_places(data_dir, &here, home.as_deref().map(Path::new), Path::new("/"));
    let read = |(path, is_old): (PathBuf, bool)| match read_docker_config(&path, is_old) {
        Ok(config) => config,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "registry logins cannot be read; images are pulled without them");
            None
        }
    };
    places.into_iter().filter_map(read).collect()
}

/// Where registry logins are looked for, in upstream's order (`credentialprovider.DefaultDockerConfigJSONPaths`), and whether a
/// file is in the old form. A service of the system has no home.
fn docker_config_places(data_dir: &Path, here: &Path, home: Option<&Path>, root: &Path) -> Vec<(PathBuf, bool)> {
    let homes: Vec<&Path> = home.into_iter().chain([root]).collect();
    let dirs = || [data_dir, here].into_iter();
    let new = dirs().map(Path::to_owned).chain(homes.iter().map(|dir| dir.join(".docker")));
    let new = new.map(|dir| (dir.join("config.json"), false));
    let old = dirs().chain(homes.iter().copied()).map(|dir| (dir.join(".dockercfg"), true));
    let mut places: Vec<(PathBuf, bool)> = Vec::new();
    for place in new.chain(old) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// The file's content in the new form; nothing if there is no such file.
fn read_docker_config(path: &Path, is_old: bool) -> io::Result<Option<serde_json::Value>> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let read: serde_json::Value = serde_json::from_slice(&text)?;
    if !read.is_object() {
        return Err(io::Error::other("it is no JSON object"));
    }
    Ok(Some(if is_old { serde_json::json!({"auths": read}) } else { read }))
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
    fn registry_logins_are_found_where_upstream_looks() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let write = |name: &str, text: &str| {
            let path = at(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("data/config.json", r#"{"auths":{"a.example":{"auth":"YTpi"}}}"#);
        write("home/.docker/config.json", "[]");
        write(".docker/config.json", "not JSON");
        write("home/.dockercfg", r#"{"old.example":{"auth":"YTpi"}}"#);
        let (data, here, home) = (at("data"), at("here"), at("home"));
        let read = |home| {
            let places = docker_config_places(&data, &here, home, root.path()).into_iter();
            let read = places.map(|(path, is_old)| {
                let name = path.strip_prefix(root.path()).unwrap().display().to_string();
                (name, read_docker_config(&path, is_old).map_err(|e| e.to_string()))
            });
            read.filter(|(_, read)| *read != Ok(None)).collect::<Vec<_>>()
        };
        let all = read(Some(&*home));
        let names: Vec<&str> = all.iter().map(|(name, _)| &**name).collect();
        let expected = ["data/config.json", "home/.docker/config.json", ".docker/config.json", "home/.dockercfg"];
        assert_eq!(names, expected);
        let auths = |at: usize| all[at].1.as_ref().ok().and_then(|read| read.as_ref()?["auths"].as_object().cloned());
        assert!(auths(0).unwrap().contains_key("a.example") && auths(3).unwrap().contains_key("old.example"));
        assert!(all[1].1.is_err() && all[2].1.is_err(), "{all:?}");
        // Started by systemd: no home, and no place twice.
        let names: Vec<String> = read(None).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["data/config.json", ".docker/config.json"]);
        assert_eq!(docker_config_places(Path::new("/d"), Path::new("/"), None, Path::new("/")).len(), 5);
    }

    #[test]
    fn the_effective_set_decides() {
        assert!(has_capability("Name:\tx\nCapEff:\t000001ffffffffff\n", 24));
        assert!(!has_capability("CapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n", 24));
        assert!(!has_capability("", 24));
    }
}
