//! The environment of a container, and `$(VAR)` in its command and arguments. Pure.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, ObjectFieldSelector, Pod, Secret};
use windlass_kit::{net::NodeIps, quantity::Quantity};

use super::env_file;
use crate::{downward_api, pods::lifecycle::spec};

#[cfg(test)]
mod upstream_tests;

/// The objects that a container's environment references, by name; those that do not exist are absent.
#[derive(Debug, Clone, Default)]
pub(crate) struct EnvSources {
    pub(crate) config_maps: BTreeMap<String, Arc<ConfigMap>>,
    pub(crate) secrets: BTreeMap<String, Arc<Secret>>,
    /// Contents of files in the pod's volumes, by volume and path.
    pub(crate) files: BTreeMap<(String, String), String>,
}

/// The files that a container's `fileKeyRef`s name, as volume and path.
pub(crate) fn files(container: &Container) -> impl Iterator<Item = (&str, &str)> {
    let from = container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()?.file_key_ref.as_ref());
    from.map(|file| (file.volume_name.as_str(), file.path.as_str()))
}

/// What variables may show beyond the pod's object.
#[derive(Debug, Clone)]
pub(crate) struct EnvContext<'a> {
    pub(crate) node_name: &'a str,
    pub(crate) node_ips: NodeIps,
    pub(crate) pod_ips: &'a [IpAddr],
    pub(crate) allocatable: &'a BTreeMap<String, Quantity>,
    pub(crate) services: &'a [ServiceEnv],
}

/// A service as the environment of pods shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceEnv {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) address: String,
    /// Name, protocol and number of each port.
    pub(crate) ports: Vec<(String, String, i32)>,
}

/// All services that the API has; `None` before they were listed once. A container that is created without the
/// variables of an existing service stays without them for its whole life.
pub(crate) type ServiceList = Option<Arc<Vec<ServiceEnv>>>;

/// The names of ConfigMaps and Secrets that a container's environment references.
pub(crate) fn references(container: &Container) -> (Vec<&str>, Vec<&str>) {
    let (mut maps, mut secrets) = (Vec::new(), Vec::new());
    for from in container.env_from.iter().flatten() {
        maps.extend(from.config_map_ref.iter().map(|r| r.name.as_str()));
        secrets.extend(from.secret_ref.iter().map(|r| r.name.as_str()));
    }
    for from in container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()) {
        maps.extend(from.config_map_key_ref.iter().map(|r| r.name.as_str()));
        secrets.extend(from.secret_key_ref.iter().map(|r| r.name.as_str()));
    }
    (maps, secrets)
}

/// The variables of a container, in order and without duplicates.
///
/// # Errors
/// The message of CreateContainerConfigError: what is missing, and where it was expected.
pub(crate) fn environment(
    pod: &Pod,
    container: &Container,
    sources: &EnvSources,
    context: &EnvContext<'_>,
) -> Result<Vec<(String, String)>, String> {
    let mut out = Variables::default();
    let links = pod.spec.as_ref().and_then(|s| s.enable_service_links) != Some(false);
    for (key, value) in service_variables(spec::namespace(pod), context.services, links) {
        out.set(key, value);
    }
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or("");
        if let Some(reference) = &from.config_map_ref {
            match sources.config_maps.get(&reference.name) {
                Some(map) => {
                    for (key, value) in map.data.iter().flatten() {
                        out.set(format!("{prefix}{key}"), value.clone());
                    }
                }
                None if reference.optional == Some(true) => {}
                None => return Err(format!("configmap {:?} not found", reference.name)),
            }
        }
        if let Some(reference) = &from.secret_ref {
            match sources.secrets.get(&reference.name) {
                Some(secret) => {
                    for (key, value) in secret.data.iter().flatten() {
                        out.set(format!("{prefix}{key}"), String::from_utf8_lossy(&value.0).into_owned());
                    }
                }
                None if reference.optional == Some(true) => {}
                None => return Err(format!("secret {:?} not found", reference.name)),
            }
        }
    }
    for variable in container.env.iter().flatten() {
        if let Some(from) = &variable.value_from {
            if let Some(value) = from_source(pod, container, from, sources, context)? {
                out.set(variable.name.clone(), value);
            }
        } else {
            let value = expand(variable.value.as_deref().unwrap_or(""), |name| out.get(name));
            out.set(variable.name.clone(), value);
        }
    }
    Ok(out.list)
}

