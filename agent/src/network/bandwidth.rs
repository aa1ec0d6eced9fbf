//! Bandwidth limits of pods: a token bucket filter (`tc ... tbf`) on each end of the veth pair.

use std::process::Command;

use windlass_kit::{blocking::NETWORK, quantity::Quantity};

use super::{NetworkError, netns::NetworkNamespace};

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

/// Applies a pod's bandwidth limits to its veth pair.
pub(super) async fn apply(
    interface: String,
    pod_interface: &'static str,
    namespace: &NetworkNamespace,
    bandwidth: Bandwidth,
) -> Result<(), NetworkError> {
    let limited = async {
        if let Some(bits) = bandwidth.ingress {
            NETWORK.run(move || limit(&interface, bits), |error| error.to_string()).await?;
        }
        let Some(bits) = bandwidth.egress else { return Ok(()) };
        namespace.run(move || limit(pod_interface, bits)).await.map_err(|e| e.to_string())?
    };
    limited.await.map_err(|why: String| NetworkError::new("the pod's bandwidth could not be limited", why))
}

/// Sets a token bucket filter on an interface of this thread's namespace.
fn limit(interface: &str, bits: u64) -> Result<(), String> {
    // A tenth of a second at the full rate, so that short bursts are not delayed.
    let burst = (bits / 80).clamp(MIN_BURST_BYTES, u64::from(u32::MAX) / 2);
    let output = Command::new("tc")
        .args(["qdisc", "replace", "dev", interface, "root", "tbf"])
        .args(["rate", &format!("{bits}bit"), "burst", &format!("{burst}b"), "latency", LATENCY])
        .output()
        .map_err(|e| format!("tc could not be run: {e} (package iproute2)"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("tc on {interface}: {}", String::from_utf8_lossy(&output.stderr).trim()))
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
