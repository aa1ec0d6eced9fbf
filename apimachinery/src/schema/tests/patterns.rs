//! Go's regular expressions.

use crate::schema::{Pattern, validate::pattern::compile};

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
        ("", "anything", "\u{0}"),
    ] {
        let compiled = compile(pattern);
        assert!(compiled.is_ok(), "{pattern}: {compiled:?}");
        assert!(Pattern::new(pattern).matches(matching), "{pattern} {matching}");
        assert!(pattern.is_empty() || !Pattern::new(pattern).matches(other), "{pattern} {other}");
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
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ("(?!a)", "invalid or unsupported Perl syntax: `(?!`"),
        (r"\8", r"invalid escape sequence: `\8`"),
        (r"\1", r"invalid escape sequence: `\1`"),
        ("\\", "trailing backslash at end of expression: ``"),
        ("(?P<>a)", "invalid named capture: `(?P<>`"),
    ] {
        assert_eq!(compile(pattern).unwrap_err(), format!("error parsing regexp: {words}"), "{pattern}");
    }
}
