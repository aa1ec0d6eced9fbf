//! How files lie, and how long they are.

use std::collections::BTreeSet;

use windlass_tests::sources::rust_sources;

/// A module with children is `name/mod.rs`, never `name.rs` next to `name/`.
#[test]
fn a_module_with_children_is_a_directory() {
    let sources = rust_sources();
    let paths: BTreeSet<&str> = sources.iter().map(|(path, _)| path.as_str()).filter(|p| p.contains("/src/")).collect();
    for path in &paths {
        let (dir, _) = path.rsplit_once('/').expect("a path below src");
        assert!(
            !paths.contains(format!("{dir}.rs").as_str()),
            "{dir}.rs stands beside {dir}/: move it to {dir}/mod.rs"
        );
        let roots = ["mod.rs", "lib.rs", "main.rs"];
        let is_module = roots.iter().any(|root| paths.contains(format!("{dir}/{root}").as_str()));
        assert!(is_module || dir.ends_with("/tests"), "{dir} has no mod.rs");
    }
}

/// Files that may be longer than [`MAX_LINES`], each with the reason.
const LONG_FILES: [(&str, &str); 0] = [];

const MAX_LINES: usize = 500;

#[test]
fn files_are_short() {
    let sources = rust_sources();
    let is_long = |text: &str| text.lines().count() > MAX_LINES;
    for (path, text) in &sources {
        let excepted = LONG_FILES.iter().any(|(file, _)| file == path);
        assert!(!is_long(text) || excepted, "{path} has {} lines; split it by subject", text.lines().count());
        assert!(is_long(text) || !excepted, "{path} is short again; remove it from this test's list");
    }
    for (file, _) in LONG_FILES {
        assert!(sources.iter().any(|(path, _)| path == file), "{file} does not exist");
    }
}
