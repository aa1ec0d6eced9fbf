//! Obtains the node's client certificate, reporting progress.

use std::{path::Path, time::Duration};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_agent::certificates::{
    self, CertificateManager, CertificateState, CertificateTemplate, CertifiedKey, ClientProvider, Purpose, Requester,
};
use windlass_kit::client::{Access, Limits};

/// The certificate, and the symlink to the current one's file.
pub(crate) struct IssuedCertificate {
    pub(crate) pair: CertifiedKey,
    pub(crate) current: std::path::PathBuf,
}

/// The progress message of a state.
pub(super) fn describe(state: &CertificateState) -> Option<String> {
    Some(match state {
        CertificateState::Idle => return None,
        CertificateState::Valid { not_after } => {
            format!("the certificate is valid until {}", Timestamp::from_second(*not_after).unwrap_or_default())
        }
        CertificateState::Requested(name) => format!("requested as {name}"),
        CertificateState::Pending { advice, .. } => format!("the request is pending; {advice}"),
        CertificateState::Approved(name) => format!("{name} is approved; waiting for its signature"),
        CertificateState::Failed { reason, .. } => reason.clone(),
    })
}

/// Opens the certificates in `pki`; those of another cluster, or that the API no longer accepts, are removed.
async fn open(
    pki: &Path,
    node: &str,
    found: &super::discovery::DiscoveredCluster,
    token: &Access,
) -> anyhow::Result<CertificateManager> {
    let open_manager = |token: &Access| {
        let token = token.clone();
        let clients: ClientProvider = Box::new(move |requester| {
            let token = token.clone();
            Box::pin(async move {
                match requester {
                    Requester::Bootstrap => Ok(token.client(Limits::DEFAULT)),
                    Requester::Node => Err("the node's certificate is not rotated during a join".to_owned()),
                }
            })
        });
        CertificateManager::open(pki, Purpose::Client, clients, false, std::sync::Arc::default())
    };
    let manager = open_manager(token)?;
    let existing = manager.pairs().borrow().clone();
    let Some(pair) = existing else { return Ok(manager) };
    let known = match found.access(super::join_dir::credentials(&pair)) {
        Ok(access) => {
            let answer: Result<k8s_openapi::api::core::v1::Node, kube::Error> =
                kube::Api::all(access.client(Limits::HEARTBEAT)).get(node).await;
            !matches!(answer, Err(kube::Error::Api(answer)) if answer.code == 401)
        }
        Err(_) => false,
    };
    if known {
        return Ok(manager);
    }
    drop(manager);
    certificates::remove_all(pki)?;
    Ok(open_manager(token)?)
}

/// Obtains a certificate for the node, or uses that of an interrupted join; `report` gets each progress message.
pub(crate) async fn obtain(
    pki: &Path,
    node: &str,
    found: &super::discovery::DiscoveredCluster,
    token: &Access,
    limit: Duration,
    report: impl Fn(String),
) -> anyhow::Result<IssuedCertificate> {
    let manager = open(pki, node, found, token).await?;
    let (mut pairs, mut state, current) = (manager.pairs(), manager.state(), manager.current_path());
    let template = watch::Sender::new(Some(CertificateTemplate::client(node)));
    let no_other = watch::Sender::new(None);
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    let running = manager.run(template.subscribe(), no_other.subscribe(), stop);
    let mut last = String::new();
    let waiting = async {
        loop {
            let now = state.borrow_and_update().clone();
            if let Some(message) = describe(&now).filter(|message| *message != last) {
                report(message.clone());
                last = message;
            }
            match now {
                CertificateState::Valid { .. } => {
                    let pair = pairs.borrow_and_update().clone();
                    if let Some(pair) = pair {
                        return Ok(pair);
                    }
                }
                CertificateState::Failed { reason, denied: true } => return Err(reason),
                _ => {}
            }
            tokio::select! {
                changed = state.changed() => if changed.is_err() { return Err("the certificate manager has ended".to_owned()) },
                _ = pairs.changed() => {}
            }
        }
    };
    let ended = tokio::select! {
        () = running => Err("the certificate manager has ended".to_owned()),
        waited = tokio::time::timeout(limit, waiting) => waited.unwrap_or_else(|_| Err(String::new())),
    };
    match ended {
        Ok(pair) => Ok(IssuedCertificate { pair, current }),
        Err(reason) if reason.is_empty() => {
            let state = describe(&state.borrow()).unwrap_or_else(|| "no state was reported".to_owned());
            anyhow::bail!(
                "no certificate within {} s: {state}. The request stays: run the same command again once it is approved",
                limit.as_secs()
            )
        }
        Err(reason) => anyhow::bail!("no certificate: {reason}"),
    }
}
