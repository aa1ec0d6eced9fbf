//! `windlass join`: this machine becomes a node of a cluster that exists, as with `kubeadm join`.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use clap::{ArgMatches, Args as _, CommandFactory as _, parser::ValueSource};
use kube::{Api, Client, config::AuthInfo};
use serde_json::json;
use windlass_agent::node::{Skew, boot_id, judge_skew};
use windlass_kit::{
    bootstrap::{Pin, Token},
    client::Limits,
    preflight::Status,
};

use super::{Cli, agent, check, require_root, runtime, say};
use crate::{
    assemble,
    config::{Flags, MembershipFlags, Settings},
    exit,
    instance::{Instance, Taken},
    join::{
        certificate, cluster,
        cluster::Namesake,
        discovery::{self, Found, bearer},
        kubelet_config,
        place::Place,
        unit,
    },
    logging,
};

/// What a kubelet that has joined leaves on a machine.
const OF_KUBELET: [&str; 2] = ["/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The cluster's API server, as HOST:PORT
    #[arg(value_name = "API", required_unless_present = "discovery_file", conflicts_with = "discovery_file", value_parser = discovery::server)]
    api: Option<http::Uri>,
    /// Bootstrap token, as `kubeadm token create` gives it; other processes of this machine can see it here
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<Token>,
    /// File that holds the token; - for standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Another token to ask for the certificate with
    #[arg(long, value_name = "TOKEN")]
    tls_bootstrap_token: Option<Token>,
    /// The key of the cluster's certificate authority, as sha256:HEX; may be given more than once, and one must match
    #[arg(long = "discovery-token-ca-cert-hash", value_name = "HASH")]
    pins: Vec<Pin>,
    /// Believe whoever knows the token: no hash is asked for
    #[arg(long)]
    discovery_token_unsafe_skip_ca_verification: bool,
    /// Kubeconfig that tells of the cluster, instead of API and a hash: a file or an https URL
    #[arg(long, value_name = "FILE")]
    discovery_file: Option<String>,
    /// How long is waited for the cluster's description, the certificate and the node to be Ready, each
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    timeout: Duration,
    /// Run the node in this process, where no service does
    #[arg(long)]
    foreground: bool,
    /// Go on where the machine lacks something, or the API server is too new
    #[arg(long)]
    force: bool,
    /// Not possible: a control plane is not joined
    #[arg(long, hide = true)]
    control_plane: bool,
    #[command(flatten)]
    pub(super) membership: MembershipFlags,
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let read = windlass_kit::duration::parse(text.trim());
    read.filter(|time| !time.is_zero()).ok_or_else(|| format!("{text:?} is not a duration such as 90s or 5m"))
}

fn step(phase: &str, words: impl AsRef<str>) {
    say(format!("[{phase}] {}", words.as_ref()));
}

