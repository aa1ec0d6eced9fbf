//! What stands in brackets: arguments, lists, maps and structs.

use super::{
    grammar::{Depth, Grammar, Node, Stop},
    lexer::Token,
    syntax_error::OPERAND,
};
use crate::ast::{Entry, Expr, Field, Kind, List, Struct};

impl Grammar<'_> {
    /// Reads what closes the innermost bracket.
    pub(super) fn close(&mut self) -> Result<(), Stop> {
        if let Some(token) = self.open.last().copied() {
            self.expect(token)?;
            self.open.pop();
        }
        Ok(())
    }

    /// The arguments of a call, after the parenthesis.
    pub(super) fn arguments(&mut self) -> Result<(Vec<Expr>, Depth), Stop> {
        let (mut args, mut deepest) = (Vec::new(), Depth::default());
        self.open.push(Token::RightParen);
        self.begin(&[Token::RightParen])?;
        if self.current().token != Token::RightParen {
            loop {
                let (arg, depth) = self.expr()?;
                args.push(arg);
                deepest = deepest.max(depth);
                if self.take(Token::Comma).is_none() {
                    break;
                }
            }
        }
        self.close()?;
        Ok((args, deepest))
    }

    /// How many tokens are before the brace, if names with dots and a brace follow.
    pub(super) fn brace_of_struct(&self) -> Option<usize> {
        let mut by = 0;
        while self.ahead(by).token == Token::Dot && self.ahead(by + 1).token == Token::Identifier {
            by += 2;
        }
        (self.ahead(by).token == Token::LeftBrace).then_some(by)
    }

    pub(super) fn object(&mut self, dot: &str, first: &str, brace: usize) -> Result<Node, Stop> {
        let mut type_name = format!("{dot}{first}");
        for index in 0..brace {
            type_name.push_str(self.ahead(index).text);
        }
        let open = self.ahead(brace);
        self.at += brace + 1;
        let id = self.id(open.at);
        let (mut fields, mut deepest) = (Vec::new(), Depth::default());
        self.open.push(Token::RightBrace);
        let mut goes_on = !matches!(self.current().token, Token::Comma | Token::RightBrace);
        if !goes_on {
            self.take(Token::Comma);
            self.close()?;
        }
        while goes_on {
            let optional = self.take(Token::QuestionMark).is_some();
            let name = self.current();
            if name.token == Token::EscapedIdentifier {
                self.at += 1;
                self.report(name.at, "unsupported syntax: '`'");
            } else {
                self.expect(Token::Identifier)?;
            }
            let colon = self.expect(Token::Colon)?;
            let id = self.id(colon.at);
            let (value, depth) = self.expr()?;
            deepest = deepest.max(depth);
            fields.push(Field { id, name: name.text.to_owned(), value, optional });
            goes_on = self.goes_on()?;
        }
        Ok((Expr { id, kind: Kind::Struct(Struct { type_name, fields }) }, deepest))
    }

    /// Whether another element follows: reads what separates two elements, or what ends them. A comma may stand before the end.
    fn goes_on(&mut self) -> Result<bool, Stop> {
        let Some(end) = self.open.last().copied() else { return Ok(false) };
        let separators = [end, Token::Comma];
        let current = self.current();
        if !separators.contains(&current.token) {
            if !separators.contains(&self.ahead(1).token) {
                return Err(self.mismatched(&separators));
            }
            self.extraneous(current, &separators);
            self.at += 1;
        }
        let comma = self.take(Token::Comma).is_some();
        let next = self.current().token;
        if comma && (OPERAND.contains(&next) || next == Token::QuestionMark) {
            return Ok(true);
        }
        self.close()?;
        Ok(false)
    }

    /// Whether there is a first element: reads what is empty but for a comma.
    fn has_elements(&mut self, end: Token) -> Result<bool, Stop> {
        self.open.push(end);
        self.begin(&[Token::QuestionMark, Token::Comma, end])?;
        if matches!(self.current().token, Token::Comma) || self.current().token == end {
            self.take(Token::Comma);
            self.close()?;
            return Ok(false);
        }
        Ok(true)
    }

    pub(super) fn list(&mut self) -> Result<Node, Stop> {
        let open = self.expect(Token::LeftBracket)?;
        let id = self.id(open.at);
        let (mut elements, mut optional, mut deepest) = (Vec::new(), Vec::new(), Depth::default());
        let mut goes_on = self.has_elements(Token::RightBracket)?;
        while goes_on {
            if self.take(Token::QuestionMark).is_some() {
                optional.push(elements.len());
            }
            let (element, depth) = self.expr()?;
            deepest = deepest.max(depth);
            elements.push(element);
            goes_on = self.goes_on()?;
        }
        Ok((Expr { id, kind: Kind::List(List { elements, optional }) }, deepest))
    }

    pub(super) fn map(&mut self) -> Result<Node, Stop> {
        let open = self.expect(Token::LeftBrace)?;
        let id = self.id(open.at);
        let (mut entries, mut deepest) = (Vec::new(), Depth::default());
        let mut goes_on = self.has_elements(Token::RightBrace)?;
        while goes_on {
            let optional = self.take(Token::QuestionMark).is_some();
            let (key, key_depth) = self.expr()?;
            self.expect(Token::Colon)?;
            let (value, depth) = self.expr()?;
            deepest = deepest.max(depth).max(key_depth);
            entries.push(Entry { key, value, optional });
            goes_on = self.goes_on()?;
        }
        Ok((Expr { id, kind: Kind::Map(entries) }, deepest))
    }
}
