//! `windlass bundle`: an archive for support, without known secrets. Parts that fail are listed in the archive; the
//! rest is included.

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
use windlass_kit::{blocking::RULES, net::Family, redact};
use windlass_proxy as proxy;

use super::{check, config, read_only_client, require_root, runtime, say};
use crate::config::{Settings, connect, list, proxy::proxy_config};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The archive [default: windlass-bundle-NODE.tar.gz in this directory]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Credentials for the API [default: the administrator's kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// The objects in the archive. Secrets and ConfigMaps are never requested.
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

/// Small files about the machine, without user data.
const KERNEL: [&str; 6] =
    ["/proc/version", "/proc/meminfo", "/proc/loadavg", "/proc/cgroups", "/proc/self/mountinfo", "/etc/os-release"];

/// The number of log lines, the newest.
const MAX_LOG_LINES: &str = "20000";

/// The files of the archive, and the parts that failed.
#[derive(Debug, Default)]
struct Contents {
    files: Vec<(String, Vec<u8>)>,
    problems: Vec<String>,
}

impl Contents {
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
    let mut contents = runtime()?.block_on(collect(settings, kubeconfig));
    contents.files.push(("problems.txt".to_owned(), contents.problems.concat().into_bytes()));
    let packed = archive(&contents.files)?;
    write(&file, &packed).with_context(|| format!("the archive {} could not be written", file.display()))?;
    say(format!("{}: {} files, {} failed parts", file.display(), contents.files.len(), contents.problems.len()));
    say(
        "values of environments, Secrets, ConfigMaps, commands, annotations and what probes and hooks printed are not in it; names, labels, messages of events and the log are: read it before you send it",
    );
    Ok(ExitCode::SUCCESS)
}

async fn collect(settings: &Settings, kubeconfig: &Path) -> Contents {
    let mut contents = Contents::default();
    contents.add("version.txt", Ok(format!("{}\n", env!("CARGO_PKG_VERSION"))));
    contents.add("settings.yaml", Ok(config::shown(&list::entries(settings))));
    contents.add("check.txt", check::all(settings).await.map(|findings| check::text(&findings)));
    for (name, path) in
        [("usage.json", "/windlass/usage"), ("pulls.json", "/windlass/pulls"), ("summary.json", "/stats/summary")]
    {
        let text =
            read_only_client::address(settings).and_then(|address| read_only_client::get_json::<Value>(address, path));
        contents.add(name, text.and_then(|value| Ok(serde_json::to_string_pretty(&value)?)));
    }
    for (name, family) in [("rules-ipv4.txt", Family::V4), ("rules-ipv6.txt", Family::V6)] {
        let config = proxy_config(settings);
        let rules = RULES.call(move || proxy::kernel_rules(&config, family)).await;
        contents.add(name, rules.map_err(anyhow::Error::from).and_then(|rules| Ok(rules?)));
    }
    match connect::client_of(kubeconfig).await {
        Ok(client) => {
            for (name, path) in OBJECTS {
                contents.add(&format!("objects/{name}.json"), list_objects(&client, path).await);
            }
        }
        Err(error) => contents.add("objects", Err(error)),
    }
    if let Some((name, log)) = log(settings) {
        contents.add(name, log);
    }
    for path in KERNEL {
        let content = std::fs::read_to_string(path).with_context(|| format!("{path} could not be read"));
        contents.add(&format!("machine{path}"), content);
    }
    contents
}

/// The log of the systemd units, or of a node started with `windlass up --detach`; `None` without either. Windlass logs
/// no secrets, but errors of Docker and others are included verbatim.
fn log(settings: &Settings) -> Option<(&'static str, anyhow::Result<String>)> {
    let file = settings.run_dir.join("windlass.log");
    let (name, mut command) = if sd_notify::booted().unwrap_or_default() {
        let mut command = std::process::Command::new("journalctl");
        command.args(["--no-pager", "--quiet", "--output=short-iso-precise", "--lines", MAX_LOG_LINES]);
        command.args(["--unit=windlass.service", "--unit=windlass-proxy.service"]);
        ("journal.txt", command)
    } else if file.exists() {
        let mut command = std::process::Command::new("tail");
        command.args(["-n", MAX_LOG_LINES]).arg(&file);
        ("log.txt", command)
    } else {
        return None;
    };
    let text = command.stdin(std::process::Stdio::null()).output().context("the log could not be read");
    let text = text.and_then(|output| {
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    });
    Some((name, text))
}

async fn list_objects(client: &Client, path: &str) -> anyhow::Result<String> {
    let request = http_get(path)?;
    let list: ObjectList<DynamicObject> =
        client.request(request).await.with_context(|| format!("{path} could not be read"))?;
    let mut value = serde_json::to_value(&list)?;
    redacted(&mut value, path);
    Ok(serde_json::to_string_pretty(&value)?)
}

/// Redacts possible secrets of a list.
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

/// Packs files in one directory, readable by their owner alone.
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

/// Creates a file readable by its owner alone; an existing one may be a symlink of somebody else.
fn write(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}
