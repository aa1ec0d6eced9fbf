//! What is wrong with a configuration file, each with its line: all of it at once. Pure.

use super::{
    file::File,
    names::{names, nearest},
};

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Counted from 1; none for the file as a whole.
    pub(crate) line: Option<usize>,
    pub(crate) reason: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

/// A setting at the top of a file: its name, its first line counted from 0, and its text.
struct Part<'a> {
    name: &'a str,
    begins: usize,
    text: String,
}

/// Splits a file at the names that stand at the beginning of a line.
fn parts(text: &str) -> Vec<Part<'_>> {
    let mut all: Vec<Part<'_>> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let begins = line.starts_with(|c: char| c.is_ascii_alphabetic() || c == '"' || c == '\'');
        if let Some((name, _)) = line.split_once(':').filter(|_| begins) {
            all.push(Part { name: name.trim().trim_matches(['"', '\'']), begins: at, text: String::new() });
        }
        if let Some(part) = all.last_mut() {
            part.text.push_str(line);
            part.text.push('\n');
        }
    }
    all
}

/// What cannot be read; what settings mean together is judged elsewhere.
pub(super) fn problems(text: &str) -> Vec<Problem> {
    let known = names::<File>();
    let mut all = Vec::new();
    for part in parts(text) {
        let line = Some(part.begins + 1);
        if !known.contains(&part.name) {
            let hint = nearest(part.name, known).map(|name| format!("; did you mean {name:?}?"));
            let reason = format!("there is no setting {:?}{}", part.name, hint.unwrap_or_default());
            all.push(Problem { line, reason });
        } else if let Err(error) = serde_saphyr::from_str::<File>(&part.text) {
            let (inside, why) = told(&error.to_string());
            all.push(Problem { line: line.map(|l| l + inside), reason: format!("{}: {why}", part.name) });
        }
    }
    // Text that is no list of settings at all, or one where a name stands twice.
    if all.is_empty()
        && let Err(error) = serde_saphyr::from_str::<File>(text)
    {
        let (inside, reason) = told(&error.to_string());
        all.push(Problem { line: Some(inside + 1), reason });
    }
    all
}

/// Lines before the place, and the reason, out of the reader's report: `error: line 2 column 9: reason` and an excerpt.
fn told(report: &str) -> (usize, String) {
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

/// A problem of the settings together, with the line of the setting that it begins with.
pub(super) fn placed(text: &str, problem: String) -> Problem {
    let name = problem.split(' ').next().unwrap_or("");
    let line = parts(text).iter().find(|part| part.name == name).map(|part| part.begins + 1);
    Problem { line, reason: problem }
}
