//! Redacts secrets in API objects. Pure.
//!
//! Of a pod only fields that are known to contain no secrets are kept: anybody on the host may read the read-only port,
//! and a field that a later version of Kubernetes adds must not appear there unnoticed. Objects of other kinds are read
//! by administrators only; of them the fields that are known to contain secrets are redacted.

use serde_json::{Map, Value, json};

const WITHHELD: &str = "(withheld)";

/// What remains of a value.
#[derive(Debug, Clone, Copy)]
enum Keep {
    /// All of it.
    All,
    /// Whether it is present.
    Presence,
    /// The keys of a map, not their values.
    Keys,
    /// The length of a list.
    Count,
    /// These fields of an object, or of each object of a list.
    Fields(&'static [(&'static str, Keep)]),
}

use Keep::{All, Count, Fields, Keys, Presence};

const POD: &[(&str, Keep)] = &[
    ("apiVersion", All),
    ("kind", All),
    ("metadata", Fields(METADATA)),
    ("spec", Fields(POD_SPEC)),
    ("status", Fields(POD_STATUS)),
];

const METADATA: &[(&str, Keep)] = &[
    ("name", All),
    ("generateName", All),
    ("namespace", All),
    ("uid", All),
    ("resourceVersion", All),
    ("generation", All),
    ("creationTimestamp", All),
    ("deletionTimestamp", All),
    ("deletionGracePeriodSeconds", All),
    ("labels", All),
    // Applied manifests, and anything else users store.
    ("annotations", Keys),
    ("ownerReferences", All),
    ("finalizers", All),
];

const POD_SPEC: &[(&str, Keep)] = &[
    ("containers", Fields(CONTAINER)),
    ("initContainers", Fields(CONTAINER)),
    ("ephemeralContainers", Fields(CONTAINER)),
    ("volumes", Fields(VOLUME)),
    ("nodeName", All),
    ("nodeSelector", All),
    ("affinity", All),
    ("tolerations", All),
    ("topologySpreadConstraints", All),
    ("schedulerName", All),
    ("schedulingGates", All),
    ("priority", All),
    ("priorityClassName", All),
    ("preemptionPolicy", All),
    ("runtimeClassName", All),
    ("overhead", All),
    ("resources", All),
    ("os", All),
    ("hostNetwork", All),
    ("hostPID", All),
    ("hostIPC", All),
    ("hostUsers", All),
    ("hostname", All),
    ("subdomain", All),
    ("setHostnameAsFQDN", All),
    ("hostAliases", All),
    ("dnsPolicy", All),
    ("dnsConfig", All),
    ("restartPolicy", All),
    ("terminationGracePeriodSeconds", All),
    ("activeDeadlineSeconds", All),
    ("serviceAccountName", All),
    ("serviceAccount", All),
    ("automountServiceAccountToken", All),
    ("imagePullSecrets", All),
    ("enableServiceLinks", All),
    ("shareProcessNamespace", All),
    ("securityContext", All),
    ("readinessGates", All),
];

const CONTAINER: &[(&str, Keep)] = &[
    ("name", All),
    ("image", All),
    ("imagePullPolicy", All),
    ("command", Count),
    ("args", Count),
    ("workingDir", All),
    ("ports", All),
    ("env", Fields(VARIABLE)),
    ("envFrom", All),
    ("resources", All),
    ("resizePolicy", All),
    ("restartPolicy", All),
    ("restartPolicyRules", All),
    ("volumeMounts", All),
    ("volumeDevices", All),
    ("livenessProbe", Fields(PROBE)),
    ("readinessProbe", Fields(PROBE)),
    ("startupProbe", Fields(PROBE)),
    ("lifecycle", Fields(&[("postStart", Fields(PROBE)), ("preStop", Fields(PROBE)), ("stopSignal", All)])),
    ("securityContext", All),
    ("stdin", All),
    ("stdinOnce", All),
    ("tty", All),
    ("terminationMessagePath", All),
    ("terminationMessagePolicy", All),
    ("targetContainerName", All),
];

const VARIABLE: &[(&str, Keep)] = &[("name", All), ("value", Presence), ("valueFrom", All)];

const PROBE: &[(&str, Keep)] = &[
    ("exec", Fields(&[("command", Count)])),
    (
        "httpGet",
        Fields(&[("host", All), ("port", All), ("scheme", All), ("path", Presence), ("httpHeaders", Fields(VARIABLE))]),
    ),
    ("tcpSocket", All),
    ("grpc", All),
    ("sleep", All),
    ("initialDelaySeconds", All),
    ("periodSeconds", All),
    ("timeoutSeconds", All),
    ("successThreshold", All),
    ("failureThreshold", All),
    ("terminationGracePeriodSeconds", All),
];

