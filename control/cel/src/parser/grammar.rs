//! Tokens to nodes, rule by rule of cel-go's grammar.

use super::{
    MAX_DEPTH, MAX_NODES, MAX_TREE, Macros, Positions, RESERVED,
    lexer::{Lexeme, Token},
    syntax_error,
};
use crate::{
    ast::{Call, Expr, Id, Kind, Literal, Select, operators},
    source::{Errors, Location, Source},
    stack,
};

/// An error was reported, after which nothing more is read.
#[derive(Debug)]
pub(super) struct Stop;

/// A node, and how deep the tree below it is.
pub(super) type Node = (Expr, Depth);

/// How deep a tree is in nodes that cel-go counts, and in those and `.?`, which it does not.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Depth {
    counted: u32,
    all: u32,
}

impl Depth {
    /// The depth of two trees.
    pub(super) fn max(self, other: Self) -> Self {
        Self { counted: self.counted.max(other.counted), all: self.all.max(other.all) }
    }
}

/// The rules of the grammar whose depth is limited.
#[derive(Debug, Clone, Copy)]
enum Rule {
    Expr,
    Relation,
    Calc,
    Member,
}

/// Reads tokens.
#[derive(Debug)]
pub(super) struct Grammar<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) tokens: Vec<Lexeme<'a>>,
    pub(super) at: usize,
    pub(super) errors: Errors,
    pub(super) macros: Macros,
    positions: Positions,
    /// How deep each rule is entered.
    depths: [u32; 4],
    /// What closes each bracket that is open, the innermost last.
    pub(super) open: Vec<Token>,
}

impl<'a> Grammar<'a> {
    pub(super) fn new(source: &'a Source<'a>, tokens: Vec<Lexeme<'a>>, macros: Macros, errors: Errors) -> Self {
        let (positions, open) = (Positions::default(), Vec::new());
        Self { source, tokens, at: 0, errors, macros, positions, depths: [0; 4], open }
    }

    pub(super) fn finish(self) -> (Errors, Positions) {
        (self.errors, self.positions)
    }

    /// A whole expression.
    pub(super) fn start(&mut self) -> Result<Expr, Stop> {
        let (root, _) = self.expr()?;
        match self.current() {
            Lexeme { token: Token::End, .. } => Ok(root),
            current if self.ahead(1).token == Token::End => Err(self.extraneous(current, &[Token::End])),
            _ => Err(self.mismatched(&[Token::End])),
        }
    }

