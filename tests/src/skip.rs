//! Tests that a machine cannot run are skipped by name, once, and reported; skipping anything else is a failure.

use std::{fs::OpenOptions, io::Write as _};

/// Names what may be left out, separated by commas: those names and no others, so that nothing may be where it is empty, as at
/// night. Where it is not set, what is in [`MAY_LACK`].
const ALLOWED: &str = "WINDLASS_ALLOW_SKIP";
/// The file to which `scripts/test.sh` has everything written that was left out.
const LIST: &str = "WINDLASS_SKIPS";

/// What any machine may lack, and the tier that has it.
pub const MAY_LACK: [(&str, &str); 6] = [
    (
        "control-plane",
        "a real control plane (KUBEBUILDER_ASSETS): make test-nightly, with recordings of it in make test",
    ),
    (
        "sample-apiserver",
        "upstream's sample extension API server (sample-apiserver and etcd in KUBEBUILDER_ASSETS): make test-nightly, with an extension of the tests' own in make test",
    ),
    ("go-client", "a program of client-go (GO_CLIENT): make test-nightly, with recordings of it in make test"),
    ("apparmor", "a kernel with AppArmor: make test-boot; that a profile is refused without it is tested in its place"),
    (
        "judges",
        "upstream's end-to-end suite and operators (JUDGES, TEKTON): make test-judges, with recorded webhooks of an operator in make test",
    ),
    ("upstream-tree", "a tree of upstream's sources: make test-nightly, with tables of it in make test"),
];

/// Leaves out what needs the thing of this name, which this machine does not have.
///
/// # Panics
/// When the skip is not allowed: the machine should have it.
pub fn skip(name: &str, why: &str) {
    let asked = std::env::var(ALLOWED).ok();
    let allowed = match &asked {
        Some(names) => names.split(',').any(|one| one.trim() == name),
        None => MAY_LACK.iter().any(|(one, _)| *one == name),
    };
    assert!(allowed, "{name} may not be left out here, but {why}; {ALLOWED}={name} allows it");
    let line = format!("{name}: {why}");
    println!("WARNING: left out: {line}");
    if let Some(list) = std::env::var_os(LIST) {
        let written = OpenOptions::new().append(true).create(true).open(&list).and_then(|mut f| writeln!(f, "{line}"));
        written.unwrap_or_else(|e| panic!("{}: {e}", list.to_string_lossy()));
    }
}
