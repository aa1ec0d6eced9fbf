//! Tables of kubectl.

use super::normalize::Names;

/// Columns whose cells differ between any two runs.
const TIMES: &[&str] = &["AGE", "DURATION", "LAST SCHEDULE", "NODE"];

/// A table with one space between its columns; `-` for an empty cell. Rows of pods with one generated name are one line.
#[must_use]
pub fn lines_of_table(table: &str, names: &Names) -> String {
    let mut lines = table.lines();
    let Some(header) = lines.next() else { return String::new() };
    let starts = starts_of_columns(header);
    let cells = |line: &str| -> Vec<String> {
        let characters: Vec<char> = line.chars().collect();
        let end = |i: usize| starts.get(i + 1).copied().unwrap_or(usize::MAX).min(characters.len());
        let cell = |i: usize| characters.get(starts[i]..end(i)).unwrap_or_default().iter().collect::<String>();
        (0..starts.len()).map(|i| cell(i).trim().to_owned()).collect()
    };
    let titles = cells(header);
    let mut rows: Vec<String> = lines
        .map(|line| {
            let shown = cells(line).into_iter().zip(&titles).map(|(cell, title)| match cell.as_str() {
                "" => "-".to_owned(),
                _ if TIMES.contains(&title.as_str()) => "*".to_owned(),
                _ => names.normalize(&cell),
            });
            shown.collect::<Vec<_>>().join(" ")
        })
        .collect();
    rows.sort();
    rows.insert(0, titles.join(" "));
    fold(&rows)
}

/// Where columns start: after two or more spaces.
fn starts_of_columns(header: &str) -> Vec<usize> {
    let characters: Vec<char> = header.chars().collect();
    let is_start =
        |i: usize| characters[i] != ' ' && (i == 0 || (i > 1 && characters[i - 1] == ' ' && characters[i - 2] == ' '));
    (0..characters.len()).filter(|i| is_start(*i)).collect()
}

/// Equal neighbours as one line with their number.
pub(super) fn fold(lines: &[String]) -> String {
    let mut text = String::new();
    for group in lines.chunk_by(|a, b| a == b) {
        text += &group[0];
        if group.len() > 1 {
            text += &format!(" (x{})", group.len());
        }
        text.push('\n');
    }
    text
}
