//! CNI network configuration: parses configuration files and renders plugin input. Pure.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::super::{Attach, Bandwidth};

/// A network configuration list.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) struct ConfList {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) plugins: Vec<Map<String, Value>>,
    /// GC is not sent to its plugins.
    #[serde(default)]
    pub(super) disable_gc: bool,
    /// Its plugins are not asked whether an attachment is whole.
    #[serde(default)]
    pub(super) disable_check: bool,
    /// More of its plugins are in files of their own, in a directory of its name next to its file.
    #[serde(default)]
    pub(super) more_in_directory: bool,
}

/// The newest version of the specification that this runtime speaks.
const NEWEST_VERSION: Version = Version(1, 1, 0);
/// The same as plugins read it.
pub(super) const NEWEST_VERSION_TEXT: &str = "1.1.0";
/// DEL is given the result of ADD since then.
pub(super) const DEL_WITH_RESULT: Version = Version(0, 4, 0);
/// CHECK exists since then.
pub(super) const CHECK: Version = Version(0, 4, 0);
/// STATUS and GC exist since then.
pub(super) const STATUS_AND_GC: Version = Version(1, 1, 0);

/// A version of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u16, u16, u16);

impl Version {
    /// libcni's forms: parts that are missing are 0, and a list that names no version has the first one.
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(0, 1, 0));
        }
        let parts: Result<Vec<u16>, _> = text.split('.').map(str::parse).collect();
        match parts.as_deref() {
            Ok([major]) => Ok(Self(*major, 0, 0)),
            Ok([major, minor]) => Ok(Self(*major, *minor, 0)),
            Ok([major, minor, micro]) => Ok(Self(*major, *minor, *micro)),
            _ => Err(format!("its version {text:?} is not one of the CNI specification, such as 1.0.0")),
        }
    }
}

impl ConfList {
    /// Whether its version is this one or a newer one.
    pub(super) fn at_least(&self, version: Version) -> bool {
        Version::parse(&self.version).is_ok_and(|own| own >= version)
    }
}

/// The version that plugins are called with: the newest that both sides know of those that `cniVersions` offers, else
/// `cniVersion`.
fn version_of(whole: &Map<String, Value>) -> Result<String, String> {
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or("its versions must be texts");
    let named = whole.get("cniVersion").map(text).transpose()?;
    let offered = match whole.get("cniVersions") {
        None => return named.map_or_else(|| Ok("0.1.0".to_owned()), |v| Version::parse(&v).map(|_| v)),
        Some(Value::Array(all)) => all.iter().map(text).collect::<Result<Vec<_>, _>>()?,
        Some(_) => return Err("cniVersions must be a list".to_owned()),
    };
    let all: Result<Vec<(Version, String)>, String> =
        offered.into_iter().chain(named.clone()).map(|text| Ok((Version::parse(&text)?, text))).collect();
    let known = all?.into_iter().filter(|(version, _)| *version <= NEWEST_VERSION).max();
    Ok(known.map(|(_, text)| text).or(named).unwrap_or_else(|| "0.1.0".to_owned()))
}

/// Extensions of configuration files.
pub(super) const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];

/// A setting of a list that is on or off; libcni takes texts too.
fn flag(whole: &Map<String, Value>, name: &str) -> Result<bool, String> {
    match whole.get(name) {
        None => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(other) => Err(format!("{name} must be true or false, and is {other}")),
    }
}

/// Parses a configuration file; a single plugin becomes a list of one. A list may have all of its plugins elsewhere:
/// see [`ConfList::complete`].
///
/// # Errors
/// Says what is missing.
pub(super) fn read(text: &str) -> Result<ConfList, String> {
    let whole: Map<String, Value> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let name = whole.get("name").and_then(Value::as_str).filter(|n| !n.is_empty()).ok_or("it has no name")?;
    let version = version_of(&whole)?;
    let (disable_gc, disable_check) = (flag(&whole, "disableGC")?, flag(&whole, "disableCheck")?);
    let inlined_only = flag(&whole, "loadOnlyInlinedPlugins")?;
    let single = !whole.contains_key("plugins") && whole.contains_key("type");
    let plugins = match whole.get("plugins") {
        Some(Value::Array(list)) => list
            .iter()
            .map(|p| p.as_object().cloned().ok_or("a plugin must be an object"))
            .collect::<Result<Vec<_>, _>>()?,
        Some(_) => return Err("plugins must be a list".to_owned()),
        None if single => vec![whole.clone()],
        None if inlined_only => return Err("loadOnlyInlinedPlugins is true, and it has no plugins".to_owned()),
        None => Vec::new(),
    };
    if whole.contains_key("plugins") && plugins.is_empty() {
        return Err("it has no plugins".to_owned());
    }
    if let Some(nameless) = plugins.iter().position(|p| type_of(p).is_none()) {
        return Err(format!("plugin {nameless} has no type"));
    }
    let more_in_directory = !single && !inlined_only;
    // The name of a directory too.
    if more_in_directory && (name.contains('/') || name.starts_with('.')) {
        return Err(format!("its name {name:?} is not valid"));
    }
    Ok(ConfList { name: name.to_owned(), version, plugins, disable_gc, disable_check, more_in_directory })
}

