//! A trace as text, and a packet from text.

use std::{fmt, net::SocketAddr};

use super::{Packet, Trace};
use crate::model::{Family, parse_ip};

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
        let destination: SocketAddr = address.parse().map_err(|_| wrong())?;
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
