//! Which crate may import which, and that the program and its tests are of one build.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    sync::LazyLock,
};

use serde_json::Value;
use windlass_tests::sources::repository;

use super::{circles::paths, shipped};

/// A crate of ours, and which of the others it may import, as in ARCHITECTURE.md.
struct Crate {
    name: &'static str,
    imports: &'static [&'static str],
    /// What its tests may stand on besides that.
    in_tests: &'static [&'static str],
}

const fn imports(name: &'static str, imports: &'static [&'static str], in_tests: &'static [&'static str]) -> Crate {
    Crate { name, imports, in_tests }
}

const CRATES: [Crate; 20] = [
    imports("windlass-apimachinery", &[], &[]),
    // Quantities.
    imports("windlass-kit", &["windlass-apimachinery"], &[]),
    // Both for tests alone, see `FOR_TESTS`.
    imports("windlass-fixtures", &[], &[]),
    imports("windlass-model-disk", &["windlass-kit"], &[]),
    // Tests compare pages of metrics with the table that the tests' library has.
    imports("windlass-cadvisor", &["windlass-kit"], &["windlass-tests"]),
    // Who is a client of the API is tested with the real server, in place of one that is kinder.
    imports("windlass-proxy", &["windlass-kit"], &["windlass-control", "windlass-tests"]),
    imports("windlass-agent", &["windlass-kit", "windlass-cadvisor"], &["windlass-control", "windlass-tests"]),
    // The model's disk is called through the kit.
    imports("windlass-store", &[], &["windlass-kit"]),
    imports("windlass-identity", &["windlass-apimachinery", "windlass-kit"], &[]),
    imports("windlass-quota", &["windlass-kit"], &[]),
    imports("windlass-cel", &["windlass-apimachinery"], &[]),
    imports("windlass-scheduler", &["windlass-kit"], &["windlass-test-api"]),
    imports("windlass-dns", &["windlass-kit"], &["windlass-control", "windlass-identity"]),
    imports(
        "windlass-controllers",
        &["windlass-identity", "windlass-kit", "windlass-quota"],
        &["windlass-apimachinery", "windlass-control", "windlass-scheduler", "windlass-test-api", "windlass-tests"],
    ),
    // Its tests compare it with a real control plane, which the tests' library starts, and let its clients run.
    imports(
        "windlass-control",
        &[
            "windlass-apimachinery",
            "windlass-cel",
            "windlass-identity",
            "windlass-kit",
            "windlass-quota",
            "windlass-store",
        ],
        &["windlass-controllers", "windlass-scheduler", "windlass-test-api", "windlass-tests"],
    ),
    // For tests alone.
    imports("windlass-test-api", &["windlass-control", "windlass-store", "windlass-tests"], &[]),
    imports(
        "windlass",
        &[
            "windlass-agent",
            "windlass-cadvisor",
            "windlass-control",
            "windlass-controllers",
            "windlass-dns",
            "windlass-identity",
            "windlass-kit",
            "windlass-proxy",
            "windlass-scheduler",
        ],
        &[],
    ),
    // The tests use the program from outside, like a user.
    imports("windlass-tests", &[], &[]),
    // Benchmarks start nodes like the tests.
    imports("windlass-bench", &["windlass-tests"], &[]),
    // What reads foreign input is everywhere.
    imports(
        "windlass-fuzz-targets",
        &[
            "windlass-agent",
            "windlass-apimachinery",
            "windlass-cel",
            "windlass-control",
            "windlass-dns",
            "windlass-identity",
            "windlass-kit",
            "windlass-proxy",
            "windlass-store",
        ],
        &["windlass-tests"],
    ),
];

/// What the tests of all crates may stand on besides that: facts and files of others, and a model of a disk.
const FOR_TESTS: [&str; 2] = ["windlass-fixtures", "windlass-model-disk"];

/// External crates that only one of ours may use, because it owns that part of the system.
const OWNED: [(&str, &[&str]); 2] = [("bollard", &["windlass-agent"]), ("redb", &["windlass-store"])];

/// The packages of the workspace by name, as Cargo describes them.
static PACKAGES: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = std::mem::take(metadata["packages"].as_array_mut().expect("packages"));
    packages.into_iter().map(|package| (package["name"].as_str().expect("a name").to_owned(), package)).collect()
});

/// What a package depends on, but for its tests: name and features.
fn dependencies(package: &Value) -> impl Iterator<Item = (&str, Vec<&str>)> {
    let all = package["dependencies"].as_array().expect("dependencies").iter();
    all.filter(|dependency| dependency["kind"] != "dev").map(|dependency| {
        let features = dependency["features"].as_array().expect("features").iter().filter_map(Value::as_str);
        (dependency["name"].as_str().expect("a name"), features.collect())
    })
}

