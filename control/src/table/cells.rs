//! What cells are made of: ages, ports, addresses.

use jiff::Timestamp;
use serde_json::{Value, json};
use windlass_kit::quantity::Quantity;

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

pub(super) fn or_none(text: String) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text }
}

pub(super) fn or_unknown(value: &Value) -> String {
    match text(value) {
        "" => "<unknown>".to_owned(),
        text => text.to_owned(),
    }
}

pub(super) fn joined(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}

/// An amount of a node's or a pod's metrics; a pod uses what its containers use.
pub(super) fn used(object: &Value, resource: &str) -> String {
    let containers = object["containers"].as_array();
    let all = containers.into_iter().flatten().map(|c| &c["usage"]).chain([&object["usage"]]);
    let amounts = all.filter_map(|usage| usage[resource].as_str()?.parse::<Quantity>().ok());
    amounts.reduce(Quantity::plus).map(|sum| sum.to_string()).unwrap_or_default()
}

/// `a=b,c=d`.
pub(super) fn map_of(map: &Value) -> String {
    joined(map.as_object().into_iter().flatten().map(|(k, v)| format!("{k}={}", text(v))))
}

/// How long ago, as `kubectl` writes it.
pub(super) fn age(since: &str, now: Timestamp) -> String {
    let Ok(since) = since.parse::<Timestamp>() else { return "<unknown>".to_owned() };
    duration(now.as_second() - since.as_second())
}

/// Seconds in the shortest form that still says enough; upstream's steps.
pub(super) fn duration(seconds: i64) -> String {
    let two = |big: i64, unit: char, small: i64, small_unit: char| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{small_unit}") }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1 | 0 => "0s".to_owned(),
        1..120 => format!("{seconds}s"),
        120..600 => two(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, 'd', hours % 24, 'h'),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

/// The short forms of access modes, as `kubectl` shows them.
pub(super) fn access_modes(modes: &Value) -> String {
    let short = |mode: &Value| match text(mode) {
        "ReadWriteOnce" => "RWO".to_owned(),
        "ReadOnlyMany" => "ROX".to_owned(),
        "ReadWriteMany" => "RWX".to_owned(),
        "ReadWriteOncePod" => "RWOP".to_owned(),
        other => other.to_owned(),
    };
    joined(modes.as_array().into_iter().flatten().map(short))
}

/// The phase of a volume or claim, unless it is being deleted.
pub(super) fn phase(object: &Value) -> &str {
    if object["metadata"]["deletionTimestamp"].is_null() { text(&object["status"]["phase"]) } else { "Terminating" }
}

pub(super) fn keys(object: &Value, fields: &[&str]) -> usize {
    fields.iter().map(|f| object[*f].as_object().map_or(0, serde_json::Map::len)).sum()
}

pub(super) fn external_ip(object: &Value) -> String {
    let spec = &object["spec"];
    let mut external: Vec<String> =
        spec["externalIPs"].as_array().into_iter().flatten().map(|ip| text(ip).to_owned()).collect();
    match text(&spec["type"]) {
        "ExternalName" => text(&spec["externalName"]).to_owned(),
        "LoadBalancer" => {
            let ingress = object["status"]["loadBalancer"]["ingress"].as_array().into_iter().flatten();
            let shown = ingress
                .map(|i| if text(&i["ip"]).is_empty() { text(&i["hostname"]) } else { text(&i["ip"]) }.to_owned());
            let mut all: Vec<String> = shown.filter(|t| !t.is_empty()).collect();
            all.append(&mut external);
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        _ => or_none(external.join(",")),
    }
}

pub(super) fn service_ports(spec: &Value) -> String {
    let ports = spec["ports"].as_array().into_iter().flatten().map(|p| {
        let node = p["nodePort"].as_i64().filter(|n| *n > 0).map(|n| format!(":{n}")).unwrap_or_default();
        format!("{}{node}/{}", p["port"], text(&p["protocol"]))
    });
    or_none(joined(ports))
}

fn first_three(all: &[String]) -> String {
    match all.len() {
        0 => "<none>".to_owned(),
        1..=3 => all.join(","),
        more => format!("{} + {} more...", all[..3].join(","), more - 3),
    }
}

pub(super) fn endpoints(object: &Value) -> String {
    let mut all = Vec::new();
    for subset in object["subsets"].as_array().into_iter().flatten() {
        for address in subset["addresses"].as_array().into_iter().flatten() {
            let ip = text(&address["ip"]);
            let ports = subset["ports"].as_array();
            match ports.filter(|p| !p.is_empty()) {
                Some(ports) => all.extend(ports.iter().map(|p| {
                    if ip.contains(':') { format!("[{ip}]:{}", p["port"]) } else { format!("{ip}:{}", p["port"]) }
                })),
                None => all.push(ip.to_owned()),
            }
        }
    }
    first_three(&all)
}

pub(super) fn slice_ports(object: &Value) -> String {
    let all: Vec<String> = object["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|p| p["port"].as_i64().map_or_else(|| "*".to_owned(), |n| n.to_string()))
        .collect();
    if object["ports"].is_null() || all.is_empty() { "<unset>".to_owned() } else { first_three(&all) }
}

pub(super) fn slice_addresses(object: &Value) -> String {
    let endpoints = object["endpoints"].as_array().into_iter().flatten();
    let all: Vec<String> =
        endpoints.flat_map(|e| e["addresses"].as_array().into_iter().flatten()).map(|a| text(a).to_owned()).collect();
    if all.is_empty() { "<unset>".to_owned() } else { first_three(&all) }
}

pub(super) fn node_status(object: &Value) -> String {
    let conditions = object["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten().find(|c| c["type"] == "Ready");
    let word = match ready.map(|c| text(&c["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    if object["spec"]["unschedulable"] == true { format!("{word},SchedulingDisabled") } else { word.to_owned() }
}

pub(super) fn node_roles(object: &Value) -> String {
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    let mut roles: Vec<&str> = labels
        .filter_map(|(k, v)| {
            k.strip_prefix("node-role.kubernetes.io/")
                .filter(|r| !r.is_empty())
                .or_else(|| (k == "kubernetes.io/role").then(|| text(v)))
        })
        .collect();
    roles.sort_unstable();
    or_none(roles.join(","))
}

pub(super) fn event(object: &Value, name: Value, now: Timestamp) -> Vec<Value> {
    let involved = &object["involvedObject"];
    let first =
        [&object["firstTimestamp"], &object["eventTime"]].into_iter().find(|t| !text(t).is_empty()).map_or("", text);
    let last = [&object["series"]["lastObservedTime"], &object["lastTimestamp"]]
        .into_iter()
        .find(|t| !text(t).is_empty())
        .map_or(first, text);
    let source = match (text(&object["source"]["component"]), text(&object["source"]["host"])) {
        ("", _) => text(&object["reportingComponent"]).to_owned(),
        (component, "") => component.to_owned(),
        (component, host) => format!("{component}, {host}"),
    };
    let count = object["series"]["count"].as_i64().or_else(|| object["count"].as_i64()).unwrap_or(1);
    vec![
        json!(age(last, now)),
        object["type"].clone(),
        object["reason"].clone(),
        json!(format!("{}/{}", text(&involved["kind"]).to_lowercase(), text(&involved["name"]))),
        json!(text(&involved["fieldPath"])),
        json!(source),
        json!(text(&object["message"]).trim()),
        json!(age(first, now)),
        json!(count),
        name,
    ]
}