/// Variables in the order in which they were first set.
#[derive(Debug, Default)]
struct Variables {
    list: Vec<(String, String)>,
    at: BTreeMap<String, usize>,
}

impl Variables {
    fn set(&mut self, key: String, value: String) {
        if let Some(at) = self.at.get(&key) {
            self.list[*at].1 = value;
        } else {
            self.at.insert(key.clone(), self.list.len());
            self.list.push((key, value));
        }
    }

    fn get(&self, key: &str) -> Option<String> {
        self.at.get(key).map(|at| self.list[*at].1.clone())
    }
}

fn from_source(
    pod: &Pod,
    container: &Container,
    from: &EnvVarSource,
    sources: &EnvSources,
    context: &EnvContext<'_>,
) -> Result<Option<String>, String> {
    if let Some(reference) = &from.config_map_key_ref {
        let map = sources.config_maps.get(&reference.name);
        let value = map.and_then(|m| m.data.as_ref()?.get(&reference.key).cloned());
        return match (value, map, reference.optional == Some(true)) {
            (Some(value), ..) => Ok(Some(value)),
            (None, _, true) => Ok(None),
            (None, None, _) => Err(format!("configmap {:?} not found", reference.name)),
            (None, Some(_), _) => Err(format!(
                "couldn't find key {} in ConfigMap {}/{}",
                reference.key,
                spec::namespace(pod),
                reference.name
            )),
        };
    }
    if let Some(reference) = &from.secret_key_ref {
        let secret = sources.secrets.get(&reference.name);
        let value = secret.and_then(|s| s.data.as_ref()?.get(&reference.key));
        return match (value, secret, reference.optional == Some(true)) {
            (Some(value), ..) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
            (None, _, true) => Ok(None),
            (None, None, _) => Err(format!("secret {:?} not found", reference.name)),
            (None, Some(_), _) => Err(format!(
                "couldn't find key {} in Secret {}/{}",
                reference.key,
                spec::namespace(pod),
                reference.name
            )),
        };
    }
    if let Some(reference) = &from.file_key_ref {
        let (volume, path) = (&reference.volume_name, &reference.path);
        let problem = |why: String| format!("file {path:?} of volume {volume:?} {why}");
        let file = sources.files.get(&(volume.clone(), path.clone()));
        let found = file.map(|text| env_file::value(text, &reference.key)).transpose().map_err(problem)?;
        return match (found.flatten(), reference.optional == Some(true)) {
            (Some(value), _) => Ok(Some(value)),
            (None, true) => Ok(None),
            (None, false) if file.is_none() => Err(problem("is not there".to_owned())),
            (None, false) => Err(problem(format!("has no key {:?}", reference.key))),
        };
    }
    if let Some(field) = &from.field_ref {
        return field_value(pod, field, context).map(Some);
    }
    if let Some(resource) = &from.resource_field_ref {
        return downward_api::resource_value(pod, Some(container), resource, context.allocatable).map(Some);
    }
    Ok(None)
}

fn field_value(pod: &Pod, field: &ObjectFieldSelector, context: &EnvContext<'_>) -> Result<String, String> {
    let spec = pod.spec.as_ref();
    let pod_ips: Vec<String> = context.pod_ips.iter().map(IpAddr::to_string).collect();
    Ok(match field.field_path.as_str() {
        "spec.nodeName" => context.node_name.to_owned(),
        "spec.serviceAccountName" => spec.and_then(|s| s.service_account_name.clone()).unwrap_or_default(),
        "status.hostIP" => context.node_ips.first().to_string(),
        "status.hostIPs" => context.node_ips.to_string(),
        "status.podIP" => pod_ips.into_iter().next().unwrap_or_default(),
        "status.podIPs" => pod_ips.join(","),
        path => {
            return downward_api::metadata_value(pod, path)
                .ok_or_else(|| format!("field path {path:?} is not supported by environment variables"));
        }
    })
}

