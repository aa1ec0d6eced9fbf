//! Regular expressions of Go (RE2) on the regular expressions of Rust, which differ in classes and escapes.

use std::sync::{Arc, OnceLock};

use regex::Regex;

use crate::effort::Effort;

/// How often parts of an expression may be repeated within each other; Go's limit.
const MAX_REPEAT: u64 = 1000;
/// States that a class of Unicode has, which stands for sequences of bytes.
const UNICODE_CLASS: u64 = 1000;
/// States that one character or class of many characters has, if not all of them are ASCII.
const WIDE_CLASS: u64 = 8;
/// Units of effort for a state that is compiled.
const COMPILE_STATE: u64 = 16;
/// States that are looked at for a byte of a text in one unit, where no automaton without alternatives can be made.
const STATES_PER_UNIT: u64 = 16;

/// A regular expression in Go's syntax, compiled when it is first used.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: Arc<str>,
    /// Nothing if it cannot be compiled: it was refused when it was written, and takes any text.
    compiled: OnceLock<Option<Program>>,
}

impl Pattern {
    /// The expression, which is not looked at yet.
    #[must_use]
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), compiled: OnceLock::new() }
    }

    /// The expression as it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether a part of the text matches; nothing if that takes more than is left.
    #[must_use]
    pub fn matches(&self, text: &str, effort: &mut Effort) -> Option<bool> {
        let compiled = match self.compiled.get() {
            Some(compiled) => compiled,
            None => {
                let parsed = Parsed::of(&self.text).ok();
                if let Some(parsed) = &parsed
                    && !effort.take(parsed.effort())
                {
                    return None;
                }
                self.compiled.get_or_init(|| parsed.and_then(|parsed| parsed.compile().ok()))
            }
        };
        let Some(program) = compiled else { return Some(true) };
        effort.take(program.effort(text)).then(|| program.regex().is_match(text))
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// Compiles an expression in Go's syntax.
///
/// # Errors
/// What Go's compiler says, where it is one of its usual complaints.
pub fn compile(pattern: &str) -> Result<Program, String> {
    Parsed::of(pattern)?.compile()
}

/// An expression in Go's syntax that has been read.
#[derive(Debug)]
pub struct Parsed<'a> {
    pattern: &'a str,
    translated: String,
    states: u64,
}

impl<'a> Parsed<'a> {
    /// Reads an expression, in a time that its length limits.
    ///
    /// # Errors
    /// What Go's compiler says, where it is one of its usual complaints.
    pub fn of(pattern: &'a str) -> Result<Self, String> {
        let (translated, states) = Translation::of(pattern).map_err(|why| format!("error parsing regexp: {why}"))?;
        Ok(Self { pattern, translated, states })
    }

    /// What compiling it takes.
    #[must_use]
    pub const fn effort(&self) -> u64 {
        500_u64.saturating_add(self.states.saturating_mul(COMPILE_STATE))
    }

    /// Compiles it.
    ///
    /// # Errors
    /// As [`Self::of`], and when it is too large.
    pub fn compile(self) -> Result<Program, String> {
        let regex = Regex::new(&self.translated).map_err(|error| {
            let text = error.to_string();
            let line = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            format!("error parsing regexp: {line}: `{}`", self.pattern)
        })?;
        Ok(Program { regex, states: self.states })
    }
}

/// A compiled expression.
#[derive(Debug, Clone)]
pub struct Program {
    regex: Regex,
    states: u64,
}

impl Program {
    /// The expression.
    #[must_use]
    pub const fn regex(&self) -> &Regex {
        &self.regex
    }

    /// What applying it to a text takes at most: usually it is a small part of that.
    #[must_use]
    pub const fn effort(&self, text: &str) -> u64 {
        (text.len() as u64).saturating_mul(self.states) / STATES_PER_UNIT
    }
}

/// How large a part of an expression is.
#[derive(Debug, Clone, Copy)]
struct Extent {
    /// About how many states it has once repetitions are written out.
    states: u64,
    /// How often the part is repeated within it that is repeated most.
    repeats: u64,
}

impl Extent {
    const EMPTY: Self = Self { states: 0, repeats: 1 };

    fn plus(self, other: Self) -> Self {
        Self { states: self.states.saturating_add(other.states), repeats: self.repeats.max(other.repeats) }
    }
}

