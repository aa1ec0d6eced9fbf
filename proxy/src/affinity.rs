//! How many clients session affinity remembers: xt_recent keeps a fixed number per endpoint and forgets the oldest for
//! a new one, which is then sent to another endpoint. Nothing else reports this.

use std::{fs, path::Path};

const LISTS: &str = "/proc/thread-self/net/xt_recent";
const LIST_SIZE: &str = "/sys/module/xt_recent/parameters/ip_list_tot";
/// The chains of endpoints, by whose names the lists go.
const PREFIX: &str = "KUBE-SEP-";

/// The number of endpoints in this thread's network namespace whose list of clients is full, and how many clients one
/// has room for; `None` if none is full.
pub(crate) fn full_lists() -> Option<(usize, usize)> {
    full_lists_in(Path::new(LISTS), fs::read_to_string(LIST_SIZE).ok()?.trim().parse().ok()?)
}

fn full_lists_in(lists: &Path, size: usize) -> Option<(usize, usize)> {
    let of_endpoints = fs::read_dir(lists)
        .ok()?
        .flatten()
        .filter(|list| list.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)));
    let full = of_endpoints.filter(|list| {
        fs::read(list.path()).is_ok_and(|text| text.iter().filter(|byte| **byte == b'\n').count() >= size)
    });
    Some(full.count()).filter(|count| *count > 0).map(|count| (count, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_lists_of_endpoints_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let list = |name: &str, clients: usize| {
            let line = "src=10.0.0.2 ttl: 64 last_seen: 4295 oldest_pkt: 1 4295\n";
            std::fs::write(dir.path().join(name), line.repeat(clients)).unwrap();
        };
        list("KUBE-SEP-AAAAAAAAAAAAAAAA", 99);
        list("SSH", 100);
        assert_eq!(full_lists_in(dir.path(), 100), None);
        list("KUBE-SEP-BBBBBBBBBBBBBBBB", 100);
        assert_eq!(full_lists_in(dir.path(), 100), Some((1, 100)));
        assert_eq!(full_lists_in(&dir.path().join("none"), 100), None);
    }
}