impl ConfList {
    /// Adds the plugins that are in files of their own, whose texts come in the order of the files' names.
    ///
    /// # Errors
    /// When one cannot be parsed, or there is no plugin at all.
    pub(super) fn complete(mut self, files: &[(String, String)]) -> Result<Self, String> {
        for (name, text) in files {
            let plugin: Map<String, Value> = serde_json::from_str(text).map_err(|e| format!("{name}: {e}"))?;
            type_of(&plugin).ok_or_else(|| format!("{name}: it has no type"))?;
            self.plugins.push(plugin);
        }
        if self.plugins.is_empty() {
            return Err(format!("it has no plugins, and there is no file of one in the directory {}", self.name));
        }
        Ok(self)
    }
}

/// The versions of the specification that a plugin's answer to VERSION names, as libcni reads it.
///
/// # Errors
/// What is missing.
pub(super) fn supported_versions(answer: &[u8]) -> Result<Vec<String>, String> {
    let answer: Value = serde_json::from_slice(answer).map_err(|e| format!("decoding version info: {e}"))?;
    let own = answer["cniVersion"].as_str().filter(|text| !text.is_empty());
    let own = own.ok_or("decoding version info: missing field cniVersion")?;
    let all: Vec<String> = answer["supportedVersions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    match (all.is_empty(), own) {
        (false, _) => Ok(all),
        // That version of the specification had no such field.
        (true, "0.2.0") => Ok(vec!["0.1.0".to_owned(), "0.2.0".to_owned()]),
        (true, _) => Err("decoding version info: missing field supportedVersions".to_owned()),
    }
}

/// The plugin's binary name; one that would leave the plugin directory is rejected.
pub(super) fn type_of(plugin: &Map<String, Value>) -> Option<&str> {
    plugin.get("type").and_then(Value::as_str).filter(|t| !t.is_empty() && !t.contains('/') && !t.starts_with('.'))
}

/// The configuration of one plugin of a list, for its standard input.
pub(super) fn input(
    list: &ConfList,
    plugin: &Map<String, Value>,
    capabilities: &Map<String, Value>,
    previous: Option<&Value>,
) -> Value {
    let mut out = plugin.clone();
    out.remove("capabilities");
    out.insert("name".to_owned(), json!(list.name));
    out.insert("cniVersion".to_owned(), json!(list.version));
    let declared = |name: &str| plugin.get("capabilities").and_then(|c| c.get(name)) == Some(&Value::Bool(true));
    let wanted: Map<String, Value> =
        capabilities.iter().filter(|(name, _)| declared(name)).map(|(k, v)| (k.clone(), v.clone())).collect();
    if !wanted.is_empty() {
        out.insert("runtimeConfig".to_owned(), Value::Object(wanted));
    }
    if let Some(previous) = previous {
        out.insert("prevResult".to_owned(), previous.clone());
    }
    Value::Object(out)
}

/// The same for garbage collection: `valid` are the sandboxes of all attachments that there are.
pub(super) fn garbage_input(list: &ConfList, plugin: &Map<String, Value>, interface: &str, valid: &[String]) -> Value {
    let mut out = input(list, plugin, &Map::new(), None);
    let valid: Vec<Value> = valid.iter().map(|id| json!({"containerID": id, "ifname": interface})).collect();
    // The second name is the one that the specification had by mistake; libcni sends both.
    for name in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        out[name] = json!(valid);
    }
    out
}

/// The runtimeConfig of a pod, by capability.
pub(super) fn capabilities(request: &Attach) -> Map<String, Value> {
    let mut out = Map::new();
    let ports: Vec<Value> = request
        .host_ports
        .iter()
        .map(|port| {
            let mut mapping = json!({"hostPort": port.host_port, "containerPort": port.container_port,
                "protocol": port.protocol.name()});
            if let Some(ip) = port.host_ip {
                mapping["hostIP"] = json!(ip.to_string());
            }
            mapping
        })
        .collect();
    if !ports.is_empty() {
        out.insert("portMappings".to_owned(), Value::Array(ports));
    }
    if request.bandwidth != Bandwidth::default() {
        let mut limits = Map::new();
        for (name, bits) in [("ingress", request.bandwidth.ingress), ("egress", request.bandwidth.egress)] {
            if let Some(bits) = bits {
                limits.insert(format!("{name}Rate"), json!(bits));
                // Upstream's value: the largest that plugins accept.
                limits.insert(format!("{name}Burst"), json!(i32::MAX));
            }
        }
        out.insert("bandwidth".to_owned(), Value::Object(limits));
    }
    out
}

