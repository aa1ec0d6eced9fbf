//! How two texts differ, line by line, as upstream shows it in errors (`k8s.io/apimachinery/pkg/util/diff`): hunks with
//! three lines around each change. Pure.

use std::{fmt::Write as _, ops::Range};

/// Lines that are shown around a change.
const CONTEXT: usize = 3;

/// A change: these lines of the old text became those of the new one.
type Change = (Range<usize>, Range<usize>);

/// The hunks, empty where the texts are the same.
#[must_use]
pub fn line_diff(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let mut same = Vec::new();
    matches(&old, &new, 0..old.len(), 0..new.len(), &mut same);
    let mut text = String::new();
    for hunk in hunks(&changes(&same, old.len(), new.len())) {
        write_hunk(&old, &new, hunk, &mut text);
    }
    text
}

/// Collects places and lengths of what is the same: the longest run first, then what is before and after it.
fn matches(old: &[&str], new: &[&str], a: Range<usize>, b: Range<usize>, found: &mut Vec<(usize, usize, usize)>) {
    let mut best = (a.start, b.start, 0);
    for i in a.clone() {
        for j in b.clone() {
            let run = old[i..a.end].iter().zip(&new[j..b.end]).take_while(|(old, new)| old == new).count();
            if run > best.2 {
                best = (i, j, run);
            }
        }
    }
    let (i, j, length) = best;
    if length > 0 {
        matches(old, new, a.start..i, b.start..j, found);
        found.push(best);
        matches(old, new, i + length..a.end, j + length..b.end, found);
    }
}

/// What is between the runs that are the same.
fn changes(same: &[(usize, usize, usize)], old: usize, new: usize) -> Vec<Change> {
    let (mut i, mut j, mut changes) = (0, 0, Vec::new());
    for &(a, b, length) in same.iter().chain([&(old, new, 0)]) {
        if i < a || j < b {
            changes.push((i..a, j..b));
        }
        (i, j) = (a + length, b + length);
    }
    changes
}

/// Changes whose surroundings touch are shown together.
fn hunks(changes: &[Change]) -> impl Iterator<Item = &[Change]> {
    changes.chunk_by(|one, next| next.0.start - one.0.end <= 2 * CONTEXT)
}

/// The lines of a hunk in one of the texts, counted from 1.
fn place(lines: Range<usize>) -> String {
    match lines.len() {
        1 => format!("{}", lines.start + 1),
        0 => format!("{},0", lines.start),
        length => format!("{},{length}", lines.start + 1),
    }
}

fn write_hunk(old: &[&str], new: &[&str], hunk: &[Change], text: &mut String) {
    let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { return };
    let before = first.0.start.min(CONTEXT);
    let after = (old.len() - last.0.end).min(CONTEXT);
    let (from, to) = (first.0.start - before, last.0.end + after);
    let (old_lines, new_lines) = (from..to, first.1.start - before..last.1.end + after);
    // Writing to a text cannot fail.
    let _ = writeln!(text, "@@ -{} +{} @@", place(old_lines), place(new_lines));
    let mut write = |sign: char, lines: &[&str]| {
        for line in lines {
            let _ = writeln!(text, "{sign}{line}");
        }
    };
    let mut at = from;
    for (removed, added) in hunk {
        write(' ', &old[at..removed.start]);
        write('-', &old[removed.clone()]);
        write('+', &new[added.clone()]);
        at = removed.end;
    }
    write(' ', &old[at..to]);
}

#[cfg(test)]
mod tests {
    use super::line_diff;

    #[test]
    fn hunks_have_three_lines_around_a_change() {
        let rows = [
            ("a\nb", "a\nb", ""),
            ("a", "b", "@@ -1 +1 @@\n-a\n+b\n"),
            ("", "a", "@@ -0,0 +1 @@\n+a\n"),
            ("1\n2\n3\n4\n5\n6\n7\n8\n9", "1\n2\n3\n4\n6\n7\n8\n9", "@@ -2,7 +2,6 @@\n 2\n 3\n 4\n-5\n 6\n 7\n 8\n"),
            ("a\nx\nb\nc", "a\nb\ny\nc", "@@ -1,4 +1,4 @@\n a\n-x\n b\n+y\n c\n"),
            (
                "x\n1\n2\n3\n4\n5\n6\n7\ny",
                "z\n1\n2\n3\n4\n5\n6\n7\nw",
                "@@ -1,4 +1,4 @@\n-x\n+z\n 1\n 2\n 3\n@@ -6,4 +6,4 @@\n 5\n 6\n 7\n-y\n+w\n",
            ),
        ];
        for (old, new, wanted) in rows {
            assert_eq!(line_diff(old, new), wanted, "{old:?} {new:?}");
        }
    }
}
