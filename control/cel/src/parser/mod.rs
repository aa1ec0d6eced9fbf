//! Text to syntax tree: cel-go's `parser/parser.go`, with its ids, positions and limits.
//!
//! The parser is our own: the crate `cel` has one, but it always pulls in the run time of ANTLR, keeps positions to itself,
//! stops at another depth and expands macros that Kubernetes does not have.

mod aggregates;
mod grammar;
mod lexer;
mod literals;
mod macros;
mod recovery;
mod syntax_error;
mod unescape;

use crate::{
    ast::{Expr, Id, Kind},
    source::{Errors, Location, Source},
};

/// Longer expressions are refused, in characters; cel-go's `expressionSizeCodePointLimit`.
const MAX_CHARACTERS: usize = 100_000;
/// cel-go's `maxRecursionDepth`, of each rule of the grammar and of the tree.
const MAX_DEPTH: u32 = 250;
/// Deeper than any tree but of hundreds of `.?`, of which cel-go takes any number.
const MAX_TREE: u32 = 1000;
/// More nodes than any expression has without copies that macros make.
const MAX_NODES: usize = 250_000;

/// Words that are no names of variables; cel-go's `reservedIds`.
pub(crate) const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "null",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// Which macros there are besides those that all environments have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Macros {
    /// `cel.bind`.
    pub(crate) bind: bool,
}

/// A tree, and where each of its nodes stands.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) root: Expr,
    positions: Positions,
}

impl Parsed {
    /// The tree and the positions of its nodes.
    pub(crate) fn into_parts(self) -> (Expr, Positions) {
        (self.root, self.positions)
    }
}

/// The byte at which each node begins, by its id.
#[derive(Debug, Default)]
pub(crate) struct Positions(Vec<u32>);

impl Positions {
    fn add(&mut self, at: usize) -> Id {
        self.0.push(u32::try_from(at).unwrap_or(u32::MAX));
        Id::try_from(self.0.len()).unwrap_or(Id::MAX)
    }

    fn offset(&self, id: Id) -> usize {
        let index = usize::try_from(id).ok().and_then(|id| id.checked_sub(1));
        index.and_then(|index| self.0.get(index)).map_or(0, |at| *at as usize)
    }

    pub(crate) fn location(&self, id: Id, source: &Source<'_>) -> Location {
        source.location(self.offset(id))
    }

    /// The largest id.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

/// Parses an expression and expands its macros.
///
/// # Errors
/// What cel-go says of it.
pub(crate) fn parse(source: &Source<'_>, macros: Macros) -> Result<Parsed, Errors> {
    let mut errors = Errors::default();
    let characters = source.text().chars().count();
    if characters > MAX_CHARACTERS {
        let message = format!("expression code point size exceeds limit: size: {characters}, limit {MAX_CHARACTERS}");
        errors.report(|| Location::NONE, message);
        return Err(errors);
    }
    let tokens = lexer::tokens(source.text(), |at, text| {
        let message = format!("Syntax error: token recognition error at: '{}'", syntax_error::escaped(text));
        errors.report(|| source.location(at), message);
    });
    let mut grammar = grammar::Grammar::new(source, tokens, macros, errors);
    let root = grammar.start().unwrap_or(Expr { id: 0, kind: Kind::Unspecified });
    let (errors, positions) = grammar.finish();
    if errors.is_empty() { Ok(Parsed { root, positions }) } else { Err(errors) }
}
