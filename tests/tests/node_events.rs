//! Events of the node compared with a table of those that upstream's kubelet and kube-proxy record, since alerts and people search
//! for their reasons and words.

use std::collections::{BTreeMap, BTreeSet};

use windlass_tests::sources::rust_sources;

/// Words between the values of a message of Go.
fn fixed_words(message: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut rest = message.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, rest.peek()) {
            ('%', Some('v' | 's' | 'q' | 'd')) => {
                rest.next();
                words.push(String::new());
            }
            _ => words.last_mut().expect("one is there").push(c),
        }
    }
    words.into_iter().filter(|text| !text.trim_matches([' ', ':']).is_empty()).collect()
}

/// The values that the sources give to reasons of events: literals next to a severity, and constants of `reasons`.
fn reasons_in(text: &str, constants: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("Severity::") {
        let after = text[at..].split_once(',').map_or("", |(_, rest)| rest).trim_start();
        if let Some(literal) = after.strip_prefix('"') {
            found.extend(literal.split('"').next().map(str::to_owned));
        } else if let Some(constant) = after.strip_prefix("reasons::") {
            let name: String = constant.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
            found.extend(constants.get(&name).cloned());
        }
    }
    found
}

#[test]
fn events_of_the_node_have_upstreams_words() {
    /// Events that upstream's node does not have.
    const OWN: [&str; 2] = ["FailedToWriteServiceRules", "HostPortNotOpened"];
    let sources: BTreeMap<String, String> = rust_sources().into_iter().collect();
    let constants: BTreeMap<String, String> = sources["agent/src/pods/lifecycle/reasons.rs"]
        .lines()
        .filter_map(|line| {
            let (name, value) = line.strip_prefix("pub(crate) const ")?.split_once(": &str = \"")?;
            Some((name.to_owned(), value.trim_end_matches("\";").to_owned()))
        })
        .collect();
    let table = include_str!("node_events.tsv");
    let mut problems = Vec::new();
    let mut known = BTreeSet::from(OWN.map(str::to_owned));
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let row: Vec<&str> = line.split('\t').collect();
        let [_, reason, kind, message, place] = row[..] else { panic!("{row:?} has not five columns") };
        assert!(matches!(kind, "Normal" | "Warning"), "{row:?}");
        known.insert(reason.to_owned());
        if let Some(why) = place.strip_prefix('-') {
            assert!(!why.trim().is_empty(), "{row:?} does not say why there is no such event");
            continue;
        }
        let Some(text) = sources.get(place) else {
            problems.push(format!("there is no {place}, which records {reason}"));
            continue;
        };
        // As the compiler reads it: a line that goes on, a quote in a text.
        let mut text = text.replace("\\\"", "\"");
        while let Some(at) = text.find("\\\n") {
            let end = text[at + 2..].find(|c: char| !c.is_whitespace()).map_or(text.len(), |next| at + 2 + next);
            text.replace_range(at..end, "");
        }
        // Messages assembled by a struct or a function are checked by their parts.
        let prefix =
            ["Pod resize ", "PostStartHook failed", "PreStopHook failed"].iter().any(|p| message.starts_with(p));
        for words in fixed_words(message).into_iter().filter(|_| !prefix) {
            if !text.contains(&words) {
                problems.push(format!("{place} does not say {words:?} of {reason}"));
            }
        }
    }
    for (path, text) in &sources {
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        if path.starts_with("agent/src") || path.starts_with("proxy/src") {
            let strange = reasons_in(text, &constants).into_iter().filter(|reason| !known.contains(reason));
            problems.extend(strange.map(|reason| format!("{path}: {reason} is not in the table")));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}
