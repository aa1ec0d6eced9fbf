//! Parses the text of `iptables-save`, and brings rules into a canonical form in which they can be compared. Pure.

use std::collections::BTreeMap;

/// One rule as `iptables-save` prints it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule<'a> {
    /// Everything behind the chain's name.
    pub text: &'a str,
    /// Its packet counter; 0 when the text has no counters.
    pub packets: u64,
}

/// One chain as `iptables-save` prints it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain<'a> {
    /// `ACCEPT` or `DROP` for base chains, `-` for user-defined ones.
    pub policy: &'a str,
    /// In order.
    pub rules: Vec<Rule<'a>>,
}

/// All tables that `iptables-save` printed: chains by table name, then by chain name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedRuleset<'a> {
    /// Table by table.
    pub tables: BTreeMap<&'a str, BTreeMap<&'a str, Chain<'a>>>,
}

/// A text that `iptables-save` does not print.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot parse line {line} of the saved ruleset: {text}")]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    /// Its text.
    pub text: String,
}

/// Splits off a leading `[packets:bytes]`.
fn split_counters(line: &str) -> (u64, &str) {
    let split = || {
        let (inside, rest) = line.strip_prefix('[')?.split_once("] ")?;
        let (packets, _) = inside.split_once(':')?;
        Some((packets.parse().ok()?, rest))
    };
    split().unwrap_or((0, line))
}

impl<'a> SavedRuleset<'a> {
    /// Reads what `iptables-save` prints, with or without counters; also restore input.
    ///
    /// # Errors
    /// Any line that is neither a comment, a table, a chain, a rule nor the end of a table.
    pub fn parse(text: &'a str) -> Result<Self, ParseError> {
        let mut out = Self::default();
        let mut table: Option<&'a str> = None;
        for (i, whole) in text.lines().enumerate() {
            let line = whole.trim_end();
            let bad = || ParseError { line: i + 1, text: whole.chars().take(200).collect() };
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line == "COMMIT" {
                table.take().ok_or_else(bad)?;
                continue;
            }
            if let Some(name) = line.strip_prefix('*') {
                if table.is_some() || name.is_empty() {
                    return Err(bad());
                }
                table = Some(name);
                out.tables.entry(name).or_default();
                continue;
            }
            let chains = table.and_then(|t| out.tables.get_mut(t)).ok_or_else(bad)?;
            if let Some(declared) = line.strip_prefix(':') {
                let mut words = declared.split(' ');
                let (Some(name), Some(policy)) = (words.next().filter(|n| !n.is_empty()), words.next()) else {
                    return Err(bad());
                };
                chains.entry(name).or_default().policy = policy;
                continue;
            }
            let (packets, rest) = split_counters(line);
            if let Some(rule) = rest.strip_prefix("-A ") {
                let (chain, text) = rule.split_once(' ').unwrap_or((rule, ""));
                if chain.is_empty() {
                    return Err(bad());
                }
                chains.entry(chain).or_default().rules.push(Rule { text, packets });
            } else if !(rest.starts_with("-I ") || rest.starts_with("-X ") || rest.starts_with("-N ")) {
                return Err(bad());
            }
        }
        match table {
            None => Ok(out),
            Some(name) => Err(ParseError { line: text.lines().count(), text: format!("table {name} has no COMMIT") }),
        }
    }

    /// The chains of one table; none when there is no such table.
    pub fn chains(&self, table: impl AsRef<str>) -> impl Iterator<Item = (&'a str, &Chain<'a>)> {
        self.tables.get(table.as_ref()).into_iter().flatten().map(|(name, chain)| (*name, chain))
    }

    /// One chain.
    #[must_use]
    pub fn chain(&self, table: impl AsRef<str>, name: &str) -> Option<&Chain<'a>> {
        self.tables.get(table.as_ref())?.get(name)
    }
}

/// Splits a rule into words; a quoted text is one word. iptables quotes with `"` and `\\` only, unlike a shell.
#[must_use]
pub fn split_words(rule: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut word = String::new();
    let (mut quoted, mut started, mut chars) = (false, false, rule.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                quoted = !quoted;
                started = true;
            }
            '\\' if quoted => word.extend(chars.next()),
            ' ' | '\t' if !quoted => {
                if started {
                    out.push(std::mem::take(&mut word));
                }
                started = false;
            }
            c => {
                word.push(c);
                started = true;
            }
        }
    }
    if started {
        out.push(word);
    }
    out
}

/// A rule's options in a form that is equal for what is restored and what `iptables-save` prints: without order, `/32`,
/// spellings of marks and the defaults of REJECT and recent; probabilities to seven digits.
#[must_use]
pub fn canonical(rule: &str) -> Vec<String> {
    let mut groups: Vec<Vec<String>> = Vec::new();
    let mut negated = false;
    for word in split_words(rule) {
        let option = word.len() > 1 && word.starts_with('-') && !word.as_bytes()[1].is_ascii_digit();
        if word == "!" {
            negated = true;
        } else if option {
            let mut group = Vec::new();
            if std::mem::take(&mut negated) {
                group.push("!".to_owned());
            }
            group.push(word);
            groups.push(group);
        } else if let Some(group) = groups.last_mut() {
            group.push(word);
        }
    }
    let mut out: Vec<String> = groups.into_iter().filter_map(canonical_group).collect();
    out.sort_unstable();
    out
}

