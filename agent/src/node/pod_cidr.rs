//! The node's pod CIDRs for the built-in network: saved in a file, assigned by the API (`spec.podCIDRs`), and replaced
//! when the Node was recreated with others. Only pods that need an address wait for them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kit::{atomic_file, backoff::Backoff, net::Cidr};

use crate::network::{Network, Readiness};

/// The file of the saved pod CIDRs.
#[must_use]
pub fn saved_file(data_dir: &Path) -> PathBuf {
    data_dir.join("pod-cidr")
}

/// Reads `10.244.0.0/24,fd00::/64`: IPv4 first, one of a family at most, each with room for pods.
#[must_use]
pub fn parse_pod_cidrs(text: &str) -> Option<Vec<Cidr>> {
    let mut ranges = text.split(',').map(|t| Cidr::parse(t.trim())).collect::<Option<Vec<Cidr>>>()?;
    ranges.sort_by_key(Cidr::family);
    let roomy = |r: &Cidr| r.length() >= 1 && r.length() <= r.family().bits() - 2;
    let apart = ranges.windows(2).all(|pair| pair[0].family() != pair[1].family());
    (apart && ranges.iter().all(roomy)).then_some(ranges)
}

/// The pod CIDRs that the API assigns, from `spec.podCIDRs` or `spec.podCIDR`.
fn assigned(node: &Node) -> Option<String> {
    let spec = node.spec.as_ref()?;
    let all = spec.pod_cidrs.as_ref().filter(|all| !all.is_empty());
    all.map(|all| all.join(",")).or_else(|| spec.pod_cidr.clone()).filter(|text| !text.is_empty())
}

/// The decision on the pod network's ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Decision {
    /// Use these.
    Use(Vec<Cidr>),
    /// Keep pods waiting, and why.
    Wait(String),
}

/// Decides by the saved ranges, whether pods use addresses of them, and the assigned ranges.
fn decide(saved: Option<&[Cidr]>, in_use: bool, assigned: Option<&str>) -> Decision {
    let show = |ranges: &[Cidr]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let Some(text) = assigned else {
        // A missing assignment revokes nothing: the API may be away, or the Node just recreated.
        return saved.map_or_else(
            || {
                Decision::Wait(
                    "the node was given no range of addresses for its pods (spec.podCIDR): have \
                     kube-controller-manager give them with --allocate-node-cidrs, or set network to cni"
                        .to_owned(),
                )
            },
            |saved| Decision::Use(saved.to_vec()),
        );
    };
    match (parse_pod_cidrs(text), saved) {
        (None, _) => Decision::Wait(format!(
            "the node was given {text:?} for its pods (spec.podCIDR), which is not one range of each family with room for pods"
        )),
        (Some(ranges), Some(saved)) if ranges != saved && in_use => Decision::Wait(format!(
            "the node was given {} for its pods (spec.podCIDR), and pods still have addresses of {}, which may be another node's by now: delete those pods",
            show(&ranges),
            show(saved)
        )),
        (Some(ranges), _) => Decision::Use(ranges),
    }
}

fn read(file: &Path) -> Option<Vec<Cidr>> {
    std::fs::read_to_string(file).ok().and_then(|text| parse_pod_cidrs(text.trim()))
}

/// Uses the saved ranges of an earlier process; failures are reported and retried by [`sync`].
pub async fn use_saved(network: &Network, file: &Path) {
    if let Some(saved) = read(file)
        && network.use_ranges(&saved).await.is_ok()
    {
        network.set_readiness(Readiness::Ready);
    }
}

