//! Imports the KubeletConfiguration of a cluster (`kube-system/kubelet-config`) as settings. kubeadm stores the
//! marshalled object, so `0s`, 0 and empty values mean the default. Pure, except for checks whether files exist.

use std::path::Path;

use serde_json::{Map, Value, json};
use windlass_agent::node::eviction::thresholds::default_hard;
use windlass_kit::duration;

use super::feature_gates;
use crate::config::{file, kube_proxy::foreign_ranges};

/// The imported settings, and the skipped fields with reasons.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ImportedSettings {
    /// For a configuration file.
    pub(crate) settings: Vec<(&'static str, Value)>,
    /// Names of kubelet's fields, and why they are skipped.
    pub(crate) skipped: Vec<(String, String)>,
    /// The same of those that restrict what would not be restricted here.
    pub(crate) refused: Vec<(String, String)>,
}

/// Field, what becomes of it, what kubelet does without it, and why.
const TABLE: &str = include_str!("kubelet_fields.tsv");

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is a setting of the same name and meaning.
    Taken,
    /// It has a rule of its own.
    Own,
    /// It is reported, and has no effect.
    Ignored,
    /// It restricts something that would not be restricted here: it is reported, and nothing is imported.
    Refused,
}

/// One field of the table.
#[derive(Debug, Clone, Copy)]
struct Field {
    name: &'static str,
    fate: Fate,
    /// JSON; `None` if there is no such value, or it is the zero value.
    default: Option<&'static str>,
    reason: &'static str,
}

/// All fields of a KubeletConfiguration, but for its version and kind.
fn fields() -> impl Iterator<Item = Field> {
    TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut cells = line.split('\t');
        let (name, fate, default) = (cells.next()?, cells.next()?, cells.next()?);
        let fate = match fate {
            "taken" => Fate::Taken,
            "own" => Fate::Own,
            "ignored" => Fate::Ignored,
            _ => Fate::Refused,
        };
        Some(Field {
            name,
            fate,
            default: Some(default).filter(|d| *d != "-"),
            reason: cells.next().unwrap_or_default(),
        })
    })
}

/// What the node API speaks below TLS 1.3, whose suites Go cannot choose either; by Go's names.
const CIPHER_SUITES: [&str; 6] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
/// The curves it agrees on, by the numbers of TLS: P-256, P-384, X25519.
const CURVES: [u64; 3] = [23, 24, 29];

/// Whether two values mean the same: durations have more than one form.
pub(super) fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(a), Value::String(b)) => {
            a == b || duration::parse(a).is_some_and(|duration| duration::parse(b) == Some(duration))
        }
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, value)| b.get(name).is_some_and(|other| is_same(value, other)))
        }
        _ => a == b,
    }
}

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
    for (name, value) in all.iter().filter(|(name, _)| !["apiVersion", "kind"].contains(&name.as_str())) {
        let Some(field) = fields().find(|field| field.name == name) else {
            import.skipped.push((name.clone(), "Kubernetes 1.36 has no such field".to_owned()));
            continue;
        };
        let default: Option<Value> = field.default.and_then(|text| serde_json::from_str(text).ok());
        // A boolean that is present was set.
        let set = value.is_boolean() || !is_zero(value);
        if !set || default.is_some_and(|default| is_same(value, &default)) {
            continue;
        }
        match field.fate {
            Fate::Taken => take(&mut import, field.name, value),
            Fate::Own => by_own_rule(&mut import, field.name, value, &all, &exists),
            Fate::Ignored => import.skipped.push((name.clone(), field.reason.to_owned())),
            Fate::Refused => import.refused.push((name.clone(), field.reason.to_owned())),
        }
    }
    // One of the two alone is invalid.
    let files = ["tlsCertFile", "tlsPrivateKeyFile"];
    if import.settings.iter().filter(|(name, _)| files.contains(name)).count() == 1 {
        import.settings.retain(|(name, _)| !files.contains(name));
    }
    Ok(import)
}

