//! `docs/promises.md`: what the documentation promises, and the tests that hold it.

use std::{collections::BTreeSet, fs};

use windlass_tests::sources::repository;

const TABLE: &str = "docs/promises.md";

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A text with single spaces, so that it is found however its lines are broken.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The texts between backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Why a test cannot be named, `None` if it can: it does not exist, nothing runs it, or it is ignored.
fn problem(file: &str, name: &str) -> Option<String> {
    let Ok(text) = fs::read_to_string(repository().join(file)) else { return Some(format!("{file} does not exist")) };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_it = |line: &&str| {
        let rest = line.strip_prefix("pub(crate) ").unwrap_or(line);
        let rest = rest.strip_prefix("async ").unwrap_or(rest);
        rest.strip_prefix("fn ").and_then(|rest| rest.strip_prefix(name)).is_some_and(|rest| rest.starts_with('('))
    };
    let Some(at) = lines.iter().position(is_it) else { return Some(format!("{file} has no fn {name}")) };
    let attributes: Vec<&&str> = lines[..at].iter().rev().take_while(|line| line.starts_with("#[")).collect();
    if attributes.iter().any(|line| line.starts_with("#[ignore")) {
        return Some(format!("{file}::{name} is ignored"));
    }
    let is_test = attributes.iter().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"));
    // Those with a harness of their own are listed in a macro.
    let listed = lines.iter().any(|line| line.trim_end_matches(',') == name);
    // A property has its attribute in the macro around it.
    let property = text.contains("proptest! {") && attributes.iter().any(|line| line.starts_with("#[test]"));
    (!is_test && !listed && !property).then(|| format!("{file}::{name} is no test"))
}

/// The rows: sentence, file, and what holds it.
fn rows(text: &str) -> Vec<[String; 3]> {
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = |line: &str| {
        let cells: Vec<String> = line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
        <[String; 3]>::try_from(cells).unwrap_or_else(|cells| panic!("{} cells and not 3: {line}", cells.len()))
    };
    rows.map(cells).collect()
}

#[test]
fn every_promise_stands_where_it_is_said_to_and_is_held() {
    let (table, makefile) = (read(TABLE), read("Makefile"));
    let rows = rows(&table);
    assert!(rows.len() >= 17, "only {} promises were found", rows.len());
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for [sentence, file, held_by] in &rows {
        if !seen.insert(sentence) {
            wrong.push(format!("{sentence:?} is there twice"));
        }
        if !in_one_line(&read(file).replace("**", "")).contains(&in_one_line(sentence)) {
            wrong.push(format!("{file} does not say {sentence:?}"));
        }
        let holders = quoted(held_by);
        let mut holding = 0;
        for holder in &holders {
            if let Some((file, name)) = holder.split_once("::") {
                holding += 1;
                wrong.extend(problem(file, name));
            } else if let Some(target) = holder.strip_prefix("make ") {
                holding += 1;
                if !makefile.lines().any(|line| line.starts_with(&format!("{target}:"))) {
                    wrong.push(format!("the Makefile has no target {target}"));
                }
            }
        }
        if holding == 0 {
            wrong.push(format!("nothing holds {sentence:?}"));
        }
    }
    assert!(wrong.is_empty(), "{TABLE}:\n{}", wrong.join("\n"));
}

/// The invariants of ARCHITECTURE.md name tests, too.
#[test]
fn every_test_that_the_architecture_names_is_one() {
    let text = read("ARCHITECTURE.md");
    let section = text.split("## Invariants").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap_or_default();
    let mut named = 0;
    let mut wrong = Vec::new();
    let mut last_file = String::new();
    for holder in quoted(section) {
        let Some((file, name)) = holder.split_once("::") else { continue };
        let file = match file {
            "architecture.rs" => "tests/tests/architecture.rs",
            file => file,
        };
        if !file.ends_with(".rs") {
            continue;
        }
        file.clone_into(&mut last_file);
        named += 1;
        wrong.extend(problem(file, name));
    }
    assert!(named >= 8, "only {named} tests were found, the last in {last_file:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_no_test_is_told() {
    assert_eq!(problem("tests/tests/promises.rs", "what_is_no_test_is_told"), None);
    for (file, name, why) in [
        ("tests/tests/none.rs", "x", "does not exist"),
        ("tests/tests/promises.rs", "no_such_test", "has no fn"),
        ("tests/tests/promises.rs", "quoted", "is no test"),
        ("control/apiserver/tests/api_process/mod.rs", "the_api_that_is_killed", "is ignored"),
    ] {
        let told = problem(file, name).unwrap_or_default();
        assert!(told.contains(why), "{file}::{name}: {told:?}");
    }
}
