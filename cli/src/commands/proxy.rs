//! `windlass proxy`: the service proxy alone, with kube-proxy's flags and file, and its cleanup.

use std::{
    convert::Infallible,
    fs::OpenOptions,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use windlass_proxy::{Page, ValidConfig};

use super::{require_root, runtime, say, termination_signal};
use crate::{
    assemble,
    config::{
        Flags, Settings,
        kube_proxy::{self, KubeProxy, OOM_SCORE_ADJ, Overrides},
        proxy::proxy_config,
    },
    logging,
    reload::Reloader,
    systemd::{Notifier, ServiceKind},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Credentials of the proxy [default: those of the pod it runs in]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Address of the API server, instead of the kubeconfig's
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// Remove every rule of the proxy and exit, as `windlass proxy cleanup` does
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    cleanup: Option<bool>,
    /// Set the sysctls that the proxy needs and exit
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    init_only: Option<bool>,
    /// Write the effective settings as a KubeProxyConfiguration and exit
    #[arg(long, value_name = "FILE")]
    write_config_to: Option<PathBuf>,
    #[command(flatten)]
    flags: KubeProxyFlags,
    #[command(flatten)]
    _without_effect: WithoutEffect,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Remove every rule of the proxy
    Cleanup,
}

/// kube-proxy's flags that have an effect. With `--config FILE` of kube-proxy's kind, flags win over the file.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Settings under kube-proxy's names")]
struct KubeProxyFlags {
    /// The node's name, as --node-name
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// The node's address, unless it is 0.0.0.0 or ::
    #[arg(long, value_name = "IP")]
    bind_address: Option<String>,
    /// Fail if a port cannot be bound, instead of retrying
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    bind_address_hard_fail: Option<bool>,
    /// Port of the health server; 0 for none
    #[arg(long, hide = true, value_name = "PORT")]
    healthz_port: Option<u16>,
    /// Port of the metrics server; 0 for none
    #[arg(long, hide = true, value_name = "PORT")]
    metrics_port: Option<u16>,
    /// Must be iptables
    #[arg(long, value_name = "MODE")]
    proxy_mode: Option<String>,
    /// Masquerade all traffic to cluster IPs
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    masquerade_all: Option<bool>,
    /// Bit of the packet mark that means "masquerade", 0 to 31 [default: 14]
    #[arg(long, value_name = "BIT")]
    iptables_masquerade_bit: Option<i64>,
    /// Whether node ports answer at 127.0.0.1 [default: true]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    iptables_localhost_nodeports: Option<bool>,
    /// Interval of full syncs [default: 30s]
    #[arg(long, value_name = "DURATION")]
    iptables_sync_period: Option<String>,
    /// Minimum time between two syncs [default: 1s]
    #[arg(long, value_name = "DURATION")]
    iptables_min_sync_period: Option<String>,
    /// Node addresses that serve node ports: CIDRs, or `primary`
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    nodeport_addresses: Option<Vec<String>>,
    /// Gates such as AllowServiceExternalIPs=false; unknown ones have no effect
    #[arg(long, value_name = "GATE=BOOL", value_delimiter = ',', value_parser = parse_feature_gate)]
    feature_gates: Option<Vec<(String, bool)>>,
    /// OOM score adjustment of this process [default: -999]
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true)]
    oom_score_adj: Option<i32>,
    /// Maximum conntrack entries per core; 0 leaves the kernel's limit [default: 32768]
    #[arg(long, value_name = "N")]
    conntrack_max_per_core: Option<i64>,
    /// Minimum of conntrack entries in total [default: 131072]
    #[arg(long, value_name = "N")]
    conntrack_min: Option<i64>,
    /// Exact value; 0 leaves the kernel's [default: at least 24h]
    #[arg(long, value_name = "DURATION")]
    conntrack_tcp_timeout_established: Option<String>,
    /// Exact value; 0 leaves the kernel's [default: at least 1h]
    #[arg(long, value_name = "DURATION")]
    conntrack_tcp_timeout_close_wait: Option<String>,
    /// Whether conntrack accepts TCP packets outside the window
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    conntrack_tcp_be_liberal: Option<bool>,
    /// Exact value; 0 leaves the kernel's [default: 0]
    #[arg(long, value_name = "DURATION")]
    conntrack_udp_timeout: Option<String>,
    /// Exact value; 0 leaves the kernel's [default: 0]
    #[arg(long, value_name = "DURATION")]
    conntrack_udp_timeout_stream: Option<String>,
    /// Log verbosity: 0 to 3 is info, 4 to 8 debug, more is trace
    #[arg(short = 'v', long = "v", value_name = "N")]
    verbosity: Option<u8>,
    /// text or json
    #[arg(long, value_name = "FORMAT")]
    logging_format: Option<String>,
}