pub(super) fn run(args: &Args, settings: &Settings, flags: &Flags) -> anyhow::Result<ExitCode> {
    require_root("windlass join")?;
    anyhow::ensure!(!args.control_plane, "Windlass joins as a node alone: leave --control-plane away");
    let (token, authenticates) = tokens(args)?;
    let typed = typed_flags()?;
    let instance = match Instance::take_to_start(&settings.run_dir)? {
        Taken::Ours(instance) => instance,
        Taken::Theirs(pid) => bail!(
            "a windlass runs on this machine already (process {}, run-time folder {}): end it first, with `windlass leave` if it is a node of a cluster, with `windlass down --purge` if it is a cluster of its own (where systemd runs it, after `systemctl disable --now windlass`)",
            pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
            settings.run_dir.display()
        ),
    };
    let place = Place::below(&settings.data_dir);
    is_free(&place, settings)?;
    runtime()?.block_on(join(args, token.as_ref(), authenticates, settings, flags, &place))?;
    drop(instance);

    let line: Vec<String> = [vec!["agent".to_owned()], typed].concat();
    if args.foreground {
        step("start", "the node runs in this process; `windlass leave` ends its membership");
        let settings = Settings::read(flags, true)?;
        logging::change(&settings.log, settings.log_format)?;
        // Beside the node, which ends only when it is told to.
        let (node, limit) = (settings.clone(), args.timeout);
        std::thread::spawn(move || {
            let alone = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(anyhow::Error::from);
            let waited = alone.and_then(|runtime| runtime.block_on(ready(&place, &node, limit, false)));
            if let Err(error) = waited {
                tracing::warn!(reason = format!("{error:#}"), "it is not told when the node is Ready");
            }
        });
        return agent::run(&settings, flags);
    }
    if !unit::is_there() {
        let words = unit::line(&line).unwrap_or_else(|| line.join(" "));
        step("start", "this machine has joined; no windlass.service is here to run it, so run:");
        say(format!("\n  windlass {words}\n"));
        return Ok(ExitCode::SUCCESS);
    }
    unit::run(&line).context("this machine has joined, but its service could not be started; run `windlass agent` yourself, or `windlass leave` to undo it")?;
    step("start", "windlass.service is enabled and started");
    let ready = runtime()?.block_on(ready(&place, settings, args.timeout, true))?;
    Ok(if ready { ExitCode::SUCCESS } else { ExitCode::from(exit::DIFFERS) })
}

/// The token that the cluster is found by, and what the certificate is asked for with.
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
            "--discovery-token-ca-cert-hash is needed: who knows the token could be anybody's API server otherwise; `kubeadm token create --print-join-command` tells it. --discovery-token-unsafe-skip-ca-verification does without"
        );
    }
    let authenticates = args.tls_bootstrap_token.clone().or_else(|| token.clone());
    Ok((token, authenticates.as_ref().map(bearer)))
}

fn read_token(file: &Path) -> anyhow::Result<Token> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        // More than a token is none.
        std::io::stdin().take(1024).read_to_string(&mut text).context("standard input could not be read")?;
        text
    } else {
        std::fs::read_to_string(file).with_context(|| format!("--token-file {} could not be read", file.display()))?
    };
    text.trim().parse().with_context(|| format!("--token-file {}", file.display()))
}

/// Flags of settings as they were typed: the node has to run with them.
fn typed_flags() -> anyhow::Result<Vec<String>> {
    let mut command = Cli::command();
    command.build();
    let matches = command.clone().try_get_matches_from(std::env::args_os())?;
    let settings = MembershipFlags::augment_args(Flags::augment_args(clap::Command::new("settings")));
    let found = matches.subcommand_matches("join").context("the command line could not be read again")?;
    typed(&settings, found)
}

/// Those arguments of `known` that stand on the command line of `matches`.
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
            // The service has another folder to begin from.
            let path = (is_path && !value.is_empty()).then(|| std::path::absolute(value)).transpose()?;
            let value = path.as_deref().map_or(value, Path::as_os_str);
            let value = value.to_str().with_context(|| format!("the value of --{long} is no text"))?;
            all.push(format!("--{long}={value}"));
        }
    }
    Ok(all)
}

