//! The ranges of addresses of this node's pods, where their network is our own: kept in a file, given by the API, and
//! changed when the Node was made anew with others. Nothing waits here but pods that need an address.

use std::{path::Path, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kit::{atomic_file, backoff::Backoff, net::Cidr};

use crate::network::{Network, Readiness};

/// Reads `10.244.0.0/24,fd00::/64`: IPv4 first, one of a family at most, each with room for pods.
#[must_use]
pub fn parse_ranges(text: &str) -> Option<Vec<Cidr>> {
    let mut ranges = text.split(',').map(|t| Cidr::parse(t.trim())).collect::<Option<Vec<Cidr>>>()?;
    ranges.sort_by_key(Cidr::family);
    let roomy = |r: &Cidr| r.length() >= 1 && r.length() <= r.family().bits() - 2;
    let apart = ranges.windows(2).all(|pair| pair[0].family() != pair[1].family());
    (apart && ranges.iter().all(roomy)).then_some(ranges)
}

/// What the API gives the node, as the Node has it.
fn given(node: &Node) -> Option<String> {
    let spec = node.spec.as_ref()?;
    let all = spec.pod_cidrs.as_ref().filter(|all| !all.is_empty());
    all.map(|all| all.join(",")).or_else(|| spec.pod_cidr.clone()).filter(|text| !text.is_empty())
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Decision {
    /// Pods get addresses of these.
    Use(Vec<Cidr>),
    /// No pod gets one, and why.
    Wait(String),
}

/// Decides by what is `kept`, which is in use where pods `hold` addresses of it, and by what the API gives.
fn decide(kept: Option<&[Cidr]>, hold: bool, given: Option<&str>) -> Decision {
    let show = |ranges: &[Cidr]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let Some(text) = given else {
        // Nobody takes a range away by saying nothing: the API may be away, or the Node just made anew.
        return kept.map_or_else(
            || {
                Decision::Wait(
                    "the node was given no range of addresses for its pods (spec.podCIDR): have \
                     kube-controller-manager give them with --allocate-node-cidrs, or set network to cni"
                        .to_owned(),
                )
            },
            |kept| Decision::Use(kept.to_vec()),
        );
    };
    match (parse_ranges(text), kept) {
        (None, _) => Decision::Wait(format!(
            "the node was given {text:?} for its pods (spec.podCIDR), which is not one range of each family with room for pods"
        )),
        (Some(ranges), Some(kept)) if ranges != kept && hold => Decision::Wait(format!(
            "the node was given {} for its pods (spec.podCIDR), and pods still have addresses of {}, which may be another node's by now: delete those pods",
            show(&ranges),
            show(kept)
        )),
        (Some(ranges), _) => Decision::Use(ranges),
    }
}

fn read(file: &Path) -> Option<Vec<Cidr>> {
    std::fs::read_to_string(file).ok().and_then(|text| parse_ranges(text.trim()))
}

/// Gives pods addresses of the ranges of an earlier start, if there was one; what fails is told
/// and tried again by [`keep`].
pub async fn use_kept(network: &Network, file: &Path) {
    if let Some(kept) = read(file)
        && network.use_ranges(&kept).await.is_ok()
    {
        network.tell(Readiness::Ready);
    }
}

/// Keeps the network of pods at the ranges of `file` and of the API, until `shutdown`.
pub async fn keep(
    network: Network,
    file: &Path,
    mut node: watch::Receiver<Option<Arc<Node>>>,
    shutdown: CancellationToken,
) {
    let mut kept = read(file);
    let mut holds = network.holds();
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
    let mut said = String::new();
    loop {
        let given = node.borrow_and_update().as_deref().and_then(given);
        let hold = *holds.borrow_and_update();
        let mut retry = None;
        match decide(kept.as_deref(), hold, given.as_deref()) {
            Decision::Use(ranges) => match network.use_ranges(&ranges).await {
                Ok(()) => {
                    if kept.as_ref() != Some(&ranges) {
                        write(file, &ranges);
                    }
                    kept = Some(ranges);
                    said.clear();
                    backoff.reset();
                    network.tell(Readiness::Ready);
                }
                Err(error) => {
                    let error = error.to_string();
                    if said != error {
                        tracing::error!(%error, "the network of pods could not be set up; it is tried again");
                    }
                    network.tell(Readiness::not_ready(&error));
                    said = error;
                    retry = Some(backoff.next_delay());
                }
            },
            Decision::Wait(why) => {
                // Said where it is not only a matter of a moment.
                if said != why && node.borrow().is_some() && (kept.is_some() || given.is_some()) {
                    tracing::error!("{why}; pods with a network of their own wait");
                }
                network.tell(Readiness::not_ready(&why));
                said = why;
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
            changed = holds.changed() => if changed.is_err() { return shutdown.cancelled().await },
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
        tracing::warn!(%error, file = %file.display(), "the range of pods could not be kept; the next start asks again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(text: &str) -> Vec<Cidr> {
        parse_ranges(text).unwrap()
    }

    #[test]
    fn ranges_are_one_of_each_family() {
        assert_eq!(ranges("fd00::/64, 10.244.0.0/24"), ranges("10.244.0.0/24,fd00::/64"));
        for wrong in ["", "10.244.0.0/24,10.244.1.0/24", "10.244.0.0/31", "here"] {
            assert_eq!(parse_ranges(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_the_api_gives_is_used_unless_pods_hold_something_else() {
        const OLD: &str = "10.244.0.0/24";
        const NEW: &str = "10.244.1.0/24";
        for (kept, hold, given, wanted) in [
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
            let kept = kept.map(ranges);
            match (decide(kept.as_deref(), hold, given), wanted) {
                (Decision::Use(used), Ok(wanted)) => assert_eq!(used, ranges(wanted), "{kept:?} {hold} {given:?}"),
                (Decision::Wait(why), Err(words)) => assert!(why.contains(words), "{words}: {why}"),
                (decision, _) => panic!("{kept:?} {hold} {given:?}: {decision:?}"),
            }
        }
    }

    #[test]
    fn a_node_says_what_it_was_given_in_two_ways() {
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
            assert_eq!(given(&node).as_deref(), wanted);
        }
    }
}
