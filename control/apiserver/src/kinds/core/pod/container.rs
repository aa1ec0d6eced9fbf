//! Resolves the container and the node that a pod subresource is about.

use serde_json::Value;

use crate::{
    apiserver::{ApiError, ApiRequest, KubeletClient, Target},
    store::Key,
};

/// The kubelet client and the pod's node.
///
/// # Errors
/// When the pod has no node, or the node is not known.
pub(super) fn node_of<'a>(
    request: &ApiRequest,
    kubelet: Option<&'a KubeletClient>,
    target: &Target,
    pod: &Value,
) -> Result<(&'a KubeletClient, Value), ApiError> {
    let name = target.name();
    let node = pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty());
    let node = node.ok_or_else(|| ApiError::bad_request(format!("pod {name} does not have a host assigned")))?;
    let key = Key { namespace: String::new(), name: node.to_owned() };
    let found = request.store().get(request.store().resource("nodes"), &key);
    // As upstream: the node's name, under the resource of the request.
    let node = found.ok_or_else(|| ApiError::not_found(&target.version, node))?.value();
    Ok((kubelet.ok_or_else(|| ApiError::internal("this server has no credentials for nodes"))?, node))
}

/// The requested container. Without a name the pod must have exactly one container besides init and ephemeral ones.
pub(super) fn pick_container(pod: &Value, name: &str, wanted: &str) -> Result<String, ApiError> {
    let names = |key: &str| -> Vec<String> {
        pod["spec"][key]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|c| c["name"].as_str().map(str::to_owned))
            .collect()
    };
    let (main, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    if wanted.is_empty() {
        if let [one] = main.as_slice() {
            return Ok(one.clone());
        }
        let mut why = format!("a container name must be specified for pod {name}, choose one of: [{}]", main.join(" "));
        for (kind, names) in [("init", init), ("ephemeral", ephemeral)] {
            if !names.is_empty() {
                why.push_str(&format!(" or one of the {kind} containers: [{}]", names.join(" ")));
            }
        }
        return Err(ApiError::bad_request(why));
    }
    if main.iter().chain(&init).chain(&ephemeral).any(|n| n == wanted) {
        Ok(wanted.to_owned())
    } else {
        Err(ApiError::bad_request(format!("container {wanted} is not valid for pod {name}")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_container_that_is_meant() {
        let pod = json!({"spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}],
            "ephemeralContainers": [{"name": "e"}]}});
        assert_eq!(pick_container(&pod, "p", "").unwrap(), "a");
        for name in ["a", "i", "e"] {
            assert_eq!(pick_container(&pod, "p", name).unwrap(), name);
        }
        assert_eq!(pick_container(&pod, "p", "x").unwrap_err().code, 400);
        let mut two = pod.clone();
        two["spec"]["containers"] = json!([{"name": "a"}, {"name": "b"}]);
        assert_eq!(
            pick_container(&two, "p", "").unwrap_err().to_string(),
            "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i] \
             or one of the ephemeral containers: [e]"
        );
    }
}
