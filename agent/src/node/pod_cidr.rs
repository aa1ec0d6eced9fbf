//! The node's pod CIDRs for the built-in network: saved in a file, assigned by the API (`spec.podCIDRs`), and replaced
//! when the Node was recreated with others. Only pods that need an address wait for them.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kit::{atomic_file, backoff::Backoff, net::Cidr};

use crate::known::Known;
use crate::network::{Network, Readiness, foreign_ranges};

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
    /// The same for as long as addresses outside of these ranges are in use.
    WaitForPods(Vec<Cidr>, String),
}

/// What was saved of an earlier process: `None` when there is nothing.
type Saved = Known<Option<Vec<Cidr>>>;

/// Decides by the saved ranges, those of the addresses that pods have, and the assigned ones. What is not known is never
/// taken for none.
fn decide(saved: &Saved, in_use: &Known<BTreeSet<Cidr>>, assigned: Option<&str>) -> Decision {
    let in_use = match in_use {
        Known::Is(ranges) => ranges,
        Known::Unknown(why) => {
            return Decision::Wait(format!("which addresses pods have is not known: {why}"));
        }
    };
    let Some(text) = assigned else {
        // A missing assignment revokes nothing: the API may be away, or the Node just recreated.
        return match (saved, parse_pod_cidrs(&show(in_use))) {
            (Known::Is(Some(saved)), _) => Decision::Use(saved.clone()),
            // The file was lost, and pods run.
            (_, Some(ranges)) => Decision::Use(ranges),
            (Known::Unknown(why), None) => {
                Decision::Wait(format!("the ranges of addresses that the node had for its pods are not known: {why}"))
            }
            (Known::Is(None), None) => Decision::Wait(
                "the node was given no range of addresses for its pods (spec.podCIDR): have \
                 kube-controller-manager give them with --allocate-node-cidrs, or set network to cni"
                    .to_owned(),
            ),
        };
    };
    let Some(ranges) = parse_pod_cidrs(text) else {
        return Decision::Wait(format!(
            "the node was given {text:?} for its pods (spec.podCIDR), which is not one range of each family with room for pods"
        ));
    };
    let foreign: Vec<&Cidr> = foreign_ranges(in_use, &ranges).collect();
    if foreign.is_empty() {
        return Decision::Use(ranges);
    }
    let why = format!(
        "the node was given {} for its pods (spec.podCIDR), and pods still have addresses of {}, which may be another node's by now: delete those pods",
        show(&ranges),
        show(foreign)
    );
    Decision::WaitForPods(ranges, why)
}

