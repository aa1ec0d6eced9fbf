//! What upstream's CEL says of thousands of expressions, replayed: errors to the letter, values, estimates and costs.

mod support;

use std::collections::BTreeMap;

use support::{Row, Setting};

/// Expressions of which upstream says something else, and why that stays.
const EXCEPTIONS: [(&str, &str); 6] = [
    ("{[1]: 'b'}", "A list is refused as a key: nothing is ever found by it."),
    ("{optional.none(): 'b'}.size()", "So is an optional."),
    (
        "quantity('12345678901234567890').asApproximateFloat()",
        "Of more than 18 digits, the last bit of the float differs.",
    ),
    ("double('0_10')", "Go takes underscores after a leading zero."),
    ("'a'.matches('[[:aapa:]]')", "A POSIX class that does not exist is taken for the set of its letters."),
    ("(int(s]elf.ratio) in lists.range(3))", "What ANTLR says after the first error is only said in common cases."),
];

#[test]
fn expressions_have_upstreams_verdicts() {
    let mut settings: BTreeMap<String, Setting> = BTreeMap::new();
    let (mut rows, mut different, mut excused) = (0, Vec::new(), 0);
    for line in include_str!("data/facts.jsonl").lines().filter(|line| line.starts_with('{')) {
        match support::read(line) {
            Row::Environment(name, setting) => {
                settings.insert(name, *setting);
            }
            Row::Verdict(expected) => {
                rows += 1;
                let setting = &settings[&expected.environment];
                let found = setting.ask(&expected.expression);
                if found == expected.verdict {
                    continue;
                }
                if EXCEPTIONS.iter().any(|(expression, _)| *expression == expected.expression) {
                    excused += 1;
                    continue;
                }
                different.push(format!(
                    "{} in {}\n  upstream {:?}\n  here     {found:?}",
                    expected.expression, expected.environment, expected.verdict
                ));
            }
        }
    }
    let shown: Vec<&str> = different.iter().map(String::as_str).take(1000).collect();
    assert!(different.is_empty(), "{} of {rows} differ:\n{}", different.len(), shown.join("\n"));
    assert!(rows > 3000, "{rows}");
    assert_eq!(excused, EXCEPTIONS.len());
}