fn canonical_group(mut group: Vec<String>) -> Option<String> {
    let at = usize::from(group[0] == "!");
    if matches!(group[at].as_str(), "-m" | "--reject-with" | "--mask" | "--rsource") {
        return None;
    }
    // An option at the end of a truncated line has no value to be written differently.
    let Some(value) = group.get(at + 1).cloned() else { return Some(group.join(" ")) };
    match group[at].as_str() {
        "--or-mark" => group = vec!["--set-xmark".into(), format!("{0}/{0}", hex(&value))],
        "--xor-mark" => group = vec!["--set-xmark".into(), format!("{}/0x0", hex(&value))],
        "--set-xmark" | "--mark" => group[at + 1] = value.split('/').map(hex).collect::<Vec<_>>().join("/"),
        "-s" | "-d" => {
            let full = if value.contains(':') { "/128" } else { "/32" };
            group[at + 1] = value.strip_suffix(full).unwrap_or(&value).to_owned();
        }
        "--probability" => group[at + 1] = value.parse().map_or(value, |p: f64| format!("{p:.7}")),
        "--ctstate" => {
            let mut states: Vec<&str> = value.split(',').collect();
            states.sort_unstable();
            group[at + 1] = states.join(",");
        }
        _ => {}
    }
    Some(group.join(" "))
}

fn hex(text: &str) -> String {
    parse_mark(text).map_or_else(|| text.to_owned(), |n| format!("{n:#x}"))
}

/// Parses a packet mark, decimal or hexadecimal with `0x`.
#[must_use]
pub fn parse_mark(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_text_is_read_and_nonsense_refused() {
        let text = "# by x\n*nat\n:PREROUTING ACCEPT [3:4]\n:KUBE-X - [0:0]\n[7:420] -A PREROUTING -j KUBE-X\n-A KUBE-X -j RETURN\nCOMMIT\n\
                *filter\n:INPUT DROP [0:0]\nCOMMIT\n";
        let saved = SavedRuleset::parse(text).unwrap();
        let chain = saved.chain("nat", "PREROUTING").unwrap();
        assert_eq!((chain.policy, chain.rules[0].packets, chain.rules[0].text), ("ACCEPT", 7, "-j KUBE-X"));
        assert_eq!(saved.chain("filter", "INPUT").unwrap().policy, "DROP");
        for (bad, line) in [
            ("*nat\n", 1),
            ("-A X\n", 1),
            ("*nat\njunk\nCOMMIT\n", 2),
            ("*nat\nCOMMIT\ntrail\n", 3),
            ("*a\n*b\n", 2),
            ("*nat\n:\nCOMMIT\n", 2),
        ] {
            assert_eq!(SavedRuleset::parse(bad).unwrap_err().line, line, "{bad}");
        }
    }

    #[test]
    fn what_is_written_and_what_is_printed_are_the_same() {
        let pairs = [
            (
                "-m comment --comment \"a b\" -m tcp -p tcp -d 172.30.0.41 --dport 80 -j X",
                "-d 172.30.0.41/32 -p tcp -m comment --comment \"a b\" -m tcp --dport 80 -j X",
            ),
            ("-m mark ! --mark 0x00004000/0x00004000 -j RETURN", "-m mark ! --mark 0x4000/0x4000 -j RETURN"),
            ("-j MARK --or-mark 0x00004000", "-j MARK --set-xmark 0x4000/0x4000"),
            ("-j MARK --xor-mark 0x00004000", "-j MARK --set-xmark 0x4000/0x0"),
            (
                "-m statistic --mode random --probability 0.3333333333 -j X",
                "-m statistic --mode random --probability 0.33333333349 -j X",
            ),
            ("-m recent --name S --set -j X", "-m recent --set --name S --mask 255.255.255.255 --rsource -j X"),
            ("-d ::5 -j REJECT", "-d ::5/128 -j REJECT --reject-with icmp6-port-unreachable"),
            (
                "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
                "-m conntrack ! --ctstate DNAT,RELATED,ESTABLISHED -j DROP",
            ),
        ];
        for (written, printed) in pairs {
            assert_eq!(canonical(written), canonical(printed));
        }
        assert_ne!(canonical("! -s 10.0.0.0/8 -j X"), canonical("-s 10.0.0.0/8 -j X"));
        assert_ne!(canonical("-s 10.0.0.1 -j X"), canonical("-s 10.0.0.2 -j X"));
    }

    #[test]
    fn an_option_without_a_value_is_kept_as_it_is() {
        for option in ["--mark", "--set-xmark", "--or-mark", "-s", "--probability", "--ctstate", "! -d"] {
            assert_eq!(canonical(&format!("-j X {option}")), {
                let mut expected = [option.to_owned(), "-j X".to_owned()];
                expected.sort_unstable();
                expected
            });
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_the_parser(text in "(\\*nat\n)?([:\\-A-Z \"!\\\\\\[\\]0-9\n]{0,80}(COMMIT\n)?){0,4}") {
            if let Ok(saved) = SavedRuleset::parse(&text) {
                for chain in saved.tables.values().flat_map(BTreeMap::values) {
                    for rule in &chain.rules {
                        let _ = canonical(rule.text);
                    }
                }
            }
        }
    }
}
