//! Has the node's certificate issued, telling how far it is.

use std::{path::Path, time::Duration};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_agent::certificates::{self, Clients, Manager, Pair, Purpose, Requester, Standing, Wanted};
use windlass_kit::client::{Access, Limits};

/// A certificate and the link that always leads to the current one's file.
pub(crate) struct Issued {
    pub(crate) pair: Pair,
    pub(crate) current: std::path::PathBuf,
}

/// What is said at a step.
pub(super) fn words(standing: &Standing) -> Option<String> {
    Some(match standing {
        Standing::Idle => return None,
        Standing::Good { ends } => {
            format!("the certificate is good until {}", Timestamp::from_second(*ends).unwrap_or_default())
        }
        Standing::Requested(name) => format!("asked for as request {name}"),
        Standing::Pending { advice, .. } => format!("the request waits; {advice}"),
        Standing::Approved(name) => format!("{name} is approved, and will be signed"),
        Standing::Failed { reason, .. } => reason.clone(),
    })
}

/// Opens the certificates in `pki`; those of another cluster, or that the API does not know any more, are forgotten.
async fn open(pki: &Path, node: &str, found: &super::discovery::Found, token: &Access) -> anyhow::Result<Manager> {
    let managed = |token: &Access| {
        let token = token.clone();
        let clients: Clients = Box::new(move |requester| {
            let token = token.clone();
            Box::pin(async move {
                match requester {
                    Requester::Bootstrap => Ok(token.client(Limits::DEFAULT)),
                    Requester::Node => Err("the node's certificate is not renewed while it joins".to_owned()),
                }
            })
        });
        Manager::open(pki, Purpose::Client, clients, false, std::sync::Arc::default())
    };
    let manager = managed(token)?;
    let kept = manager.pairs().borrow().clone();
    let Some(pair) = kept else { return Ok(manager) };
    let known = match found.access(super::place::credentials(&pair)) {
        Ok(access) => {
            let asked: Result<k8s_openapi::api::core::v1::Node, kube::Error> =
                kube::Api::all(access.client(Limits::HEARTBEAT)).get(node).await;
            !matches!(asked, Err(kube::Error::Api(answer)) if answer.code == 401)
        }
        Err(_) => false,
    };
    if known {
        return Ok(manager);
    }
    drop(manager);
    certificates::forget(pki)?;
    Ok(managed(token)?)
}

/// Has a certificate for the node issued, or takes the one of a join that was interrupted. `tell` hears of each step.
pub(crate) async fn obtain(
    pki: &Path,
    node: &str,
    found: &super::discovery::Found,
    token: &Access,
    limit: Duration,
    tell: impl Fn(String),
) -> anyhow::Result<Issued> {
    let manager = open(pki, node, found, token).await?;
    let (mut pairs, mut standing, current) = (manager.pairs(), manager.standing(), manager.current_path());
    let wanted = watch::Sender::new(Some(Wanted::client(node)));
    let given = watch::Sender::new(None);
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    let managing = manager.run(wanted.subscribe(), given.subscribe(), stop);
    let mut last = String::new();
    let waiting = async {
        loop {
            let now = standing.borrow_and_update().clone();
            if let Some(words) = words(&now).filter(|words| *words != last) {
                tell(words.clone());
                last = words;
            }
            match now {
                Standing::Good { .. } => {
                    let pair = pairs.borrow_and_update().clone();
                    if let Some(pair) = pair {
                        return Ok(pair);
                    }
                }
                Standing::Failed { reason, refused: true } => return Err(reason),
                _ => {}
            }
            tokio::select! {
                changed = standing.changed() => if changed.is_err() { return Err("the certificate manager has ended".to_owned()) },
                _ = pairs.changed() => {}
            }
        }
    };
    let ended = tokio::select! {
        () = managing => Err("the certificate manager has ended".to_owned()),
        waited = tokio::time::timeout(limit, waiting) => waited.unwrap_or_else(|_| Err(String::new())),
    };
    match ended {
        Ok(pair) => Ok(Issued { pair, current }),
        Err(reason) if reason.is_empty() => {
            let state = words(&standing.borrow()).unwrap_or_else(|| "nothing was heard of it".to_owned());
            anyhow::bail!(
                "no certificate within {} s: {state}. The request is kept: run the same line again once it is approved",
                limit.as_secs()
            )
        }
        Err(reason) => anyhow::bail!("no certificate: {reason}"),
    }
}
