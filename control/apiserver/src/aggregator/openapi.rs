//! OpenAPI documents of extension API servers: the list of those of version 3, and the one of version 2, which is read when
//! somebody wants it, and then served as it was while it is read again. A server that has the latter alone gets its document of
//! version 3 from it, here.
//!
//! Upstream: `k8s.io/kube-aggregator/pkg/controllers/{openapi,openapiv3}`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{body::Bytes, http::StatusCode};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::{sync::watch, time::Instant};
use windlass_apimachinery::openapi::{v2_conversion, v2_merge};
use windlass_kit::blocking::COMPUTE;

use super::extension_server::{Ask, Fetched, RemoteServer};
use crate::{
    apiserver::{
        User,
        types::{OpenApiV2, OpenApiV3},
    },
    schema::openapi_hash_of,
};

/// As whom documents are read.
const USER: &str = "system:aggregator";
/// Time limit of a download.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The most bytes of a list of documents, and of a document. That of a whole cluster has about six million.
const MAX_INDEX_BYTES: usize = 1 << 20;
const MAX_DOCUMENT_BYTES: usize = 16 << 20;
/// How long a document counts, and how long after a failure it is not asked for.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// How long somebody who asks waits for the first document.
const FIRST_WAIT: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    paths: BTreeMap<String, Place>,
}

#[derive(Deserialize)]
struct Place {
    #[serde(rename = "serverRelativeURL", default)]
    url: String,
}

/// A document of version 2 in version 3, and the tag of what it was made from.
#[derive(Debug, Clone)]
pub(super) struct LegacyDocument {
    etag: String,
    converted: Arc<OpenApiV3>,
}

/// The documents of version 3 of a server.
#[derive(Debug)]
pub(super) enum Documents {
    /// Where it has them, by their paths.
    Listed(BTreeMap<String, String>),
    /// It has none, and this one is made for all its group versions.
    Legacy(LegacyDocument),
    /// It has no documents at all.
    Missing,
}

impl Documents {
    /// What of them is about a group version: where each is. Pure.
    pub(super) fn index_of(&self, group: &str, version: &str) -> BTreeMap<String, String> {
        match self {
            Self::Listed(all) => index_of(all, group, version),
            Self::Legacy(document) => {
                let path = format!("apis/{group}/{version}");
                let url = format!("/openapi/v3/{path}?hash={}", document.converted.hash);
                BTreeMap::from([(path, url)])
            }
            Self::Missing => BTreeMap::new(),
        }
    }

    /// The document that this server has.
    pub(super) fn converted(&self) -> Option<Arc<OpenApiV3>> {
        self.legacy().map(|document| document.converted)
    }

    pub(super) fn legacy(&self) -> Option<LegacyDocument> {
        match self {
            Self::Legacy(document) => Some(document.clone()),
            Self::Listed(_) | Self::Missing => None,
        }
    }
}

/// The documents of version 3 of a server. Of one without a list of them the document of version 2 is read, if it is another
/// than the `known` one.
///
/// # Errors
/// When they cannot be read.
pub(super) async fn fetch_v3(server: &RemoteServer, known: Option<LegacyDocument>) -> Result<Documents, String> {
    if let Some(all) = fetch_index(server).await? {
        return Ok(Documents::Listed(all));
    }
    let etag = known.as_ref().map_or("", |known| known.etag.as_str());
    match (fetch_v2(server, etag).await?, known) {
        (V2::Unchanged, Some(known)) => Ok(Documents::Legacy(known)),
        (V2::Unchanged, None) => Err("it says that a document is unchanged that was not read before".to_owned()),
        (V2::Missing, _) => Ok(Documents::Missing),
        (V2::Document { etag, body }, _) => {
            // It may be large.
            let converted = COMPUTE.call(move || {
                let document: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
                let text: Bytes = v2_conversion::v3_of(&document).to_string().into();
                Ok::<_, String>(OpenApiV3 { hash: openapi_hash_of(&text), text })
            });
            let converted = Arc::new(converted.await.map_err(|error| error.to_string())??);
            Ok(Documents::Legacy(LegacyDocument { etag, converted }))
        }
    }
}

/// Where the documents of version 3 are, by their paths; `None` for a server without a list of them.
async fn fetch_index(server: &RemoteServer) -> Result<Option<BTreeMap<String, String>>, String> {
    let user = User { name: USER.to_owned(), ..User::default() };
    let ask =
        Ask { path: "/openapi/v3", user: &user, accept: "*/*", etag: "", max_bytes: MAX_INDEX_BYTES, timeout: TIMEOUT };
    let fetched = server.fetch(&ask).await?;
    match fetched.status {
        StatusCode::NOT_FOUND => Ok(None),
        StatusCode::OK => {
            let index: Index = serde_json::from_slice(&fetched.body).map_err(|error| error.to_string())?;
            Ok(Some(index.paths.into_iter().map(|(path, place)| (path, place.url)).collect()))
        }
        status => Err(format!("Error, could not get list of group versions for APIService: {}", status.as_u16())),
    }
}

/// What of a list is about a group version. A server says nothing of what others serve. Pure.
fn index_of(all: &BTreeMap<String, String>, group: &str, version: &str) -> BTreeMap<String, String> {
    let (of_group, of_version) = (format!("apis/{group}"), format!("apis/{group}/{version}"));
    let own = all.iter().filter(|(path, url)| {
        // A client would follow a URL elsewhere.
        (**path == of_group || **path == of_version) && url.starts_with(&format!("/openapi/v3/{path}"))
    });
    own.map(|(path, url)| (path.clone(), url.clone())).collect()
}

