//! `windlass rules`: the rules of services and of NetworkPolicies, as the kernel has them or as manifests would give them.
//!
//! `objects` reads manifests, `show` draws; the rules themselves come from the proxy.

mod objects;
mod show;

use std::{path::PathBuf, process::ExitCode};

use windlass_kit::net::NodeIps;
use windlass_proxy::{
    Config, LocalAddresses,
    explain::{Explanation, Packet, PolicyRow, ServiceRow, explain, trace},
    inspect,
    iptables_save::SavedRuleset,
    kernel_rules,
    model::{Family, objects::Node},
    network_policy::IpSets,
    policies_from_objects,
    rules::with_base_chains,
    rules_from_objects,
};

use super::{require_root, runtime, say};
use crate::{
    config::{PodNetwork, Settings, connect, proxy::proxy_config},
    exit,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// One service, as NAMESPACE/NAME, drawn as a tree
    service: Option<String>,
    #[command(flatten)]
    source: Source,
    /// What is printed [default: a list; a tree of one service; with --from a tree]
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Output>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Walk the first packet of a connection through the rules
    Trace(TraceArgs),
}

#[derive(Debug, clap::Args)]
struct TraceArgs {
    /// Who sends it
    #[arg(value_name = "SOURCE")]
    sender: String,
    /// Whom it is sent to, such as 10.96.0.10:53/udp; TCP if nothing else is said
    #[arg(value_name = "ADDRESS:PORT/PROTOCOL")]
    destination: String,
    /// The interface it comes in by, where rules ask for one
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    #[command(flatten)]
    source: Source,
    /// Print JSON
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<TraceOutput>,
}

