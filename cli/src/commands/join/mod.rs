//! `windlass join`: makes this machine a node of an existing cluster, like `kubeadm join`.

mod cluster_settings;
mod typed_flags;
mod wait_ready;

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail};
use kube::config::AuthInfo;
use windlass_agent::node::{Skew, boot_id, evaluate_skew};
use windlass_kit::{
    bootstrap::{Pin, Token},
    client::Limits,
    duration,
    preflight::Status,
};

use cluster_settings::cluster_settings;
use typed_flags::settings_flags;
use wait_ready::wait_ready;

use super::{agent, check, require_root, runtime, say};
use crate::{
    assemble,
    config::{ClusterAccessFlags, Flags, Settings, agent::NODE_VERSION, connect},
    exit,
    instance::{Instance, Lock},
    join::{
        certificate, cluster,
        cluster::ExistingNode,
        discovery::{self, DiscoveredCluster, bearer},
        join_dir::JoinDir,
    },
    logging, service,
};

/// Files of a kubelet that has joined a cluster.
const KUBELET_FILES: [&str; 2] = ["/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The cluster's API server, as HOST:PORT
    #[arg(value_name = "API", required_unless_present = "discovery_file", conflicts_with = "discovery_file", value_parser = discovery::parse_server)]
    api: Option<http::Uri>,
    /// Bootstrap token, as `kubeadm token create` gives it; other processes of this machine can see it here
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<Token>,
    /// File that holds the token; - for standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Another token for the certificate request
    #[arg(long, value_name = "TOKEN")]
    tls_bootstrap_token: Option<Token>,
    /// The key of the cluster's certificate authority, as sha256:HEX; may be given more than once, and one must match
    #[arg(long = "discovery-token-ca-cert-hash", value_name = "HASH")]
    pins: Vec<Pin>,
    /// Do not verify the certificate authority: trust any server that knows the token
    #[arg(long)]
    discovery_token_unsafe_skip_ca_verification: bool,
    /// Kubeconfig of the cluster, instead of API and a hash: a file or an https URL
    #[arg(long, value_name = "FILE")]
    discovery_file: Option<String>,
    /// Timeout of each wait: for the cluster's description, the certificate and the node to be Ready
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    timeout: Duration,
    /// Run the node in this process instead of the systemd unit
    #[arg(long)]
    foreground: bool,
    /// Continue if preflight checks fail, or the API server is too new
    #[arg(long)]
    force: bool,
    /// Not supported
    #[arg(long, hide = true)]
    control_plane: bool,
    #[command(flatten)]
    pub(super) cluster_access: ClusterAccessFlags,
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let read = duration::parse(text.trim());
    read.filter(|time| !time.is_zero()).ok_or_else(|| format!("{text:?} is not a duration such as 90s or 5m"))
}

fn step(phase: &str, words: impl AsRef<str>) {
    say(format!("[{phase}] {}", words.as_ref()));
}

pub(super) fn run(args: &Args, settings: &Settings, flags: &Flags) -> anyhow::Result<ExitCode> {
    require_root("windlass join")?;
    anyhow::ensure!(!args.control_plane, "Windlass joins as a worker node only: omit --control-plane");
    let (token, credentials_token) = tokens(args)?;
    let typed = settings_flags()?;
    let instance = match Instance::lock(&settings.run_dir)? {
        Lock::Acquired(instance) => instance,
        Lock::Held(pid) => bail!(
            "a windlass runs on this machine already (process {}, run-time directory {}): end it first, with `windlass leave` if it is a node of a cluster, with `windlass down --purge` if it is a cluster of its own",
            pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
            settings.run_dir.display()
        ),
    };
    let place = JoinDir::in_data_dir(&settings.data_dir);
    let server = place.kubeconfig().exists().then(|| place.cluster()).flatten();
    if let Some(server) = server.filter(|server| was_cut_off(args, server)) {
        step("files", format!("this machine is a node of {server} already, of which the service was not set up"));
    } else {
        check_not_joined(&place, settings)?;
        runtime()?.block_on(join(args, token.as_ref(), credentials_token, settings, flags, &place))?;
    }
    drop(instance);

    let line: Vec<String> = [vec!["agent".to_owned()], typed].concat();
    if args.foreground {
        step("start", "the node runs in this process; `windlass leave` removes it from the cluster");
        let settings = Settings::read(flags, true)?;
        logging::change(&settings.log, settings.log_format)?;
        // Concurrently with the node, which runs until it is stopped.
        let (node, limit) = (settings.clone(), args.timeout);
        std::thread::spawn(move || {
            let alone = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(anyhow::Error::from);
            let waited = alone.and_then(|runtime| runtime.block_on(wait_ready(&place, &node, limit, false)));
            if let Err(error) = waited {
                tracing::warn!(reason = format!("{error:#}"), "failed to wait for the node to be Ready");
            }
        });
        return agent::run(&settings, flags);
    }
    if !service::is_installed() {
        let words = service::command_line(&line).unwrap_or_else(|| line.join(" "));
        step("start", "this machine has joined; there is no windlass.service to run it, so run:");
        say(format!("\n  windlass {words}\n"));
        return Ok(ExitCode::SUCCESS);
    }
    service::run(&line).context("this machine has joined, but its service could not be started; run `windlass agent` yourself, or `windlass leave` to undo it")?;
    step("start", "windlass.service is enabled and started");
    let wait_ready = runtime()?.block_on(wait_ready(&place, settings, args.timeout, true))?;
    Ok(if wait_ready { ExitCode::SUCCESS } else { ExitCode::from(exit::DIFFERS) })
}

