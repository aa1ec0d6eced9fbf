//! Traces the first packet of a connection through the rules as netfilter does: every rule that matches, and where the
//! packet can end. Pure: the text of `iptables-save` goes in.
//!
//! Rules with a probability are followed both ways, with their shares. What the text does not determine (an unknown
//! match, an unspecified interface, a client's earlier connections) counts as no match, and is reported.

mod matches;
mod text;

pub(super) use matches::set_matches;

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::RuleOptions;
use crate::{
    iptables_save::{Rule, SavedRuleset},
    local_addresses::LocalAddresses,
    network_policy::{IpSets, is_policy_chain},
};

/// After this many rules no chain is entered any more: foreign rules can jump to each other in more ways than there is
/// memory for.
const MAX_HOPS: usize = 50_000;
/// A deeper nesting of jumps is a loop in foreign rules.
const MAX_JUMP_DEPTH: usize = 64;

/// The first packet of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination port.
    pub port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Input interface, where that matters.
    pub interface: Option<String>,
}

/// One rule that matched the packet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hop {
    /// `nat`, `mangle` or `filter`.
    pub table: &'static str,
    /// The chain.
    pub chain: String,
    /// The rule's number in it, from 1; 0 is the chain's policy.
    pub rule: usize,
    /// The rule behind the chain's name.
    pub text: String,
    /// What it does to the packet, in words.
    pub verdict: String,
    /// The share of packets that reach it, from 0 to 1.
    pub share: f64,
    /// The depth of jumps.
    pub depth: usize,
}

/// Where packets end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The share of packets that end so, from 0 to 1.
    pub share: f64,
    /// `to ADDRESS:PORT`, `refused` or `dropped`.
    pub end: String,
    /// Whether a rule of a service translated the destination.
    pub translated: bool,
    /// Whether the source is replaced by the node's.
    pub masqueraded: bool,
    /// The rule that decided, as `table chain rule`, and where NetworkPolicies drop which ones.
    pub decided_by: String,
}

/// The complete trace.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Trace {
    /// Every matching rule, in order; of packets that take the same path behind DNAT only those of the first.
    pub hops: Vec<Hop>,
    /// All possible ends.
    pub outcomes: Vec<Outcome>,
}

#[derive(Debug, Clone, PartialEq)]
struct PacketState {
    destination: IpAddr,
    port: u16,
    mark: u32,
    translated: bool,
    share: f64,
    /// The rule that last decided something.
    by: String,
}

enum Verdict {
    /// Returned to the calling chain, or for a base chain: its policy decides.
    Return,
    /// The hook accepts it.
    Accept,
    Drop,
    Reject,
}

enum Match {
    Yes,
    No,
    /// The text does not determine it, and why.
    Unknown(String),
}

/// Traces a packet through the rules of a node with these IP sets and local addresses.
#[must_use]
pub fn trace(rules: &SavedRuleset<'_>, sets: &IpSets, local: &LocalAddresses, packet: &Packet) -> Trace {
    let mut walker = Walker { rules, sets, local, packet, hops: Vec::new() };
    let first = PacketState {
        destination: packet.destination,
        port: packet.port,
        mark: 0,
        translated: false,
        share: 1.0,
        by: "no rule".to_owned(),
    };
    let from_here = walker.is_local(packet.source);
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut paths: Vec<(bool, u32)> = Vec::new();
    for (state, verdict) in walker.base_chain("nat", if from_here { "OUTPUT" } else { "PREROUTING" }, first) {
        let Some(mut outcome) = Outcome::of(&state, &verdict) else {
            // What follows depends on where it goes and on its mark; rules met again are not recorded again.
            let path = (walker.is_local(state.destination), state.mark);
            let recorded = walker.hops.len();
            outcomes.extend(walker.after_dnat(state, from_here));
            if paths.contains(&path) {
                walker.hops.truncate(recorded);
            }
            paths.push(path);
            continue;
        };
        outcome.masqueraded = false;
        outcomes.push(outcome);
    }
    Trace { hops: walker.hops, outcomes }
}

impl Outcome {
    /// The end of a packet that a rule dropped or rejected.
    fn of(state: &PacketState, verdict: &Verdict) -> Option<Self> {
        let end = match verdict {
            Verdict::Drop => "dropped",
            Verdict::Reject => "refused",
            Verdict::Return | Verdict::Accept => return None,
        };
        Some(Self {
            share: state.share,
            end: end.to_owned(),
            translated: state.translated,
            masqueraded: false,
            decided_by: state.by.clone(),
        })
    }
}

