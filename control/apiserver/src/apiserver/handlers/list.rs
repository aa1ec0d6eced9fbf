//! `list`: pages, and lists of everything as chunks of JSON. A list of everything is never in memory as a whole, and holds
//! no worker for longer than a chunk takes: requests for single objects are answered in between.

use std::{io::Write as _, sync::Arc};

use axum::{
    body::Bytes,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use base64::Engine as _;
use flate2::{Compression, write::GzEncoder};
use futures::stream;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::read::Selectors;
use crate::apiserver::{
    filters::panics,
    request::{
        api_request::ApiRequest,
        error::{ApiError, ApiResult},
        negotiation::{Accept, GZIP_THRESHOLD_BYTES, Representation, metadata_list, metadata_of, row, table},
        request_info::RequestOptions,
        target::Target,
    },
    types::{ConversionError, Conversions, Version},
};
use crate::{
    schema::transcoding::Encoding,
    store::{Error, Key, Object, Snapshot},
};

/// Size of the stored objects of a chunk.
const CHUNK_BYTES: usize = 64 << 10;
/// The same for chunks whose objects are decoded or compressed, which takes some ten times as long.
const SLOW_CHUNK_BYTES: usize = 8 << 10;

impl ApiRequest {
    /// The objects of a list: the latest ones, or those at the requested revision or at the revision of the first page;
    /// and the key behind which it begins.
    pub(in crate::apiserver) fn listed(
        &self,
        target: &Target,
        options: &RequestOptions,
    ) -> Result<(Snapshot, Option<Key>), ApiError> {
        let (store, resource) = (self.store(), target.id()?);
        let (wanted_revision, current) = (options.revision()?, store.revision());
        if let Some(wanted_revision) = wanted_revision.filter(|wanted_revision| *wanted_revision > current) {
            return Err(ApiError::too_large_version(wanted_revision, current));
        }
        let error = |error: Error, old: ApiError| {
            if matches!(error, Error::TooOld { .. }) { old } else { ApiError::store(&error) }
        };
        if options.continue_.is_empty() {
            let exact = match options.resource_version_match.as_str() {
                "Exact" => true,
                // As upstream: `limit` with a resource version and without a match means `Exact`.
                "" => options.limit > 0,
                _ => false,
            };
            let Some(wanted_revision) = wanted_revision.filter(|_| exact) else {
                return Ok((store.snapshot(resource), None));
            };
            let old = "The resourceVersion for the provided list is too old.";
            let listed = store.snapshot_at(resource, wanted_revision);
            return Ok((listed.map_err(|e| error(e, ApiError::expired(old)))?, None));
        }
        let (at, start) = decode_continue(&options.continue_)?;
        let snapshot = match at {
            Some(at) if at > store.revision() => return Err(ApiError::too_large_version(at, store.revision())),
            Some(at) => store
                .snapshot_at(resource, at)
                .map_err(|e| error(e, ApiError::expired_continue_token(encode_continue(None, &start))))?,
            None => store.snapshot(resource),
        };
        Ok((snapshot, Some(start)))
    }

    pub(in crate::apiserver) async fn list(&self, target: &Target, options: &RequestOptions) -> ApiResult {
        let selectors = Selectors::read(target, options)?;
        let (snapshot, after) = self.listed(target, options)?;
        let has_protobuf = target.version.spec.schema.is_built_in();
        let accept = if has_protobuf { self.accept } else { self.accept.without_protobuf() };
        if options.limit > 0 || accept.encoding != Encoding::Json || !accept.is_acceptable {
            let page = self.page_of(target, options, &selectors, &snapshot, after.as_ref()).await?;
            return self.answer_page(&target.version, options, page);
        }
        // A chunk cannot be refused, nor wait.
        let foreign = target.version.stored_otherwise(snapshot.objects(target.namespace.as_deref(), after.as_ref()))?;
        let conversions = target.version.conversions(foreign).await?;
        let decodes = !(selectors.is_empty()
            && accept.representation == Representation::Object
            && target.version.is_served_as_stored());
        let chunk_bytes = if decodes || accept.gzip { SLOW_CHUNK_BYTES } else { CHUNK_BYTES };
        let (head, tail) = frame_of(&target.version, accept.representation, &snapshot);
        let chunks = Chunks {
            version: Arc::clone(&target.version),
            namespace: target.namespace.clone(),
            include: options.include_object.clone(),
            representation: accept.representation,
            next: Some(head),
            is_empty: true,
            snapshot,
            conversions,
            after,
            selectors,
            chunk_bytes,
            tail,
        };
        Ok(respond(accept, chunks).await)
    }

    /// A list of limited length, or one of which all is needed at once.
    pub(in crate::apiserver) async fn page_of(
        &self,
        target: &Target,
        options: &RequestOptions,
        selectors: &Selectors,
        snapshot: &Snapshot,
        after: Option<&Key>,
    ) -> Result<Page, ApiError> {
        let version = &target.version;
        let limit = if options.limit > 0 { options.limit } else { usize::MAX };
        let mut metadata = json!({"resourceVersion": snapshot.revision().to_string()});
        let mut objects = snapshot.objects(target.namespace.as_deref(), after);
        let (mut items, mut values, mut more) = (Vec::new(), Vec::new(), false);
        let decodes = self.accept.representation != Representation::Object;
        let mut turns = Turns::default();
        // What the selectors leave out must be read for that; without any, a page is all that is read.
        let read = if selectors.is_empty() { limit.saturating_add(1) } else { usize::MAX };
        let foreign = version.stored_otherwise(snapshot.objects(target.namespace.as_deref(), after).take(read))?;
        let conversions = version.conversions(foreign).await?;
        // Objects behind the page are left to the next one.
        for object in objects.by_ref() {
            let value = (decodes || !selectors.is_empty()).then(|| version.decode(object, &conversions)).transpose()?;
            if value.is_some() {
                turns.take(object.bytes.len()).await;
            }
            if value.as_ref().is_some_and(|value| !selectors.matches(value)) {
                continue;
            }
            if items.len() == limit {
                more = true;
                break;
            }
            items.push(Arc::clone(object));
            values.extend(value.filter(|_| decodes));
        }
        if let Some(last) = items.last().filter(|_| more) {
            metadata["continue"] = json!(encode_continue(Some(snapshot.revision()), &last.key));
            if selectors.is_empty() {
                metadata["remainingItemCount"] = json!(objects.count() + 1);
            }
        }
        Ok(Page { objects: items, conversions, values, metadata })
    }

    /// Answers with a page.
    pub(in crate::apiserver) fn answer_page(
        &self,
        version: &Version,
        options: &RequestOptions,
        page: Page,
    ) -> ApiResult {
        let Page { objects, conversions, values, metadata } = page;
        Ok(match self.accept.representation {
            Representation::Table(meta) => {
                let table = table(version, meta, &values, &options.include_object, metadata, true);
                self.accept.write(StatusCode::OK, &table)
            }
            Representation::Metadata(meta) => {
                self.accept.write(StatusCode::OK, &metadata_list(meta, metadata, &values))
            }
            Representation::Object => {
                let mut out = head_of_objects(version, &metadata);
                for (at, object) in objects.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    version.push_item(&mut out, object, &conversions)?;
                }
                out.extend_from_slice(b"]}");
                self.accept.bytes(StatusCode::OK, out.into())
            }
        })
    }
}