/// The discovery token, and the credentials for the certificate request.
fn tokens(args: &Args) -> anyhow::Result<(Option<Token>, Option<AuthInfo>)> {
    let from_file = args.token_file.as_deref().map(read_token).transpose()?;
    let token = args.token.clone().or(from_file);
    if args.discovery_file.is_none() {
        anyhow::ensure!(
            token.is_some(),
            "a token is needed to find the cluster: --token, --token-file FILE (- for standard input), or --discovery-file instead"
        );
        anyhow::ensure!(
            !args.pins.is_empty() || args.discovery_token_unsafe_skip_ca_verification,
            "--discovery-token-ca-cert-hash is needed, since any server that knows the token could impersonate the API server otherwise; `kubeadm token create --print-join-command` prints it. --discovery-token-unsafe-skip-ca-verification skips the check"
        );
    }
    let credentials_token = args.tls_bootstrap_token.clone().or_else(|| token.clone());
    Ok((token, credentials_token.as_ref().map(bearer)))
}

fn read_token(file: &Path) -> anyhow::Result<Token> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        // A token is shorter.
        std::io::stdin().take(1024).read_to_string(&mut text).context("standard input could not be read")?;
        text
    } else {
        std::fs::read_to_string(file).with_context(|| format!("--token-file {} could not be read", file.display()))?
    };
    text.trim().parse().with_context(|| format!("--token-file {}", file.display()))
}

/// Whether an earlier `windlass join` to the cluster of these files was cut off before it had set up the service.
fn was_cut_off(args: &Args, server: &str) -> bool {
    is_same_cluster(args.api.as_ref(), server) && !args.foreground && service::is_installed() && !service::is_set_up()
}

/// Whether the API that was typed is the one of a kubeconfig. Pure.
fn is_same_cluster(typed: Option<&http::Uri>, server: &str) -> bool {
    let server: Option<http::Uri> = server.parse().ok();
    let known = server.as_ref().and_then(http::Uri::authority);
    known.is_some() && known == typed.and_then(http::Uri::authority)
}

/// Fails if the machine is a node already.
fn check_not_joined(place: &JoinDir, settings: &Settings) -> anyhow::Result<()> {
    if place.exists() || place.credentials().is_some() {
        let cluster = place.cluster().unwrap_or_else(|| "a cluster".to_owned());
        let unserved = if service::is_installed() && !service::is_set_up() {
            ", and join again: its service was not set up, or was taken back"
        } else {
            ""
        };
        bail!(
            "this machine is a node of {cluster} already (see {}): `windlass leave` ends that{unserved}",
            settings.data_dir.display()
        );
    }
    if assemble::has_control_plane(&settings.data_dir) {
        bail!(
            "this machine is a cluster of its own, with data in {}: `windlass down --purge` removes it, or join with another --data-dir",
            settings.data_dir.display()
        );
    }
    if let Some(file) = KUBELET_FILES.iter().find(|file| Path::new(file).exists()) {
        bail!("a kubelet of this machine has joined a cluster ({file} is there): `kubeadm reset` ends that");
    }
    Ok(())
}

/// Joins, up to and including the join directory.
async fn join(
    args: &Args,
    token: Option<&Token>,
    credentials_token: Option<AuthInfo>,
    settings: &Settings,
    flags: &Flags,
    place: &JoinDir,
) -> anyhow::Result<()> {
    connect::install_crypto();
    preflight(args, settings).await?;
    let found = discover(args, token).await?;
    let credentials = credentials_token.or_else(|| found.credentials.clone()).context(
        "the discovery file holds no credentials: give a token to ask for the node's certificate with (--token, --token-file or --tls-bootstrap-token)",
    )?;
    let access = found.access(credentials)?;
    let client = access.client(Limits::DEFAULT);
    let facts = cluster::read_cluster(&client, &settings.node_name).await?;
    check_version_skew(args, &facts)?;
    match cluster::check_existing_node(facts.node.as_ref(), &boot_id()) {
        ExistingNode::None => {}
        ExistingNode::TakeOver => {
            step(
                "preflight",
                format!(
                    "the cluster has a Node {} that is not running, or is this machine: taking it over",
                    settings.node_name
                ),
            );
        }
        ExistingNode::Alive => bail!(
            "the cluster has a Node {0} that is Ready and another machine: set another --node-name, or delete it (kubectl delete node {0})",
            settings.node_name
        ),
    }
    let (text, proxied) = cluster_settings(flags, &found, &facts, place, args.force)?;

    let report = |words: String| step("certificate", words);
    let issued = certificate::obtain(&place.pki(), &settings.node_name, &found, &access, args.timeout, report).await?;
    let node = found.access(crate::join::join_dir::credentials(&issued.pair))?;
    if !proxied && cluster::can_watch_services(&node.client(Limits::DEFAULT)).await == Some(false) {
        step(
            "cluster",
            "nodes may not watch services in this cluster yet; allow it once for all nodes: windlass rbac | kubectl apply -f -",
        );
    }
    place.commit(&text, &connect::node_kubeconfig(&node.config(), &issued.current)?)?;
    step(
        "files",
        format!("this machine is node {} of {}; see {}", settings.node_name, found.server, place.settings().display()),
    );
    Ok(())
}