/// A setting of the same name.
fn take(import: &mut ImportedSettings, name: &'static str, value: &Value) {
    let only_pods = |all: &Vec<Value>| all.iter().all(|one| matches!(one.as_str(), Some("pods" | "none")));
    if name == "enforceNodeAllocatable" && !value.as_array().is_none_or(only_pods) {
        import.skipped.push((name.to_owned(), "pods alone are held to what is not reserved".to_owned()));
    } else {
        import_field(import, name, name, value);
    }
}

/// A field whose setting has another form here, or whose value decides.
fn by_own_rule(
    import: &mut ImportedSettings,
    name: &'static str,
    value: &Value,
    all: &Map<String, Value>,
    exists: impl Fn(&Path) -> bool,
) {
    let is_there = value.as_str().is_some_and(|path| exists(Path::new(path)));
    let told = |why: &str| (name.to_owned(), why.to_owned());
    let given: Vec<Value> = value.as_array().into_iter().flatten().map(suite).collect();
    match name {
        "staticPodPath" if is_there => import_field(import, name, name, value),
        "tlsCertFile" | "tlsPrivateKeyFile" if is_there => import_field(import, name, name, value),
        "tlsCertFile" | "tlsPrivateKeyFile" => import.skipped.push(told("there is no such file here")),
        "tlsMinVersion" if !matches!(value.as_str(), Some("VersionTLS10" | "VersionTLS11" | "VersionTLS12")) => {
            import.refused.push(told("the node API speaks TLS 1.2 and 1.3, and cannot be held to the latter"));
        }
        "tlsCipherSuites" if !CIPHER_SUITES.iter().all(|one| given.contains(&json!(one))) => {
            let why = format!("the node API speaks {}, and cannot be held to some of them", CIPHER_SUITES.join(", "));
            import.refused.push(told(&why));
        }
        "tlsCurvePreferences" if !CURVES.iter().all(|one| given.contains(&json!(one))) => {
            let why = "the node API agrees on X25519, P-256 and P-384, and cannot be held to some of them";
            import.refused.push(told(why));
        }
        "mergeDefaultEvictionSettings" if *value == true => {
            // What is not named is off without it, here as there.
            let given = all.get("evictionHard").and_then(Value::as_object).filter(|given| !given.is_empty());
            if let Some(given) = given {
                let defaults = default_hard().into_iter().map(|(name, value)| (name, json!(value)));
                let merged: Map<String, Value> = defaults.chain(given.clone()).collect();
                import.settings.retain(|(name, _)| *name != "evictionHard");
                import_field(import, "evictionHard", name, &json!(merged));
            }
        }
        "authentication" if value["anonymous"]["enabled"] == true => {
            import.skipped.push(told("anonymous clients are never let in"));
        }
        "authorization" if value["mode"].as_str().is_some_and(|mode| !matches!(mode, "" | "Webhook")) => {
            import.skipped.push(told("the API server is always asked"));
        }
        "featureGates" => {
            import.skipped.extend(value.as_object().map(feature_gates::not_taken).into_iter().flatten());
        }
        // Addresses and ports were joined before; the rest is what holds anyway.
        _ => {}
    }
}

/// A cipher suite by its proper name: two have an older one.
fn suite(given: &Value) -> Value {
    match given.as_str() {
        Some(text) if text.ends_with("_CHACHA20_POLY1305") => json!(format!("{text}_SHA256")),
        _ => given.clone(),
    }
}

fn import_field(import: &mut ImportedSettings, name_here: &'static str, kubelet_name: &str, value: &Value) {
    match validate(name_here, value) {
        Ok(()) => import.settings.push((name_here, value.clone())),
        Err(why) => import.skipped.push((kubelet_name.to_owned(), why)),
    }
}

