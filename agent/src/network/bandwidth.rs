//! Bandwidth limits of pods: token bucket filters (`tc ... tbf`) for what they receive and for what they send.

use std::time::Duration;

use windlass_kit::{
    external_program::Program,
    pod_interface::{host_interface, limiter_interface},
    quantity::Quantity,
};

use super::{NetworkError, links::Links};

/// Bits per second; `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// Toward the pod.
    pub ingress: Option<u64>,
    /// From the pod.
    pub egress: Option<u64>,
}

/// Upstream's bounds in bits per second.
const MIN_RATE: u64 = 1_000;
const MAX_RATE: u64 = 1_000_000_000_000_000;

/// The queueing discipline of what comes in has this handle.
const INGRESS: &str = "ffff:";
/// And the one filter of it, which matches all; with a handle it is replaced, not made again.
const FILTER: &str = "800::800";
/// A `tc` that takes longer hangs, and is killed.
const LIMIT: Duration = Duration::from_secs(30);
/// Packets that would be queued longer are dropped.
const LATENCY: &str = "50ms";
/// The smallest bucket: a large packet must fit whatever the rate.
const MIN_BURST_BYTES: u64 = 64 << 10;

impl Bandwidth {
    /// Parses the values of the bandwidth annotations, such as `10M`.
    ///
    /// # Errors
    /// Names the value that is no quantity or out of bounds.
    pub fn read(ingress: Option<&str>, egress: Option<&str>) -> Result<Self, String> {
        let one = |text: &str| {
            let bits = text.parse::<Quantity>().ok().and_then(|q| u64::try_from(q.units()).ok());
            bits.filter(|b| (MIN_RATE..=MAX_RATE).contains(b))
                .ok_or_else(|| format!("bandwidth {text:?} must be a quantity of bits per second between 1k and 1P"))
        };
        Ok(Self { ingress: ingress.map(one).transpose()?, egress: egress.map(one).transpose()? })
    }
}

/// Applies a pod's bandwidth limits, both on the host, where a pod that may change its own interfaces cannot remove
/// them: egress is redirected through an ifb device, as by the CNI plugin bandwidth.
pub(super) async fn apply(links: &Links, pod_uid: &str, bandwidth: Bandwidth) -> Result<(), NetworkError> {
    let interface = host_interface(pod_uid);
    let limited = async {
        if let Some(bits) = bandwidth.ingress {
            limit(&interface, bits).await?;
        }
        let Some(bits) = bandwidth.egress else { return Ok(()) };
        links.make_limiter(pod_uid).await?;
        let limiter = limiter_interface(pod_uid);
        limit(&limiter, bits).await?;
        tc(&["qdisc", "replace", "dev", &interface, "handle", INGRESS, "ingress"]).await?;
        let to_limiter = ["mirred", "egress", "redirect", "dev", &limiter];
        let filter = ["filter", "replace", "dev", &interface, "parent", INGRESS, "pref", "1", "handle", FILTER];
        tc(&[&filter[..], &["protocol", "all", "u32", "match", "u32", "0", "0", "action"], &to_limiter].concat()).await
    };
    limited.await.map_err(|why: String| NetworkError::new("the pod's bandwidth could not be limited", why))
}

/// Sets a token bucket filter on an interface.
async fn limit(interface: &str, bits: u64) -> Result<(), String> {
    // A tenth of a second at the full rate, so that short bursts are not delayed.
    let burst = (bits / 80).clamp(MIN_BURST_BYTES, u64::from(u32::MAX) / 2);
    let (rate, burst) = (format!("{bits}bit"), format!("{burst}b"));
    let filter = ["root", "tbf", "rate", &rate, "burst", &burst, "latency", LATENCY];
    tc(&[&["qdisc", "replace", "dev", interface][..], &filter].concat()).await
}

async fn tc(args: &[&str]) -> Result<(), String> {
    let failed = |why: String| format!("tc {}: {why}", args.join(" "));
    let call = Program::new("tc", LIMIT).args(args).run().await;
    let output = call.map_err(|e| failed(format!("{e}; is the package iproute2 installed?")))?;
    if output.status.success() { Ok(()) } else { Err(failed(output.stderr())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_quantities_in_bounds() {
        let read = Bandwidth::read(Some("10M"), None).unwrap();
        assert_eq!((read.ingress, read.egress), (Some(10_000_000), None));
        assert_eq!(Bandwidth::read(None, Some("1k")).unwrap().egress, Some(1000));
        for wrong in ["fast", "-1", "0", "999", "2P"] {
            assert!(Bandwidth::read(Some(wrong), None).is_err(), "{wrong}");
        }
    }
}
