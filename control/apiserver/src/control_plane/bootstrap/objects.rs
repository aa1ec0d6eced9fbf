//! What every cluster has, besides flow control. Pure but for the time in the lease.

use std::net::{IpAddr, Ipv4Addr};

use jiff::{SignedDuration, Timestamp};
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value, json};
use windlass_identity::{
    pki::FRONT_PROXY_CLIENT,
    service_account_tokens::{TRACKED_SINCE, TRACKING},
};

use super::Wanted;
use crate::kinds::core::service::DEFAULT_SERVICE_CIDR;

const SYSTEM: &str = "kube-system";
/// Says that the use of tokens is recorded.
const RECORDS: &str = "windlass.io/records-token-uses";
const OBJECTS: &str = include_str!("objects.jsonl");
/// The duration of this server's identity lease.
const LEASE_SECONDS: i64 = 3600;
/// Upstream renews every 10 s; each renewal is a write to the disk, and no reader needs it before the lease expires.
const RENEW_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// Who this server is.
pub(super) struct Identity {
    pub(super) host: String,
    /// Of this process.
    pub(super) instance: String,
    /// Where clients in the cluster reach it.
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) first_cluster_ip: Ipv4Addr,
    /// The authority of client certificates, if there is one.
    pub(super) client_ca: Option<String>,
    /// The authority of the certificate that this server shows extension API servers.
    pub(super) front_proxy_ca: String,
}

/// An object that is only made when it is missing.
pub(super) fn made(
    api_version: &'static str,
    kind: &'static str,
    namespace: &'static str,
    name: &str,
    object: Value,
) -> Wanted {
    kept(api_version, kind, namespace, name, object, |_, _| false)
}

/// An object of which `change` sets what must be so; it says whether it has changed anything.
pub(super) fn kept(
    api_version: &'static str,
    kind: &'static str,
    namespace: &'static str,
    name: &str,
    object: Value,
    change: impl Fn(&mut Value, &Value) -> bool + Send + Sync + 'static,
) -> Wanted {
    let revise = move |stored: Option<&Value>| match stored {
        None => Some(object.clone()),
        Some(stored) => {
            let mut changed = stored.clone();
            change(&mut changed, &object).then_some(changed)
        }
    };
    Wanted { api_version, kind, namespace, name: name.to_owned(), has_status: false, revise: Box::new(revise) }
}

/// Sets a field to its value in `wanted`; whether it had another one.
pub(super) fn set(object: &mut Value, wanted: &Value, field: &str) -> bool {
    let differs = object[field] != wanted[field];
    if differs {
        object[field] = wanted[field].clone();
    }
    differs
}

pub(super) fn namespaces() -> impl Iterator<Item = Wanted> {
    let names = ["default", SYSTEM, "kube-public", "kube-node-lease"];
    names.into_iter().map(|name| made("v1", "Namespace", "", name, json!({"metadata": {"name": name}})))
}

/// The configured range. One that was made with another range stays: services have addresses of it.
pub(super) fn service_cidr(range: &str) -> Wanted {
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes default Service CIDR is ready",
        "lastTransitionTime": crate::apiserver::generate::now(),
    });
    let object = json!({"spec": {"cidrs": [range]}, "status": {"conditions": [condition]}});
    let change = |stored: &mut Value, wanted: &Value| {
        if stored["spec"]["cidrs"] != wanted["spec"]["cidrs"] {
            let (stored, configured) = (&stored["spec"]["cidrs"], &wanted["spec"]["cidrs"]);
            tracing::warn!(%stored, %configured, "the default ServiceCIDR does not match the configuration; its own range is used");
        }
        let is_new = stored["metadata"]["deletionTimestamp"].is_null() && stored["status"]["conditions"].is_null();
        is_new && set(stored, wanted, "status")
    };
    let wanted = kept("networking.k8s.io/v1", "ServiceCIDR", "", DEFAULT_SERVICE_CIDR, object, change);
    Wanted { has_status: true, ..wanted }
}

/// How the API server itself is found.
pub(super) fn cluster(identity: &Identity) -> impl Iterator<Item = Wanted> + use<> {
    [service(identity), endpoint_slice(identity), lease(identity), authentication(identity), tracking()].into_iter()
}

fn service(identity: &Identity) -> Wanted {
    let port = json!({"name": "https", "port": 443, "protocol": "TCP", "targetPort": identity.port});
    let object = json!({
        "metadata": {"labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {"clusterIP": identity.first_cluster_ip.to_string(), "ports": [port]},
    });
    kept("v1", "Service", "default", "kubernetes", object, |stored, wanted| {
        set(&mut stored["spec"], &wanted["spec"], "ports")
    })
}

fn endpoint_slice(identity: &Identity) -> Wanted {
    let family = if identity.address.is_ipv4() { "IPv4" } else { "IPv6" };
    let object = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": family,
        "endpoints": [{"addresses": [identity.address.to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": identity.port, "protocol": "TCP"}],
    });
    kept("discovery.k8s.io/v1", "EndpointSlice", "default", "kubernetes", object, |stored, wanted| {
        let (labels, endpoints, ports) = (
            set(&mut stored["metadata"], &wanted["metadata"], "labels"),
            set(stored, wanted, "endpoints"),
            set(stored, wanted, "ports"),
        );
        labels || endpoints || ports
    })
}

/// For clients that still find API servers by Endpoints, such as Prometheus.
pub(super) fn endpoints(identity: &Identity) -> Wanted {
    let object = json!({
        "metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{
            "addresses": [{"ip": identity.address.to_string()}],
            "ports": [{"name": "https", "port": identity.port, "protocol": "TCP"}],
        }],
    });
    kept("v1", "Endpoints", "default", "kubernetes", object, |stored, wanted| {
        let labels = set(&mut stored["metadata"], &wanted["metadata"], "labels");
        set(stored, wanted, "subsets") || labels
    })
}

