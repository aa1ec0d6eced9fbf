//! Upstream's validation as a list of the places where it refuses something: each is reached by a row that is recorded from
//! a real kube-apiserver and held by the tests next to this one, or says why none can.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use super::{recorded::TABLES, table};

/// File, function, number of the place within it, kind of error, field as upstream's source names it; then a table next to
/// this file and the beginning of a row in it, or one of [`REASONS`] and what it rests on. Written by
/// `tests/rules/record.py`.
static RULES: LazyLock<String> = LazyLock::new(|| table("../../../tests/rules/rules"));
static DECISIONS: &str = include_str!("../../../../../docs/decisions.md");

/// The places that no row reaches yet. It only becomes less.
const OPEN: usize = 0;

/// Why no row reaches a place.
const REASONS: [&str; 4] = [
    // A difference on purpose: what it rests on is the beginning of a line in docs/decisions.md.
    "decisions",
    // Of a kind or a field that upstream serves only with a gate or a version that is off.
    "unserved",
    // Dead, or behind another check that refuses first: what it rests on says which.
    "unreachable",
    // To be done.
    "open",
];

#[test]
fn each_place_where_upstream_refuses_has_a_row_or_a_reason() {
    let spaced = |name| table(name).lines().map(|line| line.replace('\t', " ")).collect();
    let rows: BTreeMap<&str, Vec<String>> = TABLES.iter().map(|table| (table.name, spaced(table.name))).collect();
    let (mut places, mut open, mut wrong) = (BTreeSet::new(), 0, Vec::new());
    for line in RULES.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [file, function, number, kind, _, told, rest] = columns[..] else { panic!("{line}") };
        let place = format!("{file} {function} {number} {kind}");
        open += usize::from(told == "open");
        let stands = match rows.get(told) {
            // The whole row before its answers, or the beginning of a long one.
            Some(rows) => {
                let (start, end) = rest.strip_suffix('…').map_or((rest, " "), |start| (start, ""));
                rows.iter().any(|row| row.strip_prefix(start).is_some_and(|after| after.starts_with(end)))
            }
            None if told == "decisions" => {
                !rest.is_empty() && DECISIONS.lines().any(|line| line.trim_start_matches("- **").starts_with(rest))
            }
            None => REASONS.contains(&told) && (told == "open" || !rest.is_empty()),
        };
        if !stands {
            wrong.push(format!("{place}: {told} {rest}"));
        }
        assert!(places.insert(place), "{line}: stands twice");
    }
    assert!(places.len() > 2000, "{}", places.len());
    assert!(wrong.is_empty(), "{} name what is not there:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(open, OPEN, "the number of places without a row only becomes less: write the new one here");
}
