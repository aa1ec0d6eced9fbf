//! The text of an expression, and errors that point into it as cel-go's do (`common/source.go`, `common/error.go`).

/// At most so many errors of one expression are reported; cel-go's `maxErrorsToReport`.
const MAX_ERRORS: usize = 100;
/// A longer line is not shown; cel-go's `maxSnippetLength`.
const MAX_SNIPPET: usize = 16_384;

/// A position: the line from 1 on, the column in characters from 0 on; both -1 if there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location {
    line: i32,
    column: i32,
}

impl Location {
    /// What concerns the whole expression.
    pub(crate) const NONE: Self = Self { line: -1, column: -1 };
}

/// An expression's text.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    text: &'a str,
}

impl<'a> Source<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text }
    }

    pub(crate) const fn text(&self) -> &'a str {
        self.text
    }

    /// The position of the character at a byte offset.
    pub(crate) fn location(&self, offset: usize) -> Location {
        if self.text.is_empty() {
            // To ANTLR the end of an empty text is left of it.
            return Location { line: 1, column: -1 };
        }
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
        Location { line: narrow(line + 1), column: narrow(column) }
    }

    fn line(&self, line: i32) -> Option<&'a str> {
        let index = usize::try_from(line).ok()?.checked_sub(1)?;
        self.text.split('\n').nth(index).filter(|_| !self.text.is_empty())
    }
}

fn narrow(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// What was found wrong with an expression, in the order in which it was found.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    found: Vec<(Location, String)>,
    /// How many there were, also those that are not kept.
    count: usize,
}

impl Errors {
    /// Notes an error. Where it is takes time to find out, which is spared for those that are not shown.
    pub(crate) fn report(&mut self, location: impl FnOnce() -> Location, message: impl Into<String>) {
        self.count += 1;
        if self.count <= MAX_ERRORS {
            self.found.push((location(), message.into()));
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All errors by position, each with the line that it is about: `ERROR: <input>:1:5: …`; cel-go's `ToDisplayString`.
    pub(crate) fn display(mut self, source: &Source<'_>) -> String {
        self.found.sort_by_key(|(location, _)| *location);
        let mut lines: Vec<String> = self.found.iter().map(|(at, message)| display(source, *at, message)).collect();
        if self.count > MAX_ERRORS {
            lines.push(format!("{} more errors were truncated", self.count - MAX_ERRORS));
        }
        lines.join("\n")
    }
}

fn display(source: &Source<'_>, at: Location, message: &str) -> String {
    let mut text = format!("ERROR: <input>:{}:{}: {message}", at.line, at.column + 1);
    let Some(line) = source.line(at.line).filter(|line| line.len() <= MAX_SNIPPET) else { return text };
    let line = line.replace('\t', " ");
    text.push_str("\n | ");
    text.push_str(&line);
    text.push_str("\n | ");
    let mut chars = line.chars();
    for c in chars.by_ref().take(usize::try_from(at.column).unwrap_or(0)) {
        text.push(if c.len_utf8() > 1 { '\u{ff0e}' } else { '.' });
    }
    text.push(if chars.next().is_some_and(|c| c.len_utf8() > 1) { '\u{ff3e}' } else { '^' });
    text
}