/// The directory of a package's sources below the repository, such as `control/store/src/`.
fn sources_of(package: &Value) -> String {
    let manifest = package["manifest_path"].as_str().expect("a path");
    let dir = std::path::Path::new(manifest).parent().expect("a directory");
    let root = repository().canonicalize().expect("the repository");
    let below = dir.strip_prefix(&root).unwrap_or_else(|_| panic!("{manifest} is not below {}", root.display()));
    format!("{}/src/", below.display())
}

/// The directories of what is compiled into the program.
pub(super) fn shipped_sources() -> BTreeSet<String> {
    let (mut found, mut next) = (BTreeSet::new(), vec!["windlass"]);
    while let Some(package) = next.pop().and_then(|name| PACKAGES.get(name)) {
        if found.insert(sources_of(package)) {
            next.extend(dependencies(package).map(|(name, _)| name).filter(|name| PACKAGES.contains_key(*name)));
        }
    }
    found
}

/// A feature that another crate names is there in a build of everything, and missing where one crate is checked alone.
#[test]
fn crates_name_the_features_of_the_kit_that_they_use() {
    let kit = std::fs::read_to_string(repository().join("kit/src/lib.rs")).expect("the kit");
    let lines: Vec<&str> = kit.lines().collect();
    let gates: BTreeMap<&str, &str> = lines
        .windows(2)
        .filter_map(|pair| {
            let feature = pair[0].strip_prefix("#[cfg(feature = \"")?.strip_suffix("\")]")?;
            Some((pair[1].strip_prefix("pub mod ")?.strip_suffix(';')?, feature))
        })
        .collect();
    assert!(gates.len() > 10, "{gates:?}");
    let all = |wanted: &[&str]| -> BTreeSet<String> {
        let (mut found, mut next) = (BTreeSet::new(), wanted.iter().map(ToString::to_string).collect::<Vec<_>>());
        while let Some(feature) = next.pop() {
            let more = PACKAGES["windlass-kit"]["features"][&feature].as_array().into_iter().flatten();
            next.extend(more.filter_map(Value::as_str).map(str::to_owned));
            found.insert(feature);
        }
        found
    };
    let (shipped, mut missing) = (shipped(), BTreeSet::new());
    for package in PACKAGES.values() {
        let Some((_, features)) = dependencies(package).find(|(name, _)| *name == "windlass-kit") else { continue };
        let (sources, has) = (sources_of(package), all(&features));
        for (path, code) in shipped.iter().filter(|(path, _)| path.starts_with(&sources)) {
            let used = paths(code).into_iter().filter(|(_, path)| path.first().is_some_and(|p| p == "windlass_kit"));
            let gated = used.filter_map(|(_, path)| gates.get(path.get(1)?.as_str()));
            missing.extend(gated.filter(|gate| !has.contains(**gate)).map(|gate| format!("{path} needs {gate:?}")));
        }
    }
    assert_eq!(missing, BTreeSet::new(), "to be named in the manifest of the crate");
}

#[test]
fn imports_point_one_way() {
    assert_eq!(PACKAGES.len(), CRATES.len(), "a crate is missing from this test's table");
    for (name, package) in &*PACKAGES {
        let found = CRATES.iter().find(|of| of.name == *name);
        let Crate { imports, in_tests, .. } =
            found.unwrap_or_else(|| panic!("{name} is missing from this test's table"));
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let on = dependency["name"].as_str().expect("a name");
            if on.starts_with("windlass") {
                let of_tests = dependency["kind"] == "dev" && (FOR_TESTS.contains(&on) || in_tests.contains(&on));
                assert!(imports.contains(&on) || of_tests, "{name} must not import {on}");
            }
            if let Some((_, owners)) = OWNED.iter().find(|(owned, _)| *owned == on) {
                assert!(owners.contains(&name.as_str()), "{name} must not use {on}; only {owners:?} may");
            }
        }
    }
}

/// The API machinery knows no kind, no client and no runtime: what compiles without them cannot.
#[test]
fn the_api_machinery_knows_no_kind() {
    let manifest = repository().join("apimachinery/Cargo.toml");
    let text = std::fs::read_to_string(&manifest).unwrap_or_else(|e| panic!("{}: {e}", manifest.display()));
    for name in ["axum", "hyper", "k8s-openapi", "kube", "schemars", "tokio", "tower", "tracing", "windlass-"] {
        // What its tests read of others knows nothing either.
        let depends = text.lines().any(|line| line.starts_with(name) && !line.starts_with("windlass-fixtures"));
        assert!(!depends, "apimachinery must not depend on {name}");
    }
}

/// Every crate of a build of the whole workspace with its features; more than once where host programs need others.
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
        // What stands twice in a tree is marked.
        found.entry(package.to_owned()).or_default().insert(has.trim_end_matches("(*)").trim_end().to_owned());
    }
    found
}

/// `make run` uses the build of `make test`: a feature that only tests enable would rebuild the crate and all its
/// dependents.
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