const VOLUME: &[(&str, Keep)] = &[
    ("name", All),
    ("emptyDir", All),
    ("hostPath", All),
    ("configMap", All),
    ("secret", All),
    ("projected", All),
    ("downwardAPI", All),
    ("persistentVolumeClaim", All),
    ("image", All),
    ("nfs", All),
    ("csi", Fields(CSI)),
];

const CSI: &[(&str, Keep)] =
    &[("driver", All), ("fsType", All), ("readOnly", All), ("volumeAttributes", Keys), ("nodePublishSecretRef", All)];

const POD_STATUS: &[(&str, Keep)] = &[
    ("phase", All),
    ("reason", All),
    ("message", All),
    ("conditions", All),
    ("qosClass", All),
    ("startTime", All),
    ("podIP", All),
    ("podIPs", All),
    ("hostIP", All),
    ("hostIPs", All),
    ("nominatedNodeName", All),
    ("observedGeneration", All),
    ("resize", All),
    ("resources", All),
    ("containerStatuses", Fields(CONTAINER_STATUS)),
    ("initContainerStatuses", Fields(CONTAINER_STATUS)),
    ("ephemeralContainerStatuses", Fields(CONTAINER_STATUS)),
];

const CONTAINER_STATUS: &[(&str, Keep)] = &[
    ("name", All),
    ("image", All),
    ("imageID", All),
    ("containerID", All),
    ("ready", All),
    ("started", All),
    ("restartCount", All),
    ("resources", All),
    ("allocatedResources", All),
    ("volumeMounts", All),
    ("user", All),
    ("stopSignal", All),
    ("state", Fields(CONTAINER_STATE)),
    ("lastState", Fields(CONTAINER_STATE)),
];

const CONTAINER_STATE: &[(&str, Keep)] = &[
    ("running", All),
    ("waiting", Fields(&[("reason", All), ("message", Presence)])),
    // The last output of a program, of a hook or of a probe.
    (
        "terminated",
        Fields(&[
            ("exitCode", All),
            ("signal", All),
            ("reason", All),
            ("message", Presence),
            ("startedAt", All),
            ("finishedAt", All),
            ("containerID", All),
        ]),
    ),
];

/// Redacts a pod: values of environment variables, commands, annotations, volume attributes, and output of programs.
/// Names, keys and counts remain.
#[must_use]
pub fn pod(pod: Value) -> Value {
    kept(pod, Fields(POD))
}

fn kept(value: Value, keep: Keep) -> Value {
    match (keep, value) {
        (All, value) => value,
        (_, Value::Null) => Value::Null,
        (Fields(fields), Value::Object(mut object)) => {
            let known =
                fields.iter().filter_map(|(name, keep)| Some(((*name).to_owned(), kept(object.remove(*name)?, *keep))));
            Value::Object(known.collect())
        }
        (Fields(_), Value::Array(items)) => items.into_iter().map(|item| kept(item, keep)).collect(),
        (Keys, Value::Object(map)) => {
            map.into_iter().map(|(key, _)| (key, json!(WITHHELD))).collect::<Map<_, _>>().into()
        }
        (Count, Value::Array(words)) => json!([format!("({} words withheld)", words.len())]),
        // A value of another shape than the API's is dropped.
        (Presence | Keys | Count | Fields(_), _) => json!(WITHHELD),
    }
}

/// Redacts an object of any kind, or a list of them; for pods see [`pod`].
pub fn object(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(object),
        Value::Object(fields) => {
            hide_output(fields);
            for (key, field) in fields.iter_mut() {
                match key.as_str() {
                    "env" | "httpHeaders" => hide_values(field),
                    "command" | "args" => *field = kept(field.take(), Count),
                    "annotations" | "data" | "stringData" | "binaryData" | "volumeAttributes" => {
                        *field = kept(field.take(), Keys);
                    }
                    "httpGet" => {
                        hide(field, "path");
                        object(field);
                    }
                    "terminated" | "waiting" => {
                        hide(field, "message");
                        object(field);
                    }
                    _ => object(field),
                }
            }
        }
        _ => {}
    }
}

