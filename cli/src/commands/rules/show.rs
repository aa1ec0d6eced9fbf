//! Rules as text.

use std::{collections::BTreeSet, fmt::Write as _};

use windlass_proxy::explain::{Branch, PolicyRow, ServiceRow};

use super::super::table::columns;

/// A line per entry of each service port.
pub(super) fn list(rows: &[&ServiceRow]) -> String {
    let mut table = vec![["SERVICE", "PROTO", "VIA", "ENDPOINTS", "PACKETS"].map(str::to_owned)];
    for row in rows {
        for entry in &row.entries {
            let via = match (entry.address.as_str(), entry.address.contains(':')) {
                ("", _) => format!("{} {}", entry.kind, entry.port),
                (address, true) => format!("{} [{address}]:{}", entry.kind, entry.port),
                (address, false) => format!("{} {address}:{}", entry.kind, entry.port),
            };
            let ends = if entry.refused { "refused".to_owned() } else { row.endpoints.len().to_string() };
            table.push([row.name.clone(), row.protocol.clone(), via, ends, entry.packets.to_string()]);
        }
    }
    columns(&table)
}

/// One service port: its entries, and below each its rules.
pub(super) fn tree(row: &ServiceRow) -> String {
    let mut out = format!("{} {}", row.name, row.protocol);
    let mut drawn = BTreeSet::new();
    for entry in &row.entries {
        let address = match entry.address.as_str() {
            "" => String::new(),
            address if address.contains(':') => format!("[{address}]:"),
            address => format!("{address}:"),
        };
        let _ = write!(out, "\n{} {address}{} [{}]", entry.kind, entry.port, entry.packets);
        if entry.refused {
            out.push_str(" refused: no endpoint");
        }
        for line in Branch::draw(&entry.branches, &mut drawn).lines() {
            let _ = write!(out, "\n  {line}");
        }
    }
    out.push_str("\nendpoints");
    for endpoint in &row.endpoints {
        let share = endpoint.share.or(endpoint.local_share).map(|s| format!("{:.1} %", s * 100.0)).unwrap_or_default();
        let _ = write!(out, "\n  {:<24} {share:>8} [{}]", endpoint.address, endpoint.packets);
    }
    out
}

/// A line for each group of isolated pods.
pub(super) fn policies(rows: &[PolicyRow]) -> String {
    let mut table = vec![["ISOLATED FOR", "PODS", "RULES", "DROPPED", "BY"].map(str::to_owned)];
    for row in rows {
        let by = row.dropped.rsplit_once("NetworkPolicy ").map_or("", |(_, names)| names);
        let numbers = [row.pods.len().to_string(), row.allowed.len().to_string(), row.dropped_packets.to_string()];
        let [pods, rules, dropped] = numbers;
        table.push([row.direction.to_owned(), pods, rules, dropped, by.to_owned()]);
    }
    columns(&table)
}

/// A group of isolated pods: their addresses, and below them what is allowed.
pub(super) fn policy(row: &PolicyRow) -> String {
    let pods = if row.pods.is_empty() { "no address yet".to_owned() } else { row.pods.join(" ") };
    let mut out = format!("{} of {pods}", row.direction);
    for allowed in &row.allowed {
        let _ = write!(out, "\n  allowed {} by {} [{}]", allowed.what, allowed.policy, allowed.packets);
    }
    let _ = write!(out, "\n  dropped what else there is: {} [{}]", row.dropped, row.dropped_packets);
    out
}
