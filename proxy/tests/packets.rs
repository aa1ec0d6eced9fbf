//! The conformance tables on a real kernel: every flow is a connection between network namespaces, and the server
//! tells who answered and whom it saw. Both iptables back ends, both families.
//!
//! Left to the model in `conformance.rs`: packets whose source is a load balancer's address (no process can hold a
//! conversation from there), health check ports (nobody listens there), and SCTP (the standard library has none).

#![allow(clippy::unwrap_used)]

#[path = "packets/net.rs"]
mod net;
mod netns;
#[path = "conformance/mod.rs"]
mod tables;

use std::{
    collections::BTreeSet,
    io::{ErrorKind, Read as _},
    time::Duration,
};

use net::{Client, Net};
use tables::{Flow, cases};
use windlass_proxy::{
    model::Family,
    rules::{Layout, entrances},
};

/// An endpoint that is never chosen in so many tries with a share of one in three: once in 10^14.
const TRIES: usize = 80;
/// Inside one machine a refusal comes while the socket is still busy with sending, and counts only when the kernel
/// sends again after a second: whoever waits for less takes it for silence.
const SILENCE: Duration = Duration::from_millis(1900);

/// What became of one connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    /// Who answered, and whether it saw another source than ours.
    Answer(String, bool),
    Refused,
    Silence,
    Other(String),
}

fn once(client: &Client, flow: &Flow) -> Seen {
    let answer = match flow.protocol.as_str() {
        "udp" => client.ask(flow.source, (flow.destination, flow.port).into(), SILENCE),
        _ => client.connect(flow.source, (flow.destination, flow.port).into(), SILENCE).and_then(|mut stream| {
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        }),
    };
    match answer {
        Ok(text) => {
            let (who, peer) = text.trim().split_once(' ').unwrap_or_else(|| panic!("{text:?} is an answer"));
            Seen::Answer(who.to_owned(), peer != flow.source.to_string())
        }
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Seen::Refused,
        Err(e)
            if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
                || e.raw_os_error() == Some(nix::errno::Errno::EINPROGRESS as i32) =>
        {
            Seen::Silence
        }
        Err(e) => Seen::Other(e.to_string()),
    }
}

/// What is wrong with a flow, if anything.
fn check(net: &Net, flow: &Flow) -> Option<String> {
    let client = net.client(flow.source);
    let single = |seen: &Seen| match flow.ends[0].as_str() {
        "REJECT" => *seen == Seen::Refused,
        "DROP" => *seen == Seen::Silence,
        // Not translated: nobody of ours answers.
        _ => !matches!(seen, Seen::Answer(..)),
    };
    if ["REJECT", "DROP", "pass"].contains(&flow.ends[0].as_str()) {
        let seen = once(&client, flow);
        return (!single(&seen)).then(|| format!("{}: {seen:?}", flow.line));
    }
    let wanted: BTreeSet<Seen> = flow.ends.iter().map(|e| Seen::Answer(e.clone(), flow.masqueraded)).collect();
    let mut seen = BTreeSet::new();
    for _ in 0..TRIES {
        seen.insert(once(&client, flow));
        if seen == wanted || !seen.is_subset(&wanted) {
            break;
        }
    }
    (seen != wanted).then(|| format!("{}: {seen:?}", flow.line))
}

fn on_a_kernel(variant: &str, family: Family, layout: Layout) {
    let net = Net::new();
    let program = match family {
        Family::V4 => format!("iptables-{variant}-restore"),
        Family::V6 => format!("ip6tables-{variant}-restore"),
    };
    let mut wrong = Vec::new();
    let mut count = 0;
    for case in cases::all().list {
        // A table without our chains, then the jumps, then the rules.
        net.restore(&program, &[], &entrances());
        net.restore(&program, &["--noflush"], &case.cluster.clone().set(|c| c.layout = layout).text(family));
        let flows: Vec<Flow> = case.flows(family).into_iter().filter(|f| net.can_send(f)).collect();
        count += flows.len();
        // Side by side: most of the time is silence.
        let found: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = flows.iter().map(|flow| scope.spawn(|| check(&net, flow))).collect();
            threads.into_iter().filter_map(|t| t.join().unwrap()).collect()
        });
        wrong.extend(found.into_iter().map(|f| format!("{}: {f}", case.name)));
    }
    assert!(wrong.is_empty(), "{variant} {}:\n{}", family.name(), wrong.join("\n"));
    assert!(count > 130, "{count} flows were sent");
}

#[test]
fn ipv4_on_nf_tables() {
    on_a_kernel("nft", Family::V4, Layout::Flat);
}

#[test]
fn ipv6_on_nf_tables() {
    on_a_kernel("nft", Family::V6, Layout::Flat);
}

#[test]
fn ipv4_on_legacy() {
    on_a_kernel("legacy", Family::V4, Layout::Flat);
}

#[test]
fn ipv6_on_legacy() {
    on_a_kernel("legacy", Family::V6, Layout::Flat);
}

#[test]
fn ipv4_in_trees_on_nf_tables() {
    on_a_kernel("nft", Family::V4, Layout::Tree);
}

#[test]
fn ipv6_in_trees_on_nf_tables() {
    on_a_kernel("nft", Family::V6, Layout::Tree);
}

#[test]
fn ipv4_in_trees_on_legacy() {
    on_a_kernel("legacy", Family::V4, Layout::Tree);
}

#[test]
fn ipv6_in_trees_on_legacy() {
    on_a_kernel("legacy", Family::V6, Layout::Tree);
}
