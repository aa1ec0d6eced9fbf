//! `windlass bundle`: one archive with what somebody needs to help from afar, without what is known to hold secrets. A
//! part that cannot be had is named in the archive; the rest is there all the same.

#[cfg(test)]
mod tests;

use std::{
    fs::OpenOptions,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use kube::{Client, api::DynamicObject, core::ObjectList};
use serde_json::Value;
use windlass_kit::{net::Family, redact};
use windlass_proxy as proxy;

use super::{check, config, require_root, runtime, say, stats};
use crate::{
    assemble,
    config::{Settings, list},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the archive is written [default: windlass-bundle-NODE.tar.gz in this folder]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Credentials for the API [default: the administrator's kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// What is asked of the API. Secrets and ConfigMaps are not in the list, and never come here.
const OBJECTS: [(&str, &str); 8] = [
    ("nodes", "/api/v1/nodes"),
    ("pods", "/api/v1/pods"),
    ("events", "/api/v1/events"),
    ("services", "/api/v1/services"),
    ("endpointslices", "/apis/discovery.k8s.io/v1/endpointslices"),
    ("replicationcontrollers", "/api/v1/replicationcontrollers"),
    ("persistentvolumes", "/api/v1/persistentvolumes"),
    ("persistentvolumeclaims", "/api/v1/persistentvolumeclaims"),
];

/// Small files of the kernel that tell of the machine and of no user.
const KERNEL: [&str; 6] =
    ["/proc/version", "/proc/meminfo", "/proc/loadavg", "/proc/cgroups", "/proc/self/mountinfo", "/etc/os-release"];

/// The newest lines of the log that are taken.
const LINES: &str = "20000";

/// Files of the archive, and what could not be had.
#[derive(Debug, Default)]
struct Parts {
    files: Vec<(String, Vec<u8>)>,
    problems: Vec<String>,
}

impl Parts {
    fn add(&mut self, name: &str, content: anyhow::Result<String>) {
        match content {
            Ok(text) => self.files.push((name.to_owned(), text.into_bytes())),
            Err(error) => self.problems.push(format!("{name}: {error:#}\n")),
        }
    }
}

pub(super) fn run(args: &Args, settings: &Settings) -> anyhow::Result<ExitCode> {
    require_root("windlass bundle")?;
    let file = args.output.clone().unwrap_or_else(|| format!("windlass-bundle-{}.tar.gz", settings.node_name).into());
    let kubeconfig = args.kubeconfig.as_ref().unwrap_or(&settings.admin_kubeconfig);
    let mut parts = runtime()?.block_on(collect(settings, kubeconfig));
    parts.files.push(("problems.txt".to_owned(), parts.problems.concat().into_bytes()));
    let packed = archive(&parts.files)?;
    write(&file, &packed).with_context(|| format!("the archive {} could not be written", file.display()))?;
    say(format!(
        "{}: {} files, {} parts that could not be had",
        file.display(),
        parts.files.len(),
        parts.problems.len()
    ));
    say(
        "values of environments, Secrets, ConfigMaps, commands, annotations and what probes and hooks printed are not in it; names, labels, messages of events and the log are: read it before you send it",
    );
    Ok(ExitCode::SUCCESS)
}

async fn collect(settings: &Settings, kubeconfig: &Path) -> Parts {
    let mut parts = Parts::default();
    parts.add("version.txt", Ok(format!("{}\n", env!("CARGO_PKG_VERSION"))));
    parts.add("settings.yaml", Ok(config::shown(&list::entries(settings))));
    parts.add("check.txt", check::all(settings).await.map(|findings| check::text(&findings)));
    for (name, path) in
        [("usage.json", "/windlass/usage"), ("pulls.json", "/windlass/pulls"), ("summary.json", "/stats/summary")]
    {
        let told = stats::address(settings).and_then(|address| stats::ask::<Value>(address, path));
        parts.add(name, told.and_then(|value| Ok(serde_json::to_string_pretty(&value)?)));
    }
    for (name, family) in [("rules-ipv4.txt", Family::V4), ("rules-ipv6.txt", Family::V6)] {
        let config = assemble::proxy_config(settings);
        let rules = tokio::task::spawn_blocking(move || proxy::kernel_rules(&config, family)).await;
        parts.add(name, rules.map_err(anyhow::Error::from).and_then(|rules| Ok(rules?)));
    }
    match assemble::client_of(kubeconfig).await {
        Ok(client) => {
            for (name, path) in OBJECTS {
                parts.add(&format!("objects/{name}.json"), objects(&client, path).await);
            }
        }
        Err(error) => parts.add("objects", Err(error)),
    }
    if let Some((name, log)) = log(settings) {
        parts.add(name, log);
    }
    for path in KERNEL {
        let content = std::fs::read_to_string(path).with_context(|| format!("{path} could not be read"));
        parts.add(&format!("machine{path}"), content);
    }
    parts
}

/// What the units have logged, or a node that `windlass up --detach` started; none where neither is. Windlass writes no
/// secrets into it, but errors of Docker and of others are in it as they were told.
fn log(settings: &Settings) -> Option<(&'static str, anyhow::Result<String>)> {
    let file = settings.run_dir.join("windlass.log");
    let (name, mut command) = if sd_notify::booted().unwrap_or_default() {
        let mut command = std::process::Command::new("journalctl");
        command.args(["--no-pager", "--quiet", "--output=short-iso-precise", "--lines", LINES]);
        command.args(["--unit=windlass.service", "--unit=windlass-proxy.service"]);
        ("journal.txt", command)
    } else if file.exists() {
        let mut command = std::process::Command::new("tail");
        command.args(["-n", LINES]).arg(&file);
        ("log.txt", command)
    } else {
        return None;
    };
    let told = command.stdin(std::process::Stdio::null()).output().context("the log could not be read");
    let told = told.and_then(|output| {
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    });
    Some((name, told))
}

async fn objects(client: &Client, path: &str) -> anyhow::Result<String> {
    let request = http_get(path)?;
    let list: ObjectList<DynamicObject> =
        client.request(request).await.with_context(|| format!("{path} could not be asked for"))?;
    let mut value = serde_json::to_value(&list)?;
    redacted(&mut value, path);
    Ok(serde_json::to_string_pretty(&value)?)
}

/// Takes out of a list what may be a secret.
fn redacted(list: &mut Value, path: &str) {
    if !path.ends_with("/pods") {
        return redact::object(list);
    }
    for pod in list["items"].as_array_mut().into_iter().flatten() {
        *pod = redact::pod(pod.take());
    }
}

fn http_get(path: &str) -> anyhow::Result<http::Request<Vec<u8>>> {
    Ok(http::Request::get(path).body(Vec::new())?)
}

/// Packs files below one folder, readable by their owner alone.
fn archive(files: &[(String, Vec<u8>)]) -> anyhow::Result<Vec<u8>> {
    let packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let mut archive = tar::Builder::new(packer);
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(content.len())?);
        header.set_mode(0o600);
        archive.append_data(&mut header, format!("windlass-bundle/{name}"), content.as_slice())?;
    }
    Ok(archive.into_inner()?.finish()?)
}

/// A new file that nobody else can read: an old one may be somebody's link.
fn write(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}