/// By what others know the servers of a cluster.
fn lease(identity: &Identity) -> Wanted {
    let name = identity_of(&identity.host);
    let holder = format!("{name}_{}", identity.instance);
    let now = Timestamp::now();
    let object = json!({
        "metadata": {"labels": {
            "apiserver.kubernetes.io/identity": "kube-apiserver", "kubernetes.io/hostname": identity.host,
        }},
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        },
    });
    kept("coordination.k8s.io/v1", "Lease", SYSTEM, &name, object, move |stored, wanted| {
        let spec = &stored["spec"];
        let renewed: Option<Timestamp> = spec["renewTime"].as_str().and_then(|time| time.parse().ok());
        let is_fresh = renewed.is_some_and(|renewed| now.duration_since(renewed) < RENEW_AFTER);
        if is_fresh && spec["holderIdentity"] == wanted["spec"]["holderIdentity"] {
            return false;
        }
        set(stored, wanted, "spec")
    })
}

/// The name of the server on a host: 128 bits of its hash.
pub(super) fn identity_of(host: &str) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let hash = digest(&SHA256, host.as_bytes());
    let mut name = "apiserver-".to_owned();
    let (mut bits, mut count) = (0u32, 0);
    for byte in hash.as_ref().iter().take(16) {
        bits = (bits << 8) | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            name.push(char::from(ALPHABET[(bits >> count) as usize & 31]));
        }
        bits &= (1 << count) - 1;
    }
    name.push(char::from(ALPHABET[(bits << (5 - count)) as usize & 31]));
    name
}

/// By what extension API servers verify clients, and this server, which says in headers whom a request is from. Keys of others
/// stay.
fn authentication(identity: &Identity) -> Wanted {
    // Lists are texts in JSON.
    let list = |item: &str| json!([item]).to_string();
    let mut object = json!({"data": {
        "requestheader-allowed-names": list(FRONT_PROXY_CLIENT),
        "requestheader-client-ca-file": identity.front_proxy_ca,
        "requestheader-extra-headers-prefix": list("X-Remote-Extra-"),
        "requestheader-group-headers": list("X-Remote-Group"),
        "requestheader-uid-headers": list("X-Remote-Uid"),
        "requestheader-username-headers": list("X-Remote-User"),
    }});
    if let Some(client_ca) = &identity.client_ca {
        object["data"]["client-ca-file"] = client_ca.as_str().into();
    }
    kept("v1", "ConfigMap", SYSTEM, "extension-apiserver-authentication", object, |stored, wanted| {
        let Some(fields) = stored.as_object_mut() else { return false };
        let data = fields.entry("data").or_insert_with(|| json!({}));
        let keys = wanted["data"].as_object().into_iter().flat_map(Map::keys);
        // Each of them is set.
        keys.filter(|key| set(data, &wanted["data"], key)).count() > 0
    })
}

/// Since when the use of tokens in Secrets is recorded. A day that cannot be read, and that of a version that recorded
/// nothing, is none: unused tokens are removed a year after it.
fn tracking() -> Wanted {
    let since = Timestamp::now().strftime("%Y-%m-%d").to_string();
    let object = json!({"metadata": {"annotations": {RECORDS: "true"}}, "data": {TRACKED_SINCE: since}});
    kept("v1", "ConfigMap", SYSTEM, TRACKING, object, |stored, wanted| {
        let is_day = |text: &str| text.parse::<jiff::civil::Date>().is_ok_and(|day| day.to_string() == text);
        let known = stored["data"][TRACKED_SINCE].as_str().is_some_and(is_day);
        if known && stored["metadata"]["annotations"][RECORDS] == "true" {
            return false;
        }
        for (part, key) in [(&["metadata", "annotations"][..], RECORDS), (&["data"], TRACKED_SINCE)] {
            let (mut to, mut from) = (&mut *stored, wanted);
            for field in part {
                (to, from) = (&mut to[*field], &from[*field]);
            }
            to[key] = from[key].clone();
        }
        true
    })
}

/// The objects of the table: group version, kind, name and the rest.
pub(super) fn table() -> impl Iterator<Item = (&'static str, &'static str, String, Value)> {
    OBJECTS.lines().filter_map(|line| {
        let mut object: Map<String, Value> = serde_json::from_str(line).ok()?;
        let (api_version, kind) = match object.remove("kind")?.as_str()? {
            "PriorityClass" => ("scheduling.k8s.io/v1", "PriorityClass"),
            "FlowSchema" => (super::flow_control::API_VERSION, "FlowSchema"),
            "PriorityLevelConfiguration" => (super::flow_control::API_VERSION, "PriorityLevelConfiguration"),
            _ => return None,
        };
        let name = object.remove("name")?.as_str()?.to_owned();
        Some((api_version, kind, name, Value::Object(object)))
    })
}

/// The priority classes of the system. Validation prevents changes to them.
pub(super) fn priority_classes() -> impl Iterator<Item = Wanted> {
    let classes = table().filter(|(_, kind, ..)| *kind == "PriorityClass");
    classes.map(|(api_version, kind, name, object)| made(api_version, kind, "", &name, object))
}
