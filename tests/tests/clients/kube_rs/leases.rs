//! Leader election by a Lease, as in client-go: the writer of its latest version holds it.

use std::{cell::Cell, time::Duration};

use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::{Api, api::PostParams};

use super::{has_code, with_client};
use crate::server::Server;

const CANDIDATES: usize = 8;
const TERMS: u32 = 5;

pub(super) fn one_of_many_holds_a_lease(server: &Server) {
    let _ = server.objects("elected");
    with_client(server, |client| async move {
        let api: Api<Lease> = Api::namespaced(client, "elected");
        let (in_office, conflicts) = (Cell::new(0), Cell::new(0));
        let candidate = async |number: usize| -> anyhow::Result<()> {
            for _ in 0..TERMS {
                while !acquire(&api, &format!("candidate-{number}"), &conflicts).await? {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                in_office.set(in_office.get() + 1);
                anyhow::ensure!(in_office.get() == 1, "{} hold the lease at once", in_office.get());
                tokio::time::sleep(Duration::from_millis(1)).await;
                in_office.set(in_office.get() - 1);
                release(&api).await?;
            }
            Ok(())
        };
        try_join_all((0..CANDIDATES).map(&candidate)).await?;
        let last = api.get("leader").await?.spec.unwrap_or_default();
        anyhow::ensure!(last.lease_transitions == Some(i32::try_from(CANDIDATES)? * i32::try_from(TERMS)?), "{last:?}");
        anyhow::ensure!(conflicts.get() > 0, "nobody was ever refused");
        Ok(())
    });
}

/// Takes the lease, if it is free.
async fn acquire(api: &Api<Lease>, me: &str, conflicts: &Cell<u32>) -> anyhow::Result<bool> {
    let taken = |transitions: i32| LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_transitions: Some(transitions + 1),
        ..LeaseSpec::default()
    };
    let mut lease = Lease::default();
    lease.metadata.name = Some("leader".to_owned());
    let written = match api.get_opt("leader").await? {
        None => {
            lease.spec = Some(taken(0));
            api.create(&PostParams::default(), &lease).await
        }
        Some(held) if held.spec.as_ref().is_some_and(|s| s.holder_identity.is_some()) => return Ok(false),
        Some(mut free) => {
            free.spec = Some(taken(free.spec.and_then(|s| s.lease_transitions).unwrap_or(0)));
            api.replace("leader", &PostParams::default(), &free).await
        }
    };
    match written {
        Ok(_) => Ok(true),
        refused if has_code(&refused, 409) => {
            conflicts.set(conflicts.get() + 1);
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

async fn release(api: &Api<Lease>) -> anyhow::Result<()> {
    let mut lease = api.get("leader").await?;
    if let Some(spec) = lease.spec.as_mut() {
        spec.holder_identity = None;
    }
    api.replace("leader", &PostParams::default(), &lease).await?;
    Ok(())
}