/// kube-proxy's flags without effect here: accepted, so that its command line need not change.
#[derive(Debug, clap::Args)]
struct WithoutEffect {
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    profiling: Option<Option<String>>,
    #[arg(long, hide = true)]
    kube_api_qps: Option<String>,
    #[arg(long, hide = true)]
    kube_api_burst: Option<String>,
    #[arg(long, hide = true)]
    kube_api_content_type: Option<String>,
    #[arg(long, hide = true)]
    config_sync_period: Option<String>,
    #[arg(long, hide = true)]
    show_hidden_metrics_for_version: Option<String>,
    #[arg(long, hide = true)]
    vmodule: Option<String>,
    #[arg(long, hide = true)]
    log_flush_frequency: Option<String>,
    #[arg(long, hide = true)]
    boot_id_file: Option<String>,
    #[arg(long, hide = true)]
    machine_id_file: Option<String>,
    #[arg(long, hide = true)]
    ipvs_exclude_cidrs: Option<String>,
    #[arg(long, hide = true)]
    ipvs_min_sync_period: Option<String>,
    #[arg(long, hide = true)]
    ipvs_scheduler: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    ipvs_strict_arp: Option<Option<String>>,
    #[arg(long, hide = true)]
    ipvs_sync_period: Option<String>,
    #[arg(long, hide = true)]
    ipvs_tcp_timeout: Option<String>,
    #[arg(long, hide = true)]
    ipvs_tcpfin_timeout: Option<String>,
    #[arg(long, hide = true)]
    ipvs_udp_timeout: Option<String>,
}

fn parse_feature_gate(text: &str) -> Result<(String, bool), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not of the form GATE=true"))?;
    let value = value.parse().map_err(|_| format!("{text:?} is neither true nor false"))?;
    Ok((name.trim().to_owned(), value))
}

impl KubeProxyFlags {
    /// The flags as the file's fields.
    fn settings(&self) -> KubeProxy {
        KubeProxy {
            mode: self.proxy_mode.clone(),
            hostname_override: self.hostname_override.clone(),
            bind_address: self.bind_address.clone(),
            bind_address_hard_fail: self.bind_address_hard_fail,
            iptables: kube_proxy::Iptables {
                masquerade_bit: self.iptables_masquerade_bit,
                masquerade_all: self.masquerade_all,
                localhost_node_ports: self.iptables_localhost_nodeports,
                sync_period: self.iptables_sync_period.clone(),
                min_sync_period: self.iptables_min_sync_period.clone(),
            },
            node_port_addresses: self.nodeport_addresses.clone(),
            oom_score_adj: self.oom_score_adj,
            conntrack: kube_proxy::Conntrack {
                max_per_core: self.conntrack_max_per_core,
                min: self.conntrack_min,
                tcp_established_timeout: self.conntrack_tcp_timeout_established.clone(),
                tcp_close_wait_timeout: self.conntrack_tcp_timeout_close_wait.clone(),
                tcp_be_liberal: self.conntrack_tcp_be_liberal,
                udp_timeout: self.conntrack_udp_timeout.clone(),
                udp_stream_timeout: self.conntrack_udp_timeout_stream.clone(),
            },
            feature_gates: self.feature_gates.clone().map(|list| list.into_iter().collect()),
            logging: kube_proxy::Logging {
                format: self.logging_format.clone(),
                verbosity: self.verbosity,
                ..kube_proxy::Logging::default()
            },
            ..KubeProxy::default()
        }
    }
}

