//! What is wrong with a path in the syntax of `k8s.io/client-go/util/jsonpath`, in its words. Pure.

/// What ends an action, and begins one.
const EOF: char = '\0';
/// How deep parts of unions and filters may be within each other.
const MAX_DEPTH: usize = 16;

/// A text that is read from left to right.
struct Parser<'a> {
    input: &'a str,
    start: usize,
    at: usize,
    width: usize,
    /// Whether the last thing read is a recursive descent.
    is_recursive: bool,
    depth: usize,
}

/// What is wrong with the path.
pub(super) fn problem(path: &str) -> Option<String> {
    parse(&format!("{{{path}}}"), 0).err()
}

fn parse(text: &str, depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err("too deep".to_owned());
    }
    Parser { input: text, start: 0, at: 0, width: 0, is_recursive: false, depth }.text()
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t')
}

fn is_terminator(c: char) -> bool {
    is_space(c) || matches!(c, '\r' | '\n' | EOF | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphabetic() || c.is_numeric()
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        self.input.get(self.at..).unwrap_or("")
    }

    fn next(&mut self) -> char {
        let found = self.rest().chars().next();
        self.width = found.map_or(0, char::len_utf8);
        self.at += self.width;
        found.unwrap_or(EOF)
    }

    fn back(&mut self) {
        self.at -= self.width;
    }

    fn take(&mut self) -> String {
        let taken = self.input.get(self.start..self.at).unwrap_or("").to_owned();
        self.start = self.at;
        taken
    }

    /// Whether the character before the last one escapes it.
    fn is_escaped(&self) -> bool {
        self.at >= 2 && self.input.as_bytes().get(self.at - 2) == Some(&b'\\')
    }

    fn text(&mut self) -> Result<(), String> {
        match self.rest().find('{') {
            Some(at) => {
                self.at += at + 1;
                self.take();
                self.is_recursive = false;
                self.action()
            }
            None => Ok(()),
        }
    }

    fn action(&mut self) -> Result<(), String> {
        loop {
            if self.rest().starts_with('}') {
                self.at += 1;
                self.take();
                return self.text();
            }
            if self.rest().starts_with("[?(") {
                self.filter()?;
                continue;
            }
            if self.rest().starts_with("..") {
                self.recursive()?;
                continue;
            }
            match self.next() {
                EOF | '\r' | '\n' => return Err("unclosed action".to_owned()),
                ' ' | '@' | '$' => drop(self.take()),
                '[' => self.array()?,
                quote @ ('"' | '\'') => self.quote(quote)?,
                '.' => self.field(),
                c if matches!(c, '+' | '-') || c.is_numeric() => {
                    self.back();
                    self.number()?;
                }
                c if is_word(c) => {
                    self.back();
                    self.identifier();
                }
                c => return Err(format!("unrecognized character in action: U+{:04X} '{c}'", u32::from(c))),
            }
        }
    }

    fn identifier(&mut self) {
        while !is_terminator(self.next()) {}
        self.back();
        self.take();
        self.is_recursive = false;
    }

    fn recursive(&mut self) -> Result<(), String> {
        if self.is_recursive {
            return Err("invalid multiple recursive descent".to_owned());
        }
        self.at += 2;
        self.take();
        self.is_recursive = true;
        let next = self.next();
        self.back();
        if is_word(next) {
            self.field();
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), String> {
        let first = self.next();
        if !matches!(first, '+' | '-') {
            self.back();
        }
        while matches!(self.next(), c if c == '.' || c.is_numeric()) {}
        self.back();
        let value = self.take();
        self.is_recursive = false;
        let is_number = value.parse::<i64>().is_ok() || value.parse::<f64>().is_ok();
        if is_number { Ok(()) } else { Err(format!("cannot parse number {value}")) }
    }

    fn array(&mut self) -> Result<(), String> {
        loop {
            match self.next() {
                EOF | '\n' => return Err("unterminated array".to_owned()),
                ']' => break,
                _ => {}
            }
        }
        let taken = self.take();
        self.is_recursive = false;
        let inside = taken.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or("");
        if inside.contains(',') {
            let mut parts = inside.split(',');
            return parts.try_for_each(|part| parse(&format!("{{[{}]}}", part.trim_matches(' ')), self.depth + 1));
        }
        if let Some(key) =
            inside.strip_prefix('\'').and_then(|key| key.strip_suffix('\'')).filter(|key| !key.contains('\''))
        {
            return parse(&format!("{{.{key}}}"), self.depth + 1);
        }
        let is_index = |part: &str| part.strip_prefix('-').unwrap_or(part).bytes().all(|b| b.is_ascii_digit());
        let parts: Vec<&str> = inside.split(':').collect();
        if inside != "*" && (parts.len() > 3 || !parts.iter().all(|part| is_index(part))) {
            return Err(format!("invalid array index {inside}"));
        }
        match parts.iter().find(|part| inside != "*" && !part.is_empty() && part.parse::<i64>().is_err()) {
            Some(part) => Err(format!("array index {part} is not a number")),
            None => Ok(()),
        }
    }

    fn filter(&mut self) -> Result<(), String> {
        self.at += "[?(".len();
        self.take();
        let (mut begun, mut ended, mut pair) = (false, false, EOF);
        loop {
            match self.next() {
                EOF | '\n' => return Err("unterminated filter".to_owned()),
                quote @ ('"' | '\'') if !begun => (begun, pair) = (true, quote),
                quote @ ('"' | '\'') => ended |= quote == pair && !self.is_escaped(),
                ')' if begun == ended => break,
                _ => {}
            }
        }
        if self.next() != ']' {
            return Err("unclosed array expect ]".to_owned());
        }
        let taken = self.take();
        self.is_recursive = false;
        let inside = taken.strip_suffix(")]").unwrap_or(&taken);
        let is_operator = |c: char| matches!(c, '!' | '<' | '>' | '=');
        let sides = inside.find(is_operator).filter(|at| *at > 0).and_then(|at| {
            let right = inside[at..].trim_start_matches(is_operator);
            // At least one character is on the right.
            (!right.is_empty()).then(|| (&inside[..at], right))
        });
        match sides {
            Some((left, right)) => {
                parse(&format!("{{{left}}}"), self.depth + 1)?;
                parse(&format!("{{{right}}}"), self.depth + 1)
            }
            None => parse(&format!("{{{inside}}}"), self.depth + 1),
        }
    }

    fn quote(&mut self, end: char) -> Result<(), String> {
        loop {
            match self.next() {
                EOF | '\n' => return Err("unterminated quoted string".to_owned()),
                c if c == end && !self.is_escaped() => break,
                _ => {}
            }
        }
        self.take();
        self.is_recursive = false;
        Ok(())
    }

    fn field(&mut self) {
        self.take();
        loop {
            match self.next() {
                '\\' => drop(self.next()),
                c if is_terminator(c) => break,
                _ => {}
            }
        }
        self.back();
        self.take();
        self.is_recursive = false;
    }
}
