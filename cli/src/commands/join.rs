//! `windlass join`: makes this machine a node of an existing cluster, like `kubeadm join`.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use clap::{ArgMatches, Args as _, CommandFactory as _, parser::ValueSource};
use futures::StreamExt as _;
use kube::{Api, Client, config::AuthInfo, runtime::watcher::watch_object};
use serde_json::json;
use windlass_agent::node::{Skew, boot_id, evaluate_skew};
use windlass_kit::{
    bootstrap::{Pin, Token},
    client::Limits,
    duration,
    preflight::Status,
};

use super::{Cli, agent, check, require_root, runtime, say};
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
        kubelet_config,
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
    check_not_joined(&place, settings)?;
    runtime()?.block_on(join(args, token.as_ref(), credentials_token, settings, flags, &place))?;
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

/// The settings flags on the command line, with which the node will run.
fn settings_flags() -> anyhow::Result<Vec<String>> {
    let mut command = Cli::command();
    command.build();
    let matches = command.clone().try_get_matches_from(std::env::args_os())?;
    let settings = ClusterAccessFlags::augment_args(Flags::augment_args(clap::Command::new("settings")));
    let found = matches.subcommand_matches("join").context("the command line could not be read again")?;
    typed(&settings, found)
}

/// The arguments of `known` on the command line of `matches`.
fn typed(known: &clap::Command, matches: &ArgMatches) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for arg in known.get_arguments() {
        let id = arg.get_id().as_str();
        let Some(long) = arg.get_long() else { continue };
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let names = arg.get_value_names().unwrap_or_default();
        let is_path = names.iter().any(|name| matches!(name.as_str(), "FILE" | "DIR" | "PATH" | "SOCKET"));
        for value in matches.get_raw(id).into_iter().flatten() {
            // The unit has another working directory.
            let path = (is_path && !value.is_empty()).then(|| std::path::absolute(value)).transpose()?;
            let value = path.as_deref().map_or(value, Path::as_os_str);
            let value = value.to_str().with_context(|| format!("the value of --{long} is no text"))?;
            all.push(format!("--{long}={value}"));
        }
    }
    Ok(all)
}