/// A walk through an expression in Go's syntax, which writes the same one in Rust's.
struct Translation<'a> {
    pattern: &'a str,
    at: usize,
    out: String,
    /// What stands before each open group.
    groups: Vec<Extent>,
    /// What stands in the group before the part that can be repeated, and that part.
    before: Extent,
    last: Extent,
    /// Whether something stands before that can be repeated.
    repeatable: bool,
    /// The repetition that stands before, with what may follow it.
    repetition: Option<usize>,
}

impl<'a> Translation<'a> {
    /// The expression in Rust's syntax, and about how many states it has.
    fn of(pattern: &'a str) -> Result<(String, u64), String> {
        let mut walk = Translation {
            pattern,
            at: 0,
            out: String::with_capacity(pattern.len()),
            groups: Vec::new(),
            before: Extent::EMPTY,
            last: Extent::EMPTY,
            repeatable: false,
            repetition: None,
        };
        while let Some(c) = walk.next() {
            walk.step(c)?;
        }
        if !walk.groups.is_empty() {
            return Err(format!("missing closing ): `{pattern}`"));
        }
        let states = walk.extent().states;
        Ok((walk.out, states))
    }

    /// How large the current group is so far.
    fn extent(&self) -> Extent {
        self.before.plus(self.last)
    }

    /// A part follows that can be repeated.
    fn add(&mut self, part: Extent) {
        self.before = self.extent();
        self.last = part;
    }

    fn rest(&self) -> &'a str {
        &self.pattern[self.at..]
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest().chars().next()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn step(&mut self, c: char) -> Result<(), String> {
        let begin = self.at - c.len_utf8();
        match c {
            '*' | '+' | '?' => return self.repeat(begin, &c.to_string()),
            '{' => match repetition(&self.pattern[begin..]) {
                Some(text) => {
                    self.at = begin + text.len();
                    let count = count(text).ok_or_else(|| format!("invalid repeat count: `{text}`"))?;
                    self.repeat(begin, text)?;
                    return self
                        .multiply(count)
                        .map_err(|()| format!("invalid repeat count: `{}`", &self.pattern[begin..self.at]));
                }
                None => self.out.push_str("\\{"),
            },
            '}' => self.out.push_str("\\}"),
            ']' => self.out.push_str("\\]"),
            '(' => return self.group(begin),
            ')' => {
                let Some(before) = self.groups.pop() else {
                    return Err(format!("unexpected ): `{}`", self.pattern));
                };
                self.out.push(')');
                (self.before, self.last) = (before, self.extent());
                (self.repeatable, self.repetition) = (true, None);
                return Ok(());
            }
            '|' => {
                self.out.push('|');
                (self.repeatable, self.repetition) = (false, None);
                return Ok(());
            }
            '[' => self.class(begin)?,
            '\\' => self.escape(false)?,
            c => self.out.push(c),
        }
        let written = &self.pattern[begin..self.at];
        let states = match c {
            '[' | '\\' if written.contains("\\p") || written.contains("\\P") => UNICODE_CLASS,
            '.' => WIDE_CLASS,
            '[' if written.starts_with("[^") || !written.is_ascii() => WIDE_CLASS,
            '[' => 1,
            _ => written.len() as u64,
        };
        self.add(Extent { states, repeats: 1 });
        (self.repeatable, self.repetition) = (true, None);
        Ok(())
    }

    /// The part before is repeated.
    fn multiply(&mut self, count: Count) -> Result<(), ()> {
        let times = count.most.unwrap_or(count.least);
        let repeats = if times == 0 { 1 } else { self.last.repeats.saturating_mul(times) };
        self.last = Extent { states: self.last.states.saturating_mul(times), repeats };
        let counts = count.least >= 2 || times >= 2;
        if counts && repeats > MAX_REPEAT { Err(()) } else { Ok(()) }
    }

    fn repeat(&mut self, begin: usize, operator: &str) -> Result<(), String> {
        if !self.repeatable {
            return Err(format!("missing argument to repetition operator: `{operator}`"));
        }
        let lazy = self.rest().starts_with('?');
        if lazy {
            self.at += 1;
        }
        if let Some(before) = self.repetition {
            return Err(format!("invalid nested repetition operator: `{}`", &self.pattern[before..self.at]));
        }
        self.out.push_str(&self.pattern[begin..self.at]);
        self.repetition = Some(begin);
        Ok(())
    }

