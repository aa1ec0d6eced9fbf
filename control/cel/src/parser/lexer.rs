//! Text to tokens: the lexical rules of cel-go's grammar (`parser/gen/CEL.g4`).

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Token {
    Equals,
    NotEquals,
    In,
    Less,
    LessEquals,
    GreaterEquals,
    Greater,
    And,
    Or,
    LeftBracket,
    RightBracket,
    LeftBrace,
    RightBrace,
    LeftParen,
    RightParen,
    Dot,
    Comma,
    Minus,
    Exclamation,
    QuestionMark,
    Colon,
    Plus,
    Star,
    Slash,
    Percent,
    True,
    False,
    Null,
    Float,
    Int,
    Uint,
    String,
    Bytes,
    Identifier,
    EscapedIdentifier,
    End,
}

/// Operators and punctuation; of two that begin alike the longer one stands first.
const FIXED: [(&str, Token); 25] = [
    ("==", Token::Equals),
    ("!=", Token::NotEquals),
    ("<=", Token::LessEquals),
    (">=", Token::GreaterEquals),
    ("&&", Token::And),
    ("||", Token::Or),
    ("<", Token::Less),
    (">", Token::Greater),
    ("[", Token::LeftBracket),
    ("]", Token::RightBracket),
    ("{", Token::LeftBrace),
    ("}", Token::RightBrace),
    ("(", Token::LeftParen),
    (")", Token::RightParen),
    (".", Token::Dot),
    (",", Token::Comma),
    ("-", Token::Minus),
    ("!", Token::Exclamation),
    ("?", Token::QuestionMark),
    (":", Token::Colon),
    ("+", Token::Plus),
    ("*", Token::Star),
    ("/", Token::Slash),
    ("%", Token::Percent),
    ("in", Token::In),
];

impl Token {
    /// The token as ANTLR's messages name it.
    pub(super) fn display(self) -> &'static str {
        match self {
            Self::Equals => "'=='",
            Self::NotEquals => "'!='",
            Self::In => "'in'",
            Self::Less => "'<'",
            Self::LessEquals => "'<='",
            Self::GreaterEquals => "'>='",
            Self::Greater => "'>'",
            Self::And => "'&&'",
            Self::Or => "'||'",
            Self::LeftBracket => "'['",
            Self::RightBracket => "']'",
            Self::LeftBrace => "'{'",
            Self::RightBrace => "'}'",
            Self::LeftParen => "'('",
            Self::RightParen => "')'",
            Self::Dot => "'.'",
            Self::Comma => "','",
            Self::Minus => "'-'",
            Self::Exclamation => "'!'",
            Self::QuestionMark => "'?'",
            Self::Colon => "':'",
            Self::Plus => "'+'",
            Self::Star => "'*'",
            Self::Slash => "'/'",
            Self::Percent => "'%'",
            Self::True => "'true'",
            Self::False => "'false'",
            Self::Null => "'null'",
            Self::Float => "NUM_FLOAT",
            Self::Int => "NUM_INT",
            Self::Uint => "NUM_UINT",
            Self::String => "STRING",
            Self::Bytes => "BYTES",
            Self::Identifier => "IDENTIFIER",
            Self::EscapedIdentifier => "ESC_IDENTIFIER",
            Self::End => "<EOF>",
        }
    }
}

/// A token and where it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lexeme<'a> {
    pub(super) token: Token,
    pub(super) text: &'a str,
    /// The byte at which it begins.
    pub(super) at: usize,
}

/// All tokens, the end as the last one. What is none is given to `error`, with the byte at which it begins.
pub(super) fn tokens<'a>(source: &'a str, mut error: impl FnMut(usize, &'a str)) -> Vec<Lexeme<'a>> {
    let mut tokens = Vec::with_capacity(source.len() / 3 + 1);
    let mut at = 0;
    while let Some(rest) = source.get(at..).filter(|rest| !rest.is_empty()) {
        let blank = blank(rest);
        if blank > 0 {
            at += blank;
            continue;
        }
        match next(rest) {
            Ok((token, length)) => {
                tokens.push(Lexeme { token, text: &rest[..length], at });
                at += length;
            }
            Err(length) => {
                error(at, &rest[..length]);
                at += length;
            }
        }
    }
    tokens.push(Lexeme { token: Token::End, text: "<EOF>", at: source.len() });
    tokens
}

/// The length of the white space or comment at the beginning.
fn blank(rest: &str) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    rest.find(|c| !matches!(c, '\t' | ' ' | '\r' | '\n' | '\u{c}')).unwrap_or(rest.len())
}

/// The token at the beginning and its length, or the length of what is none.
fn next(rest: &str) -> Result<(Token, usize), usize> {
    let first = rest.chars().next().unwrap_or_default();
    match first {
        '0'..='9' => return Ok(number(rest)),
        '.' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => return Ok(number(rest)),
        '"' | '\'' => return string(rest).map(|length| (Token::String, length)),
        '`' => return escaped_identifier(rest).map(|length| (Token::EscapedIdentifier, length)),
        'a'..='z' | 'A'..='Z' | '_' => return Ok(word(rest)),
        _ => {}
    }
    let fixed = FIXED.iter().find(|(text, _)| rest.starts_with(text));
    fixed.map(|(text, token)| (*token, text.len())).ok_or_else(|| {
        // A lone `&` or `|` takes what follows with it, which could have completed it.
        let more = matches!(first, '&' | '|' | '=').then(|| rest[1..].chars().next()).flatten();
        first.len_utf8() + more.map_or(0, char::len_utf8)
    })
}