fn show<'a>(ranges: impl IntoIterator<Item = &'a Cidr>) -> String {
    ranges.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn read(file: &Path) -> Saved {
    let text = match atomic_file::read(file) {
        Ok(Some(text)) => text,
        Ok(None) => return Known::Is(None),
        Err(error) => return Known::Unknown(format!("{} cannot be read: {error}", file.display())),
    };
    match parse_pod_cidrs(text.trim()) {
        Some(ranges) => Known::Is(Some(ranges)),
        None => Known::Unknown(format!("{} has {text:?}, which is no list of ranges", file.display())),
    }
}

/// Uses the ranges of an earlier process; failures are reported and retried by [`sync`].
pub async fn use_saved(network: &Network, file: &Path) {
    network.read_addresses().await;
    let saved = read(file);
    // Only pods that run say of which range the node's addresses were.
    if saved == Known::Is(None)
        && let Err(error) = network.free_unused(&[]).await
    {
        tracing::warn!(%error, "failed to free addresses that no pod uses; retrying once the API assigns ranges");
    }
    let in_use = network.ranges_in_use().borrow().clone();
    if let Decision::Use(ranges) = decide(&saved, &in_use, None)
        && network.use_ranges(&ranges).await.is_ok()
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
    let mut ranges_in_use = network.ranges_in_use();
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
    let mut last_error = String::new();
    loop {
        let assigned = node.borrow_and_update().as_deref().and_then(assigned);
        let mut in_use = ranges_in_use.borrow_and_update().clone();
        let mut retry = None;
        let mut decision = decide(&saved, &in_use, assigned.as_deref());
        if let Decision::WaitForPods(ranges, _) = &decision {
            // Pods whose sandboxes have ended do not use them any more, though the API still has the pods.
            if let Err(error) = network.free_unused(ranges).await {
                tracing::warn!(%error, "failed to free addresses that no pod uses; retrying");
                retry = Some(backoff.next_delay());
            }
            in_use = ranges_in_use.borrow_and_update().clone();
            decision = decide(&saved, &in_use, assigned.as_deref());
        }
        match decision {
            Decision::Use(ranges) => match network.use_ranges(&ranges).await {
                Ok(()) => {
                    if saved != Known::Is(Some(ranges.clone())) {
                        write(file, &ranges);
                    }
                    saved = Known::Is(Some(ranges));
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
            Decision::Wait(why) | Decision::WaitForPods(_, why) => {
                // Logged only if it is not about to change.
                if last_error != why && node.borrow().is_some() && (saved != Known::Is(None) || assigned.is_some()) {
                    tracing::error!("{why}; pods with a network of their own wait");
                }
                network.set_readiness(Readiness::not_ready(&why));
                last_error = why;
                // What could not be read is read again; a change of it is heard below.
                let unknown = matches!(in_use, Known::Unknown(_)) || matches!(saved, Known::Unknown(_));
                retry = retry.or_else(|| unknown.then(|| backoff.next_delay()));
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
            changed = ranges_in_use.changed() => if changed.is_err() { return shutdown.cancelled().await },
            () = again => {
                network.read_addresses().await;
                if matches!(saved, Known::Unknown(_)) {
                    saved = read(file);
                }
            }
        }
    }
}

fn write(file: &Path, ranges: &[Cidr]) {
    let text = show(ranges) + "\n";
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
        const UNREADABLE: &str = "!";
        let known = |text: &str| match text {
            "" => Known::Is(None),
            UNREADABLE => Known::Unknown("EIO".to_owned()),
            text => Known::Is(Some(text.split(',').map(|one| Cidr::parse(one).unwrap()).collect::<Vec<_>>())),
        };
        for (saved, in_use, assigned, wanted) in [
            ("", "", None, Err("given no range")),
            ("", "", Some(NEW), Ok(NEW)),
            (OLD, OLD, None, Ok(OLD)),
            (OLD, "", None, Ok(OLD)),
            (OLD, OLD, Some(OLD), Ok(OLD)),
            (OLD, "", Some(NEW), Ok(NEW)),
            (OLD, OLD, Some(NEW), Err("pods still have addresses of 10.244.0.0/24")),
            (OLD, "", Some("here"), Err("not one range of each family")),
            // A family more takes nothing from pods that run; one less does.
            (OLD, OLD, Some("10.244.0.0/24,fd00::/64"), Ok("10.244.0.0/24,fd00::/64")),
            ("10.244.0.0/24,fd00::/64", "10.244.0.0/24,fd00::/64", Some(OLD), Err("addresses of fd00::/64")),
            // The saved ranges are lost, and pods run with addresses of them.
            ("", OLD, None, Ok(OLD)),
            ("", OLD, Some(NEW), Err("pods still have addresses of 10.244.0.0/24")),
            (UNREADABLE, OLD, Some(NEW), Err("pods still have addresses of 10.244.0.0/24")),
            (UNREADABLE, OLD, None, Ok(OLD)),
            (UNREADABLE, "", None, Err("EIO")),
            (UNREADABLE, "", Some(NEW), Ok(NEW)),
            // What earlier versions have recorded are addresses without their ranges.
            (OLD, "10.244.0.7/32", Some(OLD), Ok(OLD)),
            (OLD, "10.244.0.7/32", Some(NEW), Err("pods still have addresses of 10.244.0.7/32")),
            ("", "10.244.0.7/32", None, Err("given no range")),
            // It cannot be read which addresses are in use.
            (OLD, UNREADABLE, Some(NEW), Err("EIO")),
            (OLD, UNREADABLE, Some(OLD), Err("EIO")),
            (OLD, UNREADABLE, None, Err("EIO")),
        ] {
            let in_use = match known(in_use) {
                Known::Is(ranges) => Known::Is(ranges.into_iter().flatten().collect()),
                Known::Unknown(why) => Known::Unknown(why),
            };
            match (decide(&known(saved), &in_use, assigned), wanted) {
                (Decision::Use(used), Ok(wanted)) => {
                    assert_eq!(used, ranges(wanted), "{saved:?} {in_use:?} {assigned:?}")
                }
                (Decision::Wait(why) | Decision::WaitForPods(_, why), Err(words)) => {
                    assert!(why.contains(words), "{words}: {why}")
                }
                (decision, _) => panic!("{saved:?} {in_use:?} {assigned:?}: {decision:?}"),
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_one_that_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = saved_file(dir.path());
        assert_eq!(read(&file), Known::Is(None));
        write(&file, &ranges("10.244.0.0/24,fd00::/64"));
        assert_eq!(read(&file), Known::Is(Some(ranges("10.244.0.0/24,fd00::/64"))));
        for damaged in ["", "\0\0\0\0", "10.244.0"] {
            std::fs::write(&file, damaged).unwrap();
            assert!(matches!(read(&file), Known::Unknown(_)), "{damaged:?}");
        }
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(matches!(read(&file), Known::Unknown(_)));
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
