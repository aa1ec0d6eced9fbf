//! Walks the first packet of a connection through the rules, as netfilter would: every rule that it
//! meets, and where it can end. Pure: the text of `iptables-save` goes in.
//!
//! Random rules are followed both ways with their shares. What the text cannot tell (a match that is not
//! known here, an interface that nobody named, a client's earlier connections) counts as not met, and
//! is said.

use std::{fmt, net::IpAddr};

use serde::Serialize;

use super::Options;
use crate::{
    kernel::{Rule, Saved, number},
    local::LocalAddresses,
    model::{Cidr, Family, parse_ip},
};

/// After this many rules no chain is entered any more: rules of somebody's making can lead to each other in more
/// ways than there is memory for.
const MOST: usize = 50_000;
/// Chains deeper than this are a loop of somebody's making.
const DEPTH: usize = 64;

/// The first packet of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Who sends it.
    pub source: IpAddr,
    /// Whom it is sent to.
    pub destination: IpAddr,
    /// The port it is sent to.
    pub port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// The interface that it comes in by, where that matters.
    pub interface: Option<String>,
}

/// One rule that the packet met.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hop {
    /// `nat` or `filter`.
    pub table: &'static str,
    /// The chain.
    pub chain: String,
    /// The rule's place in it, from 1; 0 is the chain's policy.
    pub rule: usize,
    /// The rule behind the chain's name.
    pub text: String,
    /// What it does with the packet.
    pub verdict: String,
    /// The share of packets that come here, from 0 to 1.
    pub share: f64,
    /// How many chains were entered to come here.
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
    /// The rule that decided, as `table chain rule`.
    pub decided_by: String,
}

/// The whole walk.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Trace {
    /// Every rule met, in order; of packets that go the same way after translation the first's.
    pub hops: Vec<Hop>,
    /// All ends.
    pub outcomes: Vec<Outcome>,
}

#[derive(Debug, Clone, PartialEq)]
struct State {
    destination: IpAddr,
    port: u16,
    mark: u32,
    translated: bool,
    share: f64,
    /// The rule that last decided something.
    by: String,
}

enum Fate {
    /// Fell off the end.
    Through,
    /// The hook lets it pass.
    Accept,
    Drop,
    Refuse,
}

enum Match {
    Yes,
    No,
    /// Not to be told from the text, and why.
    Unknown(String),
}

/// Walks a packet through the rules of a node that has these addresses.
#[must_use]
pub fn trace(rules: &Saved<'_>, local: &LocalAddresses, packet: &Packet) -> Trace {
    let mut walker = Walker { rules, local, packet, hops: Vec::new() };
    let first = State {
        destination: packet.destination,
        port: packet.port,
        mark: 0,
        translated: false,
        share: 1.0,
        by: "no rule".to_owned(),
    };
    let own = walker.is_local(packet.source);
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut ways: Vec<(bool, u32)> = Vec::new();
    for (state, fate) in walker.hook("nat", if own { "OUTPUT" } else { "PREROUTING" }, first) {
        let Some(mut outcome) = Outcome::of(&state, &fate) else {
            // What follows depends on where it goes and on its mark; rules met again are not told again.
            let way = (walker.is_local(state.destination), state.mark);
            let told = walker.hops.len();
            outcomes.extend(walker.after(state, own));
            if ways.contains(&way) {
                walker.hops.truncate(told);
            }
            ways.push(way);
            continue;
        };
        outcome.masqueraded = false;
        outcomes.push(outcome);
    }
    Trace { hops: walker.hops, outcomes }
}

