//! What is said of tokens that do not fit, and how reading goes on after them: as ANTLR's single-token deletion and insertion.

use super::{
    grammar::{Grammar, Stop},
    lexer::{Lexeme, Token},
    syntax_error::{self, OPERAND},
};

impl<'a> Grammar<'a> {
    /// Reads this token. As ANTLR, goes on without it if that explains what stands there, or without what stands before it.
    pub(super) fn expect(&mut self, token: Token) -> Result<Lexeme<'a>, Stop> {
        if let Some(found) = self.take(token) {
            return Ok(found);
        }
        let current = self.current();
        if self.ahead(1).token == token {
            self.extraneous(current, &[token]);
            self.at += 2;
            return Ok(self.tokens[self.at - 1]);
        }
        let may_follow = match token {
            Token::Colon => OPERAND.contains(&current.token),
            Token::RightParen | Token::RightBracket | Token::RightBrace => self.may_follow_closed(current.token),
            _ => false,
        };
        if !may_follow {
            return Err(self.mismatched(&[token]));
        }
        let shown = syntax_error::escaped(current.text);
        let _ = self.syntax_error(current.at, &format!("missing {} at '{shown}'", token.display()));
        Ok(current)
    }

    /// Whether a token can stand after the innermost bracket is closed.
    fn may_follow_closed(&self, token: Token) -> bool {
        match self.open.len().checked_sub(2).and_then(|outer| self.open.get(outer)) {
            None => token == Token::End,
            Some(closes) => token == *closes || token == Token::Comma,
        }
    }

    /// Goes to where an operand, or one of these tokens, begins, if it is the next token but one.
    pub(super) fn begin(&mut self, or: &[Token]) -> Result<(), Stop> {
        let expected = |token: Token| OPERAND.contains(&token) || or.contains(&token);
        let current = self.current();
        if expected(current.token) {
            return Ok(());
        }
        let all: Vec<Token> = OPERAND.iter().chain(or).copied().collect();
        if !expected(self.ahead(1).token) {
            return Err(self.mismatched(&all));
        }
        self.extraneous(current, &all);
        self.at += 1;
        Ok(())
    }

    pub(super) fn syntax_error(&mut self, at: usize, message: &str) -> Stop {
        self.errors.report(|| self.source.location(at), format!("Syntax error: {message}"));
        Stop
    }

    pub(super) fn mismatched(&mut self, expecting: &[Token]) -> Stop {
        let Lexeme { text, at, .. } = self.current();
        let message =
            format!("mismatched input '{}' expecting {}", syntax_error::escaped(text), syntax_error::set(expecting));
        self.syntax_error(at, &message)
    }

    /// A token that would better not be there.
    pub(super) fn extraneous(&mut self, current: Lexeme<'a>, expecting: &[Token]) -> Stop {
        let (shown, set) = (syntax_error::escaped(current.text), syntax_error::set(expecting));
        self.syntax_error(current.at, &format!("extraneous input '{shown}' expecting {set}"))
    }

    /// Signs at the end of the text.
    pub(super) fn lone_sign(&mut self, sign: Token) -> Stop {
        let end = self.current();
        if sign == Token::Exclamation {
            return self.extraneous(end, &OPERAND);
        }
        let _ = self.syntax_error(end.at, "no viable alternative at input '-'");
        self.mismatched(&OPERAND)
    }
}
