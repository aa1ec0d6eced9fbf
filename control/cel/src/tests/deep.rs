//! No expression is too deep for the stack.

use serde_json::json;

use crate::fuzzing::expression;

/// What a thread has unless more is asked for, which is also what Tokio's have.
const STACK: usize = 2 << 20;

fn deep() -> Vec<String> {
    let nested = |open: &str, inner: &str, close: &str, times: usize| {
        format!("{}{inner}{}", open.repeat(times), close.repeat(times))
    };
    let mut all = Vec::new();
    for times in [40, 120, 248, 249, 250, 5000] {
        all.extend([
            nested("(", "1", ")", times),
            nested("[", "1", "]", times),
            nested("{'a': ", "1", "}", times),
            nested("!(", "true", ")", times),
            nested("-(", "1", ")", times),
            nested("1 + (", "1", ")", times),
            nested("true && (", "true", ")", times),
            nested("true ? true : (", "true", ")", times),
            nested("size([", "1", "])", times),
            nested("[1].all(x, ", "true", ")", times),
            nested("[1].map(x, ", "true", ")", times),
            nested("[1].exists_one(x, ", "true", ")", times),
            nested("{1: 2}.transformMap(k, v, ", "true", ")", times),
            nested("optional.of(", "1", ")", times),
            nested("optional.of(1).optMap(x, ", "1", ")", times),
            nested("dyn(", "1", ")", times),
            nested("", "1", " + 1", times),
            nested("", "true", " && true", times),
            nested("", "any", ".a", times),
            nested("", "any", "[0]", times),
            nested("", "any", ".?a", times),
            nested("", "any", "[?0]", times),
            nested("", "[1]", ".map(x, x)", times),
            nested("", "[1]", ".sortBy(x, x)", times),
            nested("", "[1]", ".filter(x, true)", times),
            nested("", "'a'", ".trim()", times),
            nested("", "optional.of(1)", ".optMap(x, x)", times.min(20)),
            nested("", "optional.of(1)", ".or(optional.of(1))", times),
            nested("[[1]].map(x, x", "", ")", times),
            "[".repeat(times),
            "!".repeat(times),
            "-".repeat(times),
            "a.".repeat(times),
            "[1].map(x, ".repeat(times),
        ]);
    }
    all
}

#[test]
fn deep_expressions_fit_the_stack() {
    let run = || {
        let json = (0..60).fold(json!(1), |inner, _| json!({"a": [inner]}));
        for text in deep() {
            expression(&text, &json);
        }
    };
    std::thread::Builder::new().stack_size(STACK).spawn(run).expect("a thread").join().expect("no panic");
}

/// What takes time for each byte would take minutes if it took it for each pair of bytes.
#[test]
fn long_expressions_take_little_time() {
    let json = json!(null);
    for part in [
        "a ",
        "1 + ",
        "a && ",
        "'",
        "\"",
        "'a' + ",
        "a.",
        "&",
        "9999999999999999999 + ",
        "r\"\"\"",
        "``",
        "//\n",
        "[a,",
    ] {
        let text = part.repeat(99_999 / part.len());
        expression(&text, &json);
        expression(&format!("{text} a"), &json);
    }
    let many = vec!["self.count == 1"; 5_000].join(" || ");
    expression(&many, &json!({"count": 2}));
}