/// Applies the ranges of `file` and of the API to the pod network, until `shutdown`.
pub async fn sync(
    network: Network,
    file: &Path,
    mut node: watch::Receiver<Option<Arc<Node>>>,
    shutdown: CancellationToken,
) {
    let mut saved = read(file);
    let mut addresses_in_use = network.addresses_in_use();
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
    let mut last_error = String::new();
    loop {
        let assigned = node.borrow_and_update().as_deref().and_then(assigned);
        let in_use = *addresses_in_use.borrow_and_update();
        let mut retry = None;
        match decide(saved.as_deref(), in_use, assigned.as_deref()) {
            Decision::Use(ranges) => match network.use_ranges(&ranges).await {
                Ok(()) => {
                    if saved.as_ref() != Some(&ranges) {
                        write(file, &ranges);
                    }
                    saved = Some(ranges);
                    last_error.clear();
                    backoff.reset();
                    network.set_readiness(Readiness::Ready);
                }
                Err(error) => {
                    let error = error.to_string();
                    if last_error != error {
                        tracing::error!(%error, "failed to set up the pod network; retrying");
                    }
                    network.set_readiness(Readiness::not_ready(&error));
                    last_error = error;
                    retry = Some(backoff.next_delay());
                }
            },
            Decision::Wait(why) => {
                // Logged only if it is not about to change.
                if last_error != why && node.borrow().is_some() && (saved.is_some() || assigned.is_some()) {
                    tracing::error!("{why}; pods with a network of their own wait");
                }
                network.set_readiness(Readiness::not_ready(&why));
                last_error = why;
            }
        }
        let again = async {
            match retry {
                Some(delay) => tokio::time::sleep(delay).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = node.changed() => if changed.is_err() { return shutdown.cancelled().await },
            changed = addresses_in_use.changed() => if changed.is_err() { return shutdown.cancelled().await },
            () = again => {}
        }
    }
}

fn write(file: &Path, ranges: &[Cidr]) {
    let text = ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",") + "\n";
    if let Some(parent) = file.parent() {
        let _ = std::fs::create_dir_all(parent);
    }
    if let Err(error) = atomic_file::write(file, text.as_bytes(), 0o600) {
        tracing::warn!(%error, file = %file.display(), "failed to save pod CIDRs; the next start waits for the API");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(text: &str) -> Vec<Cidr> {
        parse_pod_cidrs(text).unwrap()
    }

    #[test]
    fn one_range_of_each_family() {
        assert_eq!(ranges("fd00::/64, 10.244.0.0/24"), ranges("10.244.0.0/24,fd00::/64"));
        for wrong in ["", "10.244.0.0/24,10.244.1.0/24", "10.244.0.0/31", "here"] {
            assert_eq!(parse_pod_cidrs(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn assigned_ranges_are_used_unless_pods_use_others() {
        const OLD: &str = "10.244.0.0/24";
        const NEW: &str = "10.244.1.0/24";
        for (saved, in_use, assigned, wanted) in [
            (None, false, None, Err("given no range")),
            (None, false, Some(NEW), Ok(NEW)),
            (Some(OLD), true, None, Ok(OLD)),
            (Some(OLD), false, None, Ok(OLD)),
            (Some(OLD), true, Some(OLD), Ok(OLD)),
            (Some(OLD), false, Some(NEW), Ok(NEW)),
            (Some(OLD), true, Some(NEW), Err("pods still have addresses of 10.244.0.0/24")),
            (Some(OLD), false, Some("here"), Err("not one range of each family")),
            (Some(OLD), true, Some("10.244.0.0/24,fd00::/64"), Err("pods still have addresses")),
        ] {
            let saved = saved.map(ranges);
            match (decide(saved.as_deref(), in_use, assigned), wanted) {
                (Decision::Use(used), Ok(wanted)) => {
                    assert_eq!(used, ranges(wanted), "{saved:?} {in_use} {assigned:?}")
                }
                (Decision::Wait(why), Err(words)) => assert!(why.contains(words), "{words}: {why}"),
                (decision, _) => panic!("{saved:?} {in_use} {assigned:?}: {decision:?}"),
            }
        }
    }

    #[test]
    fn assigned_ranges_of_a_node() {
        for (spec, wanted) in [
            (serde_json::json!({}), None),
            (serde_json::json!({"podCIDR": ""}), None),
            (serde_json::json!({"podCIDR": "10.0.0.0/24"}), Some("10.0.0.0/24")),
            (
                serde_json::json!({"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "fd00::/64"]}),
                Some("10.0.0.0/24,fd00::/64"),
            ),
        ] {
            let node: Node = serde_json::from_value(serde_json::json!({"spec": spec})).unwrap();
            assert_eq!(assigned(&node).as_deref(), wanted);
        }
    }
}
