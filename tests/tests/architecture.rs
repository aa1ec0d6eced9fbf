//! Imports point one way: what each crate may depend on is held by this test.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use serde_json::Value;

/// Who may import whom, as ARCHITECTURE.md says.
const ALLOWED: [(&str, &[&str]); 7] = [
    ("windlass-kit", &[]),
    ("windlass-cadvisor", &["windlass-kit"]),
    ("windlass-proxy", &["windlass-kit"]),
    // Its tests compare it with a real control plane, which the tests' library starts.
    ("windlass-control", &["windlass-kit", "windlass-tests"]),
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

/// Every crate of a build of the whole workspace with the features that it gets; more than once, where it is built for
/// programs that build others too.
fn features(edges: &str) -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--workspace",
            "--offline",
            "--prefix=none",
            "--no-dedupe",
            "--format={p}\t{f}",
            "--edges",
            edges,
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo tree");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (package, has) in text.lines().filter_map(|line| line.split_once('\t')) {
        found.entry(package.to_owned()).or_default().insert(has.to_owned());
    }
    found
}

/// `make run` takes what `make test` has built: a feature that only tests ask for would build the crate, and all that
/// depend on it, once more.
#[test]
fn tests_and_the_program_are_of_one_build() {
    let (program, tests) = (features("normal,build"), features("normal,build,dev"));
    assert!(program.len() > 100, "{program:?}");
    let differ: Vec<String> = program
        .iter()
        .filter_map(|(package, has)| {
            let wanted = tests.get(package)?;
            (has != wanted).then(|| format!("{package} has the features {has:?} and in tests {wanted:?}"))
        })
        .collect();
    assert_eq!(differ, Vec::<String>::new(), "name them among the dependencies of tests/Cargo.toml");
}