    pub(super) fn current(&self) -> Lexeme<'a> {
        self.ahead(0)
    }

    pub(super) fn ahead(&self, by: usize) -> Lexeme<'a> {
        let end = Lexeme { token: Token::End, text: "<EOF>", at: self.source.text().len() };
        self.tokens.get(self.at + by).copied().unwrap_or(end)
    }

    /// Reads a token, if it is this one.
    pub(super) fn take(&mut self, token: Token) -> Option<Lexeme<'a>> {
        let current = self.current();
        (current.token == token).then(|| {
            self.at += 1;
            current
        })
    }

    /// A new id for a node that begins at a byte.
    pub(super) fn id(&mut self, at: usize) -> Id {
        self.positions.add(at)
    }

    /// A new id for a node that a macro makes of another one, at the same place.
    pub(super) fn id_like(&mut self, other: Id) -> Id {
        let at = self.positions.offset(other);
        self.positions.add(at)
    }

    /// Whether copies have made more of an expression than is worth checking: a chain of `optMap` doubles with each link, for
    /// which upstream has no limit.
    pub(super) fn has_too_many_nodes(&self) -> bool {
        self.positions.count() > MAX_NODES
    }

    /// Reports what is wrong with a node, and stands in for it.
    pub(super) fn report(&mut self, at: usize, message: impl Into<String>) -> Expr {
        let id = self.id(at);
        self.errors.report(|| self.source.location(at), message);
        Expr { id, kind: Kind::Unspecified }
    }

    /// Reports what is wrong at the place of another node.
    pub(super) fn report_like(&mut self, other: Id, message: impl Into<String>) -> Expr {
        self.report(self.positions.offset(other), message)
    }

    /// Goes one deeper into a rule.
    fn enter(&mut self, rule: Rule) -> Result<(), Stop> {
        let depth = &mut self.depths[rule as usize];
        *depth += 1;
        if *depth > MAX_DEPTH {
            let message = format!("expression recursion limit exceeded: {MAX_DEPTH}");
            self.errors.report(|| Location::NONE, message);
            return Err(Stop);
        }
        Ok(())
    }

    /// One deeper than these.
    fn deeper(&mut self, below: Depth) -> Result<Depth, Stop> {
        self.limited(Depth { counted: below.counted + 1, all: below.all + 1 })
    }

    fn limited(&mut self, depth: Depth) -> Result<Depth, Stop> {
        if depth.counted > MAX_DEPTH || depth.all > MAX_TREE {
            self.errors.report(|| Location::NONE, "max recursion depth exceeded");
            return Err(Stop);
        }
        Ok(depth)
    }

    pub(super) fn expr(&mut self) -> Result<Node, Stop> {
        stack::enough(|| self.ternary())
    }

    fn ternary(&mut self) -> Result<Node, Stop> {
        self.enter(Rule::Expr)?;
        let (condition, depth) = self.logical(Token::Or)?;
        let node = if let Some(op) = self.take(Token::QuestionMark) {
            let id = self.id(op.at);
            let (if_true, depth_true) = self.logical(Token::Or)?;
            self.expect(Token::Colon)?;
            let (if_false, depth_false) = self.expr()?;
            let depth = self.deeper(depth.max(depth_true).max(depth_false))?;
            (self.call_or_macro(id, operators::CONDITIONAL, None, vec![condition, if_true, if_false]), depth)
        } else {
            (condition, depth)
        };
        self.depths[Rule::Expr as usize] -= 1;
        Ok(node)
    }

    /// Terms that are joined by `||`, each of which is terms that are joined by `&&`.
    fn logical(&mut self, operator: Token) -> Result<Node, Stop> {
        let (function, inner) =
            if operator == Token::Or { (operators::OR, Some(Token::And)) } else { (operators::AND, None) };
        let term = |this: &mut Self| match inner {
            Some(inner) => this.logical(inner),
            None => this.binary(1),
        };
        let (first, mut depth) = term(self)?;
        let (mut terms, mut ids) = (vec![Some(first)], Vec::new());
        while let Some(op) = self.take(operator) {
            let (next, next_depth) = term(self)?;
            depth = depth.max(next_depth);
            ids.push(self.id(op.at));
            terms.push(Some(next));
        }
        Ok((balanced(function, &mut terms, &ids), depth))
    }

    /// Comparisons (1), sums (2) and products (3), of which those of the same strength are read from the left.
    fn binary(&mut self, least: u8) -> Result<Node, Stop> {
        let before = self.depths;
        if least <= 1 {
            self.enter(Rule::Relation)?;
        }
        self.enter(Rule::Calc)?;
        let mut left = self.unary()?;
        while let Some((function, strength)) = binary_operator(self.current().token).filter(|(_, s)| *s >= least) {
            let op = self.current();
            self.at += 1;
            let id = self.id(op.at);
            let (right, depth) = self.binary(strength + 1)?;
            let depth = self.deeper(left.1.max(depth))?;
            left = (self.call_or_macro(id, function, None, vec![left.0, right]), depth);
        }
        self.depths[Rule::Relation as usize] = before[Rule::Relation as usize];
        self.depths[Rule::Calc as usize] = before[Rule::Calc as usize];
        Ok(left)
    }

    fn unary(&mut self) -> Result<Node, Stop> {
        let current = self.current();
        let function = match current.token {
            Token::Exclamation => operators::NOT,
            Token::Minus if !matches!(self.ahead(1).token, Token::Int | Token::Float) => operators::NEGATE,
            _ => return self.member(),
        };
        let mut count = 0;
        while self.take(current.token).is_some() {
            count += 1;
        }
        if self.current().token == Token::End {
            return Err(self.lone_sign(current.token));
        }
        if count % 2 == 0 {
            return self.member();
        }
        let id = self.id(current.at);
        let (operand, depth) = self.member()?;
        Ok((self.call_or_macro(id, function, None, vec![operand]), depth))
    }

    fn member(&mut self) -> Result<Node, Stop> {
        let before = self.depths[Rule::Member as usize];
        self.enter(Rule::Member)?;
        let mut node = self.primary()?;
        loop {
            let op = self.current();
            match op.token {
                Token::Dot => {
                    self.at += 1;
                    node = self.selection(node, op)?;
                }
                Token::LeftBracket => {
                    self.at += 1;
                    self.open.push(Token::RightBracket);
                    self.begin(&[Token::QuestionMark])?;
                    let optional = self.take(Token::QuestionMark).is_some();
                    let id = self.id(op.at);
                    let (index, depth) = self.expr()?;
                    self.close()?;
                    let depth = self.deeper(node.1.max(depth))?;
                    let function = if optional { operators::OPT_INDEX } else { operators::INDEX };
                    node = (self.call_or_macro(id, function, None, vec![node.0, index]), depth);
                }
                _ => break,
            }
        }
        self.depths[Rule::Member as usize] = before;
        Ok(node)
    }

    /// What follows a dot: a field, or a call.
    fn selection(&mut self, (operand, depth): Node, dot: Lexeme<'a>) -> Result<Node, Stop> {
        let optional = self.take(Token::QuestionMark).is_some();
        let name = self.current();
        match name.token {
            Token::Identifier if !optional && self.ahead(1).token == Token::LeftParen => {
                self.at += 2;
                let id = self.id(self.tokens[self.at - 1].at);
                let (args, args_depth) = self.arguments()?;
                let depth = self.deeper(depth.max(args_depth))?;
                return Ok((self.call_or_macro(id, name.text, Some(operand), args), depth));
            }
            Token::Identifier => self.at += 1,
            Token::EscapedIdentifier => {
                self.at += 1;
                self.report(name.at, "unsupported syntax: '`'");
            }
            Token::True | Token::False | Token::Null if !optional => {
                let message = format!("mismatched input '{}' expecting IDENTIFIER", name.text);
                return Err(self.syntax_error(name.at, &message));
            }
            _ if optional => {
                let stop = self.mismatched(&[Token::Identifier, Token::EscapedIdentifier]);
                self.report(name.at, "unsupported ident kind");
                return Err(stop);
            }
            token => {
                let shown = if token == Token::End { String::new() } else { syntax_error::escaped(name.text) };
                let stop = self.syntax_error(name.at, &format!("no viable alternative at input '.{shown}'"));
                // What can follow an operand goes on with it.
                return if token == Token::In { Ok((operand, depth)) } else { Err(stop) };
            }
        }
        let depth = self.limited(Depth { counted: depth.counted + u32::from(!optional), all: depth.all + 1 })?;
        let field = name.text.to_owned();
        let kind = if optional {
            let literal = Expr { id: self.id(name.at), kind: Kind::Literal(Literal::String(field)) };
            Kind::Call(Call { function: operators::OPT_SELECT.to_owned(), target: None, args: vec![operand, literal] })
        } else {
            Kind::Select(Select { operand: Box::new(operand), field, test_only: false })
        };
        Ok((Expr { id: self.id(dot.at), kind }, depth))
    }

    fn primary(&mut self) -> Result<Node, Stop> {
        self.begin(&[])?;
        let first = self.current();
        match first.token {
            Token::LeftParen => {
                self.at += 1;
                self.open.push(Token::RightParen);
                let node = self.expr()?;
                self.close()?;
                Ok(node)
            }
            Token::LeftBracket => self.list(),
            Token::LeftBrace => self.map(),
            Token::Dot | Token::Identifier => self.name(),
            _ => self.literal().map(|literal| (literal, Depth::default())),
        }
    }

    /// A variable, a function or a struct.
    fn name(&mut self) -> Result<Node, Stop> {
        let start = self.current().at;
        let dot = self.take(Token::Dot).map_or("", |_| ".");
        let name = self.expect(Token::Identifier)?;
        if let Some(brace) = self.brace_of_struct() {
            return self.object(dot, name.text, brace);
        }
        if RESERVED.contains(&name.text) {
            let stand_in = self.report(start, format!("reserved identifier: {}", name.text));
            if self.take(Token::LeftParen).is_some() {
                self.arguments()?;
            }
            return Ok((stand_in, Depth::default()));
        }
        let full = format!("{dot}{}", name.text);
        if let Some(open) = self.take(Token::LeftParen) {
            let id = self.id(open.at);
            let (args, depth) = self.arguments()?;
            return Ok((self.call_or_macro(id, &full, None, args), depth));
        }
        Ok((Expr { id: self.id(name.at), kind: Kind::Ident(full) }, Depth::default()))
    }
}