    fn group(&mut self, begin: usize) -> Result<(), String> {
        self.groups.push(self.extent());
        (self.before, self.last) = (Extent::EMPTY, Extent::EMPTY);
        self.out.push('(');
        (self.repeatable, self.repetition) = (false, None);
        let Some(flags) = self.rest().strip_prefix('?') else { return Ok(()) };
        let named = flags.strip_prefix("P<").or_else(|| flags.strip_prefix('<').filter(|r| !r.starts_with(['=', '!'])));
        if let Some(name) = named {
            let Some(end) = name.find('>') else {
                return Err(format!("invalid named capture: `{}`", &self.pattern[begin..]));
            };
            let fine = !name[..end].is_empty() && name[..end].chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !fine {
                let until = self.at + 1 + flags.len() - name.len() + end + 1;
                return Err(format!("invalid named capture: `{}`", &self.pattern[begin..until]));
            }
            self.out.push_str("?P<");
            self.out.push_str(&name[..=end]);
            self.at = self.pattern.len() - name.len() + end + 1;
            return Ok(());
        }
        let end = flags.find(|c: char| !"imsU-".contains(c)).unwrap_or(flags.len());
        if !flags[end..].starts_with([':', ')']) {
            let until =
                (self.at + 1 + end + flags[end..].chars().next().map_or(0, char::len_utf8)).min(self.pattern.len());
            let text = &self.pattern[begin..until];
            return Err(format!("invalid or unsupported Perl syntax: `{text}`"));
        }
        self.out.push('?');
        self.out.push_str(&once(&flags[..end]));
        self.at += 1 + end;
        if end == 0 && flags.starts_with(')') {
            self.out.push(':');
        }
        if flags[end..].starts_with(':') {
            self.at += 1;
            self.out.push(':');
        }
        Ok(())
    }

    /// A class: `&&`, `--`, `~~` and `[` are plain characters in Go's.
    fn class(&mut self, begin: usize) -> Result<(), String> {
        let missing = || Err(format!("missing closing ]: `{}`", &self.pattern[begin..]));
        self.out.push('[');
        if self.rest().starts_with('^') {
            self.at += 1;
            self.out.push('^');
        }
        let mut first = true;
        // Whether a hyphen has opened a range, which the next character ends.
        let mut in_range = false;
        loop {
            let ends_range = std::mem::take(&mut in_range);
            match self.next() {
                None => return missing(),
                Some(']') if !first => break,
                Some(']') => self.out.push_str("\\]"),
                Some('[') => match self.rest().strip_prefix(':').and_then(|rest| rest.split_once(":]")) {
                    Some((name, _)) => {
                        let known = name.trim_start_matches('^').chars().all(|c| c.is_ascii_lowercase());
                        let text = format!("[:{name}:]");
                        if !known {
                            return Err(format!("invalid character class range: `{text}`"));
                        }
                        self.at += text.len() - 1;
                        self.out.push_str(&text);
                    }
                    None => self.out.push_str("\\["),
                },
                Some('\\') => self.escape(true)?,
                Some(c @ ('&' | '~')) => {
                    self.out.push('\\');
                    self.out.push(c);
                }
                // A hyphen is a range only between two characters.
                Some('-') if first || ends_range || self.rest().starts_with(']') => self.out.push_str("\\-"),
                Some(c) => {
                    in_range = c == '-';
                    self.out.push(c);
                }
            }
            first = false;
        }
        self.out.push(']');
        Ok(())
    }