/// An identifier, a keyword, or a text with a prefix.
fn word(rest: &str) -> (Token, usize) {
    let prefix = rest.bytes().take(3).position(|byte| matches!(byte, b'"' | b'\''));
    if let Some(prefix) = prefix
        && let Some(token) = match &rest[..prefix] {
            "r" | "R" => Some(Token::String),
            "b" | "B" | "br" | "bR" | "Br" | "BR" => Some(Token::Bytes),
            _ => None,
        }
    {
        let raw = rest[..prefix].ends_with(['r', 'R']);
        let length = if raw { raw_string(&rest[prefix..]) } else { string(&rest[prefix..]).ok() };
        if let Some(length) = length {
            return (token, prefix + length);
        }
    }
    let length = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
    let token = match &rest[..length] {
        "in" => Token::In,
        "true" => Token::True,
        "false" => Token::False,
        "null" => Token::Null,
        _ => Token::Identifier,
    };
    (token, length)
}

fn escaped_identifier(rest: &str) -> Result<usize, usize> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' ');
    let end = rest[1..].find(|c| !fine(c)).map_or(rest.len(), |end| end + 1);
    if end > 1 && rest[end..].starts_with('`') { Ok(end + 1) } else { Err(with_next(rest, end)) }
}

/// The length up to a byte, with the character there, which is where a token turned out to be none.
fn with_next(rest: &str, end: usize) -> usize {
    end + rest[end..].chars().next().map_or(0, char::len_utf8)
}

fn number(rest: &str) -> (Token, usize) {
    let digits =
        |from: usize, radix: u32| from + rest[from..].find(|c: char| !c.is_digit(radix)).unwrap_or(rest.len() - from);
    let unsigned = |end: usize| {
        if rest[end..].starts_with(['u', 'U']) { (Token::Uint, end + 1) } else { (Token::Int, end) }
    };
    if rest.starts_with("0x") {
        let end = digits(2, 16);
        if end > 2 {
            return unsigned(end);
        }
    }
    let exponent = |from: usize| {
        let sign = from + 1 + usize::from(rest[from..].get(1..2).is_some_and(|sign| sign == "+" || sign == "-"));
        let end = if rest[from..].starts_with(['e', 'E']) { digits(sign.min(rest.len()), 10) } else { 0 };
        (end > sign).then_some(end)
    };
    let whole = digits(0, 10);
    let fraction = rest[whole..].starts_with('.').then(|| digits(whole + 1, 10)).filter(|end| *end > whole + 1);
    match fraction {
        Some(end) => (Token::Float, exponent(end).unwrap_or(end)),
        None => exponent(whole).map_or_else(|| unsigned(whole), |end| (Token::Float, end)),
    }
}

/// The length of a text with escapes that begins with its quotes.
fn string(rest: &str) -> Result<usize, usize> {
    let quote = &rest[..1];
    let triple = quote.repeat(3);
    if let Some(inside) = rest.strip_prefix(&triple)
        && let Ok(end) = text_until(inside, &triple, true)
    {
        return Ok(3 + end + 3);
    }
    text_until(&rest[1..], quote, false).map(|end| end + 2).map_err(|end| with_next(rest, end + 1))
}

/// The length of a text up to the quotes that end it, or up to what it may not contain.
fn text_until(inside: &str, quotes: &str, lines: bool) -> Result<usize, usize> {
    let mut at = 0;
    loop {
        let rest = &inside[at..];
        if rest.starts_with(quotes) {
            return Ok(at);
        }
        match rest.chars().next() {
            None => return Err(at),
            Some('\n' | '\r') if !lines => return Err(at),
            Some('\\') => at += escape(rest).ok_or(at + 1)?,
            Some(c) => at += c.len_utf8(),
        }
    }
}

/// The length of an escape sequence.
fn escape(rest: &str) -> Option<usize> {
    let bytes = rest.as_bytes();
    let hexadecimal = |digits: usize| {
        bytes.get(2..2 + digits).filter(|text| text.iter().all(u8::is_ascii_hexdigit)).map(|_| 2 + digits)
    };
    match bytes.get(1)? {
        b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'"' | b'\'' | b'\\' | b'?' | b'`' => Some(2),
        b'x' | b'X' => hexadecimal(2),
        b'u' => hexadecimal(4),
        b'U' => hexadecimal(8),
        b'0'..=b'3' => bytes.get(2..4).filter(|text| text.iter().all(|b| (b'0'..=b'7').contains(b))).map(|_| 4),
        _ => None,
    }
}

/// The length of a text without escapes that begins with its quotes.
fn raw_string(rest: &str) -> Option<usize> {
    let quote = &rest[..1];
    let triple = quote.repeat(3);
    if let Some(inside) = rest.strip_prefix(&triple)
        && let Some(end) = inside.find(&triple)
    {
        return Some(3 + end + 3);
    }
    let end = rest[1..].find([quote.chars().next()?, '\n', '\r'])?;
    rest[1 + end..].starts_with(quote).then_some(end + 2)
}
