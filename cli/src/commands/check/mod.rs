//! `windlass check`: preflight checks whether this machine can be a node; nothing is changed.

mod machine;

#[cfg(test)]
mod tests;

use std::{net::SocketAddr, process::ExitCode};

use windlass_agent::engine::{Engine, check as engine};
use windlass_kit::{
    blocking::RULES,
    preflight::{Finding, Status},
    serve,
};
use windlass_proxy as proxy;

use super::{require_root, runtime, say, table::columns};
use crate::{
    config::{Addresses, Settings, proxy::proxy_config},
    exit, service,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only findings that are not ok
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    require_root("windlass check")?;
    let findings = runtime()?.block_on(all(settings))?;
    let shown: Vec<Finding> = findings.iter().filter(|f| !args.quiet || f.status != Status::Pass).cloned().collect();
    if !shown.is_empty() {
        say(text(&shown));
    }
    say(verdict(&findings));
    let missing = findings.iter().any(|f| f.status == Status::Fail);
    Ok(if missing { ExitCode::from(exit::DIFFERS) } else { ExitCode::SUCCESS })
}

/// The checks of a node with its own API.
pub(super) async fn all(settings: &Settings) -> anyhow::Result<Vec<Finding>> {
    let mut all = of_node(settings).await?;
    let listens = settings.api_bind_addresses();
    for address in listens.iter() {
        all.push(port("the Kubernetes API", address).await);
    }
    if let Some(address) = settings.cluster_dns_bind_address() {
        all.push(port("the cluster's DNS", address).await);
    }
    all.push(api_reachability(&listens));
    Ok(all)
}

/// The checks of a node of another cluster.
pub(super) async fn of_node(settings: &Settings) -> anyhow::Result<Vec<Finding>> {
    let mut all = match Engine::new(&settings.docker_socket.to_string_lossy(), std::sync::Arc::default()) {
        Ok(found) => engine::check(&found).await,
        Err(error) => vec![Finding::fail("docker", error.to_string(), "name Docker's socket with --docker-socket")],
    };
    all.extend(
        RULES
            .call(|| docker_at_boot(&service::enablement("docker.service"), &service::enablement("docker.socket")))
            .await?,
    );
    let variant = proxy_config(settings).variant;
    all.extend(RULES.call(move || proxy::check(variant)).await?);
    for (what, address) in [
        ("the node's API", Some(settings.node_api_bind)),
        ("the read-only stats", settings.stats_bind),
        ("the agent's health", Some(settings.agent_health_bind)),
        ("the proxy's health", Some(settings.proxy_health_bind)),
        ("the proxy's metrics", Some(settings.proxy_metrics_bind)),
    ] {
        if let Some(address) = address {
            all.push(port(what, address).await);
        }
    }
    all.extend(settings.stats_bind.and_then(read_only_port));
    all.extend(machine::findings(&machine::read(&settings.data_dir, settings.node_ip().is_loopback())));
    Ok(all)
}

/// Whether Docker is started at boot, by what systemd says of its unit and its socket: a node does not start it. Nothing is
/// known of a Docker that has no such units.
fn docker_at_boot(unit: &str, socket: &str) -> Option<Finding> {
    let is_off = |enablement: &str| matches!(enablement, "disabled" | "masked" | "masked-runtime");
    let seen = "docker.service is not started at boot, so that pods are not either";
    let advice = "systemctl enable docker.service";
    let off = is_off(unit) && (is_off(socket) || socket.is_empty());
    off.then(|| Finding::warn("Docker at boot", seen, advice))
}

/// Whether pods can reach the API at the advertised address.
fn api_reachability(listens: &Addresses) -> Finding {
    let what = "the API in pods";
    if listens.any_beyond_loopback() {
        return Finding::pass(what, format!("it listens at {listens}"));
    }
    let advice = "add the node's address to apiBindAddress, or leave it out";
    Finding::warn(what, format!("it listens at {listens} only, which pods cannot reach"), advice)
}

/// Whether other machines reach the read-only port.
fn read_only_port(address: SocketAddr) -> Option<Finding> {
    let advice = "set statsBindAddress to 127.0.0.1:10255, or to nothing; scrapers read the node's API with a certificate or a token";
    let seen = format!("{address} serves usage, pods and images without authentication");
    (!address.ip().is_loopback()).then(|| Finding::warn("read-only port", seen, advice))
}

async fn port(what: &'static str, address: SocketAddr) -> Finding {
    port_finding(what, address, serve::listen(what, address).await.err().map(|error| error.to_string()))
}

/// The finding of a port.
fn port_finding(what: &str, address: SocketAddr, taken: Option<String>) -> Finding {
    match taken {
        None => Finding::pass(format!("port {}", address.port()), format!("free for {what}")),
        Some(why) if why.contains("(windlass)") => {
            Finding::pass(format!("port {}", address.port()), format!("windlass serves {what} there"))
        }
        Some(why) => {
            Finding::fail(format!("port {}", address.port()), why, "end its holder, or choose another address")
        }
    }
}

/// The findings as a table, the worst first.
pub(super) fn text(findings: &[Finding]) -> String {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|f| std::cmp::Reverse(f.status));
    let row = |f: &&Finding| {
        let word = match f.status {
            Status::Pass => "ok",
            Status::Warn => "doubtful",
            Status::Fail => "missing",
        };
        let advice = if f.advice.is_empty() { String::new() } else { format!(" -> {}", f.advice) };
        [word.to_owned(), f.what.clone(), format!("{}{advice}", f.seen)]
    };
    columns(&sorted.iter().map(row).collect::<Vec<_>>())
}

fn verdict(findings: &[Finding]) -> String {
    let count = |status: Status| findings.iter().filter(|f| f.status == status).count();
    match (count(Status::Fail), count(Status::Warn)) {
        (0, 0) => "this machine can be a node".to_owned(),
        (0, doubtful) => format!("this machine can be a node; {doubtful} doubtful"),
        (missing, _) => format!("this machine cannot be a node yet: {missing} missing"),
    }
}
