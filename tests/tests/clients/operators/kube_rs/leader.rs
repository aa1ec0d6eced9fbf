//! Leader election as in client-go: who has not seen the lease renewed for its duration takes it.

use std::time::{Duration, Instant};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};

use super::{NAMESPACE, controller};

pub(super) const LEASE: &str = "cache-operator";
/// How long nobody else takes it after it was renewed, and how often it is.
const DURATION: Duration = Duration::from_secs(3);
const RENEWAL: Duration = Duration::from_millis(500);

/// What was seen of the lease.
struct Candidate {
    leases: Api<Lease>,
    me: &'static str,
    /// The last version of it, and when that was new.
    seen: Option<(String, Instant)>,
}

/// Runs the controller whenever this instance leads, and stops it when it does not.
pub(super) async fn lead(client: Client, me: &'static str) {
    let mut candidate = Candidate { leases: Api::namespaced(client.clone(), NAMESPACE), me, seen: None };
    loop {
        if matches!(candidate.acquire().await, Ok(true)) {
            tokio::select! {
                () = controller::run(client.clone(), me) => {}
                () = candidate.keep() => {}
            }
        }
        tokio::time::sleep(RENEWAL).await;
    }
}

impl Candidate {
    /// Takes or renews the lease, unless another one holds it. A conflict with another candidate is an error.
    async fn acquire(&mut self) -> Result<bool, kube::Error> {
        let (params, now) = (PostParams::default(), Some(MicroTime(Timestamp::now())));
        let Some(mut lease) = self.leases.get_opt(LEASE).await? else {
            let mut lease = Lease::default();
            lease.metadata.name = Some(LEASE.to_owned());
            lease.spec = Some(LeaseSpec {
                holder_identity: Some(self.me.to_owned()),
                lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
                lease_transitions: Some(0),
                acquire_time: now.clone(),
                renew_time: now,
                ..LeaseSpec::default()
            });
            self.leases.create(&params, &lease).await?;
            return Ok(true);
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != version) {
            self.seen = Some((version, Instant::now()));
        }
        let is_over = self.seen.as_ref().is_some_and(|(_, since)| since.elapsed() > DURATION);
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(self.me) {
            if !is_over {
                return Ok(false);
            }
            spec.holder_identity = Some(self.me.to_owned());
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0) + 1);
            spec.acquire_time.clone_from(&now);
        }
        spec.renew_time = now;
        self.leases.replace(LEASE, &params, &lease).await?;
        Ok(true)
    }

    /// Renews the lease, until another one has it or it could not be renewed for its duration.
    async fn keep(&mut self) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < DURATION {
            tokio::time::sleep(RENEWAL).await;
            match self.acquire().await {
                Ok(true) => renewed = Instant::now(),
                Ok(false) => return,
                // The server may be away for a moment.
                Err(_) => {}
            }
        }
    }
}