/// The settings of kube-proxy, as they were given.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// kube-proxy's file and its text, if `--config` names one.
    file: Option<(PathBuf, String)>,
    /// What the flags set above it.
    over: Overrides,
}

impl Given {
    /// Whether `--config` names a file of kube-proxy.
    pub(crate) const fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// The file and the flags together; warns of fields that are not known. Logging depends on it and has not started.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub(crate) fn settings(&self) -> anyhow::Result<KubeProxy> {
        let Some((path, text)) = &self.file else { return Ok(self.over.fields.clone()) };
        let (file, unknown) = kube_proxy::parse(text).with_context(|| unusable(path))?;
        for setting in unknown {
            super::warn(format!("{}: {setting} is not known here and has no effect", path.display()));
        }
        Ok(file.overridden_by(self.over.fields.clone()))
    }

    /// The configuration with the file as it was read at first, or with another text of it.
    ///
    /// # Errors
    /// All problems.
    fn config(&self, settings: &Settings, text: Option<&str>) -> anyhow::Result<(ValidConfig, KubeProxy)> {
        let file = match text.or(self.file.as_ref().map(|(_, text)| text.as_str())) {
            Some(text) => Some(kube_proxy::parse(text)?.0),
            None => None,
        };
        kube_proxy::config(proxy_config(settings), file.as_ref(), &self.over)
            .map_err(|problems| anyhow::anyhow!("the settings are invalid: {}", problems.join("; ")))
    }
}

fn unusable(path: &Path) -> String {
    format!("the configuration {} cannot be used", path.display())
}

/// Reads kube-proxy's file, if `--config` names one, and its flags.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn configuration(args: &Args, flags: &Flags) -> anyhow::Result<Given> {
    let over = Overrides {
        fields: flags.kube_proxy().overridden_by(args.flags.settings()),
        healthz_port: args.flags.healthz_port,
        metrics_port: args.flags.metrics_port,
    };
    let Some(path) = &flags.config else { return Ok(Given { file: None, over }) };
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the configuration {} could not be read", path.display()))?;
    let file = kube_proxy::is_kube_proxy(&text).then(|| (path.clone(), text));
    Ok(Given { file, over })
}