/// The objects of a page.
pub(in crate::apiserver) struct Page {
    pub(in crate::apiserver) objects: Vec<Arc<Object>>,
    conversions: Conversions,
    /// The same decoded, where they are not answered as they are.
    values: Vec<Value>,
    metadata: Value,
}

/// Gives others their turn on this thread while many objects are decoded: a list of all pods may take longer than a heartbeat
/// may wait.
#[derive(Debug, Default)]
struct Turns {
    bytes: usize,
}

impl Turns {
    /// How much is decoded in one turn: about a millisecond's.
    const BYTES: usize = 128 << 10;

    /// So many bytes were decoded.
    async fn take(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= Self::BYTES {
            self.bytes = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// A list of objects up to its first item.
fn head_of_objects(version: &Version, metadata: &Value) -> Vec<u8> {
    let (kind, api_version) = (&version.list_kind, version.gvk.api_version());
    let mut metadata = metadata.clone();
    // As upstream, whose lists of custom objects have no type that leaves it out.
    if !version.spec.schema.is_built_in() && metadata["continue"].is_null() {
        metadata["continue"] = json!("");
    }
    format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{metadata},"items":["#).into_bytes()
}

/// What stands before and behind the items of a list.
fn frame_of(version: &Version, representation: Representation, snapshot: &Snapshot) -> (Vec<u8>, Vec<u8>) {
    let metadata = json!({"resourceVersion": snapshot.revision().to_string()});
    let (list, items) = match representation {
        Representation::Object => return (head_of_objects(version, &metadata), b"]}".to_vec()),
        Representation::Table(meta) => (table(version, meta, &[], "None", metadata, true), r#""rows":["#),
        Representation::Metadata(meta) => (metadata_list(meta, metadata, &[]), r#""items":["#),
    };
    let mut head = list.to_string();
    // Descriptions of columns come before the rows.
    let tail = head.rfind(items).map(|at| head.split_off(at + items.len())).unwrap_or_default();
    (head.into_bytes(), tail.into_bytes())
}

/// A list as text.
struct Chunks {
    version: Arc<Version>,
    snapshot: Snapshot,
    conversions: Conversions,
    namespace: Option<String>,
    selectors: Selectors,
    representation: Representation,
    include: String,
    chunk_bytes: usize,
    /// The key behind which the next chunk begins.
    after: Option<Key>,
    /// No item was written yet.
    is_empty: bool,
    /// What the next chunk begins with; `None` when all chunks were taken.
    next: Option<Vec<u8>>,
    tail: Vec<u8>,
}

impl Iterator for Chunks {
    type Item = Vec<u8>;

    /// The next chunk; empty when none of its objects is selected.
    fn next(&mut self) -> Option<Vec<u8>> {
        let mut chunk = self.next.take()?;
        chunk.reserve(self.chunk_bytes);
        let (now, mut is_empty, mut bytes, mut last) = (Timestamp::now(), self.is_empty, 0, None);
        for object in self.snapshot.objects(self.namespace.as_deref(), self.after.as_ref()) {
            let end = chunk.len();
            if !is_empty {
                chunk.push(b',');
            }
            // Whether all can be converted was asked before.
            if matches!(self.push_item(&mut chunk, object, now), Ok(true)) {
                is_empty = false;
            } else {
                chunk.truncate(end);
            }
            bytes += object.bytes.len();
            if bytes >= self.chunk_bytes {
                last = Some(object.key.clone());
                break;
            }
        }
        self.is_empty = is_empty;
        if last.is_some() {
            self.after = last;
            self.next = Some(Vec::new());
        } else {
            chunk.append(&mut self.tail);
        }
        Some(chunk)
    }
}

impl Chunks {
    /// Appends an object as this list shows it, if it is selected.
    fn push_item(&self, chunk: &mut Vec<u8>, object: &Object, now: Timestamp) -> Result<bool, ConversionError> {
        if self.selectors.is_empty() && self.representation == Representation::Object {
            self.version.push_item(chunk, object, &self.conversions)?;
            return Ok(true);
        }
        let value = self.version.decode(object, &self.conversions)?;
        if !self.selectors.matches(&value) {
            return Ok(false);
        }
        let item = match self.representation {
            Representation::Object => {
                self.version.push_item(chunk, object, &self.conversions)?;
                return Ok(true);
            }
            Representation::Metadata(meta) => metadata_of(meta, &value),
            Representation::Table(meta) => row(&self.version, meta, &value, &self.include, now),
        };
        // A vector takes whatever is written.
        let _ = serde_json::to_writer(chunk, &item);
        Ok(true)
    }
}

/// Answers with a list: a small one as a whole, a large one chunk by chunk.
async fn respond(accept: Accept, mut chunks: Chunks) -> Response {
    let mut begin = Vec::new();
    while let Some(chunk) = chunks.next() {
        if begin.is_empty() {
            begin = chunk;
        } else {
            begin.extend_from_slice(&chunk);
        }
        if begin.len() > GZIP_THRESHOLD_BYTES && chunks.next.is_some() {
            break;
        }
        // Others have their turn also when nothing of a long list is selected.
        tokio::task::yield_now().await;
    }
    let media_type = Encoding::Json.media_type();
    if chunks.next.is_none() {
        return accept.encoded(StatusCode::OK, media_type, begin.into());
    }
    let gzip = accept.gzip.then(|| GzEncoder::new(Vec::new(), Compression::fast()));
    let is_compressed = gzip.is_some();
    let stream = stream::unfold((Some(begin), chunks, gzip), |(mut begin, mut chunks, mut gzip)| async move {
        loop {
            let chunk = match begin.take() {
                Some(begin) => begin,
                None => {
                    tokio::task::yield_now().await;
                    chunks.next()?
                }
            };
            let bytes = match &mut gzip {
                None => chunk,
                Some(gzip) => compressed(gzip, &chunk, chunks.next.is_none()),
            };
            if !bytes.is_empty() {
                return Some((Bytes::from(bytes), (begin, chunks, gzip)));
            }
        }
    });
    let mut response = (StatusCode::OK, [(header::CONTENT_TYPE, media_type)], panics::body(stream)).into_response();
    if is_compressed {
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// What the encoder gives for more text, which may be nothing yet.
fn compressed(gzip: &mut GzEncoder<Vec<u8>>, chunk: &[u8], is_last: bool) -> Vec<u8> {
    // A vector takes whatever is written.
    let _ = gzip.write_all(chunk);
    if is_last {
        let _ = gzip.try_finish();
    }
    std::mem::take(gzip.get_mut())
}

/// The token of the next page: its start, and the revision of all pages. Without a revision the list continues in the
/// present.
fn encode_continue(revision: Option<u64>, last: &Key) -> String {
    let revision = revision.map_or(json!(-1), Value::from);
    let token = json!({"v": "meta.k8s.io/v1", "rv": revision, "start": format!("{}/{}", last.namespace, last.name)});
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token.to_string())
}

fn decode_continue(text: &str) -> Result<(Option<u64>, Key), ApiError> {
    let wrong = || ApiError::bad_request("continue key is not valid: it must be what an earlier list gave");
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong())?;
    let token: Value = serde_json::from_slice(&bytes).map_err(|_| wrong())?;
    let start = token["start"].as_str().and_then(|s| s.split_once('/')).ok_or_else(wrong)?;
    let revision = match token["rv"].as_i64() {
        Some(-1) => None,
        Some(revision) => Some(u64::try_from(revision).map_err(|_| wrong())?),
        None => return Err(wrong()),
    };
    Ok((revision, Key { namespace: start.0.to_owned(), name: start.1.to_owned() }))
}