/// The settings from kubeadm's ClusterConfiguration.
pub(crate) fn from_cluster_configuration(text: &str) -> Vec<(&'static str, Value)> {
    let Ok(Value::Object(all)) = serde_saphyr::from_str::<Value>(text) else { return Vec::new() };
    let networking = all.get("networking").cloned().unwrap_or_default();
    let field = |name: &str| networking[name].as_str().unwrap_or_default();
    // Without a range kube-proxy gets none from kubeadm: pods have addresses of the CNI plugin's choice, which must not
    // be taken for others by a default of ours. Go's parser clears bits beyond a length.
    let ranges = |name: &str| foreign_ranges(field(name)).ok().map(|ranges| json!(ranges.to_string()));
    [
        ("clusterCIDR", ranges("podSubnet")),
        ("serviceCIDR", ranges("serviceSubnet").filter(|text| !is_zero(text))),
        ("clusterDomain", Some(json!(field("dnsDomain"))).filter(|text| !is_zero(text))),
    ]
    .into_iter()
    .filter_map(|(name_here, value)| Some((name_here, value?)))
    .filter(|(name_here, value)| validate(name_here, value).is_ok())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Settings, list::entries};

    /// The names of upstream's fields: `staging/src/k8s.io/kubelet/config/v1beta1/types.go` of 1.36.
    const UPSTREAM: &str = include_str!("kubelet_fields_upstream.txt");

    #[test]
    fn every_field_of_upstream_has_its_fate_and_every_fate_its_reason() {
        let upstream: Vec<&str> = UPSTREAM.lines().filter(|line| !line.starts_with('#')).collect();
        let ours: Vec<&str> = fields().map(|field| field.name).collect();
        assert_eq!(ours, upstream);
        for field in fields() {
            assert_eq!(field.reason.is_empty(), field.fate == Fate::Taken, "{}", field.name);
            let default = field.default.map(serde_json::from_str::<Value>);
            assert!(default.is_none_or(|read| read.is_ok()), "{}", field.name);
        }
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let fate = line.split('\t').nth(1);
            assert!(matches!(fate, Some("taken" | "own" | "ignored" | "refused")), "{line}");
        }
    }

    /// The ConfigMap is whatever somebody has written: each field with each of these, and each pair of values of neighbours. Nothing
    /// of it ends the command, and what is taken is a file that a node starts with.
    #[test]
    fn whatever_a_field_holds_is_taken_as_a_setting_or_not_at_all() {
        let odd = [
            "null",
            "true",
            "-1",
            "0",
            "1",
            "65536",
            "9223372036854775808",
            "-0.5",
            "1e999",
            "\"\"",
            "\"0s\"",
            "\"-1h\"",
            "\"1h5\"",
            "\"99999999h\"",
            "\"50%\"",
            "\"101%\"",
            "\"1Ki\"",
            "\"a b\\n c: d\"",
            "\"/there\"",
            "\"../..\"",
            "\"10.0.0.0/33\"",
            "\"::1\"",
            "\"\\u0000\"",
            "[]",
            "[1]",
            "[\"\"]",
            "[\"10.96.0.10\", \"x\"]",
            "{}",
            "{\"a\": 1}",
            "{\"memory.available\": \"100Mi\"}",
            "{\"memory.available\": \"-5%\", \"nonsense\": \"1\"}",
            "{\"cpu\": \"1e99\"}",
            "[[{}]]",
            "[{\"priority\": -1, \"shutdownGracePeriodSeconds\": 99999999999}]",
            "{\"enabled\": true, \"mode\": \"x\", \"clientCAFile\": 5, \"cacheTTL\": \"1\"}",
        ];
        let all: Vec<(&str, Fate)> = fields().map(|field| (field.name, field.fate)).collect();
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        let mut taken = 0;
        for (at, (name, fate)) in all.iter().enumerate() {
            // Of what is ignored a few of them say enough.
            let each = if *fate == Fate::Ignored { 9 } else { 1 };
            for (number, value) in odd.iter().enumerate().skip(at % each).step_by(each) {
                let (next, other) = (names[(at + 1) % names.len()], odd[(number * 7 + at) % odd.len()]);
                let text = format!("kind: KubeletConfiguration\n{name}: {value}\n{next}: {other}\n");
                let Ok(all) = import(&text, |path: &Path| path.starts_with("/there")) else { continue };
                taken += all.settings.len();
                let file = config_file(&all.settings, "from a cluster");
                file::parse(&file).unwrap_or_else(|why| panic!("{text}\n{file}\n{why}"));
            }
        }
        assert!(taken > 100, "only {taken} were taken");
    }

    /// What is taken is a setting that the file knows.
    #[test]
    fn what_is_taken_is_a_setting() {
        let settings = entries(&Settings::example());
        for field in fields().filter(|field| field.fate == Fate::Taken) {
            assert!(settings.iter().any(|setting| setting.name() == field.name), "{}", field.name);
        }
    }

    /// kubelet's own defaults, as upstream marshals them, change nothing and need no word.
    #[test]
    fn upstreams_defaults_need_no_word() {
        let mut all = json!({"kind": "KubeletConfiguration"});
        for field in fields() {
            if let Some(default) = field.default {
                all[field.name] = serde_json::from_str(default).unwrap();
            }
        }
        let import = import(&all.to_string(), |_| false).unwrap();
        assert_eq!(import, ImportedSettings::default());
    }

    #[test]
    fn what_would_not_be_restricted_is_refused() {
        let read = |text: &str| import(&format!("kind: KubeletConfiguration\n{text}\n"), |_| false).unwrap();
        let suites = |names: &[&str]| read(&format!("tlsCipherSuites: {}", json!(names)));
        for (import, name) in [
            (read("tlsMinVersion: VersionTLS13"), "tlsMinVersion"),
            (read("tlsMinVersion: 1.2"), "tlsMinVersion"),
            (suites(&CIPHER_SUITES[..3]), "tlsCipherSuites"),
            (read("tlsCurvePreferences: [29]"), "tlsCurvePreferences"),
            (read("registerNode: false"), "registerNode"),
            (read("enableServer: false"), "enableServer"),
            (read("podsPerCore: 10"), "podsPerCore"),
        ] {
            let refused: Vec<&str> = import.refused.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!((refused, import.skipped.len(), import.settings.len()), (vec![name], 0, 0));
        }
        let old: Vec<String> = CIPHER_SUITES.iter().map(|name| name.replace("POLY1305_SHA256", "POLY1305")).collect();
        for import in [
            read("tlsMinVersion: VersionTLS12"),
            suites(&old.iter().map(String::as_str).chain(["TLS_AES_128_GCM_SHA256"]).collect::<Vec<_>>()),
            read("tlsCurvePreferences: [4588, 29, 23, 24]"),
            read("registerNode: true"),
            read("seccompDefault: true"),
        ] {
            assert_eq!(import, ImportedSettings::default());
        }
        assert_eq!(read("newField: 1").skipped[0].1, "Kubernetes 1.36 has no such field");
        assert_eq!(read("enableDebuggingHandlers: false").settings, [("enableDebuggingHandlers", json!(false))]);
    }

    #[test]
    fn eviction_thresholds_are_merged_with_the_defaults_if_that_is_asked_for() {
        let read = |merge: bool| {
            let text = format!(
                "kind: KubeletConfiguration\nevictionHard: {{memory.available: 1Gi}}\nmergeDefaultEvictionSettings: {merge}\n"
            );
            import(&text, |_| false).unwrap().settings
        };
        assert_eq!(read(false), [("evictionHard", json!({"memory.available": "1Gi"}))]);
        let merged = read(true);
        let [(_, thresholds)] = &merged[..] else { panic!("{merged:?}") };
        assert_eq!(thresholds["memory.available"], "1Gi");
        assert_eq!(thresholds["nodefs.available"], "10%");
    }
}
