//! The KubeletConfiguration of a cluster (`kube-system/kubelet-config`) as settings of ours. kubeadm keeps the object as
//! its program marshals it, so that `0s`, 0 and what is empty mean the default. Pure but for the question whether files
//! are there.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::file;

/// Settings, and what was left with the reason.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Taken {
    /// Names and values for a configuration file.
    pub(crate) settings: Vec<(&'static str, Value)>,
    /// Names of theirs, and why they are not used here.
    pub(crate) left: Vec<(String, String)>,
}

/// Settings that have the same name and meaning.
const SAME: [&str; 38] = [
    "allowedUnsafeSysctls",
    "clusterDNS",
    "clusterDomain",
    "containerLogMaxFiles",
    "containerLogMaxSize",
    "enforceNodeAllocatable",
    "evictionHard",
    "evictionMaxPodGracePeriod",
    "evictionMinimumReclaim",
    "evictionPressureTransitionPeriod",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "imageMaximumGCAge",
    "imageMinimumGCAge",
    "imagePullCredentialsVerificationPolicy",
    "kubeReserved",
    "maxParallelImagePulls",
    "maxPods",
    "nodeLeaseDurationSeconds",
    "nodeStatusMaxImages",
    "nodeStatusReportFrequency",
    "nodeStatusUpdateFrequency",
    "podLogsDir",
    "podPidsLimit",
    "preloadedImagesVerificationAllowlist",
    "providerID",
    "registerWithTaints",
    "rotateCertificates",
    "serverTLSBootstrap",
    "shutdownGracePeriod",
    "shutdownGracePeriodByPodPriority",
    "shutdownGracePeriodCriticalPods",
    "singleProcessOOMKill",
    "systemReserved",
    "tlsCertFile",
    "tlsPrivateKeyFile",
];

/// What is the machine's own, or is always so here; the reason where it should be told.
const OURS: [(&str, &str); 7] = [
    ("apiVersion", ""),
    ("kind", ""),
    ("cgroupDriver", "Docker's counts"),
    ("containerRuntimeEndpoint", "pods run on Docker"),
    ("imageServiceEndpoint", "pods run on Docker"),
    ("readOnlyPort", "statsBindAddress says where usage is read"),
    // What a control plane's machine has says nothing of this one.
    ("resolvConf", ""),
];

/// Whether a value is what a marshalled object has where nothing was set.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => matches!(text.as_str(), "" | "0" | "0s"),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.values().all(is_zero),
    }
}

/// A setting that is read as one of ours would be.
fn readable(name: &str, value: &Value) -> Result<(), String> {
    let text = format!("apiVersion: {}\nkind: {}\n{name}: {value}\n", file::API_VERSION, file::KIND);
    file::parse(&text).map(drop).map_err(|e| e.to_string())
}

/// Reads the text of the ConfigMap's key `kubelet`.
///
/// # Errors
/// When it is no KubeletConfiguration.
pub(crate) fn taken(text: &str, exists: impl Fn(&Path) -> bool) -> Result<Taken, String> {
    let all: Value = serde_saphyr::from_str(text).map_err(|e| format!("it cannot be read: {e}"))?;
    let Value::Object(all) = all else { return Err("it is no object".to_owned()) };
    let kind = all.get("kind").and_then(Value::as_str).unwrap_or_default();
    if kind != "KubeletConfiguration" {
        return Err(format!("it is a {kind:?}, not a KubeletConfiguration"));
    }
    let mut taken = Taken::default();
    // Two of theirs make one of ours.
    let text_of = |name: &str| all.get(name).and_then(Value::as_str).unwrap_or_default();
    let port_of = |name: &str| all.get(name).and_then(Value::as_u64).unwrap_or_default();
    for (address, port, at, default_port, ours) in [
        ("address", "port", "0.0.0.0", 10250, "nodeAPIBindAddress"),
        ("healthzBindAddress", "healthzPort", "127.0.0.1", 10248, "agentHealthzBindAddress"),
    ] {
        let (address, port) = (text_of(address), port_of(port));
        if !address.is_empty() || port != 0 {
            let address = if address.is_empty() { at } else { address };
            let port = if port == 0 { default_port } else { port };
            let joined =
                if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") };
            put(&mut taken, ours, ours, &json!(joined));
        }
    }
    for (name, value) in &all {
        let set = match value {
            // A switch that is there was set.
            Value::Bool(_) => SAME.contains(&name.as_str()) || !is_zero(value),
            other => !is_zero(other),
        };
        if !set || ["address", "port", "healthzBindAddress", "healthzPort"].contains(&name.as_str()) {
            continue;
        }
        let mut leave = |why: &str| taken.left.push((name.clone(), why.to_owned()));
        let path = value.as_str().map(Path::new);
        if let Some((_, why)) = OURS.iter().find(|(ours, _)| ours == name) {
            if !why.is_empty() {
                leave(why);
            }
        } else if name == "authentication" {
            if value["anonymous"]["enabled"] == true {
                leave("anonymous clients are never let in");
            }
        } else if name == "authorization" {
            if value["mode"].as_str().is_some_and(|mode| !matches!(mode, "" | "Webhook")) {
                leave("the API server is always asked");
            }
        } else if name == "staticPodPath" {
            match path.filter(|path| exists(path)) {
                Some(_) => put(&mut taken, "staticPodPath", "staticPodPath", value),
                None => continue,
            }
        } else if name.starts_with("tls") && path.is_some_and(|path| !exists(path)) {
            leave("there is no such file here");
        } else if name == "enforceNodeAllocatable"
            && value.as_array().is_some_and(|all| all.iter().any(|one| !matches!(one.as_str(), Some("pods" | "none"))))
        {
            leave("pods alone are held to what is not reserved");
        } else if let Some(ours) = SAME.iter().find(|same| *same == name) {
            put(&mut taken, ours, name, value);
        } else {
            leave("there is no such setting here");
        }
    }
    // One of the two alone would be refused.
    let files = ["tlsCertFile", "tlsPrivateKeyFile"];
    if taken.settings.iter().filter(|(name, _)| files.contains(name)).count() == 1 {
        taken.settings.retain(|(name, _)| !files.contains(name));
    }
    Ok(taken)
}

fn put(taken: &mut Taken, ours: &'static str, theirs: &str, value: &Value) {
    match readable(ours, value) {
        Ok(()) => taken.settings.push((ours, value.clone())),
        Err(why) => taken.left.push((theirs.to_owned(), why)),
    }
}

/// What kubeadm's ClusterConfiguration tells of addresses and names.
pub(crate) fn of_cluster(text: &str) -> Vec<(&'static str, Value)> {
    let Ok(all) = serde_saphyr::from_str::<Value>(text) else { return Vec::new() };
    let networking = &all["networking"];
    [("podSubnet", "clusterCIDR"), ("serviceSubnet", "serviceCIDR"), ("dnsDomain", "clusterDomain")]
        .into_iter()
        .map(|(theirs, ours)| (ours, networking[theirs].clone()))
        .filter(|(ours, value)| !is_zero(value) && readable(ours, value).is_ok())
        .collect()
}

/// The text of a configuration file with these settings.
pub(crate) fn written(settings: &[(&'static str, Value)], heading: &str) -> String {
    let mut text = format!("# {heading}\napiVersion: {}\nkind: {}\n", file::API_VERSION, file::KIND);
    for (name, value) in settings {
        text.push_str(&format!("{name}: {value}\n"));
    }
    text
}
