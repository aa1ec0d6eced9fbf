//! Go's regular expressions.

use crate::{
    effort::Effort,
    schema::{
        Pattern,
        validate::pattern::{Parsed, compile},
    },
};

fn matches(pattern: &str, text: &str) -> Option<bool> {
    Pattern::new(pattern).matches(text, &mut Effort::unlimited())
}

#[test]
fn expressions_mean_what_they_mean_in_go() {
    for (pattern, matching, other) in [
        ("^[a&&b[]+$", "a&b[", "c"),
        ("^[a~~b-]+$", "~-", "c"),
        ("^[+--a]+$", "+,-a", "b"),
        ("^[[:alpha:]]+$", "ab", "1"),
        (r"^\d+$", "12", "١"),
        (r"^[\w.-]+$", "a_1.-", "é"),
        (r"^\s$", "\t", "\u{b}"),
        (r"^\Qa.b\E$", "a.b", "axb"),
        (r"^a{,2}$", "a{,2}", "aa"),
        (r"^a{2,3}?$", "aaa", "a"),
        (r"^\<\/\-\>$", "</->", "</"),
        (r"^\x41\101\a?$", "AA", "A"),
        (r"^[]a]+$", "]a", "b"),
        (r"^(?P<n>a)(?:b)(?i)C$", "abc", "ab"),
        (r"^(?)a(?ii)b(?i-i)c$", "aBc", "aBC"),
        (r"^[a-c-]+$", "b-", "d"),
        (r"^[^\s]+$", "ab", "a b"),
        (r"^\bab\b$", "ab", "abc"),
        ("^}]$", "}]", "x"),
        (r"^[\-\]\\^]+$", r"-]\^", "a"),
        (r"^\p{L}\pN[\p{Lu}_]$", "é1É", "é1é"),
        (r"^\P{L}\p{^L}[^\pL]$", "1-_", "1a_"),
        (r"^\p{Greek}{2}$", "αβ", "α"),
        (r"^\x{41}\x{20ac}[\x61-\x{7a}]{2}$", "A€bc", "A€b"),
        ("", "anything", "\u{0}"),
    ] {
        let compiled = compile(pattern);
        assert!(compiled.is_ok(), "{pattern}: {compiled:?}");
        assert_eq!(matches(pattern, matching), Some(true), "{pattern} {matching}");
        assert!(pattern.is_empty() || matches(pattern, other) == Some(false), "{pattern} {other}");
    }
}

#[test]
fn bad_expressions_are_refused_in_gos_words() {
    for (pattern, words) in [
        ("(", "missing closing ): `(`"),
        ("a)", "unexpected ): `a)`"),
        ("[", "missing closing ]: `[`"),
        ("x[a", "missing closing ]: `[a`"),
        ("*", "missing argument to repetition operator: `*`"),
        ("(|+)", "missing argument to repetition operator: `+`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("a{3,2}", "invalid repeat count: `{3,2}`"),
        ("a{2,1001}?", "invalid repeat count: `{2,1001}`"),
        ("((a{100}){11})", "invalid repeat count: `{11}`"),
        ("(b|(a{100,})*){11}?", "invalid repeat count: `{11}?`"),
        ("((((((((((x{2}){2}){2}){2}){2}){2}){2}){2}){2}){2})", "invalid repeat count: `{2}`"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ("(?!a)", "invalid or unsupported Perl syntax: `(?!`"),
        (r"\xg0", r"invalid escape sequence: `\xg0`"),
        (r"\8", r"invalid escape sequence: `\8`"),
        (r"\1", r"invalid escape sequence: `\1`"),
        ("\\", "trailing backslash at end of expression: ``"),
        ("(?P<>a)", "invalid named capture: `(?P<>`"),
    ] {
        assert_eq!(compile(pattern).unwrap_err(), format!("error parsing regexp: {words}"), "{pattern}");
    }
}

/// As in Go, repetitions within each other count together, and none is written out that nobody can meet.
#[test]
fn repetitions_within_each_other_are_limited_together() {
    for pattern in
        ["(a{100}){10}", "((a{0}b{1000}){1}c){1,}", "(a{1000}|b{1000})c{1000}", "(a{1000}){0}", "((x{2}){500})"]
    {
        assert!(compile(pattern).is_ok(), "{pattern}");
    }
}

/// An expression whose text is short may take long: that is known before it is compiled, and before it is applied.
#[test]
fn what_takes_longer_than_is_left_is_not_done() {
    let dear = "^(a?b?c?d?){500}x$";
    let plain = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
    let compiling = |pattern: &str| Parsed::of(pattern).unwrap().effort();
    assert!(compiling(dear) > 2 * compiling(plain));
    let text = "abcd".repeat(500);
    let pattern = Pattern::new(dear);
    assert_eq!(pattern.matches(&text, &mut Effort::new(compiling(dear) - 1)), None);
    let mut left = Effort::new(compiling(dear));
    assert_eq!((pattern.matches(&text, &mut left), left.is_exceeded()), (None, true));
    let applying = compile(dear).unwrap().effort(&text);
    assert!(applying > 50 * compile(plain).unwrap().effort(&text), "{applying}");
    // It is compiled by now.
    assert_eq!(pattern.matches(&text, &mut Effort::new(applying)), Some(false));
    assert_eq!(pattern.matches(&text, &mut Effort::new(applying - 1)), None);
}

/// What makes other engines try all ways to match: here the length of the text is all that counts.
#[test]
fn no_expression_takes_more_than_its_states_for_each_character() {
    for pattern in ["^(a+)+$", "^(a|aa)+$", "^(a|a?)+$", "^(.*)*b$", "^((a*)*)*c$"] {
        let text = "a".repeat(100_000) + "!";
        assert_eq!(matches(pattern, &text), Some(false), "{pattern}");
    }
    for pattern in [r"(\pL{1000}){1}\pN{1000}\pL{1000}\pN{1000}\pL{1000}", r"[\pL\pN]{1000}[\pL\pN]{1000}"] {
        assert!(compile(pattern).unwrap_err().contains("size limit"), "{pattern}");
    }
}