/// Replaces `$(NAME)`; `$$(NAME)` is a literal `$(NAME)`, and unknown names stay as they are.
pub(crate) fn expand(text: &str, mut value_of: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$$") {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix("$(").and_then(|r| r.split_once(')')) {
            match value_of(name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    out
}

/// A probe's command with the variables whose values the container's spec gives, as upstream expands it: a variable
/// with `valueFrom` is empty.
pub(crate) fn expand_static(words: &[String], container: &Container) -> Vec<String> {
    let value_of = |name: &str| {
        let last = container.env.iter().flatten().rev().find(|v| v.name == name)?;
        Some(last.value.clone().unwrap_or_default())
    };
    words.iter().map(|word| expand(word, value_of)).collect()
}

/// `WEB_SERVICE_HOST` and the others of its kind, for the services of a namespace; for `kubernetes` of `default`
/// always, unless the namespace has one of that name itself.
fn service_variables(namespace: &str, services: &[ServiceEnv], links: bool) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let is_own = |service: &ServiceEnv| links && service.namespace == namespace;
    let hidden = services.iter().any(|service| is_own(service) && service.name == "kubernetes");
    for service in services {
        let is_api = service.namespace == "default" && service.name == "kubernetes";
        let wanted = is_own(service) || (is_api && !hidden);
        let Some((_, first_protocol, first_port)) = service.ports.first().filter(|_| wanted) else { continue };
        let upper = |text: &str| text.to_uppercase().replace(['-', '.'], "_");
        let name = upper(&service.name);
        let address = &service.address;
        out.push((format!("{name}_SERVICE_HOST"), address.clone()));
        out.push((format!("{name}_SERVICE_PORT"), first_port.to_string()));
        for (port_name, _, port) in service.ports.iter().filter(|(n, ..)| !n.is_empty()) {
            out.push((format!("{name}_SERVICE_PORT_{}", upper(port_name)), port.to_string()));
        }
        let url = |protocol: &str, port: i32| format!("{}://{address}:{port}", protocol.to_lowercase());
        out.push((format!("{name}_PORT"), url(first_protocol, *first_port)));
        for (_, protocol, port) in &service.ports {
            let base = format!("{name}_PORT_{port}_{}", protocol.to_uppercase());
            out.push((base.clone(), url(protocol, *port)));
            out.push((format!("{base}_PROTO"), protocol.to_lowercase()));
            out.push((format!("{base}_PORT"), port.to_string()));
            out.push((format!("{base}_ADDR"), address.clone()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(pod: &str, sources: &EnvSources) -> Result<Vec<(String, String)>, String> {
        let pod: Pod = serde_json::from_str(pod).unwrap();
        let allocatable = BTreeMap::from([
            ("memory".to_owned(), Quantity::from_bytes(1 << 30)),
            ("cpu".to_owned(), Quantity::from_units(2)),
        ]);
        let services = [ServiceEnv {
            namespace: "n".into(),
            name: "my-db".into(),
            address: "10.96.0.7".into(),
            ports: vec![("sql".into(), "TCP".into(), 5432)],
        }];
        let context = EnvContext {
            node_name: "node",
            node_ips: "192.0.2.1".parse().unwrap(),
            pod_ips: &["10.244.0.5".parse().unwrap(), "fd00::5".parse().unwrap()],
            allocatable: &allocatable,
            services: &services,
        };
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        environment(&pod, &container, sources, &context)
    }

    fn pod(env: &str, rest: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"p","namespace":"n","uid":"u","labels":{{"a.b/c":"l"}}}},"spec":{{"enableServiceLinks":false,"containers":[{{"name":"c","image":"i","env":[{env}]{rest}}}]}}}}"#
        )
    }

    #[test]
    fn expansion() {
        let value = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, wanted) in [
            ("$(A)", "1"),
            ("x$(A)y", "x1y"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$", "$"),
            ("$(A", "$(A"),
            ("$A", "$A"),
            ("$$$(A)", "$1"),
        ] {
            assert_eq!(expand(text, value), wanted, "{text}");
        }
    }

    #[test]
    fn probes_know_the_values_that_the_spec_gives() {
        let container: Container = serde_json::from_str(
            r#"{"name":"c","env":[{"name":"A","value":"1"},{"name":"A","value":"2"},
                {"name":"F","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]}"#,
        )
        .unwrap();
        let words = ["$(A)x".to_owned(), "$(F)".to_owned(), "$(B)".to_owned()];
        assert_eq!(expand_static(&words, &container), ["2x", "", "$(B)"]);
    }

    #[test]
    fn variables_see_earlier_ones_and_fields() {
        let env = r#"{"name":"A","value":"1"},{"name":"B","value":"$(A)$(C)"},{"name":"C","value":"2"},
            {"name":"IP","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}},
            {"name":"IPS","valueFrom":{"fieldRef":{"fieldPath":"status.podIPs"}}},
            {"name":"L","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['a.b/c']"}}},
            {"name":"M","valueFrom":{"resourceFieldRef":{"resource":"limits.memory","divisor":"1Mi"}}},
            {"name":"Q","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu"}}}"#;
        let got = build(&pod(env, ""), &EnvSources::default()).unwrap();
        let get = |name: &str| got.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str());
        assert_eq!(get("IPS"), Some("10.244.0.5,fd00::5"));
        assert_eq!(
            (get("B"), get("IP"), get("L"), get("M"), get("Q")),
            (Some("1$(C)"), Some("10.244.0.5"), Some("l"), Some("1024"), Some("2"))
        );
    }

    #[test]
    fn what_is_missing_is_named_unless_optional() {
        let missing = r#"{"name":"A","valueFrom":{"configMapKeyRef":{"name":"m","key":"k"}}}"#;
        assert_eq!(build(&pod(missing, ""), &EnvSources::default()), Err("configmap \"m\" not found".to_owned()));
        let optional = r#"{"name":"A","valueFrom":{"secretKeyRef":{"name":"m","key":"k","optional":true}}}"#;
        assert_eq!(build(&pod(optional, ""), &EnvSources::default()), Ok(vec![]));
        let mut sources = EnvSources::default();
        sources.config_maps.insert("m".into(), Arc::new(serde_json::from_str(r#"{"data":{"x":"1"}}"#).unwrap()));
        assert!(build(&pod(missing, ""), &sources).unwrap_err().contains("couldn't find key k in ConfigMap n/m"));
        let all = build(&pod("", r#","envFrom":[{"prefix":"P_","configMapRef":{"name":"m"}}]"#), &sources).unwrap();
        assert_eq!(all, [("P_x".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn values_of_files() {
        let asks = |key: &str, rest: &str| {
            format!(
                r#"{{"name":"A","valueFrom":{{"fileKeyRef":{{"volumeName":"v","path":"d/env","key":"{key}"{rest}}}}}}}"#
            )
        };
        let mut sources = EnvSources::default();
        let ask = |sources: &EnvSources, key, rest| build(&pod(&asks(key, rest), ""), sources);
        assert!(ask(&sources, "K", "").unwrap_err().contains("is not there"));
        assert_eq!(ask(&sources, "K", r#","optional":true"#), Ok(vec![]));
        sources.files.insert(("v".into(), "d/env".into()), "K='1'\nL='".into());
        assert_eq!(ask(&sources, "K", ""), Ok(vec![("A".into(), "1".into())]));
        sources.files.insert(("v".into(), "d/env".into()), "K=1".into());
        assert!(ask(&sources, "M", "").unwrap_err().contains("has no key \"M\""));
        assert_eq!(ask(&sources, "M", r#","optional":true"#), Ok(vec![]));
        sources.files.insert(("v".into(), "d/env".into()), "what is this".into());
        assert!(ask(&sources, "M", r#","optional":true"#).unwrap_err().contains("line 1"));
        let all: Pod = serde_json::from_str(&pod(&asks("K", ""), "")).unwrap();
        assert_eq!(files(&all.spec.unwrap().containers[0]).collect::<Vec<_>>(), [("v", "d/env")]);
    }

    #[test]
    fn services_of_the_namespace_unless_links_are_off() {
        let with_links = pod("", "").replace("\"enableServiceLinks\":false,", "");
        let got = build(&with_links, &EnvSources::default()).unwrap();
        for (key, value) in [
            ("MY_DB_SERVICE_HOST", "10.96.0.7"),
            ("MY_DB_SERVICE_PORT_SQL", "5432"),
            ("MY_DB_PORT", "tcp://10.96.0.7:5432"),
            ("MY_DB_PORT_5432_TCP_ADDR", "10.96.0.7"),
        ] {
            assert!(got.contains(&(key.to_owned(), value.to_owned())), "{key} in {got:?}");
        }
        assert!(build(&pod("", ""), &EnvSources::default()).unwrap().is_empty());
    }
}
