//! The configuration of the control plane from kube-apiserver's flags. It reads the files that they name.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use windlass_control::{
    AuditConfig, AuthorizationMode, ClientAuthority, Config, Durability, ServerOptions, ServiceAccountIssuer,
};
use windlass_identity::{
    pki::{Lifetimes, Pair},
    service_account_tokens::{IssuerNames, KEY_SET_PATH, TokenIssuer},
};
use windlass_kit::{duration, net::Cidr};

use super::{
    data_directory::DataDirectory,
    flags::Given,
    plugins,
    runtime_config::{self, Item},
};
use crate::{config::detect_node_ip, join::feature_gates};

/// Upstream's default (`--service-cluster-ip-range`).
const SERVICE_RANGE: &str = "10.0.0.0/24";
/// The directory of the control plane in that of etcd.
const DATA_DIR: &str = "windlass";
/// Upstream's name of the certificate in `--cert-dir`.
const PAIR: &str = "apiserver";

/// What is wrong with flags that must be there, in upstream's words; all of it at once. Pure.
pub(super) fn missing(given: &Given) -> Vec<&'static str> {
    let mut missing = Vec::new();
    if given.list("etcd-servers").is_empty() {
        missing.push("--etcd-servers must be specified");
    }
    if given.text("service-account-issuer").is_none() {
        missing.push("service-account-issuer is a required flag");
    }
    if given.text("service-account-key-file").is_none() {
        missing.push("either `--service-account-key-file` or `--service-account-signing-endpoint` must be set");
    }
    if given.text("service-account-signing-key-file").is_none() || given.text("service-account-issuer").is_none() {
        missing.push("--service-account-signing-key-file and --service-account-issuer are required flags");
    }
    missing
}

/// The configuration, and what must be served.
///
/// # Errors
/// Which flag cannot be followed, and why.
pub(super) fn configuration(given: &Given, directory: &DataDirectory) -> anyhow::Result<(Config, Vec<Item>)> {
    feature_gates(&given.list("feature-gates"))?;
    let served = runtime_config::read(&given.list("runtime-config")).map_err(anyhow::Error::msg)?;
    let (bind, port) = (bind_address(given), port(given)?);
    let advertise = match given.text("advertise-address").and_then(|text| text.parse().ok()) {
        Some(address) => address,
        None if bind.is_loopback() || bind.is_unspecified() => detect_node_ip(),
        None => bind,
    };
    let data_dir = directory.path.join(DATA_DIR);
    let host =
        nix::unistd::gethostname().context("the host's name could not be read")?.to_string_lossy().to_lowercase();
    let config = Config {
        listen: vec![SocketAddr::new(bind, port)],
        advertise,
        cluster_domain: "cluster.local".to_owned(),
        cluster_dns: None,
        service_cidr: service_range(given)?,
        node_ports: node_ports(given.text("service-node-port-range").unwrap_or("30000-32767"))?,
        max_token_seconds: max_token_seconds(given)?,
        node_name: host,
        node_addresses: Vec::new(),
        admin_kubeconfig: data_dir.join("admin.kubeconfig"),
        lifetimes: Lifetimes::default(),
        token_auth_file: given.text("token-auth-file").map(PathBuf::from),
        audit: audit(given)?,
        admission_control_config_file: given.text("admission-control-config-file").map(PathBuf::from),
        network_policies: false,
        options: ServerOptions {
            serving: serving(given)?,
            client_ca: match given.text("client-ca-file") {
                Some(file) => ClientAuthority::Given(read("client-ca-file", file)?),
                None => ClientAuthority::None,
            },
            service_accounts: Some(service_accounts(given, SocketAddr::new(advertise, port))?),
            authorization: authorization(&given.list("authorization-mode"))?,
            disabled_admission_plugins: plugins::disabled(
                &given.list("enable-admission-plugins"),
                &given.list("disable-admission-plugins"),
            )
            .map_err(anyhow::Error::msg)?,
            bootstrap_tokens: given.is_true("enable-bootstrap-token-auth"),
            privileged_containers: given.is_true("allow-privileged"),
            node_components: false,
            durability: if directory.is_synced { Durability::Synced } else { Durability::Unsynced },
        },
        data_dir,
    };
    Ok((config, served))
}

fn read(flag: &str, file: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("--{flag}={file} could not be read"))
}

