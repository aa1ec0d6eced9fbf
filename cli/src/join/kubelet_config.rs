//! Imports the KubeletConfiguration of a cluster (`kube-system/kubelet-config`) as settings. kubeadm stores the
//! marshalled object, so `0s`, 0 and empty values mean the default. Pure, except for checks whether files exist.

use std::path::Path;

use serde_json::{Value, json};

use super::feature_gates;
use crate::config::file;

/// The imported settings, and the skipped fields with reasons.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ImportedSettings {
    /// For a configuration file.
    pub(crate) settings: Vec<(&'static str, Value)>,
    /// Names of kubelet's fields, and why they are skipped.
    pub(crate) skipped: Vec<(String, String)>,
}

/// Fields with the same name and meaning.
const SUPPORTED: [&str; 40] = [
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
    "failSwapOn",
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "imageMaximumGCAge",
    "imageMinimumGCAge",
    "imagePullCredentialsVerificationPolicy",
    "kubeReserved",
    "maxParallelImagePulls",
    "maxPods",
    "memorySwap",
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

/// Fields that are the machine's own, or fixed here; the reason if it should be reported.
const IGNORED: [(&str, &str); 7] = [
    ("apiVersion", ""),
    ("kind", ""),
    ("cgroupDriver", "Docker's counts"),
    ("containerRuntimeEndpoint", "pods run on Docker"),
    ("imageServiceEndpoint", "pods run on Docker"),
    ("readOnlyPort", "statsBindAddress says where usage is read"),
    // That of the control plane's machine does not apply here.
    ("resolvConf", ""),
];

/// Whether a value is the zero value of a marshalled object.
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

/// Validates a setting as the configuration file would.
fn validate(name: &str, value: &Value) -> Result<(), String> {
    let text = format!("apiVersion: {}\nkind: {}\n{name}: {value}\n", file::API_VERSION, file::KIND);
    file::parse(&text).map(drop).map_err(|e| e.to_string())
}

/// Reads the text of the ConfigMap's key `kubelet`.
///
/// # Errors
/// When it is not a KubeletConfiguration.
pub(crate) fn import(text: &str, exists: impl Fn(&Path) -> bool) -> Result<ImportedSettings, String> {
    let all: Value = serde_saphyr::from_str(text).map_err(|e| format!("it cannot be read: {e}"))?;
    let Value::Object(all) = all else { return Err("it is no object".to_owned()) };
    let kind = all.get("kind").and_then(Value::as_str).unwrap_or_default();
    if kind != "KubeletConfiguration" {
        return Err(format!("it is a {kind:?}, not a KubeletConfiguration"));
    }
    let mut import = ImportedSettings::default();
    // Address and port are one setting here.
    let text_of = |name: &str| all.get(name).and_then(Value::as_str).unwrap_or_default();
    let port_of = |name: &str| all.get(name).and_then(Value::as_u64).unwrap_or_default();
    for (address, port, at, default_port, name_here) in [
        ("address", "port", "0.0.0.0", 10250, "nodeAPIBindAddress"),
        ("healthzBindAddress", "healthzPort", "127.0.0.1", 10248, "agentHealthzBindAddress"),
    ] {
        let (address, port) = (text_of(address), port_of(port));
        if !address.is_empty() || port != 0 {
            let address = if address.is_empty() { at } else { address };
            let port = if port == 0 { default_port } else { port };
            let joined =
                if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") };
            import_field(&mut import, name_here, name_here, &json!(joined));
        }
    }
    for (name, value) in &all {
        if let ("featureGates", Some(gates)) = (name.as_str(), value.as_object()) {
            import.skipped.extend(feature_gates::not_taken(gates));
            continue;
        }
        let set = match value {
            // A boolean that is present was set.
            Value::Bool(_) => SUPPORTED.contains(&name.as_str()) || !is_zero(value),
            other => !is_zero(other),
        };
        if !set || ["address", "port", "healthzBindAddress", "healthzPort"].contains(&name.as_str()) {
            continue;
        }
        let mut skip = |why: &str| import.skipped.push((name.clone(), why.to_owned()));
        let path = value.as_str().map(Path::new);
        if let Some((_, why)) = IGNORED.iter().find(|(name_here, _)| name_here == name) {
            if !why.is_empty() {
                skip(why);
            }
        } else if name == "authentication" {
            if value["anonymous"]["enabled"] == true {
                skip("anonymous clients are never let in");
            }
        } else if name == "authorization" {
            if value["mode"].as_str().is_some_and(|mode| !matches!(mode, "" | "Webhook")) {
                skip("the API server is always asked");
            }
        } else if name == "staticPodPath" {
            match path.filter(|path| exists(path)) {
                Some(_) => import_field(&mut import, "staticPodPath", "staticPodPath", value),
                None => continue,
            }
        } else if name.starts_with("tls") && path.is_some_and(|path| !exists(path)) {
            skip("there is no such file here");
        } else if name == "enforceNodeAllocatable"
            && value.as_array().is_some_and(|all| all.iter().any(|one| !matches!(one.as_str(), Some("pods" | "none"))))
        {
            skip("pods alone are held to what is not reserved");
        } else if let Some(name_here) = SUPPORTED.iter().find(|same| *same == name) {
            import_field(&mut import, name_here, name, value);
        } else {
            skip("there is no such setting here");
        }
    }
    // One of the two alone is invalid.
    let files = ["tlsCertFile", "tlsPrivateKeyFile"];
    if import.settings.iter().filter(|(name, _)| files.contains(name)).count() == 1 {
        import.settings.retain(|(name, _)| !files.contains(name));
    }
    Ok(import)
}

fn import_field(import: &mut ImportedSettings, name_here: &'static str, kubelet_name: &str, value: &Value) {
    match validate(name_here, value) {
        Ok(()) => import.settings.push((name_here, value.clone())),
        Err(why) => import.skipped.push((kubelet_name.to_owned(), why)),
    }
}

/// The settings from kubeadm's ClusterConfiguration.
pub(crate) fn from_cluster_configuration(text: &str) -> Vec<(&'static str, Value)> {
    let Ok(all) = serde_saphyr::from_str::<Value>(text) else { return Vec::new() };
    let networking = &all["networking"];
    [("podSubnet", "clusterCIDR"), ("serviceSubnet", "serviceCIDR"), ("dnsDomain", "clusterDomain")]
        .into_iter()
        .map(|(kubelet_name, name_here)| (name_here, networking[kubelet_name].clone()))
        .filter(|(name_here, value)| !is_zero(value) && validate(name_here, value).is_ok())
        .collect()
}

/// The text of a configuration file with these settings.
pub(crate) fn config_file(settings: &[(&'static str, Value)], heading: &str) -> String {
    let mut text = format!("# {heading}\napiVersion: {}\nkind: {}\n", file::API_VERSION, file::KIND);
    for (name, value) in settings {
        text.push_str(&format!("{name}: {value}\n"));
    }
    text
}
