//! The program's dependencies: their number, and where `unsafe` code is.

use std::{fs, path::Path};

use windlass_tests::sources::{repository, rust_sources};

/// The number of packages of others in the lock file. A higher number is a decision, and needs a reason: those of the survey, and
/// hickory-proto with what it brings.
const MAX_PACKAGES: usize = 391;

/// Every `unsafe` of this project by file: the number, and why it is necessary.
const UNSAFE: [(&str, usize, &str); 1] = [(
    "agent/pause/pause.rs",
    3,
    "a program without libc: two system calls, one for each processor, and the entry point's name",
)];

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn the_lock_file_stays_below_its_maximum() {
    let lock = read(&repository().join("Cargo.lock"));
    let packages = lock.lines().filter(|line| line.starts_with("source = ")).count();
    assert!(packages > 100, "the lock file is read wrongly: {packages} packages");
    assert!(packages <= MAX_PACKAGES, "{packages} packages in Cargo.lock; {MAX_PACKAGES} are allowed");
}

/// Each exception has a date of its last review.
#[test]
fn second_versions_are_excepted_with_a_date() {
    let deny = read(&repository().join("deny.toml"));
    let skipped: Vec<&str> = deny.lines().skip_while(|l| !l.starts_with("skip = [")).skip(1).collect();
    let skipped: Vec<&str> = skipped.into_iter().take_while(|l| *l != "]").collect();
    assert!(!skipped.is_empty(), "deny.toml is read wrongly");
    for line in skipped {
        let date = line.split_once("(looked at ").and_then(|(_, rest)| rest.split_once(')')).map(|(date, _)| date);
        let is_date = date.is_some_and(|d| d.len() == 10 && d.split('-').all(|part| part.parse::<u16>().is_ok()));
        assert!(is_date, "no day in: {line}");
    }
}

/// Lines with the word in code, not in a string or comment.
fn unsafe_lines(text: &str) -> Vec<usize> {
    let is_word = |line: &str| {
        let code = line.split_once("//").map_or(line, |(code, _)| code);
        // Strings are skipped.
        let code: String = code.split('"').step_by(2).collect();
        code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
    };
    text.lines().enumerate().filter(|(_, line)| is_word(line)).map(|(at, _)| at).collect()
}

#[test]
fn unsafe_is_counted_and_each_is_justified() {
    let sources = rust_sources();
    assert!(sources.len() > 100, "only {} files were found", sources.len());
    let mut counted = [0; UNSAFE.len()];
    for (name, text) in sources {
        let lines: Vec<&str> = text.lines().collect();
        for at in unsafe_lines(&text) {
            let allowed = UNSAFE.iter().position(|(file, ..)| *file == name);
            let allowed = allowed.unwrap_or_else(|| panic!("{name}:{} is unsafe and not in this test's table", at + 1));
            counted[allowed] += 1;
            let before = lines[at.saturating_sub(3)..at].iter().any(|line| line.trim().starts_with("// SAFETY: "));
            assert!(before, "{name}:{} has no `// SAFETY: ` above it", at + 1);
        }
    }
    let stated = UNSAFE.map(|(_, count, _)| count);
    assert_eq!(counted, stated, "this test's table counts wrongly");
}

/// The compiler forbids it too, in each crate that takes the workspace's lints.
#[test]
fn every_crate_takes_the_workspaces_lints() {
    let manifest = read(&repository().join("Cargo.toml"));
    assert!(manifest.contains("unsafe_code = \"forbid\""), "the workspace allows unsafe code");
    let members = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).expect("members").0;
    let members: Vec<&str> = members.split(',').map(|member| member.trim().trim_matches('"')).collect();
    assert!(members.len() > 15, "only {members:?} were found");
    for member in members {
        let own = read(&repository().join(member).join("Cargo.toml"));
        assert!(own.contains("[lints]\nworkspace = true"), "{member} has lints of its own");
    }
}

#[test]
fn unsafe_in_text_and_comments_does_not_count() {
    let text = "unsafe {\n// unsafe\nlet a = \"unsafe\";\nnot_unsafe();\n#[unsafe(no_mangle)]\n";
    assert_eq!(unsafe_lines(text), [0, 4]);
}

/// Both lock files: what is fuzzed is built of dependencies, too, and CI runs it.
#[test]
fn both_locks_are_looked_at() {
    let makefile = read(&repository().join("Makefile"));
    let recipe = |target: &str| -> Vec<&str> {
        let lines = makefile.lines().skip_while(|line| !line.starts_with(&format!("{target}:"))).skip(1);
        lines.take_while(|line| line.starts_with('\t')).map(str::trim).collect()
    };
    // For each tool that reads a lock: once for the workspace, once for the fuzz targets, otherwise alike.
    let of_fuzz = [" --manifest-path fuzz/Cargo.toml", " --config deny.toml", " --file fuzz/Cargo.lock"];
    let mut tools = 0;
    for target in ["lint-dependencies", "audit"] {
        let lines = recipe(target);
        let reads_lock =
            |line: &&&str| ["cargo-deny", "cargo-audit", "cargo fetch"].iter().any(|tool| line.contains(tool));
        let (fuzz, own): (Vec<&&str>, Vec<&&str>) =
            lines.iter().filter(reads_lock).partition(|line| line.contains("fuzz/"));
        let fuzz: Vec<String> = fuzz
            .into_iter()
            .map(|line| of_fuzz.iter().fold((*line).to_owned(), |line, part| line.replace(part, "")))
            .collect();
        assert_eq!(fuzz, own.iter().map(|line| (**line).to_owned()).collect::<Vec<_>>(), "make {target}");
        tools += own.len();
    }
    assert_eq!(tools, 4, "fetch and licences in lint, cargo-deny and cargo-audit in audit");
}
