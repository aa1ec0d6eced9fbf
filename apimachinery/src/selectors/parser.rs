//! The grammar of label selectors in queries (`k8s.io/apimachinery/pkg/labels`), with upstream's words for what is wrong.

use super::{SelectorError, labels::Requirement};
use crate::names;

/// What an operator may be, as upstream lists it.
const OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    End,
    Comma,
    Open,
    Close,
    /// `!`.
    Not,
    Equals,
    NotEquals,
    Above,
    Below,
    In,
    NotIn,
    Identifier,
}

/// Parses a selector.
///
/// # Errors
/// Names the first part that does not fit.
pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut parser = Parser { tokens: tokens(text), at: 0 };
    parser.selector().map_err(SelectorError)
}

/// The tokens of a text; behind the last one all is [`Token::End`].
fn tokens(text: &str) -> Vec<(Token, &str)> {
    let is_symbol = |c: char| matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<');
    let mut all = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let Some(first) = rest.chars().next() else { return all };
        let length = if is_symbol(first) {
            if rest.starts_with("==") || rest.starts_with("!=") { 2 } else { 1 }
        } else {
            rest.find(|c: char| is_symbol(c) || matches!(c, ' ' | '\t' | '\r' | '\n')).unwrap_or(rest.len())
        };
        let (literal, behind) = rest.split_at(length);
        all.push((token(literal), literal));
        rest = behind;
    }
}

fn token(literal: &str) -> Token {
    match literal {
        "," => Token::Comma,
        "(" => Token::Open,
        ")" => Token::Close,
        "!" => Token::Not,
        "=" | "==" => Token::Equals,
        "!=" => Token::NotEquals,
        ">" => Token::Above,
        "<" => Token::Below,
        "in" => Token::In,
        "notin" => Token::NotIn,
        _ => Token::Identifier,
    }
}

struct Parser<'t> {
    tokens: Vec<(Token, &'t str)>,
    at: usize,
}

impl<'t> Parser<'t> {
    /// The next token, where a key or value may stand: `in` and `notin` are words there.
    fn peek(&self) -> (Token, &'t str) {
        match self.tokens.get(self.at) {
            Some((Token::In | Token::NotIn, literal)) => (Token::Identifier, literal),
            Some(found) => *found,
            None => (Token::End, ""),
        }
    }

    fn next(&mut self) -> (Token, &'t str) {
        let found = self.peek();
        self.at += 1;
        found
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                (Token::Identifier | Token::Not, _) => {
                    let found = self.requirement().map_err(|why| format!("unable to parse requirement: {why}"))?;
                    requirements.push(found);
                }
                (Token::End, _) => return Ok(requirements),
                (_, found) => return Err(format!("found '{found}', expected: !, identifier, or 'end of string'")),
            }
            match self.next() {
                (Token::End, _) => return Ok(requirements),
                (Token::Comma, _) => {}
                (_, found) => return Err(format!("found '{found}', expected: ',' or 'end of string'")),
            }
            let (token, found) = self.peek();
            if !matches!(token, Token::Identifier | Token::Not) {
                return Err(format!("found '{found}', expected: identifier after ','"));
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek().0 == Token::Not;
        if absent {
            self.at += 1;
        }
        let (token, key) = self.next();
        if token != Token::Identifier {
            return Err(format!("found '{key}', expected: identifier"));
        }
        if let Some(why) = names::qualified(key) {
            return Err(format!("<nil>: Invalid value: {key:?}: {why}"));
        }
        if absent {
            return Ok(Requirement::Absent(key.to_owned()));
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(Requirement::Exists(key.to_owned()));
        }
        let (operator, literal) = self.tokens.get(self.at).copied().unwrap_or((Token::End, ""));
        self.at += 1;
        let values = match operator {
            Token::In | Token::NotIn => self.values()?,
            Token::Equals | Token::NotEquals | Token::Above | Token::Below => vec![self.value()?],
            _ => return Err(format!("found '{literal}', expected: {OPERATORS}")),
        };
        make(key, operator, values)
    }