/// `CNI_ARGS`: the pod.
pub(super) fn arguments(request: &Attach) -> String {
    format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
        request.pod_namespace, request.pod_name, request.sandbox, request.pod_uid
    )
}

/// The addresses of a result, of CNI versions before and since 0.3.
pub(super) fn addresses(result: &Value) -> Vec<IpAddr> {
    let new = result["ips"].as_array().into_iter().flatten().map(|ip| &ip["address"]);
    let old = ["ip4", "ip6"].into_iter().map(|family| &result[family]["ip"]);
    new.chain(old).filter_map(|a| a.as_str()?.split('/').next()?.parse().ok()).collect()
}

/// The error message of a plugin.
pub(super) fn error(output: &[u8]) -> Option<String> {
    let error_object: Value = serde_json::from_slice(output).ok()?;
    let message = error_object["msg"].as_str()?;
    Some(match error_object["details"].as_str().filter(|d| !d.is_empty()) {
        Some(details) => format!("{message}: {details}"),
        None => message.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::{HostPort, Protocol},
        *,
    };

    fn request() -> Attach {
        Attach {
            pod_uid: "u".into(),
            pod_name: "p".into(),
            pod_namespace: "n".into(),
            sandbox: "abc".into(),
            namespace: crate::network::NetworkNamespace::of_process(std::process::id()),
            addresses: Vec::new(),
            host_ports: vec![HostPort { host_ip: None, host_port: 80, container_port: 8080, protocol: Protocol::Udp }],
            bandwidth: Bandwidth { ingress: Some(1000), egress: None },
            labels: std::collections::BTreeMap::new(),
            named_ports: Vec::new(),
        }
    }

    #[test]
    fn a_single_plugin_is_a_list_of_one() {
        let list = read(r#"{"name":"net","cniVersion":"1.0.0","type":"bridge","bridge":"b0"}"#).unwrap();
        assert_eq!((list.name.as_str(), list.plugins.len()), ("net", 1));
        for (wrong, why) in [
            ("{", "EOF"),
            (r#"{"type":"x"}"#, "name"),
            (r#"{"name":"n","plugins":[]}"#, "no plugins"),
            (r#"{"name":"n","plugins":[{}]}"#, "no type"),
            (r#"{"name":"n","type":"../../bin/sh"}"#, "no type"),
        ] {
            assert!(read(wrong).unwrap_err().contains(why), "{wrong}");
        }
    }

    #[test]
    fn a_plugin_is_told_what_it_can_do() {
        let list = read(
            r#"{"name":"net","cniVersion":"1.0.0","plugins":[
                {"type":"portmap","capabilities":{"portMappings":true}},{"type":"other"}]}"#,
        )
        .unwrap();
        let all = capabilities(&request());
        let rendered = input(&list, &list.plugins[0], &all, Some(&json!({"x": 1})));
        assert_eq!(
            rendered,
            json!({"name": "net", "cniVersion": "1.0.0", "type": "portmap", "prevResult": {"x": 1},
                "runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 8080, "protocol": "udp"}]}})
        );
        assert_eq!(
            input(&list, &list.plugins[1], &all, None),
            json!({"name": "net", "cniVersion": "1.0.0", "type": "other"})
        );
        assert_eq!(all["bandwidth"], json!({"ingressRate": 1000, "ingressBurst": i32::MAX}));
        assert!(arguments(&request()).contains("K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=abc"));
    }

    /// libcni's cases of configurations with several versions, and of the settings around them.
    #[test]
    fn the_newest_common_version_is_spoken() {
        let read = |rest: &str| read(&format!(r#"{{"name":"n","type":"t"{rest}}}"#));
        for (rest, version) in [
            ("", "0.1.0"),
            (r#","cniVersion":"0.4.0""#, "0.4.0"),
            (r#","cniVersion":"1.2.0""#, "1.2.0"),
            (r#","cniVersions":["0.3.1","1.0.0","0.4.0"]"#, "1.0.0"),
            (r#","cniVersions":["1.1.0","9.9.9"]"#, "1.1.0"),
            (r#","cniVersion":"0.2.0","cniVersions":["0.1.0"]"#, "0.2.0"),
            (r#","cniVersion":"0.4.0","cniVersions":["1.1.0"]"#, "1.1.0"),
            (r#","cniVersion":"0.4.0","cniVersions":["9.9.9"]"#, "0.4.0"),
        ] {
            assert_eq!(read(rest).unwrap().version, version, "{rest}");
        }
        for wrong in [
            r#","cniVersion":1"#,
            r#","cniVersions":"1.0.0""#,
            r#","cniVersions":[1]"#,
            r#","cniVersion":"new""#,
            r#","cniVersions":["1.0.0.0"]"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let newest = read(r#","cniVersion":"1.1.0","disableGC":"true""#).unwrap();
        assert!(newest.at_least(STATUS_AND_GC) && newest.disable_gc);
        let old = read(r#","cniVersion":"0.3.1""#).unwrap();
        assert!(!old.at_least(DEL_WITH_RESULT) && !old.disable_gc);
        let garbage = garbage_input(&newest, &newest.plugins[0], "eth0", &["abc".to_owned()]);
        assert_eq!(garbage["cni.dev/valid-attachments"], json!([{"containerID": "abc", "ifname": "eth0"}]));
    }

    /// libcni's cases of plugins in files of their own, and of the settings around them.
    #[test]
    fn plugins_may_be_in_files_of_their_own() {
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let tuning = file("10-tuning.conf", r#"{"type":"tuning","mtu":1400}"#);
        let types = |text: &str, files: &[(String, String)]| {
            let list = read(text)?.complete(files)?;
            Ok::<_, String>(list.plugins.iter().filter_map(type_of).map(str::to_owned).collect::<Vec<_>>())
        };
        let one = std::slice::from_ref(&tuning);
        assert_eq!(types(r#"{"name":"n"}"#, one).unwrap(), ["tuning"]);
        assert_eq!(types(r#"{"name":"n","plugins":[{"type":"bridge"}]}"#, one).unwrap(), ["bridge", "tuning"]);
        assert!(types(r#"{"name":"n"}"#, &[]).unwrap_err().contains("no plugins"));
        assert!(types(r#"{"name":"n"}"#, &[file("a.conf", "{}")]).unwrap_err().contains("a.conf: it has no type"));
        let more = |rest: &str| read(&format!(r#"{{"name":"n"{rest}}}"#)).map(|list| list.more_in_directory);
        for (rest, expected) in [
            ("", Ok(true)),
            (r#","plugins":[{"type":"b"}]"#, Ok(true)),
            (r#","plugins":[{"type":"b"}],"loadOnlyInlinedPlugins":true"#, Ok(false)),
            (r#","plugins":[{"type":"b"}],"loadOnlyInlinedPlugins":"TRUE""#, Ok(false)),
            (r#","plugins":[{"type":"b"}],"loadOnlyInlinedPlugins":"False""#, Ok(true)),
            (r#","type":"b""#, Ok(false)),
            (r#","loadOnlyInlinedPlugins":true"#, Err("has no plugins")),
            (r#","plugins":[],"loadOnlyInlinedPlugins":false"#, Err("no plugins")),
            (r#","loadOnlyInlinedPlugins":"perhaps""#, Err("must be true or false")),
            (r#","plugins":[{"type":"b"}],"disableCheck":1"#, Err("disableCheck must be")),
        ] {
            match (more(rest), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{rest}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{rest}: {found}"),
                (found, expected) => panic!("{rest}: {found:?} and not {expected:?}"),
            }
        }
        assert!(read(r#"{"name":"../n","plugins":[{"type":"b"}]}"#).is_err());
    }

    #[test]
    fn versions_are_read_as_libcni_does() {
        let read = |text: &str| supported_versions(text.as_bytes());
        assert_eq!(
            read(r#"{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}"#).unwrap(),
            ["0.4.0", "1.0.0"]
        );
        assert_eq!(read(r#"{"cniVersion":"0.2.0"}"#).unwrap(), ["0.1.0", "0.2.0"]);
        for (text, why) in [
            ("", "decoding version info: EOF"),
            (r#"{"supportedVersions":["1.0.0"]}"#, "missing field cniVersion"),
            (r#"{"cniVersion":"1.0.0"}"#, "missing field supportedVersions"),
        ] {
            assert!(read(text).unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn addresses_and_errors_are_read() {
        let both = json!({"ips": [{"address": "10.1.0.2/24"}, {"address": "fd00::2/64"}]});
        let texts = |v: &Value| addresses(v).iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&both), ["10.1.0.2", "fd00::2"]);
        assert_eq!(texts(&json!({"ip4": {"ip": "10.1.0.2/24"}})), ["10.1.0.2"]);
        assert_eq!(error(br#"{"code":7,"msg":"no","details":"why"}"#).as_deref(), Some("no: why"));
        assert_eq!(error(b"plain words"), None);
    }
}