/// Events of probes and hooks contain the output of the command.
fn hide_output(event: &mut Map<String, Value>) {
    let reason = event.get("reason").and_then(Value::as_str).unwrap_or("");
    let is_output = matches!(reason, "Unhealthy" | "ProbeWarning" | "ProbeError")
        || reason.ends_with("Hook")
        || reason.ends_with("HookError");
    for key in ["message", "note"] {
        if let Some(message) = event.get_mut(key).filter(|_| is_output) {
            *message = json!(WITHHELD);
        }
    }
}

/// Redacts a list of names with values; a reference to another object is no secret.
fn hide_values(list: &mut Value) {
    for entry in list.as_array_mut().into_iter().flatten() {
        hide(entry, "value");
    }
}

fn hide(object: &mut Value, key: &str) {
    if let Some(value) = object.get_mut(key) {
        *value = json!(WITHHELD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod with `hunter2` in each place where somebody may write a secret.
    fn secretive() -> Value {
        let container = json!({
            "name": "c", "image": "i", "command": ["sh", "-c", "echo hunter2"], "args": ["--password=hunter2"],
            "env": [{"name": "A", "value": "hunter2"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            "livenessProbe": {"httpGet": {"path": "/?token=hunter2", "port": 80,
                "httpHeaders": [{"name": "Authorization", "value": "hunter2"}]}},
            "readinessProbe": {"exec": {"command": ["hunter2"]}, "periodSeconds": 3},
            "lifecycle": {"preStop": {"exec": {"command": ["hunter2"]}}, "postStart": {"httpGet": {"path": "hunter2"}}},
            "fieldOfLater": "hunter2",
        });
        json!({
            "metadata": {"name": "web", "labels": {"app": "web"}, "managedFields": ["hunter2"],
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "hunter2"}},
            "spec": {
                "containers": [container], "initContainers": [container], "ephemeralContainers": [container],
                "volumes": [{"name": "v", "csi": {"driver": "d", "volumeAttributes": {"password": "hunter2"}}},
                    {"name": "w", "flexVolume": {"options": {"password": "hunter2"}}}],
                "fieldOfLater": "hunter2",
            },
            "status": {"phase": "Running", "containerStatuses": [{
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "hunter2"}},
                "lastState": {"terminated": {"exitCode": 2, "message": "hunter2"}},
            }]},
        })
    }

    #[test]
    fn of_a_pod_only_what_is_known_is_kept() {
        let text = pod(secretive()).to_string();
        assert!(!text.contains("hunter2"), "{text}");
        for kept in [
            "\"web\"",
            "\"app\"",
            "\"A\"",
            "secretKeyRef",
            "Authorization",
            "\"exitCode\":2",
            "CrashLoopBackOff",
            "(3 words withheld)",
            "last-applied-configuration",
            "\"password\"",
            "\"periodSeconds\":3",
            "\"port\":80",
        ] {
            assert!(text.contains(kept), "{kept} is gone: {text}");
        }
    }

    #[test]
    fn what_has_no_shape_of_the_api_is_withheld() {
        let odd = json!({"metadata": "hunter2", "spec": {"containers": ["hunter2"]}, "status": ["hunter2"]});
        assert!(!pod(odd).to_string().contains("hunter2"));
    }

    #[test]
    fn of_other_kinds_what_is_known_to_be_secret_goes() {
        let mut list = json!({"items": [
            {"spec": {"template": secretive()}},
            {"kind": "Secret", "data": {"k": "hunter2"}, "stringData": {"k": "hunter2"}},
            {"kind": "ConfigMap", "binaryData": {"k": "hunter2"}},
            {"reason": "Unhealthy", "message": "Readiness probe failed: hunter2", "type": "Warning"},
            {"reason": "FailedPostStartHook", "message": "hunter2"},
            {"reason": "FailedPreStopHook", "note": "hunter2"},
            {"reason": "FailedScheduling", "message": "0/1 nodes are available"},
        ]});
        for pods in list["items"].as_array_mut().unwrap() {
            // Fields that only the list of allowed ones leaves out.
            if let Some(template) = pods["spec"].get_mut("template") {
                template["spec"].as_object_mut().unwrap().remove("fieldOfLater");
                template["spec"].as_object_mut().unwrap().remove("volumes");
                template["metadata"].as_object_mut().unwrap().remove("managedFields");
                for key in ["containers", "initContainers", "ephemeralContainers"] {
                    template["spec"][key][0].as_object_mut().unwrap().remove("fieldOfLater");
                }
            }
        }
        object(&mut list);
        let text = list.to_string();
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("0/1 nodes are available") && text.contains("Unhealthy"), "{text}");
    }
}