/// Where rules come from.
#[derive(Debug, clap::Args)]
struct Source {
    /// Manifests of Services, EndpointSlices, Nodes, NetworkPolicies, Namespaces and Pods to make rules from, `-` for
    /// standard input; neither root nor the kernel is needed
    #[arg(long, value_name = "FILE", num_args = 1..)]
    from: Vec<PathBuf>,
    /// The rules of one family [default: both that are in use; with -o save IPv4]
    #[arg(long, value_name = "FAMILY")]
    family: Option<FamilyName>,
    /// With --from: rules that feed named packet counters (nfacct); a restore needs these to be there
    #[arg(long, requires = "from")]
    nfacct: bool,
    /// Credentials for the API [default: the administrator's kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// For people
    Tree,
    /// As iptables-restore reads it, jumps from the built-in chains included; IP sets as comments before the rules that
    /// need them
    Save,
    /// For programs
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum TraceOutput {
    /// For programs
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum FamilyName {
    Ipv4,
    Ipv6,
}

impl FamilyName {
    const fn family(self) -> Family {
        match self {
            Self::Ipv4 => Family::V4,
            Self::Ipv6 => Family::V6,
        }
    }
}

impl Source {
    fn families(&self) -> Vec<Family> {
        self.family.map_or_else(|| Family::BOTH.to_vec(), |f| vec![f.family()])
    }

    /// The proxy's configuration for manifests, independent of this machine.
    fn config(&self, settings: &Settings) -> Config {
        Config {
            node_ips: settings.node_ip.into_iter().flat_map(NodeIps::iter).collect(),
            nfacct: Some(self.nfacct),
            ..proxy_config(settings)
        }
    }
}

pub(crate) fn run(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    match &args.action {
        Some(Action::Trace(trace)) => run_trace(trace, settings),
        None if args.source.from.is_empty() => kernel_services(args, settings),
        None => manifest_services(args, settings),
    }
}

/// The rules for manifests.
fn manifest_services(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    let objects = objects::read(&args.source.from)?;
    let config = args.source.config(settings);
    let families = match args.output {
        Some(Output::Save) => vec![args.source.family.map_or(Family::V4, FamilyName::family)],
        _ => args.source.families(),
    };
    let mut explanation = Explanation::default();
    for family in families {
        let text = rules_from_objects(&objects, &config, family);
        let kernel = with_base_chains(&text) + &policies_from_objects(&objects, family);
        if args.output == Some(Output::Save) {
            say(kernel.trim_end());
            return Ok(ExitCode::SUCCESS);
        }
        let found = explain(&text, &kernel)?;
        explanation.services.extend(found.services);
        explanation.policies.extend(found.policies);
    }
    show_services(args, &explanation, Output::Tree)?;
    Ok(ExitCode::SUCCESS)
}

/// The kernel's rules, compared with those for the API's objects.
fn kernel_services(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    require_root("windlass rules")?;
    // The administrator's kubeconfig is that of a control plane here, which has its own defaults.
    let standalone = args.source.kubeconfig.is_none() && settings.cluster_access.kubeconfig.is_none();
    let config = if standalone { proxy_config(&settings.of_standalone()) } else { proxy_config(settings) };
    if args.output == Some(Output::Save) {
        say(kernel_rules(&config, args.source.family.map_or(Family::V4, FamilyName::family))?.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let kubeconfig = args.source.kubeconfig.as_ref().unwrap_or(&settings.admin_kubeconfig);
    let enforces =
        settings.network == PodNetwork::Routed && (standalone || settings.cluster_access.enforce_network_policies);
    let mut explanation = Explanation::default();
    runtime()?.block_on(async {
        let client = connect::client_of(kubeconfig).await?;
        for family in args.source.families() {
            match inspect(&client, &config, family, enforces).await {
                Ok(found) => {
                    explanation.services.extend(found.services);
                    explanation.policies.extend(found.policies);
                    explanation.differences.extend(found.differences);
                    explanation.policy_differences.extend(found.policy_differences);
                }
                // A machine without IPv6 has no such rules; an error only if IPv6 was requested.
                Err(error) if family == Family::V6 && args.source.family.is_none() => {
                    tracing::debug!(%error, "no rules of IPv6");
                }
                Err(error) => return Err(error.into()),
            }
        }
        anyhow::Ok(())
    })?;
    show_services(args, &explanation, Output::Save)?;
    if args.output != Some(Output::Json) {
        for difference in &explanation.differences {
            say(format!("differs: {} {} {}", difference.table, difference.chain, difference.problem));
        }
        for difference in &explanation.policy_differences {
            say(format!("differs: {} {}", difference.object, difference.problem));
        }
    }
    let is_as_wanted = explanation.differences.is_empty() && explanation.policy_differences.is_empty();
    Ok(if is_as_wanted { ExitCode::SUCCESS } else { ExitCode::from(exit::DIFFERS) })
}

/// Prints services; by default one service as a tree and many as `default_output`: trees or a list.
fn show_services(args: &Args, explanation: &Explanation, default_output: Output) -> anyhow::Result<()> {
    let wanted = |row: &&ServiceRow| args.service.as_ref().is_none_or(|service| row.is_of(service));
    let rows: Vec<&ServiceRow> = explanation.services.iter().filter(wanted).collect();
    if let (true, Some(service)) = (rows.is_empty(), &args.service) {
        anyhow::bail!("there are no rules of a service {service:?}; give it as NAMESPACE/NAME");
    }
    let policies: &[PolicyRow] = if args.service.is_some() { &[] } else { &explanation.policies };
    if args.output == Some(Output::Json) {
        let value = serde_json::json!({"services": rows, "policies": policies, "differences": explanation.differences,
            "policyDifferences": explanation.policy_differences});
        say(serde_json::to_string_pretty(&value)?);
    } else if args.service.is_some() || args.output == Some(Output::Tree) || default_output == Output::Tree {
        rows.iter().for_each(|row| say(show::tree(row)));
        policies.iter().for_each(|row| say(show::policy(row)));
    } else {
        say(show::list(&rows));
        if !policies.is_empty() {
            say(show::policies(policies));
        }
    }
    Ok(())
}

fn run_trace(args: &TraceArgs, settings: &Settings) -> anyhow::Result<ExitCode> {
    let packet: Packet =
        format!("{} {}", args.sender, args.destination).parse().map_err(|e: String| anyhow::anyhow!(e))?;
    let packet = Packet { interface: args.interface.clone(), ..packet };
    let family = Family::of(&packet.source);
    let (text, local) = if args.source.from.is_empty() {
        require_root("windlass rules trace")?;
        (kernel_rules(&proxy_config(settings), family)?, LocalAddresses::of_kernel())
    } else {
        let objects = objects::read(&args.source.from)?;
        let config = args.source.config(settings);
        let text = rules_from_objects(&objects, &config, family);
        let own = objects.nodes.iter().filter(|n| n.metadata.name.as_deref() == Some(&config.node_name));
        let local = own.flat_map(Node::addresses).chain(config.node_ips.iter().copied()).collect();
        (with_base_chains(&text) + &policies_from_objects(&objects, family), local)
    };
    let found = trace(&SavedRuleset::parse(&text)?, &IpSets::parse(&text)?, &local, &packet);
    match args.output {
        Some(TraceOutput::Json) => say(serde_json::to_string_pretty(&found)?),
        None => say(found.to_string().trim_end()),
    }
    Ok(ExitCode::SUCCESS)
}
