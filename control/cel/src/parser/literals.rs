//! Literals: numbers, texts, bytes and the three words.

use super::{
    grammar::{Grammar, Stop},
    lexer::{Lexeme, Token},
    syntax_error::OPERAND,
    unescape::unescape,
};
use crate::ast::{Expr, Kind, Literal};

impl Grammar<'_> {
    pub(super) fn literal(&mut self) -> Result<Expr, Stop> {
        let start = self.current().at;
        let sign = if self.take(Token::Minus).is_some() { "-" } else { "" };
        let Lexeme { token, text, .. } = self.current();
        let literal = match token {
            Token::True => Ok(Literal::Bool(true)),
            Token::False => Ok(Literal::Bool(false)),
            Token::Null => Ok(Literal::Null),
            Token::Int => integer(sign, text).map(Literal::Int).ok_or("invalid int literal"),
            Token::Uint => unsigned(text).map(Literal::Uint).ok_or("invalid uint literal"),
            Token::Float => float(sign, text).map(Literal::Double).ok_or("invalid double literal"),
            Token::String => unescape(text, false).and_then(|bytes| {
                String::from_utf8(bytes).map(Literal::String).map_err(|_| "unable to unescape string")
            }),
            Token::Bytes => unescape(&text[1..], true).map(Literal::Bytes),
            _ => return Err(self.mismatched(&OPERAND)),
        };
        self.at += 1;
        Ok(match literal {
            Ok(literal) => Expr { id: self.id(start), kind: Kind::Literal(literal) },
            Err(message) => self.report(start, message),
        })
    }
}

fn integer(sign: &str, text: &str) -> Option<i64> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()
}

fn unsigned(text: &str) -> Option<u64> {
    let text = text.trim_end_matches(['u', 'U']);
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    u64::from_str_radix(digits, radix).ok()
}

fn float(sign: &str, text: &str) -> Option<f64> {
    format!("{sign}{text}").parse().ok().filter(|number: &f64| number.is_finite())
}
