//! The keys of a configuration file, and the problems of each with its line. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Problem, field_names::nearest, settings_table};

/// A top-level key of a file.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: String,
    /// Its first line, counted from 0; unknown in a file that is no list of lines, such as one of JSON.
    pub(super) line: Option<usize>,
    /// The key with its value.
    pub(super) text: String,
}

impl Key {
    /// A key whose place is not known.
    pub(super) fn of_value(name: &str, value: &Value) -> Self {
        Self { name: name.to_owned(), line: None, text: format!("{}: {value}", Value::from(name)) }
    }

    /// Something about it that its text begins with.
    pub(super) fn found(&self, reason: String) -> Problem {
        Problem { line: self.line.map(|line| line + 1), reason }
    }

    /// What is wrong with it, by the parser's report.
    pub(super) fn problem(&self, report: &str) -> Problem {
        let (inside, why) = parse_report(report);
        Problem { line: self.line.map(|line| line + 1 + inside), reason: format!("{}: {why}", self.name) }
    }

    /// There is no such setting.
    pub(super) fn unknown(&self) -> Problem {
        let names: Vec<&str> =
            settings_table::of_file().map(|setting| setting.name).chain(["apiVersion", "kind"]).collect();
        let hint = nearest(&self.name, &names).map(|name| format!("; did you mean {name:?}?"));
        self.found(format!("there is no setting {:?}{}", self.name, hint.unwrap_or_default()))
    }
}

/// Splits a file at the keys at the beginning of a line.
fn by_lines(text: &str) -> Vec<Key> {
    let mut all: Vec<Key> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let is_key = line.starts_with(|c: char| c.is_ascii_alphabetic() || c == '"' || c == '\'');
        if let Some((name, _)) = line.split_once(':').filter(|_| is_key) {
            let name = name.trim().trim_matches(['"', '\'']).to_owned();
            all.push(Key { name, line: Some(at), text: String::new() });
        }
        if let Some(key) = all.last_mut() {
            key.text.push_str(line);
            key.text.push('\n');
        }
    }
    all
}

/// The keys of a file.
///
/// # Errors
/// When it is not a mapping, or has a key twice.
pub(super) fn keys(text: &str) -> Result<Vec<Key>, Vec<Problem>> {
    let by_lines = by_lines(text);
    let all: Map<String, Value> = match serde_saphyr::from_str(text) {
        Ok(all) => all,
        Err(error) => {
            let (inside, reason) = parse_report(&error.to_string());
            return Err(vec![Problem { line: Some(inside + 1), reason }]);
        }
    };
    let found: BTreeSet<&str> = by_lines.iter().map(|key| key.name.as_str()).collect();
    if found == all.keys().map(String::as_str).collect() {
        return Ok(by_lines);
    }
    Ok(all.iter().map(|(name, value)| Key::of_value(name, value)).collect())
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
    let line = by_lines(text).iter().find(|part| part.name == name).and_then(|part| part.line).map(|line| line + 1);
    Problem { line, reason: problem }
}