async fn preflight(args: &Args, settings: &Settings) -> anyhow::Result<()> {
    step("preflight", "checking the machine");
    let findings = check::of_node(settings).await?;
    let wrong: Vec<_> = findings.iter().filter(|f| f.status != Status::Pass).cloned().collect();
    if !wrong.is_empty() {
        say(check::text(&wrong));
    }
    let missing = wrong.iter().filter(|f| f.status == Status::Fail).count();
    anyhow::ensure!(
        missing == 0 || args.force,
        "this machine cannot be a node yet: {missing} missing, see above; use --force to continue anyway"
    );
    Ok(())
}

async fn discover(args: &Args, token: Option<&Token>) -> anyhow::Result<DiscoveredCluster> {
    let report = |words: String| step("discovery", words);
    let found = match (&args.discovery_file, &args.api, token) {
        (Some(file), _, _) => discovery::by_file(file, args.timeout, report).await?,
        (None, Some(api), Some(token)) => {
            step("discovery", format!("discovering the cluster at {api}, with token {}", token.id()));
            if args.pins.is_empty() {
                super::warn(
                    "no certificate authority is pinned (--discovery-token-unsafe-skip-ca-verification): any server that knows the token can impersonate the cluster and control this machine",
                );
            }
            discovery::by_token(api, token, &args.pins, args.timeout, report).await?
        }
        _ => bail!("an API server and a token, or --discovery-file, are needed"),
    };
    step("discovery", format!("the cluster is at {}", found.server));
    Ok(found)
}

/// Fails if the API server's version is outside the supported skew.
fn check_version_skew(args: &Args, facts: &cluster::ClusterFacts) -> anyhow::Result<()> {
    let Some(version) = &facts.version else { return Ok(()) };
    step("preflight", format!("the API server is {}", version.git_version));
    match evaluate_skew(NODE_VERSION, &version.major, &version.minor, &version.git_version) {
        Skew::Supported => {}
        Skew::Warning(words) => step("preflight", words),
        Skew::Unsupported(words) if args.force => step("preflight", words),
        Skew::Unsupported(words) => bail!("{words}. Use --force to join anyway"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{super::Cli, *};

    #[test]
    fn a_join_goes_on_in_the_cluster_that_is_typed() {
        for (typed, server, expected) in [
            (Some("192.0.2.1:6443"), "https://192.0.2.1:6443", true),
            (Some("192.0.2.1:6443"), "https://192.0.2.2:6443", false),
            (Some("192.0.2.1:6443"), "https://192.0.2.1:443", false),
            (Some("192.0.2.1:6443"), "", false),
            (None, "https://192.0.2.1:6443", false),
            (None, "", false),
        ] {
            let typed = typed.map(|text| discovery::parse_server(text).unwrap());
            assert_eq!(is_same_cluster(typed.as_ref(), server), expected, "{typed:?} {server}");
        }
    }

    #[test]
    fn a_cluster_is_named_once_and_believed_for_a_reason() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        for wrong in [
            "windlass join",
            "windlass join 192.0.2.1:6443 --discovery-file /f",
            "windlass join 192.0.2.1:6443 --token abc",
            "windlass join 192.0.2.1:6443 --token abcdef.0123456789abcdef --token-file /f",
            "windlass join 192.0.2.1:6443 --discovery-token-ca-cert-hash md5:00",
            "windlass join http://192.0.2.1:6443",
            "windlass join 192.0.2.1:6443 --timeout never",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let args = |line: &str| match parse(line).unwrap().command {
            super::super::Command::Join(args) => args,
            other => panic!("{other:?}"),
        };
        let no_pin = args("windlass join 192.0.2.1:6443 --token abcdef.0123456789abcdef");
        assert!(tokens(&no_pin).unwrap_err().to_string().contains("--discovery-token-ca-cert-hash is needed"));
        let no_token = args("windlass join 192.0.2.1:6443");
        assert!(tokens(&no_token).unwrap_err().to_string().contains("a token is needed"));
        let other = args("windlass join --discovery-file /f --tls-bootstrap-token abcdef.0123456789abcdef");
        assert!(tokens(&other).unwrap().1.is_some());
    }
}