struct Walker<'a> {
    rules: &'a SavedRuleset<'a>,
    sets: &'a IpSets,
    local: &'a LocalAddresses,
    packet: &'a Packet,
    hops: Vec<Hop>,
}

impl Walker<'_> {
    fn is_local(&self, ip: IpAddr) -> bool {
        self.local.contains(&ip)
    }

    /// The hooks of mangle and filter, and POSTROUTING, which follow DNAT. Only forwarded packets have rules in mangle.
    fn after_dnat(&mut self, state: PacketState, from_here: bool) -> Vec<Outcome> {
        let to_here = self.is_local(state.destination);
        let hooks: &[(&'static str, &str)] = match (from_here, to_here) {
            (true, true) => &[("filter", "OUTPUT"), ("filter", "INPUT")],
            (true, false) => &[("filter", "OUTPUT")],
            (false, true) => &[("filter", "INPUT")],
            (false, false) => &[("mangle", "FORWARD"), ("filter", "FORWARD")],
        };
        let mut states = vec![state];
        let mut outcomes = Vec::new();
        for (table, hook) in hooks {
            let mut passed = Vec::new();
            for state in states {
                for (state, verdict) in self.base_chain(table, hook, state) {
                    match Outcome::of(&state, &verdict) {
                        Some(outcome) => outcomes.push(outcome),
                        None => passed.push(state),
                    }
                }
            }
            states = passed;
        }
        for state in states {
            let decided_by = state.by.clone();
            let recorded = self.hops.len();
            // A packet from outside to this node does not traverse POSTROUTING.
            let ends = if to_here && !from_here {
                vec![(state, Verdict::Accept)]
            } else {
                self.base_chain("nat", "POSTROUTING", state)
            };
            for (state, _) in ends {
                let masqueraded = self.hops[recorded..].iter().any(|h| h.verdict.starts_with("masquerade"));
                outcomes.push(Outcome {
                    share: state.share,
                    end: format!("to {}", endpoint(state.destination, state.port)),
                    translated: state.translated,
                    masqueraded,
                    decided_by: decided_by.clone(),
                });
            }
        }
        outcomes
    }

    /// A base chain and its policy.
    fn base_chain(&mut self, table: &'static str, chain: &str, state: PacketState) -> Vec<(PacketState, Verdict)> {
        let policy = self.rules.tables.get(table).and_then(|t| t.get(chain)).map_or("", |c| c.policy);
        let drops = policy == "DROP";
        let mut out = self.walk(table, chain, state, 0);
        for (state, verdict) in &mut out {
            if matches!(verdict, Verdict::Return) {
                *verdict = Verdict::Accept;
                if drops {
                    self.hops.push(Hop {
                        table,
                        chain: chain.to_owned(),
                        rule: 0,
                        text: "policy".to_owned(),
                        verdict: "drop".to_owned(),
                        share: state.share,
                        depth: 0,
                    });
                    state.by = format!("the policy of {table} {chain}");
                    *verdict = Verdict::Drop;
                }
            }
        }
        out
    }

    fn walk(
        &mut self,
        table: &'static str,
        chain: &str,
        state: PacketState,
        depth: usize,
    ) -> Vec<(PacketState, Verdict)> {
        let rules: &[Rule<'_>] =
            self.rules.tables.get(table).and_then(|t| t.get(chain)).map_or(&[], |c| c.rules.as_slice());
        if depth > MAX_JUMP_DEPTH {
            return vec![(state, Verdict::Drop)];
        }
        let mut ended = Vec::new();
        let mut here = vec![state];
        for (i, rule) in rules.iter().enumerate() {
            let options = RuleOptions::of(rule.text);
            let mut next = Vec::new();
            for state in here {
                match self.matches(rule.text, &options, &state) {
                    Match::No => {
                        next.push(state);
                        continue;
                    }
                    Match::Unknown(why) => {
                        self.record_hop(table, chain, i, rule, &state, depth, format!("not followed: {why}"));
                        next.push(state);
                        continue;
                    }
                    Match::Yes => {}
                }
                let share = options.get("--probability").and_then(|p| p.parse::<f64>().ok()).unwrap_or(1.0);
                let taken = PacketState { share: state.share * share, ..state.clone() };
                if share < 1.0 {
                    next.push(PacketState { share: state.share * (1.0 - share), ..state });
                }
                let at = Place { table, chain, rule: i, depth };
                let (mut on, end) = self.apply_target(&at, rule, &options, taken);
                ended.extend(end);
                next.append(&mut on);
            }
            here = next;
            if here.is_empty() {
                break;
            }
        }
        ended.extend(here.into_iter().map(|state| (state, Verdict::Return)));
        ended
    }

    #[allow(clippy::too_many_arguments, reason = "a row of the report")]
    fn record_hop(
        &mut self,
        table: &'static str,
        chain: &str,
        rule: usize,
        text: &Rule<'_>,
        state: &PacketState,
        depth: usize,
        verdict: String,
    ) {
        let text = text.text.to_owned();
        self.hops.push(Hop {
            table,
            chain: chain.to_owned(),
            rule: rule + 1,
            text,
            verdict,
            share: state.share,
            depth,
        });
    }

    /// Applies the target of a matching rule; returns what continues with the next rule, and what ended.
    fn apply_target(
        &mut self,
        at: &Place<'_>,
        rule: &Rule<'_>,
        options: &RuleOptions,
        mut state: PacketState,
    ) -> (Vec<PacketState>, Vec<(PacketState, Verdict)>) {
        let target = options.target().to_owned();
        let record = |this: &mut Self, state: &PacketState, verdict: String| {
            this.record_hop(at.table, at.chain, at.rule, rule, state, at.depth, verdict);
        };
        let mut decided = format!("{} {} rule {}", at.table, at.chain, at.rule + 1);
        if let Some(comment) = options.get("--comment").filter(|_| target == "DROP" && is_policy_chain(at.chain)) {
            decided.extend([": ", comment]);
        }
        let end = |mut state: PacketState, verdict: Verdict| {
            state.by.clone_from(&decided);
            (Vec::new(), vec![(state, verdict)])
        };
        match target.as_str() {
            "" => (vec![state], Vec::new()),
            "MARK" => {
                let (value, mask) = matches::mark_change(options);
                state.mark = state.mark & !mask ^ value;
                record(self, &state, format!("mark becomes {:#x}", state.mark));
                (vec![state], Vec::new())
            }
            "RETURN" => {
                record(self, &state, "back".to_owned());
                (Vec::new(), vec![(state, Verdict::Return)])
            }
            "ACCEPT" => {
                record(self, &state, "accept".to_owned());
                end(state, Verdict::Accept)
            }
            "DROP" => {
                record(self, &state, "drop".to_owned());
                end(state, Verdict::Drop)
            }
            "REJECT" => {
                record(self, &state, "refuse".to_owned());
                end(state, Verdict::Reject)
            }
            "MASQUERADE" => {
                record(self, &state, "masquerade: the source becomes the node's".to_owned());
                end(state, Verdict::Accept)
            }
            "DNAT" => match options.get("--to-destination").and_then(|to| to.parse::<SocketAddr>().ok()) {
                Some(to) => {
                    (state.destination, state.port, state.translated) = (to.ip(), to.port(), true);
                    record(self, &state, format!("to {to}"));
                    end(state, Verdict::Accept)
                }
                None => {
                    record(self, &state, "not followed: a translation without address and port".to_owned());
                    (vec![state], Vec::new())
                }
            },
            "LOG" | "NFLOG" | "TRACE" | "CT" | "CONNMARK" | "TCPMSS" => (vec![state], Vec::new()),
            chain if self.hops.len() > MAX_HOPS => {
                record(self, &state, format!("not followed: too many rules on the path to {chain}"));
                (vec![state], Vec::new())
            }
            chain if self.rules.tables.get(at.table).is_some_and(|t| t.contains_key(chain)) => {
                record(self, &state, format!("→ {chain}"));
                let (mut on, mut ended) = (Vec::new(), Vec::new());
                for (state, verdict) in self.walk(at.table, chain, state, at.depth + 1) {
                    match verdict {
                        // Behind a goto the packet returns to the caller of this chain.
                        Verdict::Return if options.get("-g").is_some() => ended.push((state, Verdict::Return)),
                        Verdict::Return => on.push(state),
                        verdict => ended.push((state, verdict)),
                    }
                }
                (on, ended)
            }
            other => {
                record(self, &state, format!("not followed: what {other} does is not known here"));
                (vec![state], Vec::new())
            }
        }
    }
}

struct Place<'a> {
    table: &'static str,
    chain: &'a str,
    rule: usize,
    depth: usize,
}

fn endpoint(ip: IpAddr, port: u16) -> String {
    SocketAddr::new(ip, port).to_string()
}