/// Runs the proxy.
pub(crate) fn run(args: &Args, settings: &Settings, given: &Given, flags: &Flags) -> anyhow::Result<ExitCode> {
    if args.write_config_to.is_none() {
        require_root("windlass proxy")?;
    }
    if matches!(args.action, Some(Action::Cleanup)) || args.cleanup == Some(true) {
        let problems = assemble::remove_rules(settings);
        anyhow::ensure!(problems.is_empty(), "left behind: {}", problems.join("; "));
        say("the rules of the service proxy are removed");
        return Ok(ExitCode::SUCCESS);
    }
    let (config, kube_proxy) = given.config(settings, None)?;
    if args.init_only == Some(true) {
        windlass_proxy::prepare(&config)?;
        say("the sysctls of the service proxy are set");
        return Ok(ExitCode::SUCCESS);
    }
    let effective = kube_proxy.effective(&config);
    if let Some(path) = &args.write_config_to {
        let text = effective.yaml()?;
        // In place: it may be a pipe.
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("the configuration was not written to {}", path.display()))?;
        say(format!("the settings are written to {}", path.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let config = config.with_pages(pages(&effective));
    set_oom_score(kube_proxy.oom_score_adj.unwrap_or(OOM_SCORE_ADJ));
    let kubeconfig = args.kubeconfig.as_deref().or(kube_proxy.client_connection.kubeconfig.as_deref());
    let kubeconfig: Option<&Path> = kubeconfig.filter(|path| !path.as_os_str().is_empty());
    runtime()?.block_on(async {
        let reloader = Reloader::new(flags, settings)?;
        let notifier = Notifier::start(ServiceKind::Proxy);
        let mut proxy = assemble::proxy_alone(config, kubeconfig, args.master.as_deref()).await?;
        if let Some(started) = proxy.started() {
            // Rules are written once the API answers, which may take long; those of an earlier start apply meanwhile.
            notifier.started(started);
        }
        let ended = tokio::select! {
            signal = termination_signal() => { tracing::info!(signal = signal.unwrap_or("a signal"), "stopping; the rules stay"); Ok(()) }
            failed = proxy.failed() => Err(failed),
            config_changed = config_changed(given, settings) => Err(config_changed),
            never = reloads(reloader, &notifier, given.is_file()) => match never {},
            never = logging::report_suppressed() => match never {},
        };
        notifier.stopping();
        proxy.shutdown().await;
        ended
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A file of kube-proxy is watched, so SIGHUP is ignored.
async fn reloads(reloader: Reloader, notifier: &Notifier, is_file: bool) -> Infallible {
    if is_file { reloader.ignore().await } else { reloader.run(notifier).await }
}

/// Upstream's `/configz` and `/flagz`.
fn pages(effective: &KubeProxy) -> Vec<Page> {
    let value = serde_json::to_value(effective).unwrap_or_default();
    let mut flags =
        String::from("\nwindlass proxy flagz\nWarning: This endpoint is not meant to be machine parseable.\n\n");
    for (key, value) in value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        flags.push_str(&format!("{key}={value}\n"));
    }
    let configz = serde_json::json!({"kubeproxy.config.k8s.io": value}).to_string();
    vec![
        Page { path: "/configz", content_type: "application/json", body: configz },
        Page { path: "/flagz", content_type: "text/plain; charset=utf-8", body: flags },
    ]
}

/// Returns when the file has changed and is valid: the service manager then restarts this process. An invalid change is
/// only logged. Compares contents, since mounted files are replaced by symlinks.
async fn config_changed(given: &Given, settings: &Settings) -> anyhow::Error {
    let Some((path, read_at_first)) = &given.file else { return std::future::pending().await };
    let read = || async { tokio::fs::read_to_string(path).await.unwrap_or_default() };
    let mut last = read_at_first.clone();
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let text = read().await;
        if text == last {
            continue;
        }
        match given.config(settings, Some(&text)) {
            Ok(_) => return anyhow::anyhow!("{} changed; exiting to be restarted with it", path.display()),
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "the changed configuration is invalid; keeping the old one");
            }
        }
        last = text;
    }
}

const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Sets the OOM score adjustment of this process; not every process may.
fn set_oom_score(score: i32) {
    let file = OpenOptions::new().write(true).open("/proc/self/oom_score_adj");
    if let Err(error) = file.and_then(|mut file| file.write_all(score.to_string().as_bytes())) {
        tracing::info!(%error, score, "failed to set the OOM score adjustment of this process");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A changed file ends a working proxy only if it would start again with it.
    #[test]
    fn a_changed_file_is_judged_as_at_a_start() {
        const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        let given = Given { file: Some(("f".into(), HEAD.to_owned())), over: Overrides::default() };
        let settings = Settings::example();
        let judge = |text: &str| given.config(&settings, Some(&format!("{HEAD}{text}"))).map(drop);
        assert!(judge("iptables: {syncPeriod: 0s}\n").is_ok());
        for wrong in [
            "iptables: {masqueradeBit: 40}\n",
            "iptables: {syncPeriod: 1s, minSyncPeriod: 5s}\n",
            "detectLocalMode: BridgeInterface\n",
            "mode: ipvs\n",
            "- a list\n",
        ] {
            assert!(judge(wrong).is_err(), "{wrong}");
        }
        assert!(given.config(&settings, None).is_ok());
    }
}
