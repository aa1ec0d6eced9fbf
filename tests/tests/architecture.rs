//! Imports point one way: what each crate may depend on is held by this test.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

/// Who may import whom, as ARCHITECTURE.md says.
const ALLOWED: [(&str, &[&str]); 7] = [
    ("windlass-kit", &[]),
    ("windlass-cadvisor", &["windlass-kit"]),
    ("windlass-proxy", &["windlass-kit"]),
    ("windlass-control", &["windlass-kit"]),
    ("windlass-agent", &["windlass-kit", "windlass-cadvisor"]),
    ("windlass", &["windlass-kit", "windlass-cadvisor", "windlass-proxy", "windlass-control", "windlass-agent"]),
    // The tests meet the program from outside, as a user does.
    ("windlass-tests", &[]),
];

/// Outside crates that only one of ours may use, since it owns that part of the world.
const OWNED: [(&str, &[&str]); 3] =
    [("bollard", &["windlass-agent"]), ("redb", &["windlass-control"]), ("iptables", &["windlass-agent"])];

#[test]
fn imports_point_one_way() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert_eq!(packages.len(), ALLOWED.len(), "a crate is missing from this test's table");
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        let allowed: BTreeSet<&str> = ALLOWED
            .iter()
            .find(|(crate_name, _)| *crate_name == name)
            .unwrap_or_else(|| panic!("{name} is missing from this test's table"))
            .1
            .iter()
            .copied()
            .collect();
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let on = dependency["name"].as_str().expect("a name");
            if on.starts_with("windlass") {
                assert!(allowed.contains(on), "{name} must not import {on}");
            }
            if let Some((_, owners)) = OWNED.iter().find(|(owned, _)| *owned == on) {
                assert!(owners.contains(&name), "{name} must not use {on}; only {owners:?} may");
            }
        }
    }
}
