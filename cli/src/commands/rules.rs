//! `windlass rules`: the service rules, as the kernel has them or as manifests would give them.

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use serde_json::Value;
use windlass_proxy::{
    explain::{Explanation, ServiceRow},
    inspect,
    model::Family,
    rules_from_objects,
};

use super::{require_root, runtime, say};
use crate::{assemble, config::Settings, exit};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One service, as NAMESPACE/NAME, drawn as a tree
    service: Option<String>,
    /// Manifests to make rules from, as a file or a list that kubectl printed; the kernel is not touched
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// The rules of IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,
    /// Credentials for the API [default: the administrator's kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    let family = if args.ipv6 { Family::V6 } else { Family::V4 };
    let config = assemble::proxy_config(settings);
    if let Some(file) = &args.from {
        let text = std::fs::read_to_string(file).with_context(|| format!("{} could not be read", file.display()))?;
        let objects = read_objects(&text).with_context(|| format!("{} cannot be used", file.display()))?;
        say(rules_from_objects(&objects.services, &objects.slices, &objects.nodes, &config, family).trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    require_root("windlass rules")?;
    let kubeconfig = args.kubeconfig.as_ref().unwrap_or(&settings.admin_kubeconfig);
    let found = runtime()?.block_on(async {
        let client = assemble::client_of(kubeconfig).await?;
        anyhow::Ok(inspect(&client, &config, family).await?)
    })?;
    if args.json {
        say(serde_json::to_string_pretty(&found)?);
    } else {
        match &args.service {
            None => say(list(&found)),
            Some(service) => {
                let rows: Vec<&ServiceRow> = found.services.iter().filter(|r| r.is_of(service)).collect();
                anyhow::ensure!(
                    !rows.is_empty(),
                    "the kernel has no rules of a service {service:?}; give it as NAMESPACE/NAME"
                );
                rows.iter().for_each(|row| say(tree(row)));
            }
        }
    }
    for difference in &found.differences {
        say(format!("differs: {} {} {}", difference.table, difference.chain, difference.problem));
    }
    Ok(if found.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit::DIFFERS) })
}

#[derive(Debug, Default)]
struct Objects {
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
    nodes: Vec<Node>,
}

/// Reads YAML documents or a JSON list; kinds that make no rules are passed over.
fn read_objects(text: &str) -> anyhow::Result<Objects> {
    let documents: Vec<Value> = if text.trim_start().starts_with('{') {
        vec![serde_json::from_str(text)?]
    } else {
        serde_saphyr::from_multiple(text).map_err(|e| anyhow::anyhow!("{e}"))?
    };
    let mut objects = Objects::default();
    let mut waiting: Vec<Value> = documents;
    while let Some(mut value) = waiting.pop() {
        let kind = value["kind"].as_str().unwrap_or("").to_owned();
        match kind.as_str() {
            "Service" => objects.services.push(serde_json::from_value(value)?),
            "EndpointSlice" => objects.slices.push(serde_json::from_value(value)?),
            "Node" => objects.nodes.push(serde_json::from_value(value)?),
            kind if kind.ends_with("List") => {
                if let Value::Array(items) = value["items"].take() {
                    waiting.extend(items);
                }
            }
            _ => {}
        }
    }
    Ok(objects)
}

fn list(found: &Explanation) -> String {
    let mut out =
        String::from("SERVICE                              PROTO  VIA                             ENDPOINTS  PACKETS");
    for row in &found.services {
        for entry in &row.entries {
            let via = if entry.address.is_empty() {
                format!("{} {}", entry.kind, entry.port)
            } else {
                format!("{} {}:{}", entry.kind, entry.address, entry.port)
            };
            let ends = if entry.refused { "refused".to_owned() } else { row.endpoints.len().to_string() };
            let _ = write!(out, "\n{:<36} {:<6} {via:<31} {ends:<10} {}", row.name, row.protocol, entry.packets);
        }
    }
    out
}

/// One service port: each way in, and below it what its rules do.
fn tree(row: &ServiceRow) -> String {
    let mut out = format!("{} {}", row.name, row.protocol);
    for entry in &row.entries {
        let address = if entry.address.is_empty() { String::new() } else { format!("{}:", entry.address) };
        let _ = write!(out, "\n{} {address}{} [{}]", entry.kind, entry.port, entry.packets);
        if entry.refused {
            out.push_str(" refused: no endpoint");
        }
        for branch in &entry.branches {
            for line in branch.to_string().lines() {
                let _ = write!(out, "\n  {line}");
            }
        }
    }
    out.push_str("\nendpoints");
    for endpoint in &row.endpoints {
        let share = endpoint.share.or(endpoint.local_share).map(|s| format!("{:.1} %", s * 100.0)).unwrap_or_default();
        let _ = write!(out, "\n  {:<24} {share:>8} [{}]", endpoint.address, endpoint.packets);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists_are_read() {
        let yaml = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n---\napiVersion: v1\nkind: ConfigMap\n";
        assert_eq!(read_objects(yaml).unwrap().services.len(), 1);
        let json = r#"{"kind": "List", "items": [{"kind": "Service", "metadata": {"name": "a"}}, {"kind": "Node", "metadata": {"name": "n"}}]}"#;
        let objects = read_objects(json).unwrap();
        assert_eq!((objects.services.len(), objects.nodes.len()), (1, 1));
        assert!(read_objects("kind: [").is_err());
    }
}
