//! Finds all problems of a configuration file, with their lines. Pure.

use super::{
    Problem,
    field_names::{names, nearest},
    file::File,
};

/// A top-level key of a file: its name, its first line counted from 0, and its text.
struct TopLevelKey<'a> {
    name: &'a str,
    line: usize,
    text: String,
}

/// Splits a file at the keys at the beginning of a line.
fn top_level_keys(text: &str) -> Vec<TopLevelKey<'_>> {
    let mut all: Vec<TopLevelKey<'_>> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let is_key = line.starts_with(|c: char| c.is_ascii_alphabetic() || c == '"' || c == '\'');
        if let Some((name, _)) = line.split_once(':').filter(|_| is_key) {
            all.push(TopLevelKey { name: name.trim().trim_matches(['"', '\'']), line: at, text: String::new() });
        }
        if let Some(key) = all.last_mut() {
            key.text.push_str(line);
            key.text.push('\n');
        }
    }
    all
}

/// The problems of single settings; combinations are checked elsewhere.
pub(super) fn problems(text: &str) -> Vec<Problem> {
    let known = names::<File>();
    let mut all = Vec::new();
    for key in top_level_keys(text) {
        let line = Some(key.line + 1);
        if !known.contains(&key.name) {
            let hint = nearest(key.name, known).map(|name| format!("; did you mean {name:?}?"));
            let reason = format!("there is no setting {:?}{}", key.name, hint.unwrap_or_default());
            all.push(Problem { line, reason });
        } else if let Err(error) = serde_saphyr::from_str::<File>(&key.text) {
            let (inside, why) = parse_report(&error.to_string());
            all.push(Problem { line: line.map(|l| l + inside), reason: format!("{}: {why}", key.name) });
        }
    }
    // Not a mapping, or a duplicate key.
    if all.is_empty()
        && let Err(error) = serde_saphyr::from_str::<File>(text)
    {
        let (inside, reason) = parse_report(&error.to_string());
        all.push(Problem { line: Some(inside + 1), reason });
    }
    all
}

/// Splits the parser's report `error: line 2 column 9: reason`, followed by an excerpt, into the lines before and the
/// reason.
fn parse_report(report: &str) -> (usize, String) {
    let first = report.lines().next().unwrap_or("");
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let place = first.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
    match place {
        Some((numbers, reason)) => {
            let line: usize = numbers.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(1);
            (line.saturating_sub(1), reason.to_owned())
        }
        None => (0, first.to_owned()),
    }
}

/// A problem of a combination, with the line of the setting that its text begins with.
pub(super) fn with_line(text: &str, problem: String) -> Problem {
    let name = problem.split(' ').next().unwrap_or("");
    let line = top_level_keys(text).iter().find(|part| part.name == name).map(|part| part.line + 1);
    Problem { line, reason: problem }
}
