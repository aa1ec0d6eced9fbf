//! The words of ANTLR's parser for what does not follow the grammar.

use super::lexer::Token;

/// What an expression can begin with.
pub(super) const OPERAND: [Token; 15] = [
    Token::LeftBracket,
    Token::LeftBrace,
    Token::LeftParen,
    Token::Dot,
    Token::Minus,
    Token::Exclamation,
    Token::True,
    Token::False,
    Token::Null,
    Token::Float,
    Token::Int,
    Token::Uint,
    Token::String,
    Token::Bytes,
    Token::Identifier,
];

/// A set of tokens as ANTLR writes it, in the order of the grammar.
pub(super) fn set(tokens: &[Token]) -> String {
    let mut tokens = tokens.to_vec();
    tokens.sort_unstable();
    tokens.dedup();
    let names: Vec<&str> = tokens.iter().map(|token| token.display()).collect();
    match &names[..] {
        [one] => (*one).to_owned(),
        names => format!("{{{}}}", names.join(", ")),
    }
}

/// A text as ANTLR shows it, on one line.
pub(super) fn escaped(text: &str) -> String {
    text.replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r")
}