/// Upstream's default is every address; a server of tests is for this machine.
fn bind_address(given: &Given) -> IpAddr {
    given.text("bind-address").and_then(|text| text.parse().ok()).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

fn port(given: &Given) -> anyhow::Result<u16> {
    let text = given.text("secure-port").unwrap_or("6443");
    let port = text.parse().ok().filter(|port| *port != 0);
    port.with_context(|| {
        format!("--secure-port {text} must be between 1 and 65535, inclusive. It cannot be turned off with 0")
    })
}

fn service_range(given: &Given) -> anyhow::Result<(Ipv4Addr, u8)> {
    let text = given.text("service-cluster-ip-range").unwrap_or(SERVICE_RANGE);
    Cidr::parse(text).and_then(|range| range.v4()).with_context(|| {
        format!(
            "--service-cluster-ip-range={text} is not possible with windlass: services have one range of IPv4 addresses"
        )
    })
}

/// `30000-32767`, or a first port and a number of more (`30000+100`). Pure.
fn node_ports(text: &str) -> anyhow::Result<RangeInclusive<u16>> {
    let range = || -> Option<RangeInclusive<u16>> {
        if let Some((first, more)) = text.split_once('+') {
            let first: u16 = first.parse().ok()?;
            return Some(first..=first.checked_add(more.parse().ok()?)?);
        }
        let (first, last) = text.split_once('-')?;
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    let range = range().filter(|range| !range.is_empty() && *range.start() > 0);
    range.with_context(|| format!("--service-node-port-range={text} is no range of ports"))
}

fn max_token_seconds(given: &Given) -> anyhow::Result<Option<i64>> {
    let Some(text) = given.text("service-account-max-token-expiration") else { return Ok(None) };
    let seconds = duration::parse(text).unwrap_or_default().as_secs();
    if seconds == 0 {
        return Ok(None);
    }
    let valid = i64::try_from(seconds).ok().filter(|seconds| (3600..=1 << 32).contains(seconds));
    valid.map(Some).context("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds")
}

fn audit(given: &Given) -> anyhow::Result<Option<AuditConfig>> {
    let Some(path) = given.text("audit-log-path") else { return Ok(None) };
    let number = |flag: &str, default: u32| match given.text(flag) {
        None => Ok(default),
        Some(text) => text.parse().with_context(|| format!("--{flag} {text} must be from 0 to {}", u32::MAX)),
    };
    Ok(Some(AuditConfig {
        path: PathBuf::from(path),
        policy: given.text("audit-policy-file").map(PathBuf::from),
        max_size: u64::from(number("audit-log-maxsize", 100)?),
        max_backups: number("audit-log-maxbackup", 100)? as usize,
        max_age_days: number("audit-log-maxage", 366)?,
    }))
}

/// The serving certificate: of the flags, or of the directory, where envtest puts it.
fn serving(given: &Given) -> anyhow::Result<Option<Pair>> {
    let flags = ("tls-cert-file", "tls-private-key-file");
    let files = match (given.text(flags.0), given.text(flags.1)) {
        (Some(cert), Some(key)) => (cert.to_owned(), key.to_owned()),
        (None, None) => {
            let Some(dir) = given.text("cert-dir") else { return Ok(None) };
            let file = |extension: &str| Path::new(dir).join(format!("{PAIR}.{extension}"));
            if !file("crt").exists() && !file("key").exists() {
                return Ok(None);
            }
            (file("crt").display().to_string(), file("key").display().to_string())
        }
        _ => anyhow::bail!("--tls-cert-file and --tls-private-key-file are only possible together"),
    };
    Ok(Some(Pair { cert_pem: read(flags.0, &files.0)?, key_pem: read(flags.1, &files.1)? }))
}

fn service_accounts(given: &Given, address: SocketAddr) -> anyhow::Result<ServiceAccountIssuer> {
    let file = given.text("service-account-signing-key-file").unwrap_or_default();
    let key_pem = read("service-account-signing-key-file", file)?;
    let issuer = TokenIssuer::from_pem(&key_pem)?;
    for file in given.all("service-account-key-file") {
        let text = read("service-account-key-file", file)?;
        let is_it = issuer.has_only_key(&text).with_context(|| format!("--service-account-key-file={file}"))?;
        anyhow::ensure!(
            is_it,
            "--service-account-key-file={file} is not possible with windlass: tokens are verified by the key that signs them"
        );
    }
    let issuers: Vec<String> = given.all("service-account-issuer").map(str::to_owned).collect();
    let audiences: Vec<String> = given.list("api-audiences").into_iter().map(str::to_owned).collect();
    let host = given.text("external-hostname").map_or_else(|| address.ip().to_string(), str::to_owned);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let key_set_uri = match given.text("service-account-jwks-uri") {
        Some(uri) => uri.to_owned(),
        None => format!("https://{host}:{}{KEY_SET_PATH}", address.port()),
    };
    let audiences = if audiences.is_empty() { issuers.clone() } else { audiences };
    Ok(ServiceAccountIssuer { key_pem, names: IssuerNames { issuers, audiences, key_set_uri } })
}

/// The authorizers in their order; without the flag everything is allowed, as upstream. Pure.
fn authorization(modes: &[&str]) -> anyhow::Result<Vec<AuthorizationMode>> {
    if modes.is_empty() {
        return Ok(vec![AuthorizationMode::AlwaysAllow]);
    }
    let mut read = Vec::new();
    for mode in modes {
        let one = match *mode {
            "AlwaysAllow" => AuthorizationMode::AlwaysAllow,
            "AlwaysDeny" => AuthorizationMode::AlwaysDeny,
            "Node" => AuthorizationMode::Node,
            "RBAC" => AuthorizationMode::Rbac,
            "ABAC" | "Webhook" => anyhow::bail!(
                "--authorization-mode={mode} is not possible with windlass: the modes are AlwaysAllow, AlwaysDeny, Node and RBAC"
            ),
            other => anyhow::bail!("authorization-mode {other:?} is not a valid mode"),
        };
        anyhow::ensure!(!read.contains(&one), "authorization-mode {mode:?} is specified more than once");
        read.push(one);
    }
    Ok(read)
}

/// Refuses gates that are not as they are here: at their defaults. Pure.
fn feature_gates(given: &[&str]) -> anyhow::Result<()> {
    for item in given {
        let (name, value) = item.split_once('=').with_context(|| format!("missing bool value for {item}"))?;
        let name = name.strip_prefix("kube:").unwrap_or(name);
        let wanted: bool =
            value.parse().with_context(|| format!("invalid value of {name}={value}, err: it is no boolean"))?;
        let default = match name {
            "AllAlpha" | "AllBeta" => Some(false),
            _ => feature_gates::default_of(name),
        };
        let default = default.with_context(|| format!("unrecognized feature gate: {name}"))?;
        anyhow::ensure!(
            wanted == default,
            "--feature-gates={item} is not possible with windlass: gates are as Kubernetes 1.36 has them by default"
        );
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests/options.rs"]
mod tests;