/// Refuses a machine that is a node already.
fn is_free(place: &Place, settings: &Settings) -> anyhow::Result<()> {
    if place.is_there() || place.credentials().is_some() {
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
    if let Some(file) = OF_KUBELET.iter().find(|file| Path::new(file).exists()) {
        bail!("a kubelet of this machine has joined a cluster ({file} is there): `kubeadm reset` ends that");
    }
    Ok(())
}

/// Everything up to the files that make the machine a node.
async fn join(
    args: &Args,
    token: Option<&Token>,
    authenticates: Option<AuthInfo>,
    settings: &Settings,
    flags: &Flags,
    place: &Place,
) -> anyhow::Result<()> {
    assemble::install_crypto();
    preflight(args, settings).await?;
    let found = discover(args, token).await?;
    let credentials = authenticates.or_else(|| found.credentials.clone()).context(
        "the discovery file holds no credentials: give a token to ask for the node's certificate with (--token, --token-file or --tls-bootstrap-token)",
    )?;
    let access = found.access(credentials)?;
    let client = access.client(Limits::DEFAULT);
    let told = cluster::ask(&client, &settings.node_name).await?;
    versions(args, &told)?;
    match cluster::namesake(told.node.as_ref(), &boot_id()) {
        Namesake::None => {}
        Namesake::TakenOver => {
            step(
                "preflight",
                format!(
                    "the cluster has a node {} that does not run, or was this machine: it is taken over",
                    settings.node_name
                ),
            );
        }
        Namesake::Alive => bail!(
            "the cluster has a node {0} that is Ready, which is another machine: give this one another --node-name, or delete that one (kubectl delete node {0})",
            settings.node_name
        ),
    }
    let (text, proxied) = configuration(flags, &found, &told, place)?;

    let tell = |words: String| step("certificate", words);
    let issued = certificate::obtain(&place.pki(), &settings.node_name, &found, &access, args.timeout, tell).await?;
    let node = found.access(crate::join::place::credentials(&issued.pair))?;
    if !proxied && cluster::may_follow_services(&node.client(Limits::DEFAULT)).await == Some(false) {
        step(
            "cluster",
            "nodes may not follow services here yet; allow it once, for all nodes: windlass rbac | kubectl apply -f -",
        );
    }
    place.commit(&text, &assemble::node_kubeconfig(&node.config(), &issued.current)?)?;
    step(
        "files",
        format!("this machine is node {} of {}; see {}", settings.node_name, found.server, place.settings().display()),
    );
    Ok(())
}

async fn preflight(args: &Args, settings: &Settings) -> anyhow::Result<()> {
    step("preflight", "looking at the machine");
    let findings = check::of_node(settings).await?;
    let wrong: Vec<_> = findings.iter().filter(|f| f.status != Status::Pass).cloned().collect();
    if !wrong.is_empty() {
        say(check::text(&wrong));
    }
    let missing = wrong.iter().filter(|f| f.status == Status::Fail).count();
    anyhow::ensure!(
        missing == 0 || args.force,
        "this machine cannot be a node yet: {missing} missing, see above; --force goes on all the same"
    );
    Ok(())
}

async fn discover(args: &Args, token: Option<&Token>) -> anyhow::Result<Found> {
    let tell = |words: String| step("discovery", words);
    let found = match (&args.discovery_file, &args.api, token) {
        (Some(file), _, _) => discovery::by_file(file, args.timeout, tell).await?,
        (None, Some(api), Some(token)) => {
            step("discovery", format!("asking {api} for the cluster, with token {}", token.id()));
            if args.pins.is_empty() {
                super::warn(
                    "no certificate authority is pinned (--discovery-token-unsafe-skip-ca-verification): whoever knows the token can pass for the cluster, and would rule this machine",
                );
            }
            discovery::by_token(api, token, &args.pins, args.timeout, tell).await?
        }
        _ => bail!("an API server and a token, or --discovery-file, are needed"),
    };
    step("discovery", format!("the cluster is at {}", found.server));
    Ok(found)
}

/// Refuses an API server that a node of this version cannot serve.
fn versions(args: &Args, told: &cluster::Told) -> anyhow::Result<()> {
    let Some(version) = &told.version else { return Ok(()) };
    step("preflight", format!("the API server is {}", version.git_version));
    match judge_skew(assemble::NODE_VERSION, &version.major, &version.minor, &version.git_version) {
        Skew::Fine => {}
        Skew::Doubtful(words) => step("preflight", words),
        Skew::TooFar(words) if args.force => step("preflight", words),
        Skew::TooFar(words) => bail!("{words}. --force joins all the same"),
    }
    Ok(())
}

/// The text of the cluster's settings, and whether services are left to somebody else; judged as the node will read them.
fn configuration(flags: &Flags, found: &Found, told: &cluster::Told, place: &Place) -> anyhow::Result<(String, bool)> {
    let mut settings = vec![("kubeconfig", json!(place.kubeconfig()))];
    if let Some(typed) = &found.typed {
        settings.push(("servers", json!([typed.to_string().trim_end_matches('/')])));
    }
    let mut of_cluster = told.kubeadm.as_deref().map(kubelet_config::of_cluster).unwrap_or_default();
    match &told.kubelet {
        None => {
            step("cluster", "there is no kube-system/kubelet-config that may be read: the defaults of Windlass count")
        }
        Some(text) => {
            let taken = kubelet_config::taken(text, Path::exists)
                .map_err(|why| anyhow::anyhow!("the cluster's kube-system/kubelet-config cannot be used: {why}"))?;
            let names: Vec<&str> = taken.settings.iter().map(|(name, _)| *name).collect();
            if !names.is_empty() {
                step(
                    "cluster",
                    format!("settings of kube-system/kubelet-config that count here: {}", names.join(", ")),
                );
            }
            let left: Vec<String> = taken.left.iter().map(|(name, why)| format!("{name} ({why})")).collect();
            if !left.is_empty() {
                step("cluster", format!("and that do not: {}", left.join("; ")));
            }
            of_cluster.retain(|(name, _)| !names.contains(name));
            settings.extend(taken.settings);
        }
    }
    settings.extend(of_cluster);
    if let Some(proxy) = told.proxy.filter(|_| !flags.membership.tells_of_proxy()) {
        step(
            "cluster",
            format!(
                "{proxy} of the cluster writes the rules of services on every node, so this one does not: --no-proxy=false if it shall, and {proxy} is kept off this node"
            ),
        );
        settings.push(("noProxy", json!(true)));
    }
    let heading = format!(
        "What the cluster {} has set, taken by `windlass join`. /etc/windlass/config.yaml and flags go before it.",
        found.server
    );
    let text = kubelet_config::written(&settings, &heading);
    let read = Settings::with_cluster(flags, &text).context("the cluster's settings do not fit this machine; set what is named in /etc/windlass/config.yaml, which goes before the cluster's")?;
    Ok((text, read.membership.no_proxy))
}

/// Waits until the node is Ready, and tells why it is not meanwhile; `of_unit` where the service runs it.
async fn ready(place: &Place, settings: &Settings, limit: Duration, of_unit: bool) -> anyhow::Result<bool> {
    let client: Client = assemble::client_of(&place.kubeconfig()).await?;
    let api: Api<k8s_openapi::api::core::v1::Node> = Api::all(client);
    let begun = Instant::now();
    let mut last = String::new();
    loop {
        let why = match api.get_opt(&settings.node_name).await {
            Ok(node) => cluster::unready(node.as_ref()),
            Err(error) => Some(format!("the API could not be asked: {}", discovery::reason(&error))),
        };
        let Some(why) = why else {
            step("ready", format!("node {} is Ready", settings.node_name));
            return Ok(true);
        };
        if why != last {
            step("ready", why.as_str());
            last = why;
        }
        let failed = of_unit.then(unit::failure).flatten();
        if failed.is_some() || begun.elapsed() > limit {
            let journal = if of_unit { " (journalctl -u windlass)" } else { "" };
            let failed = failed.map(|failed| format!("; {failed}")).unwrap_or_default();
            step(
                "ready",
                format!(
                    "this machine has joined, and its node is not Ready after {} s: {last}{failed}; see the node's log{journal}, and `windlass leave` to undo it",
                    begun.elapsed().as_secs()
                ),
            );
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn typed_of(line: &str) -> Vec<String> {
        let matches = Cli::command().try_get_matches_from(line.split(' ')).unwrap();
        let known = MembershipFlags::augment_args(Flags::augment_args(clap::Command::new("settings")));
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
        // And the agent takes it.
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
