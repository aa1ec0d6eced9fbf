//! Which pods the node rejects while it is under pressure. Pure; rules and words are upstream's eviction manager's.

use k8s_openapi::api::core::v1::Pod;
use windlass_kit::objects::resources::{Class, class_of};

use crate::{
    Pressure,
    pods::lifecycle::{kill::KillReason, reasons, spec},
};

const MEMORY_TAINT: &str = "node.kubernetes.io/memory-pressure";

/// Why a pod is rejected under this pressure, if it is.
pub(super) fn reject(pod: &Pod, pressure: Pressure) -> Option<KillReason> {
    let pod_spec = pod.spec.as_ref()?;
    let all = [(pressure.memory, "MemoryPressure"), (pressure.disk, "DiskPressure"), (pressure.pid, "PIDPressure")];
    let under: Vec<&str> = all.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
    if under.is_empty() || spec::is_critical(pod) {
        return None;
    }
    if under == ["MemoryPressure"] {
        // A pod that requests memory was promised it; a best-effort pod may tolerate the pressure.
        let tolerates = pod_spec.tolerations.iter().flatten().any(|t| {
            let key = t.key.as_deref().filter(|key| !key.is_empty());
            let exists = t.operator.as_deref() == Some("Exists");
            key.map_or(exists, |key| key == MEMORY_TAINT && (exists || t.value.as_deref().unwrap_or("").is_empty()))
                && t.effect.as_deref().is_none_or(|effect| effect.is_empty() || effect == "NoSchedule")
        });
        if class_of(pod) != Class::BestEffort || tolerates {
            return None;
        }
    }
    let message = format!("Pod was rejected: The node had condition: [{}]. ", under.join(", "));
    Some(KillReason { reason: reasons::EVICTED.to_owned(), message, grace: None, disruption: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_begun() {
        let pod = |spec: &str| -> Pod { serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap() };
        let best_effort = pod(r#"{"containers":[{"name":"c"}]}"#);
        let promised = pod(r#"{"containers":[{"name":"c","resources":{"requests":{"memory":"1Mi"}}}]}"#);
        let system = pod(r#"{"priority":2000000000,"containers":[{"name":"c"}]}"#);
        let tolerant =
            |toleration: &str| pod(&format!(r#"{{"containers":[{{"name":"c"}}],"tolerations":[{toleration}]}}"#));
        let named =
            tolerant(r#"{"key":"node.kubernetes.io/memory-pressure","operator":"Exists","effect":"NoSchedule"}"#);
        let everything = tolerant(r#"{"operator":"Exists"}"#);
        let other =
            tolerant(r#"{"key":"node.kubernetes.io/memory-pressure","operator":"Exists","effect":"NoExecute"}"#);
        let calm = Pressure::default();
        let memory = Pressure { memory: true, ..calm };
        let disk = Pressure { disk: true, ..calm };
        let both = Pressure { memory: true, pid: true, ..calm };
        for (pod, pressure, words) in [
            (&best_effort, calm, None),
            (&best_effort, memory, Some("[MemoryPressure]")),
            (&other, memory, Some("[MemoryPressure]")),
            (&named, memory, None),
            (&everything, memory, None),
            (&promised, memory, None),
            (&promised, disk, Some("[DiskPressure]")),
            (&everything, disk, Some("[DiskPressure]")),
            (&promised, both, Some("[MemoryPressure, PIDPressure]")),
            (&system, both, None),
        ] {
            let message = reject(pod, pressure).map(|refused| refused.message);
            let wanted = words.map(|words| format!("Pod was rejected: The node had condition: {words}. "));
            assert_eq!(message, wanted, "{pressure:?}");
        }
    }
}