/// Terms as a tree of two each, as deep as it must be; cel-go's `balancingLogicManager`.
fn balanced(function: &str, terms: &mut [Option<Expr>], ids: &[Id]) -> Expr {
    if ids.is_empty() {
        let term = terms.first_mut().and_then(Option::take);
        return term.unwrap_or(Expr { id: 0, kind: Kind::Unspecified });
    }
    let middle = ids.len() / 2;
    let (left, right) = terms.split_at_mut(middle + 1);
    let left = balanced(function, left, &ids[..middle]);
    let right = balanced(function, right, &ids[middle + 1..]);
    let call = Call { function: function.to_owned(), target: None, args: vec![left, right] };
    Expr { id: ids[middle], kind: Kind::Call(call) }
}

/// The function of an operator between two operands, and how strongly it binds.
const fn binary_operator(token: Token) -> Option<(&'static str, u8)> {
    Some(match token {
        Token::Equals => (operators::EQUALS, 1),
        Token::NotEquals => (operators::NOT_EQUALS, 1),
        Token::In => (operators::IN, 1),
        Token::Less => ("_<_", 1),
        Token::LessEquals => ("_<=_", 1),
        Token::GreaterEquals => ("_>=_", 1),
        Token::Greater => ("_>_", 1),
        Token::Plus => (operators::ADD, 2),
        Token::Minus => ("_-_", 2),
        Token::Star => ("_*_", 3),
        Token::Slash => ("_/_", 3),
        Token::Percent => ("_%_", 3),
        _ => return None,
    })
}
