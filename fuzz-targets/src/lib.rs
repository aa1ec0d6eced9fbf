//! Readers of what strangers send, crashes leave and operators write: each target takes any bytes and panics when a property
//! does not hold. The crate `fuzz` gives them to libFuzzer (`make fuzz`); `tests/corpus.rs` runs each over its corpus and what
//! is near to it, with all other tests.

mod der;
mod kernel_state;
mod log_entry;
mod log_reader;
mod manifests;
mod resolv_conf;
mod schemas;
mod store_log;
mod subjects;
mod token;
mod volume_tree;

use std::path::Path;

use windlass_agent::{cri, images, network, server};
use windlass_control::fuzzing as control;

/// A target's name, and what takes its input.
pub type Target = (&'static str, fn(&[u8]));

/// The targets by name. What it is that they read says the module or function that each calls.
pub const TARGETS: [Target; 28] = [
    ("applies", control::applies),
    ("audit_policy", control::audit_policy),
    ("bodies", control::body),
    ("cel", windlass_cel::fuzzing::target),
    ("channel_message", server::fuzzing::channel_message),
    ("cni_answer", network::cni_fuzzing::answer),
    ("cni_configuration", |bytes| text(bytes, network::cni_fuzzing::configuration)),
    ("credential_provider", images::fuzzing::provider),
    ("cri_request", cri::fuzzing::request),
    ("der", der::run),
    ("dns_packets", windlass_dns::fuzzing::packet),
    ("kernel_state", |bytes| text(bytes, kernel_state::run)),
    ("log_entry", log_entry::run),
    ("log_reader", log_reader::run),
    ("manifests", |bytes| text(bytes, manifests::run)),
    ("owners", control::owners),
    ("patches", control::patch),
    ("printer_columns", |bytes| text(bytes, control::printer_columns)),
    ("pull_secret", images::fuzzing::pull_secret),
    ("resolv_conf", |bytes| text(bytes, resolv_conf::run)),
    ("schemas", schemas::run),
    ("selectors", |bytes| text(bytes, control::selectors)),
    ("spdy_connection", server::fuzzing::spdy_connection),
    ("spdy_headers", server::fuzzing::spdy_headers),
    ("store_log", store_log::run),
    ("subjects", subjects::run),
    ("token", token::run),
    ("volume_tree", volume_tree::run),
];

fn text(bytes: &[u8], target: fn(&str)) {
    let _ = std::str::from_utf8(bytes).map(target);
}

/// Gives bytes to the target of this name.
///
/// # Panics
/// When a property does not hold, or there is no such target.
pub fn run(name: &str, bytes: &[u8]) {
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    let (_, target) = found.unwrap_or_else(|| panic!("{name} is none of the targets of fuzz-targets/src/lib.rs"));
    target(bytes);
}

/// What a target begins with: its directory of `corpus`, and golden files of the proxy for those that read such ones.
///
/// # Panics
/// When a file cannot be read.
#[must_use]
pub fn corpus(name: &str) -> Vec<Vec<u8>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = match name {
        "bodies" | "manifests" => ".yaml",
        "kernel_state" => ".save",
        _ => "",
    };
    let mut files = Vec::new();
    for (dir, ending) in [(here.join("corpus").join(name), ""), (here.join("../proxy/tests/golden"), golden)] {
        let own = dir.starts_with(here.join("corpus"));
        let listed = std::fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path());
        files.extend(listed.filter(|path| own || (!ending.is_empty() && path.to_string_lossy().ends_with(ending))));
    }
    files.sort();
    let read = |path: &std::path::PathBuf| std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    files.iter().map(read).collect()
}