/// Fails if the machine is a node already.
fn check_not_joined(place: &JoinDir, settings: &Settings) -> anyhow::Result<()> {
    if place.exists() || place.credentials().is_some() {
        let cluster = place.cluster().unwrap_or_else(|| "a cluster".to_owned());
        bail!(
            "this machine is a node of {cluster} already (see {}): `windlass leave` ends that",
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

/// The configuration file with the cluster's settings, validated as the node will read it, and whether another service
/// proxy runs.
fn cluster_settings(
    flags: &Flags,
    found: &DiscoveredCluster,
    facts: &cluster::ClusterFacts,
    place: &JoinDir,
    force: bool,
) -> anyhow::Result<(String, bool)> {
    let mut settings = vec![("kubeconfig", json!(place.kubeconfig()))];
    if let Some(typed) = &found.typed {
        settings.push(("servers", json!([typed.to_string().trim_end_matches('/')])));
    }
    let mut from_kubeadm = facts.kubeadm.as_deref().map(kubelet_config::from_cluster_configuration).unwrap_or_default();
    match &facts.kubelet {
        None => {
            step("cluster", "kube-system/kubelet-config is missing or not readable: using the defaults of Windlass")
        }
        Some(text) => {
            let imported = kubelet_config::import(text, Path::exists)
                .map_err(|why| anyhow::anyhow!("the cluster's kube-system/kubelet-config cannot be used: {why}"))?;
            let names: Vec<&str> = imported.settings.iter().map(|(name, _)| *name).collect();
            if !names.is_empty() {
                step("cluster", format!("imported from kube-system/kubelet-config: {}", names.join(", ")));
            }
            let skipped: Vec<String> = imported.skipped.iter().map(|(name, why)| format!("{name} ({why})")).collect();
            if !skipped.is_empty() {
                step("cluster", format!("not imported: {}", skipped.join("; ")));
            }
            let refused: Vec<String> = imported.refused.iter().map(|(name, why)| format!("{name} ({why})")).collect();
            match refused.as_slice() {
                [] => {}
                all if force => step("cluster", format!("does not hold here: {}", all.join("; "))),
                all => bail!(
                    "the cluster's kube-system/kubelet-config restricts what this node does not: {}. Use --force to join anyway",
                    all.join("; ")
                ),
            }
            from_kubeadm.retain(|(name, _)| !names.contains(name));
            settings.extend(imported.settings);
        }
    }
    settings.extend(from_kubeadm);
    if let Some(proxy) = facts.service_proxy.filter(|_| !flags.cluster_access.sets_no_proxy()) {
        step(
            "cluster",
            format!(
                "{proxy} of the cluster is the service proxy of every node, so this one runs none; set --no-proxy=false to run it, and keep {proxy} off this node"
            ),
        );
        settings.push(("noProxy", json!(true)));
    }
    let heading = format!(
        "Settings of the cluster {}, imported by `windlass join`. /etc/windlass/config.yaml and flags override them.",
        found.server
    );
    let text = kubelet_config::config_file(&settings, &heading);
    let read = Settings::with_cluster(flags, &text)
        .context("the cluster's settings are invalid for this machine; override them in /etc/windlass/config.yaml")?;
    Ok((text, read.cluster_access.no_proxy))
}

/// Waits until the node is Ready, reporting why it is not; `run_by_unit` if the systemd unit runs it.
async fn wait_ready(place: &JoinDir, settings: &Settings, limit: Duration, run_by_unit: bool) -> anyhow::Result<bool> {
    let client: Client = connect::client_of(&place.kubeconfig()).await?;
    let api: Api<k8s_openapi::api::core::v1::Node> = Api::all(client);
    let started_at = Instant::now();
    let mut last = String::new();
    let mut seen = std::pin::pin!(watch_object(api, &settings.node_name));
    let mut why = Some("the API has not answered yet".to_owned());
    loop {
        // Each second only for what is no matter of the API: the unit, and the time.
        if let Ok(next) = tokio::time::timeout(Duration::from_secs(1), seen.next()).await {
            why = match next {
                Some(Ok(node)) => cluster::not_ready_reason(node.as_ref()),
                Some(Err(error)) => {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Some(format!("the request to the API failed: {error}"))
                }
                None => Some("the watch of the node has ended".to_owned()),
            };
        }
        let Some(why) = &why else {
            step("ready", format!("node {} is Ready", settings.node_name));
            return Ok(true);
        };
        if *why != last {
            step("ready", why.as_str());
            last.clone_from(why);
        }
        let failed = run_by_unit.then(service::failure).flatten();
        if failed.is_some() || started_at.elapsed() > limit {
            let journal = if run_by_unit { " (journalctl -u windlass)" } else { "" };
            let failed = failed.map(|failed| format!("; {failed}")).unwrap_or_default();
            step(
                "ready",
                format!(
                    "this machine has joined, but its node is not Ready after {} s: {last}{failed}; see the node's log{journal}, or undo it with `windlass leave`",
                    started_at.elapsed().as_secs()
                ),
            );
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn typed_of(line: &str) -> Vec<String> {
        let matches = Cli::command().try_get_matches_from(line.split(' ')).unwrap();
        let known = ClusterAccessFlags::augment_args(Flags::augment_args(clap::Command::new("settings")));
        typed(&known, matches.subcommand_matches("join").unwrap()).unwrap()
    }

    #[test]
    fn what_the_node_runs_with_is_what_was_typed_without_what_joins() {
        let line = [
            "windlass --node-ip 192.0.2.7 join 192.0.2.1:6443 --token abcdef.0123456789abcdef",
            "--discovery-token-unsafe-skip-ca-verification --node-name n --cni-bin-dir /a --cni-bin-dir /b",
            "--no-proxy --server https://a:1 --tls-cert-file c",
            "--eviction-hard memory.available<1Gi,nodefs.available<5%",
        ];
        let typed = typed_of(&line.join(" "));
        let file = std::path::absolute("c").unwrap();
        let file = format!("--tls-cert-file={}", file.display());
        let mut sorted = typed.clone();
        sorted.sort_unstable();
        assert_eq!(
            sorted,
            [
                "--cni-bin-dir=/a",
                "--cni-bin-dir=/b",
                "--eviction-hard=memory.available<1Gi,nodefs.available<5%",
                "--no-proxy=true",
                "--node-ip=192.0.2.7",
                "--node-name=n",
                "--server=https://a:1",
                file.as_str(),
            ]
        );
        // And the agent accepts it.
        let again = [vec!["windlass".to_owned(), "agent".to_owned()], typed].concat();
        Cli::try_parse_from(again).unwrap();
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