#[derive(Debug, Default)]
struct State {
    document: Option<Arc<OpenApiV2>>,
    /// When it was last asked for.
    asked: Option<Instant>,
    is_running: bool,
}

/// The document of version 2 of a group version.
#[derive(Debug)]
pub(super) struct OpenApiCache {
    prefix: String,
    state: Mutex<State>,
    /// Counts the downloads that have ended.
    ended: watch::Sender<u64>,
}

impl OpenApiCache {
    /// For the group version whose paths begin so.
    pub(super) fn new(path: &str) -> Self {
        Self { prefix: format!("{path}/"), state: Mutex::default(), ended: watch::Sender::new(0) }
    }

    /// The document as it is known; the first is waited for a while.
    pub(super) async fn document(self: &Arc<Self>, server: RemoteServer) -> Option<Arc<OpenApiV2>> {
        let mut ended = self.ended.subscribe();
        let is_running = {
            let mut state = self.state.lock();
            let is_fresh = state.asked.is_some_and(|asked| asked.elapsed() < REFRESH_INTERVAL);
            if !is_fresh && !state.is_running {
                state.is_running = true;
                tokio::spawn(Arc::clone(self).refresh(server));
            }
            if state.document.is_some() {
                return state.document.clone();
            }
            state.is_running
        };
        if is_running {
            let _ = tokio::time::timeout(FIRST_WAIT, ended.changed()).await;
        }
        self.state.lock().document.clone()
    }

    async fn refresh(self: Arc<Self>, server: RemoteServer) {
        let known = self.state.lock().document.as_ref().map(|known| known.etag.clone());
        let fetched = fetch_document(&server, known.as_deref().unwrap_or(""), &self.prefix).await;
        if let Err(why) = &fetched {
            tracing::warn!(
                ?server,
                why,
                "failed to download OpenAPI document of extension API server; retrying in a minute"
            );
        }
        {
            let mut state = self.state.lock();
            if let Ok(Some(document)) = fetched {
                state.document = document;
            }
            state.asked = Some(Instant::now());
            state.is_running = false;
        }
        self.ended.send_modify(|ended| *ended += 1);
    }
}

/// What is new: a document, or none any more.
async fn fetch_document(
    server: &RemoteServer,
    known: &str,
    prefix: &str,
) -> Result<Option<Option<Arc<OpenApiV2>>>, String> {
    let (etag, body) = match fetch_v2(server, known).await? {
        V2::Unchanged => return Ok(None),
        V2::Missing => return Ok(Some(None)),
        V2::Document { etag, body } => (etag, body),
    };
    let prefix = prefix.to_owned();
    // It may be large.
    let read = COMPUTE.call(move || {
        let document = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        Ok(v2_merge::filtered(&document, &[&prefix]))
    });
    let document = read.await.map_err(|error| error.to_string())?.map_err(|error: String| error)?;
    Ok(Some(Some(Arc::new(OpenApiV2 { etag, document }))))
}

/// The document of version 2 of a server.
enum V2 {
    /// It is the one that is known.
    Unchanged,
    Missing,
    Document {
        etag: String,
        body: Bytes,
    },
}

/// Asks for the document of version 2, if it is another than that of the `known` tag, which is empty for none.
async fn fetch_v2(server: &RemoteServer, known: &str) -> Result<V2, String> {
    let user = User { name: USER.to_owned(), ..User::default() };
    let own_tag = if known.starts_with(LOCAL_TAG) { "" } else { known };
    let ask = Ask {
        path: "/openapi/v2",
        user: &user,
        accept: "application/json",
        etag: own_tag,
        max_bytes: MAX_DOCUMENT_BYTES,
        timeout: TIMEOUT,
    };
    let Fetched { status, etag, body, .. } = server.fetch(&ask).await?;
    match status {
        StatusCode::NOT_MODIFIED if !known.is_empty() => return Ok(V2::Unchanged),
        StatusCode::NOT_FOUND => return Ok(V2::Missing),
        StatusCode::OK => {}
        status => return Err(format!("failed to retrieve openAPI spec, http error: {}", status.as_u16())),
    }
    let etag = if etag.is_empty() { tag_of(&body) } else { etag };
    Ok(if etag == known { V2::Unchanged } else { V2::Document { etag, body } })
}

/// Begins the tags of documents whose servers have none.
const LOCAL_TAG: &str = "\"6E8F849B434D4B98A569B9D7718876E9-";

fn tag_of(body: &[u8]) -> String {
    format!("{LOCAL_TAG}{}\"", openapi_hash_of(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_lists_documents_of_its_own_group_alone() {
        let all: BTreeMap<String, String> = [
            ("apis/g", "/openapi/v3/apis/g?hash=1"),
            ("apis/g/v1", "/openapi/v3/apis/g/v1?hash=2"),
            ("apis/g/v2", "/openapi/v3/apis/g/v2?hash=3"),
            ("apis/apps/v1", "/openapi/v3/apis/apps/v1?hash=4"),
            ("version", "/openapi/v3/version?hash=5"),
        ]
        .into_iter()
        .map(|(path, url)| (path.to_owned(), url.to_owned()))
        .collect();
        let listed: Vec<String> = index_of(&all, "g", "v1").into_keys().collect();
        assert_eq!(listed, ["apis/g", "apis/g/v1"]);
        let elsewhere = BTreeMap::from([("apis/g/v1".to_owned(), "https://evil.example/".to_owned())]);
        assert!(index_of(&elsewhere, "g", "v1").is_empty());
    }
}