    /// Escapes: Go's classes are of ASCII, and any punctuation stands for itself.
    fn escape(&mut self, in_class: bool) -> Result<(), String> {
        let Some(c) = self.next() else { return Err("trailing backslash at end of expression: ``".to_owned()) };
        let class = |inside: &str| if in_class { inside.to_owned() } else { format!("[{inside}]") };
        match c {
            'd' => self.out.push_str(&class("0-9")),
            'w' => self.out.push_str(&class("0-9A-Za-z_")),
            's' => self.out.push_str(&class("\\t\\n\\f\\r ")),
            'D' => self.out.push_str("[^0-9]"),
            'W' => self.out.push_str("[^0-9A-Za-z_]"),
            'S' => self.out.push_str("[^\\t\\n\\f\\r ]"),
            'b' | 'B' if !in_class => {
                self.out.push_str("(?-u:\\");
                self.out.push(c);
                self.out.push(')');
            }
            'A' | 'z' if !in_class => {
                self.out.push('\\');
                self.out.push(c);
            }
            'Q' if !in_class => {
                let rest = self.rest();
                let quoted = rest.split_once("\\E").map_or(rest, |(quoted, _)| quoted);
                self.at = (self.at + quoted.len() + 2).min(self.pattern.len());
                self.out.push_str(&regex::escape(quoted));
            }
            'p' | 'P' => {
                let rest = self.rest();
                let (name, length) = match rest.strip_prefix('{') {
                    Some(inside) => match inside.split_once('}') {
                        Some((name, _)) => (name, name.len() + 2),
                        None => return Err(format!("invalid character class range: `\\{c}{rest}`")),
                    },
                    None => {
                        let length = rest.chars().next().map_or(0, char::len_utf8);
                        (&rest[..length], length)
                    }
                };
                let (name, turns) = name.strip_prefix('^').map_or((name, false), |name| (name, true));
                let class = if turns == (c == 'p') { 'P' } else { 'p' };
                self.out.push_str(&format!("\\{class}{{{name}}}"));
                self.at += length;
            }
            'x' => {
                let rest = self.rest();
                let (digits, length) = match rest.strip_prefix('{').and_then(|inside| inside.split_once('}')) {
                    Some((digits, _)) => (digits, digits.len() + 2),
                    None => (rest.get(..2).unwrap_or(""), 2),
                };
                let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32).map(u32::from);
                let Some(code) = code.filter(|_| digits.bytes().all(|b| b.is_ascii_hexdigit())) else {
                    return Err(format!("invalid escape sequence: `\\x{}`", rest.get(..length).unwrap_or(rest)));
                };
                self.out.push_str(&format!("\\x{{{code:x}}}"));
                self.at += length;
            }
            'a' | 'f' | 't' | 'n' | 'r' | 'v' => {
                self.out.push('\\');
                self.out.push(c);
            }
            '0' | '1'..='7' => {
                let digits: String = std::iter::once(c)
                    .chain(self.rest().chars().take(2).take_while(|c| ('0'..='7').contains(c)))
                    .collect();
                if c != '0' && digits.len() == 1 {
                    return Err(format!("invalid escape sequence: `\\{c}`"));
                }
                self.at += digits.len() - 1;
                let code = u32::from_str_radix(&digits, 8).unwrap_or_default();
                self.out.push_str(&format!("\\x{{{code:x}}}"));
            }
            c if c.is_ascii_punctuation() => self.out.push_str(&format!("\\x{{{:x}}}", u32::from(c))),
            c => return Err(format!("invalid escape sequence: `\\{c}`")),
        }
        Ok(())
    }
}

/// Flags, each at the last place at which it stands: Go takes those that are there twice.
fn once(flags: &str) -> String {
    flags.char_indices().filter(|(at, flag)| *flag == '-' || flags.rfind(*flag) == Some(*at)).map(|(_, c)| c).collect()
}

/// A counted repetition at the beginning of a text; in Go any other brace stands for itself.
fn repetition(text: &str) -> Option<&str> {
    let (inside, _) = text.strip_prefix('{')?.split_once('}')?;
    let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    (!least.is_empty() && digits(least) && digits(most)).then(|| &text[..inside.len() + 2])
}

/// How often a part is repeated.
#[derive(Debug, Clone, Copy)]
struct Count {
    least: u64,
    most: Option<u64>,
}

/// The numbers of a counted repetition, which Go limits.
fn count(text: &str) -> Option<Count> {
    let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number <= MAX_REPEAT);
    let inside = text.trim_matches(['{', '}']);
    let Some((least, most)) = inside.split_once(',') else {
        let exactly = number(inside)?;
        return Some(Count { least: exactly, most: Some(exactly) });
    };
    let least = number(least)?;
    let most = if most.is_empty() { None } else { Some(number(most)?) };
    most.is_none_or(|most| least <= most).then_some(Count { least, most })
}