impl Outcome {
    /// The end of a packet that a rule threw away.
    fn of(state: &State, fate: &Fate) -> Option<Self> {
        let end = match fate {
            Fate::Drop => "dropped",
            Fate::Refuse => "refused",
            Fate::Through | Fate::Accept => return None,
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
    rules: &'a Saved<'a>,
    local: &'a LocalAddresses,
    packet: &'a Packet,
    hops: Vec<Hop>,
}

impl Walker<'_> {
    fn is_local(&self, ip: IpAddr) -> bool {
        self.local.contains(&ip)
    }

    /// Filter and source translation, behind the translation of the destination.
    fn after(&mut self, state: State, own: bool) -> Vec<Outcome> {
        let to_here = self.is_local(state.destination);
        let hooks: &[&str] = match (own, to_here) {
            (true, true) => &["OUTPUT", "INPUT"],
            (true, false) => &["OUTPUT"],
            (false, true) => &["INPUT"],
            (false, false) => &["FORWARD"],
        };
        let mut states = vec![state];
        let mut outcomes = Vec::new();
        for hook in hooks {
            let mut passed = Vec::new();
            for state in states {
                for (state, fate) in self.hook("filter", hook, state) {
                    match Outcome::of(&state, &fate) {
                        Some(outcome) => outcomes.push(outcome),
                        None => passed.push(state),
                    }
                }
            }
            states = passed;
        }
        for state in states {
            let decided_by = state.by.clone();
            let told = self.hops.len();
            // A packet to this node that came from outside is not sent out again.
            let ends =
                if to_here && !own { vec![(state, Fate::Accept)] } else { self.hook("nat", "POSTROUTING", state) };
            for (state, _) in ends {
                let masqueraded = self.hops[told..].iter().any(|h| h.verdict.starts_with("masquerade"));
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

    /// A built-in chain and its policy.
    fn hook(&mut self, table: &'static str, chain: &str, state: State) -> Vec<(State, Fate)> {
        let policy = self.rules.tables.get(table).and_then(|t| t.get(chain)).map_or("", |c| c.policy);
        let drops = policy == "DROP";
        let mut out = self.walk(table, chain, state, 0);
        for (state, fate) in &mut out {
            if matches!(fate, Fate::Through) {
                *fate = Fate::Accept;
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
                    *fate = Fate::Drop;
                }
            }
        }
        out
    }

    fn walk(&mut self, table: &'static str, chain: &str, state: State, depth: usize) -> Vec<(State, Fate)> {
        let rules: &[Rule<'_>] =
            self.rules.tables.get(table).and_then(|t| t.get(chain)).map_or(&[], |c| c.rules.as_slice());
        if depth > DEPTH {
            return vec![(state, Fate::Drop)];
        }
        let mut ended = Vec::new();
        let mut here = vec![state];
        for (i, rule) in rules.iter().enumerate() {
            let options = Options::of(rule.text);
            let mut next = Vec::new();
            for state in here {
                match self.matches(&options, &state) {
                    Match::No => {
                        next.push(state);
                        continue;
                    }
                    Match::Unknown(why) => {
                        self.note(table, chain, i, rule, &state, depth, format!("not followed: {why}"));
                        next.push(state);
                        continue;
                    }
                    Match::Yes => {}
                }
                let share = options.get("--probability").and_then(|p| p.parse::<f64>().ok()).unwrap_or(1.0);
                let taken = State { share: state.share * share, ..state.clone() };
                if share < 1.0 {
                    next.push(State { share: state.share * (1.0 - share), ..state });
                }
                let at = Place { table, chain, rule: i, depth };
                let (mut on, end) = self.act(&at, rule, &options, taken);
                ended.extend(end);
                next.append(&mut on);
            }
            here = next;
            if here.is_empty() {
                break;
            }
        }
        ended.extend(here.into_iter().map(|state| (state, Fate::Through)));
        ended
    }

    #[allow(clippy::too_many_arguments, reason = "a row of the report")]
    fn note(
        &mut self,
        table: &'static str,
        chain: &str,
        rule: usize,
        text: &Rule<'_>,
        state: &State,
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

    /// Does what a rule that is met says: what goes on to the next rule, and what has ended.
    fn act(
        &mut self,
        at: &Place<'_>,
        rule: &Rule<'_>,
        options: &Options,
        mut state: State,
    ) -> (Vec<State>, Vec<(State, Fate)>) {
        let target = options.target().to_owned();
        let tell = |this: &mut Self, state: &State, verdict: String| {
            this.note(at.table, at.chain, at.rule, rule, state, at.depth, verdict);
        };
        let decided = format!("{} {} rule {}", at.table, at.chain, at.rule + 1);
        let end = |mut state: State, fate: Fate| {
            state.by.clone_from(&decided);
            (Vec::new(), vec![(state, fate)])
        };
        match target.as_str() {
            "" => (vec![state], Vec::new()),
            "MARK" => {
                let (value, mask) = mark_change(options);
                state.mark = state.mark & !mask ^ value;
                tell(self, &state, format!("mark becomes {:#x}", state.mark));
                (vec![state], Vec::new())
            }
            "RETURN" => {
                tell(self, &state, "back".to_owned());
                (Vec::new(), vec![(state, Fate::Through)])
            }
            "ACCEPT" => {
                tell(self, &state, "accept".to_owned());
                end(state, Fate::Accept)
            }
            "DROP" => {
                tell(self, &state, "drop".to_owned());
                end(state, Fate::Drop)
            }
            "REJECT" => {
                tell(self, &state, "refuse".to_owned());
                end(state, Fate::Refuse)
            }
            "MASQUERADE" => {
                tell(self, &state, "masquerade: the source becomes the node's".to_owned());
                end(state, Fate::Accept)
            }
            "DNAT" => match options.get("--to-destination").and_then(|to| to.parse::<std::net::SocketAddr>().ok()) {
                Some(to) => {
                    (state.destination, state.port, state.translated) = (to.ip(), to.port(), true);
                    tell(self, &state, format!("to {to}"));
                    end(state, Fate::Accept)
                }
                None => {
                    tell(self, &state, "not followed: a translation without address and port".to_owned());
                    (vec![state], Vec::new())
                }
            },
            "LOG" | "NFLOG" | "TRACE" | "CT" | "CONNMARK" | "TCPMSS" => (vec![state], Vec::new()),
            chain if self.hops.len() > MOST => {
                tell(self, &state, format!("not followed: too many rules on the way to {chain}"));
                (vec![state], Vec::new())
            }
            chain if self.rules.tables.get(at.table).is_some_and(|t| t.contains_key(chain)) => {
                tell(self, &state, format!("→ {chain}"));
                let (mut on, mut ended) = (Vec::new(), Vec::new());
                for (state, fate) in self.walk(at.table, chain, state, at.depth + 1) {
                    match fate {
                        // Behind a goto the packet goes on where this chain was entered.
                        Fate::Through if options.get("-g").is_some() => ended.push((state, Fate::Through)),
                        Fate::Through => on.push(state),
                        fate => ended.push((state, fate)),
                    }
                }
                (on, ended)
            }
            other => {
                tell(self, &state, format!("not followed: what {other} does is not known here"));
                (vec![state], Vec::new())
            }
        }
    }

    fn matches(&self, options: &Options, state: &State) -> Match {
        let mut unknown = None;
        for (key, value) in options.all() {
            let (not, value) = value.strip_prefix("! ").map_or((false, value), |v| (true, v));
            let met = match key {
                "-p" => Some(value == self.packet.protocol || value == "all"),
                "-s" => inside(value, self.packet.source),
                "-d" => inside(value, state.destination),
                "--dport" => ports(value, state.port),
                "--src-type" => (value == "LOCAL").then(|| self.is_local(self.packet.source)),
                "--dst-type" => (value == "LOCAL").then(|| self.is_local(state.destination)),
                "--ctstate" => Some(value.split(',').any(|s| s == "NEW" || (s == "DNAT" && state.translated))),
                "--mark" => mark(value).map(|(value, mask)| state.mark & mask == value),
                "-i" => self.interface(value),
                // Of other clients nothing is known: a first connection.
                "--rcheck" => Some(false),
                "-m" | "-j" | "-g" | "--comment" | "--mode" | "--probability" | "--name" | "--mask" | "--rsource"
                | "--set" | "--seconds" | "--reap" | "--nfacct-name" | "--to-destination" | "--reject-with"
                | "--random-fully" | "--set-xmark" | "--or-mark" | "--xor-mark" | "--set-mark" => Some(!not),
                _ => None,
            };
            match met {
                Some(met) if met == not => return Match::No,
                Some(_) => {}
                None => unknown = Some(format!("{key} {value} cannot be told from the rules")),
            }
        }
        unknown.map_or(Match::Yes, Match::Unknown)
    }

    fn interface(&self, pattern: &str) -> Option<bool> {
        if self.packet.interface.is_none() && self.is_local(self.packet.source) {
            return Some(pattern == "lo");
        }
        let name = self.packet.interface.as_deref()?;
        Some(pattern.strip_suffix('+').map_or(name == pattern, |prefix| name.starts_with(prefix)))
    }
}

struct Place<'a> {
    table: &'static str,
    chain: &'a str,
    rule: usize,
    depth: usize,
}

fn inside(value: &str, ip: IpAddr) -> Option<bool> {
    let range = Cidr::parse(value).or_else(|| parse_ip(value).map(Cidr::host))?;
    Some(range.contains(&ip))
}

fn ports(value: &str, port: u16) -> Option<bool> {
    let (from, to) = value.split_once(':').unwrap_or((value, value));
    Some((from.parse::<u16>().ok()?..=to.parse().ok()?).contains(&port))
}

fn mark(value: &str) -> Option<(u32, u32)> {
    let (value, mask) = value.split_once('/').unwrap_or((value, "0xffffffff"));
    Some((number(value)?, number(mask)?))
}

/// Value and mask of a MARK rule, in the form of `--set-xmark`.
fn mark_change(options: &Options) -> (u32, u32) {
    let of = |key: &str| options.get(key);
    if let Some(bits) = of("--or-mark").and_then(number) {
        return (bits, bits);
    }
    if let Some(bits) = of("--xor-mark").and_then(number) {
        return (bits, 0);
    }
    of("--set-xmark").or_else(|| of("--set-mark")).and_then(mark).unwrap_or((0, 0))
}

fn endpoint(ip: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(ip, port).to_string()
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut place = String::new();
        for hop in &self.hops {
            let now = format!("{} {}", hop.table, hop.chain);
            let indent = "  ".repeat(hop.depth);
            if now != place {
                writeln!(f, "{indent}{now}")?;
                place = now;
            }
            let share = if hop.share < 1.0 { format!("{:5.1} % ", hop.share * 100.0) } else { String::new() };
            let what = if hop.rule == 0 { hop.text.clone() } else { format!("rule {}: {}", hop.rule, hop.text) };
            writeln!(f, "{indent}  {share}{}   ({what})", hop.verdict)?;
        }
        writeln!(f, "result")?;
        for outcome in &self.outcomes {
            let source = match (outcome.end.starts_with("to "), outcome.masqueraded) {
                (true, true) => ", masqueraded",
                (true, false) => ", source kept",
                (false, _) => "",
            };
            let untouched = if outcome.translated || !outcome.end.starts_with("to ") { "" } else { ", not translated" };
            writeln!(
                f,
                "  {:5.1} % {}{untouched}{source} (decided by {})",
                outcome.share * 100.0,
                outcome.end,
                outcome.decided_by
            )?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Packet {
    type Err = String;

    /// Reads `SOURCE ADDRESS:PORT/PROTOCOL`; the protocol may be left out for TCP.
    fn from_str(text: &str) -> Result<Self, String> {
        let (source, rest) = text.split_once(' ').ok_or("give a source and a destination")?;
        let (address, protocol) = rest.trim().rsplit_once('/').unwrap_or((rest.trim(), "tcp"));
        let wrong = || format!("{rest:?} is not a destination such as 10.96.0.10:53/udp or [fd00::a]:53/udp");
        let destination: std::net::SocketAddr = address.parse().map_err(|_| wrong())?;
        if !["tcp", "udp", "sctp"].contains(&protocol) {
            return Err(format!("{protocol:?} is not a protocol of services: tcp, udp or sctp"));
        }
        let source = parse_ip(source).ok_or_else(|| format!("{source:?} is not an address"))?;
        if Family::of(&source) != Family::of(&destination.ip()) {
            return Err("source and destination are of two families".to_owned());
        }
        Ok(Self {
            source,
            destination: destination.ip(),
            port: destination.port(),
            protocol: protocol.to_owned(),
            interface: None,
        })
    }
}
