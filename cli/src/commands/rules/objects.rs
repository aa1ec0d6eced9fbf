//! Manifests for `windlass rules --from`.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde_json::Value;
use windlass_kit::json;
use windlass_proxy::Objects;

use crate::commands::warn;

/// Reads all files; of a directory its `.yaml`, `.yml` and `.json` files.
pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Objects> {
    let mut objects = Objects::default();
    for path in paths {
        for file in files(path)? {
            let text = text_of(&file).with_context(|| format!("{} could not be read", file.display()))?;
            let told = add(&mut objects, &text).with_context(|| format!("{} cannot be used", file.display()))?;
            told.iter().for_each(warn);
        }
    }
    Ok(objects)
}

/// Parses YAML documents or JSON, with lists; other kinds are ignored. Returns what has no rules and why.
fn add(objects: &mut Objects, text: &str) -> anyhow::Result<Vec<String>> {
    let mut told = Vec::new();
    let mut waiting: Vec<Value> = if text.trim_start().starts_with('{') {
        serde_json::Deserializer::from_str(text).into_iter().collect::<Result<_, _>>()?
    } else {
        serde_saphyr::from_multiple(text).map_err(|e| anyhow::anyhow!("{e}"))?
    };
    // Popped from the end, so that the first document comes first.
    waiting.reverse();
    while let Some(mut value) = waiting.pop() {
        let kind = value["kind"].as_str().unwrap_or("").to_owned();
        let name = value["metadata"]["name"].as_str().unwrap_or("without a name").to_owned();
        // The default namespace, as kubectl's.
        if value["metadata"].is_object()
            && value["metadata"]["namespace"].is_null()
            && !matches!(&*kind, "Node" | "ServiceCIDR" | "Namespace")
        {
            value["metadata"]["namespace"] = "default".into();
        }
        let bad = || format!("{kind} {name}");
        match kind.as_str() {
            "Service" => {
                told.extend(waits_for_address(&value).then(|| {
                    format!("Service {name} has no rules: its spec.clusterIP is given by the API; set one here, or take the Service as the API shows it")
                }));
                objects.services.push(json::from_value(&value).with_context(bad)?);
            }
            "EndpointSlice" => objects.slices.push(json::from_value(&value).with_context(bad)?),
            "Node" => objects.nodes.push(json::from_value(&value).with_context(bad)?),
            "ServiceCIDR" => objects.service_cidrs.push(json::from_value(&value).with_context(bad)?),
            "NetworkPolicy" => objects.network_policies.push(json::from_value(&value).with_context(bad)?),
            "Namespace" => objects.namespaces.push(json::from_value(&value).with_context(bad)?),
            "Pod" => objects.pods.push(json::from_value(&value).with_context(bad)?),
            kind if kind.ends_with("List") => {
                if let Value::Array(items) = value["items"].take() {
                    // Items of a typed list have no kind.
                    let of = kind.trim_end_matches("List");
                    waiting.extend(items.into_iter().rev().map(|mut item| {
                        if item.is_object() && item["kind"].is_null() && !of.is_empty() {
                            item["kind"] = of.into();
                        }
                        item
                    }));
                }
            }
            _ => {}
        }
    }
    Ok(told)
}

/// Whether a Service is as its author writes it: the API gives it the address that its rules are about.
fn waits_for_address(service: &Value) -> bool {
    let spec = &service["spec"];
    let is_unset = |field: &str| match &spec[field] {
        Value::Null => true,
        Value::String(address) => address.is_empty(),
        Value::Array(addresses) => addresses.is_empty(),
        _ => false,
    };
    spec["type"] != "ExternalName" && is_unset("clusterIP") && is_unset("clusterIPs")
}

fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).with_context(|| format!("{} could not be read", path.display()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json"))
        .collect();
    files.sort();
    Ok(files)
}

fn text_of(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<Objects> {
        let mut objects = Objects::default();
        add(&mut objects, text).map(|_| objects)
    }

    #[test]
    fn documents_and_lists_are_read() {
        let yaml = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n---\napiVersion: v1\nkind: ConfigMap\n";
        let objects = read(yaml).unwrap();
        assert_eq!(objects.services.len(), 1);
        assert_eq!(objects.services[0].metadata.namespace.as_deref(), Some("default"));
        let json = r#"{"kind": "List", "items": [{"kind": "Service", "metadata": {"name": "a"}}, {"kind": "Node", "metadata": {"name": "n"}}]}
                      {"kind": "ServiceList", "items": [{"metadata": {"name": "b", "namespace": "x"}}]}"#;
        let objects = read(json).unwrap();
        assert_eq!((objects.services.len(), objects.nodes.len()), (2, 1));
        assert_eq!(objects.services[1].metadata.namespace.as_deref(), Some("x"));
    }

    #[test]
    fn policies_and_pods_have_the_default_namespace_and_namespaces_none() {
        let yaml = "kind: NetworkPolicy\nmetadata: {name: deny}\nspec: {podSelector: {}}\n---\nkind: Namespace\nmetadata: {name: shop}\n---\nkind: Pod\nmetadata: {name: web}\nspec: {nodeName: one}\nstatus: {podIP: 10.244.0.5}\n";
        let objects = read(yaml).unwrap();
        assert_eq!(objects.network_policies[0].metadata.namespace.as_deref(), Some("default"));
        assert_eq!(objects.pods[0].metadata.namespace.as_deref(), Some("default"));
        assert_eq!(objects.namespaces[0].metadata.namespace, None);
        let text = windlass_proxy::policies_from_objects(&objects, windlass_proxy::model::Family::V4);
        assert!(text.contains("NetworkPolicy default/deny") && text.contains("10.244.0.5"), "{text}");
    }

    #[test]
    fn a_service_without_an_address_is_told() {
        let told = |spec: &str| {
            let text = format!("kind: Service\nmetadata: {{name: shop}}\nspec: {spec}\n");
            add(&mut Objects::default(), &text).unwrap().len()
        };
        assert_eq!((told("{}"), told("{clusterIP: ''}"), told("{clusterIPs: []}")), (1, 1, 1));
        assert_eq!(
            (told("{clusterIP: 10.96.0.9}"), told("{clusterIP: None}"), told("{type: ExternalName}")),
            (0, 0, 0)
        );
        assert_eq!(told("{clusterIPs: ['fd00::1']}"), 0);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        assert!(read("kind: [").is_err());
        let error = read("kind: Service\nmetadata: {name: shop}\nspec: {ports: 3}\n").unwrap_err();
        assert!(format!("{error:#}").contains("Service shop"), "{error:#}");
    }
}