    /// The value behind an operator; none is the empty one.
    fn value(&mut self) -> Result<&'t str, String> {
        match self.peek() {
            (Token::End | Token::Comma, _) => Ok(""),
            (Token::Identifier, value) => {
                self.at += 1;
                Ok(value)
            }
            (_, found) => Err(format!("found '{found}', expected: identifier")),
        }
    }

    /// The values in parentheses; `()`, `(,)` and the like have an empty one.
    fn values(&mut self) -> Result<Vec<&'t str>, String> {
        let (token, found) = self.next();
        if token != Token::Open {
            return Err(format!("found '{found}' expected: '('"));
        }
        let mut values = Vec::new();
        match self.peek() {
            (Token::Identifier | Token::Comma, _) => {}
            (Token::Close, _) => {
                self.at += 1;
                return Ok(vec![""]);
            }
            (_, found) => return Err(format!("found '{found}', expected: ',', ')' or identifier")),
        }
        loop {
            match self.next() {
                (Token::Identifier, value) => {
                    values.push(value);
                    match self.peek() {
                        (Token::Comma | Token::Close, _) => {}
                        (_, found) => return Err(format!("found '{found}', expected: ',' or ')'")),
                    }
                }
                (Token::Comma, _) => {
                    if values.is_empty() || matches!(self.peek().0, Token::Close | Token::Comma) {
                        values.push("");
                    }
                }
                (Token::Close, _) => return Ok(values),
                (_, found) => return Err(format!("found '{found}', expected: ',', or identifier")),
            }
        }
    }
}

fn make(key: &str, operator: Token, values: Vec<&str>) -> Result<Requirement, String> {
    let mut numbers = Vec::new();
    let mut wrong = Vec::new();
    if matches!(operator, Token::Above | Token::Below) {
        for (at, value) in values.iter().enumerate() {
            match value.parse::<i64>() {
                Ok(number) => numbers.push(number),
                Err(_) => wrong.push(format!(
                    "values[{at}]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
                )),
            }
        }
    }
    for (at, value) in values.iter().enumerate() {
        wrong.extend(
            names::label_value(value).map(|why| format!("values[{at}][{key}]: Invalid value: {value:?}: {why}")),
        );
    }
    match wrong.as_slice() {
        [] => {}
        [one] => return Err(one.clone()),
        many => return Err(format!("[{}]", many.join(", "))),
    }
    let (key, values) = (key.to_owned(), values.into_iter().map(str::to_owned).collect());
    Ok(match (operator, numbers.first()) {
        (Token::Above, Some(number)) => Requirement::Above(key, *number),
        (Token::Below, Some(number)) => Requirement::Below(key, *number),
        (Token::NotIn | Token::NotEquals, _) => Requirement::NotIn(key, values),
        _ => Requirement::In(key, values),
    })
}

#[cfg(test)]
mod tests {
    use super::super::LabelSelector;

    #[test]
    fn what_is_wrong_is_told_as_upstream_tells_it() {
        for (selector, message) in [
            ("a in", "unable to parse requirement: found '' expected: '('"),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            ("a=(b", "unable to parse requirement: found '(', expected: identifier"),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a in (b c)", "unable to parse requirement: found 'c', expected: ',' or ')'"),
            (",a", "found ',', expected: !, identifier, or 'end of string'"),
            ("a,", "found '', expected: identifier after ','"),
            ("=b", "found '=', expected: !, identifier, or 'end of string'"),
            ("a!=b=c", "found '=', expected: ',' or 'end of string'"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("a (b)", "unable to parse requirement: found '(', expected: in, notin, =, ==, !=, gt, lt"),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
        ] {
            assert_eq!(LabelSelector::parse(selector).unwrap_err().to_string(), message, "{selector}");
        }
        for (selector, message) in [
            (
                "a/b/c=d",
                "unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a valid label key must consist of",
            ),
            ("-a=b", "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of"),
            ("a=b/c", "unable to parse requirement: values[0][a]: Invalid value: \"b/c\": a valid label must be"),
            ("a<-5,b>6", "unable to parse requirement: values[0][a]: Invalid value: \"-5\": a valid label must be"),
        ] {
            let told = LabelSelector::parse(selector).unwrap_err().to_string();
            assert!(told.starts_with(message), "{selector}: {told}");
        }
    }

    #[test]
    fn unusual_selectors() {
        let object = serde_json::json!({"metadata": {"labels": {"in": "in", "n": "7", "empty": "", "word": "seven"}}});
        for (selector, matches) in [
            (" ", true),
            ("in in (in)", true),
            ("in==in , n = 7", true),
            ("n>6", true),
            ("n>7", false),
            ("n<8,n>6", true),
            ("word>6", false),
            ("absent<6", false),
            ("empty in ()", true),
            ("empty in (,a)", true),
            ("n in (a,)", false),
            ("empty=", true),
            ("n notin (a,,7)", false),
        ] {
            assert_eq!(LabelSelector::parse(selector).unwrap().matches(&object), matches, "{selector}");
        }
    }
}
